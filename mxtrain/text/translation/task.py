"""Translation of texts, token by token.

Legend: B batch, T tokens of a target.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.writing import NAMES
from mxtrain.errors import ConfigError
from mxtrain.files.text_lines import split_lines
from mxtrain.loss.custom import CustomLoss
from mxtrain.metric.metrics import TokenMetric
from mxtrain.metric.rouge import Rouge
from mxtrain.metric.texts import MECAB, Bleu, TextMetric, sacrebleu_metric
from mxtrain.task.decoding_network import DecodingNetwork
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.report import Report
from mxtrain.task.task_export import TaskExport
from mxtrain.text.translation.beam_searching import BeamSearchTask, hypotheses_of
from mxtrain.text.translation.model import TranslatingModel
from mxtrain.text.translation.signature import TranslationSignature
from mxtrain.text.translation.translation import TranslationDataset, configs_of
from mxtrain.types import Artifact, Table, shapes_of
from mxtrain.types.kinds import Takes, Translations

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.exported_part import ExportedPart
    from mxtrain.text.translation.parallel import AnyPairs
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject, LossBlock

log = logging.getLogger(__name__)


def translating_model(description: RunParts) -> TranslatingModel:
    """Returns the model of a description.

    Raises:
        ConfigError: the model is not a `TranslatingModel`.
    """
    model = description.model
    if not isinstance(model, TranslatingModel):
        raise ConfigError(
            f"model: {type(model).__name__} does not translate. Type model=transformer or model=gnmt; a network of "
            "your own is a subclass of mxtrain.text.translation.model.TranslatingModel."
        )
    return model


class Translation(BeamSearchTask):
    """Translation.

    Outputs are -log p of each target token, (B, T), and the mean of -log p over the vocabulary, (B, T). Targets are the
    tokens (B, T), -1 = padding, and the number of bytes of text that they encode, (B,). Predictions are results of a
    beam search, see `BeamSearching`.
    """

    name: ClassVar[str] = "translation"
    takes: ClassVar[Takes] = Takes(Translations)
    decodes_slowly: ClassVar[bool] = True
    text_name: ClassVar[str] = "translation"
    """Name of the generated text in rows and tables."""
    texts_name: ClassVar[str] = "translations"
    """Its plural, the name of tables."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: networks of task=translation return -log p of each token, so that their output layer can be "
                "computed in chunks, and a loss of your own cannot look at scores. Type "
                "loss=label_smoothed_cross_entropy."
            )
        for metric in description.metric.values():
            if isinstance(metric, Bleu) and metric.tokenize in MECAB:
                sacrebleu_metric(metric)  # raises if MeCab is not installed
        dataset = description.dataset
        is_joint = dataset.joint_vocabulary if isinstance(dataset, TranslationDataset) else True
        translating_model(description).tie(is_joint)

    def num_classes(self, signature: Signature) -> int:
        return TranslationSignature.cast(signature).target_tokenizer_config.size

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [shapes_of(signature.shape)[2]] * 2

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        signature = TranslationSignature.cast(signature)
        return translating_model(description).build_translator(
            self.num_classes(signature), signature.shape, signature.vocab_size, signature.is_joint
        )

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        """Returns the metrics; BLEU and ROUGE get the word segmentation for the language of the training
        targets."""
        language = TranslationSignature.cast(signature).target_language
        return {
            name: _for_language(name, metric, language) if isinstance(metric, TextMetric) else metric
            for name, metric in description.metric.items()
        }

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter, MeterOutputs

        metrics, outputs = self.metrics(description, signature), MeterOutputs(2, num_read=1)
        return Meter(metrics, self.num_classes(signature), weights, outputs, training=training)

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Adds the tokenization to the signature of every perplexity, and the search settings to metrics of generated
        text."""
        tokenizer = TranslationSignature.cast(signature).target_tokenizer_config.tokenizer
        metrics = self.metrics(description, signature)
        signatures = {name: metric.signature for name, metric in metrics.items() if metric.signature}
        for name, metric in metrics.items():
            if isinstance(metric, TextMetric):
                signatures[name] = "|".join(filter(None, (signatures.get(name), self.search_signature)))
            elif isinstance(metric, TokenMetric):
                signatures[name] = f"vocabulary={tokenizer.kind},{tokenizer.size},{tokenizer.digest[:8]}"
        return signatures

    def build_collate(self, description: RunParts, signature: Signature, training: bool) -> Optional[Collate]:
        """Returns a function that wraps the reference translations of a batch, so that metrics can decode
        predictions."""

        def collate(batch: Batch, epoch: int) -> Batch:
            if batch.meta is None:
                return batch
            meta_B = np.empty(batch.size, object)
            meta_B[:] = [ReferenceTranslation(text, self, signature) for text in batch.meta]
            return replace(batch, meta=meta_B)

        # Training measures no texts, so its batches need no references.
        return None if training else collate

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        assert strategy is not None
        network = _decoding_network(description, signature, strategy)
        special = TranslationSignature.cast(signature).target_tokenizer_config.tokenizer.special
        assert special.bos is not None and special.eos is not None
        never = [token for token in special.ids if token != special.eos]
        beam = self.build_beam(special.bos, special.eos, never)
        return self.build_searching(network, beam, lambda batch: (batch.inputs[:2], batch.inputs[1].asnumpy()))

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        raise AssertionError("texts are translated token by token: `build_decode`")

    def texts(self, signature: Signature, prediction: np.ndarray) -> List[Tuple[str, float]]:
        """Returns the translations, best first, with their log probabilities."""
        tokenizer = TranslationSignature.cast(signature).target_tokenizer_config.tokenizer
        return [(tokenizer.decode(tokens.tolist()), score) for tokens, score in hypotheses_of(prediction)]

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the text, its reference and its translation."""
        pairs: AnyPairs = source  # type: ignore[assignment]  # of pairs
        return {
            "source": pairs.pairs[sample.index][0],
            "reference": sample.meta.text,
            "hypothesis": sample.meta.read(sample.prediction),
        }

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the best translation, and others if `task.num_best` is above 1."""
        (best, score), *others = self.texts(signature, prediction)
        row: Dict[str, Json] = {self.text_name: best, "score": round(score, 4)}
        if others:
            row["others"] = [{self.text_name: text, "score": round(score, 4)} for text, score in others]
        return row

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a table of sources, references and translations."""
        pairs = source.pairs  # type: ignore[attr-defined]  # of pairs
        rows = [
            (text, reference, self.texts(signature, prediction)[0][0])
            for (text, reference), prediction in zip(pairs, predictions)
        ]
        return [Table(self.texts_name, ("source", "reference", self.text_name), rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        return TranslationReport(source, self)  # type: ignore[arg-type]  # of pairs

    def prediction_format(self) -> PredictionFormat:
        return TranslationFormat(self)

    def export_form(self) -> TaskExport:
        return TranslationExport(self)


class TranslationFormat(PredictionFormat):
    """Rows and files of the predictions of `Translation`."""

    task: Translation

    formats: ClassVar[Tuple[str, ...]] = ("text",)

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        return {name: value for name, value in row.items() if name != "others"}

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """Yields sources and translations. Empty lines stay empty; truncated sources have `is_cut`."""
        pairs: AnyPairs = source  # type: ignore[assignment]  # of pairs
        fits_N = pairs.tokens(configs_of(signature)).source_fits_N
        for number, prediction in predictions:
            text = pairs.pairs[number][0]
            empty: Dict[str, Json] = {self.task.text_name: "", "score": 0.0}
            result = self.task.row(signature, prediction, top_k) if text.strip() else empty
            row = {"source": text, **result}
            if not fits_N[number]:
                row["is_cut"] = True
            yield number, row

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields the translations, one per line."""
        for row in rows:
            yield " ".join(split_lines(str(row[self.task.text_name]))) + "\n"


class TranslationExport(TaskExport):
    """Export of networks of `Translation`."""

    task: Translation

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        max_positions = _decoding_network(description, signature, strategy).max_positions
        return {**self.task.model_dump(mode="json"), "longest": max_positions, "text_name": self.task.text_name}

    def parts(
        self, description: RunParts, signature: Signature, strategy: Strategy, inputs: Sequence[np.ndarray]
    ) -> Mapping[str, ExportedPart]:
        """Returns the encoder and the decoding step with which exported folders run beam search."""
        from mxtrain.text.exported_steps import translation_parts

        network = _decoding_network(description, signature, strategy)
        bos = TranslationSignature.cast(signature).target_tokenizer_config.tokenizer.special.bos
        assert bos is not None
        max_tokens = (
            self.task.max_tokens
            if network.max_positions is None
            else min(self.task.max_tokens, network.max_positions - 1)
        )
        return translation_parts(network.current(), inputs[0], inputs[1], bos, max_tokens + 1)

    def build_decode(
        self, description: RunParts, signature: Signature, strategy: Strategy, folder: ExportedFolder
    ) -> Decode:
        """See `Task`."""
        from mxtrain.text.translation.exported_decoding import ExportedDecoder

        searching: Any = self.task.build_decode(description, signature, strategy)
        if "step" not in folder.signature["parts"]:  # a network of the user's own, whose step cannot be traced
            return searching
        return replace(searching, network=ExportedDecoder(folder, searching.network))


def _decoding_network(description: RunParts, signature: Signature, strategy: Strategy) -> DecodingNetwork:
    """Returns a separate network for step-by-step decoding, which reads the weights of the strategy."""
    translation = TranslationSignature.cast(signature)
    source, target = translation.tokenizer_config, translation.target_tokenizer_config
    model = translating_model(description)
    return DecodingNetwork(
        lambda: model.build_translator(target.size, translation.shape, source.size, translation.is_joint),
        description.model.widths,
        strategy,
    )


@functools.cache
def _for_language(name: str, metric: TextMetric, language: str) -> TextMetric:
    """See `TextMetric.for_language`; logs the chosen tokenizer once."""
    chosen = metric.for_language(language)
    if chosen != metric and language and isinstance(chosen, (Bleu, Rouge)):
        log.info(
            "metric.%s.tokenize=%s: the training targets are written in %s%s",
            name,
            chosen.tokenize,
            NAMES[language],
            _why_characters(language) if chosen.tokenize == "char" else "",
        )
    return chosen


def _why_characters(language: str) -> str:
    packages = MECAB.get(f"{language}-mecab", ("", ()))[1]
    return f"; for the words of WMT type pip install {' '.join(packages)}" if packages else ""


@dataclass(frozen=True)
class ReferenceTranslation:
    """Reference translation of a sample, see `ReferenceText`.

    Attributes:
        text: the reference.
        task: task that decodes predictions.
        signature: signature with the tokenizer.
    """

    text: str
    task: Translation
    signature: Signature

    def read(self, prediction: np.ndarray) -> str:
        """Returns the most probable translation that was found."""
        return self.task.texts(self.signature, prediction)[0][0]


MAX_SHOWN = 20


class TranslationReport(Report):
    """Number of translations equal to the reference, and the first that differ.

    Args:
        source: pairs that are measured.
        task: task whose texts are measured.
    """

    def __init__(self, source: AnyPairs, task: Translation):
        self._pairs, self._task = source.pairs, task
        self._decode: Optional[Decode] = None
        self._count = 0
        self._others: List[Tuple[int, str]] = []

    def decode_by(self, decode: Decode) -> None:
        """See `Report`."""
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`. Beam search synchronizes with the host at every token, so reading results here costs
        nothing."""
        from mxtrain.engine.predictions import to_host

        if self._decode is None:
            return
        assert batch.index_B is not None and batch.meta is not None
        predictions = to_host(self._decode(outputs, batch))
        for index, prediction, reference in zip(batch.index_B.tolist(), predictions, batch.meta):
            translation = reference.read(prediction)
            if translation != reference.text:
                self._others.append((index, translation))
        self._count += batch.size

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        rows: List[Any] = [(*self._pairs[index], text) for index, text in sorted(self._others)[:MAX_SHOWN]]
        exact = self._count - len(self._others)
        counts = [("the reference, character by character", exact), ("another text", len(self._others))]
        return [
            Table(self._task.texts_name, (f"{self._task.text_name} is", "count"), counts),
            Table("others", ("source", "reference", self._task.text_name), rows),
        ]
