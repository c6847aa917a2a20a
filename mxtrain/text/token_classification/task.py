"""A tag for each word of a sentence, such as the names in a text.

Legend: B batch, T tokens of a sample, W words, K tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.text.kinds import TokenTags
from mxtrain.text.token_classification.tags import TagCodes, find_entities, is_plain
from mxtrain.types import Artifact, Table, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.text.token_classification.tagged import TaggedSentences
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject


class TokenClassification(Task):
    """Scores (B, T, K) against tags (B, T) at the first token of each word; -1 at all other tokens.

    Predictions are (B, T): the number of the likeliest tag where a word begins, -1 elsewhere. A sentence that is longer
    than `dataset.max_length` is several samples, one after the other.
    """

    name: ClassVar[str] = "token_classification"
    takes: ClassVar[Takes] = Takes(TokenTags)

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        if not isinstance(loss, CustomLoss):
            return
        if not loss.dense_labels:
            loss.refuse_smoothing("tag")
        loss.refuse_counting_ignored("tokens inside words", "token_softmax_cross_entropy")

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(shapes_of(signature.shape)[0][0], self.num_classes(signature))]

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        """See `Task.build_meter`.

        Raises:
            ConfigError: entities are to be measured, and the tags mean none.
        """
        from mxtrain.text.token_classification.metrics import EntityF1

        for name, metric in description.metric.items():
            if isinstance(metric, EntityF1) and is_plain(signature.class_names):
                raise ConfigError(
                    f"metric.{name}: the tags ({', '.join(signature.class_names[:5])}, ...) are no B-X and I-X, so "
                    "they mean no entities. Type metric=[token_accuracy] trainer.monitor=val/token_accuracy."
                )
        return super().build_meter(description, signature, weights, training)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the most probable tag where a word begins, (B, T), -1 elsewhere."""
        from mxtrain.engine.backend import nd

        best_BT = outputs[0].astype("float32").argmax(axis=-1)
        return nd.where(batch.targets[0].astype("float32") >= 0, best_BT, -nd.ones_like(best_BT))

    def record_of(self, index: int, meta: Any) -> Optional[int]:
        """Returns the index of the sentence, of which a sample may be a part."""
        return int(meta[0])

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the words of the sentence, the true and the predicted tags, and the number of wrong ones."""
        true, predicted = (tags_of(signature, tag_T) for tag_T in (sample.targets[0], sample.prediction))
        words = source.words.sentences[int(sample.meta[0])]  # type: ignore[attr-defined]  # of TaggedSentences
        num_wrong = sum(a != b for a, b in zip(true, predicted))
        return {"words": " ".join(words), "true": " ".join(true), "predicted": " ".join(predicted), "wrong": num_wrong}

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the tags of the words of a sample."""
        return {"tags": tags_of(signature, prediction)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        words: TaggedSentences = source  # type: ignore[assignment]  # of words
        sentences = words.words.sentences
        sentence_tags = joined(sentences, (tags_of(signature, prediction) for prediction in predictions))
        rows = [
            [
                " ".join(sentences[index]),
                marked(sentences[index], words.words.tags[index]),
                marked(sentences[index], tags),
            ]
            for index, tags in sentence_tags
        ]
        return [Table("samples", ["sentence", "tags", "predicted"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.text.token_classification.report import TokenReport

        return TokenReport(self.build_decode(description, signature), signature, source)  # type: ignore[arg-type]

    def prediction_format(self) -> PredictionFormat:
        return TokenClassificationFormat(self)


class TokenClassificationFormat(PredictionFormat):
    """Rows and files of the predictions of `TokenClassification`."""

    formats: ClassVar[Tuple[str, ...]] = ("conll",)

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """Yields the words of each sentence, their tags, and the entities that the tags describe."""
        sentences = source.words.sentences  # type: ignore[attr-defined]  # of TaggedSentences
        for index, tags in joined(sentences, (tags_of(signature, prediction) for _, prediction in predictions)):
            row: Dict[str, Json] = {"words": list(sentences[index]), "tags": tags}
            if not is_plain(signature.class_names):
                row["entities"] = entities_of(signature, sentences[index], tags)
            yield index, row

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns words and tags, joined with spaces."""
        return {key: " ".join(row[key]) for key in ("words", "tags") if key in row}

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields CoNLL columns: a word and its tag per line, an empty line after each sentence."""
        for row in rows:
            yield "".join(f"{word} {tag}\n" for word, tag in zip(row["words"], row["tags"])) + "\n"


def tags_of(signature: Signature, prediction: np.ndarray) -> List[str]:
    """Returns the tags of a sample's words."""
    return [signature.class_names[int(tag)] for tag in prediction[prediction >= 0]]


def joined(sentences: Sequence[Sequence[str]], parts: Iterable[List[str]]) -> Iterator[Tuple[int, List[str]]]:
    """Yields the index and the tags of each sentence, joined from the samples that are its parts."""
    index = 0
    tags: List[str] = []
    for part in parts:
        tags = [*tags, *part]
        if len(tags) >= len(sentences[index]):
            yield index, tags
            index, tags = index + 1, []


def marked(words: Sequence[str], tags: Sequence[str]) -> str:
    """Returns the words with a tag other than O, as word/tag."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags) if tag != "O")


def entities_of(signature: Signature, words: Sequence[str], tags: Sequence[str]) -> List[Json]:
    """Returns the entities that tags describe: type, text, and range of their words."""
    import numpy as np

    codes, number = TagCodes(signature.class_names), {name: k for k, name in enumerate(signature.class_names)}
    code_W = codes.code_K[[number[tag] for tag in tags]]
    entities = find_entities(code_W, np.zeros(len(code_W), np.int64))
    return [
        {"type": codes.types[kind], "text": " ".join(words[begin:end]), "begin": begin, "end": end}
        for kind, begin, end in zip(entities.type_E.tolist(), entities.begin_E.tolist(), entities.end_E.tolist())
    ]
