"""Speech and text-line recognition by connectionist temporal classification.

Networks have layer norms in place of batch norms: over padded batches, batch norms count padding, and the scores of an
utterance depend on its neighbours. Punctuation stays in transcripts unless `dataset.punctuation=remove`, because error
rates would not compare with published ones.

Legend: B batch, T scores of a sample, K characters and the blank, which is the last class.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.metric.texts import TextMetric
from mxtrain.speech.alphabet import SPACE
from mxtrain.speech.base import TranscribedDataset
from mxtrain.speech.kinds import Transcripts
from mxtrain.speech.model import FrameModel
from mxtrain.speech.prefix_beam import best_of_batch
from mxtrain.speech.prepared import Recordings
from mxtrain.speech.signature import AudioSignature
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Figure, Finite, NonNegativeFloat, PathText, Positive, Table, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.samples import Encode
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.speech.prefix_beam import Scorer
    from mxtrain.speech.source import TranscribedSource
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, LossBlock


TRAIN = "train"
"""Value of language_model for n-grams of the training transcripts."""


class SpeechRecognition(Task):
    """Recognition of characters by CTC.

    Outputs are scores (B, T, K). Targets are characters (B, L), padded with -1, and the number of valid scores of each
    sample, (B,). Predictions are (B, T): the index of a character at the frame where it is recognised, otherwise -1.
    """

    name: ClassVar[str] = "speech_recognition"
    takes: ClassVar[Takes] = Takes(Transcripts)

    beam_size: Positive = 8
    """Beam width of prefix beam search, which sums over alignments; 1 = greedy decoding of the most probable
    alignment."""
    validation_beam_size: Positive = 1
    """beam_size in validation and in the test at the end of training; `eval` and `predict` use beam_size."""
    language_model: Optional[PathText] = None
    """n-gram language model for beam search: a file in ARPA format, of words or characters; train = character n-grams
    of the training transcripts, which must then be available; null = none."""
    language_order: Annotated[int, pydantic.Field(ge=1, le=10)] = 5
    """Order of the character n-grams, with language_model=train."""
    language_weight: NonNegativeFloat = 0.5
    """Weight of the language model's log probabilities."""
    language_bonus: Finite = 0.0
    """Score that is added for each word (character) of the language model, so that short texts are not preferred."""

    @pydantic.model_validator(mode="after")
    def _check_language_model(self) -> SpeechRecognition:
        if self.language_model is not None and self.beam_size == 1:
            raise ValueError(
                f"language_model={self.language_model} is used only by beam search, and beam_size=1 is greedy; type "
                "beam_size=8"
            )
        return self

    def in_training(self) -> SpeechRecognition:
        model = self.language_model if self.validation_beam_size > 1 else None
        return self.model_copy(update={"beam_size": self.validation_beam_size, "language_model": model})

    def check(self, description: RunParts) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: task=speech_recognition trains with CTC: transcripts have no fixed place in the frames, which a "
                "loss of (scores, labels) would need. Type loss=ctc."
            )
        description.loss.require_unsmoothed("CTC has no single target to smooth")
        if self.language_model not in (None, TRAIN) and not Path(str(self.language_model)).is_file():
            raise ConfigError(
                f"task.language_model={self.language_model}: there is no such file. Name one in ARPA's format, or type "
                f"task.language_model={TRAIN} for n-grams of the training transcripts."
            )

    def num_classes(self, signature: Signature) -> int:
        return len(signature.class_names) + 1

    def output_names(self, signature: Signature) -> Sequence[str]:
        return [*signature.class_names, "blank"]

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        count = self._count_scores(description, signature)
        (scores,) = count(_array([shapes_of(signature.shape)[0][0]]))
        return [(int(scores[0]), self.num_classes(signature))]

    def build_encode(self, description: RunParts, signature: Signature, training: bool) -> Encode:
        """Returns the function that maps numbers of frames (N,) to the network's numbers of scores (N,)."""
        return self._count_scores(description, signature)

    def _count_scores(self, description: RunParts, signature: Signature) -> Encode:
        model = description.model
        if isinstance(model, FrameModel):
            return lambda frame_N: (_array([model.count_scores(int(frames)) for frames in frame_N]),)
        from mxtrain.task.traced_scores import TracedScores

        return TracedScores(model, self.num_classes(signature), signature)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        dataset = description.dataset
        text = dataset.transcript_signature if isinstance(dataset, TranscribedDataset) else "none"
        settings = f"text={text},decoding={self._search}"
        text_metrics = {name: metric for name, metric in description.metric.items() if isinstance(metric, TextMetric)}
        text_signatures = {
            name: ",".join(filter(None, (metric.signature, settings))) for name, metric in text_metrics.items()
        }
        return {**super().metric_signatures(description, signature), **text_signatures}

    @property
    def _search(self) -> str:
        """Returns the search settings, for the signatures of metrics."""
        if self.beam_size == 1:
            return "greedy"
        name = (
            ""
            if self.language_model is None
            else (f"+{Path(self.language_model).name}*{self.language_weight:g}{self.language_bonus:+g}")
        )
        return f"beam{self.beam_size}{name}"

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Decodes greedily: returns the highest-scoring class of each frame, (B, T); repetitions and blanks are -1."""
        from mxtrain.engine.backend import nd

        score_BTK = outputs[0].astype("float32")
        blank = score_BTK.shape[2] - 1
        best_BT = score_BTK.argmax(axis=-1)
        before_BT = nd.concat(nd.full((best_BT.shape[0], 1), blank, ctx=best_BT.context), best_BT[:, :-1], dim=1)
        position_1T = nd.arange(best_BT.shape[1], ctx=best_BT.context).expand_dims(0)
        counts_BT = nd.broadcast_lesser(position_1T, batch.targets[1].astype("float32").expand_dims(1))
        is_new_BT = counts_BT * (best_BT != before_BT) * (best_BT != blank)
        return nd.where(is_new_BT, best_BT, -nd.ones_like(best_BT))

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        if self.beam_size == 1:
            return self.decode
        return BeamDecode(self.beam_size, self._scorer(description, signature))

    def _scorer(self, description: RunParts, signature: Signature) -> Optional[Scorer]:
        from mxtrain.speech.speech_model import ArpaScorer, CharacterScorer, read_arpa

        if self.language_model is None:
            return None
        names, weight, bonus = list(signature.class_names), self.language_weight, self.language_bonus
        if self.language_model != TRAIN:
            return ArpaScorer(read_arpa(self.language_model), names, weight, bonus)
        train: TranscribedSource = open_splits(description.dataset).train  # type: ignore[assignment]
        labels = [train.label_of(index) for index in range(len(train))]
        return CharacterScorer(labels, len(names), self.language_order, weight, bonus)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the transcript and the recognized text."""
        return {"reference": sample.meta.text, "hypothesis": sample.meta.read(sample.prediction)}

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the text of a sample."""
        return {"text": text_of(signature, prediction)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        samples: TranscribedSource = source  # type: ignore[assignment]  # of transcribed frames
        rows = [
            [str(samples.location(index)), samples.transcript(index).text, text_of(signature, prediction)]
            for index, prediction in enumerate(predictions)
        ]
        from mxtrain.speech.frame_figure import SpokenFrames, draw_frames

        frames = [
            SpokenFrames(
                samples.read(index, seed=0, epoch=0, train=False),
                reference,
                hypothesis,
                isinstance(signature, AudioSignature),
            )
            for index, (_, reference, hypothesis) in enumerate(rows)
        ]
        return [
            Table("samples", ["sample", "said", "predicted"], rows),
            Figure("frames", lambda max_samples: draw_frames(frames, max_samples)),
        ]

    def prediction_format(self) -> PredictionFormat:
        return TranscriptFormat(self)

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.speech.transcripts import SpeechReport

        return SpeechReport(self.build_decode(description, signature), source)  # type: ignore[arg-type]


class TranscriptFormat(PredictionFormat):
    """Rows of transcripts; those of the parts of one recording are joined."""

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """See `PredictionFormat.rows`."""
        numbers = source.numbers if isinstance(source, Recordings) else ()
        if len(set(numbers)) == len(numbers):
            yield from super().rows(signature, source, predictions, top_k)
            return
        separator = " " if SPACE in signature.class_names else ""
        for _, group in itertools.groupby(predictions, lambda pair: numbers[pair[0]]):
            parts = list(group)
            texts = (text_of(signature, prediction).strip() for _, prediction in parts)
            yield parts[0][0], {"text": separator.join(filter(None, texts))}


class BeamDecode:
    """Decodes batches by prefix beam search, on the host.

    Args:
        width: beam width.
        scorer: language model; None = none.
    """

    def __init__(self, width: int, scorer: Optional[Scorer]) -> None:
        self._width, self._scorer = width, scorer

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """See `SpeechRecognition.decode`."""
        from mxtrain.engine.backend import nd

        log_p_BTK = nd.log_softmax(outputs[0].astype("float32")).asnumpy()
        count_B = batch.targets[1].asnumpy().astype(int).tolist()
        return nd.array(best_of_batch(log_p_BTK, count_B, self._width, self._scorer))


def text_of(signature: Signature, prediction: np.ndarray) -> str:
    """Returns the text of a row of character indices; -1 is skipped."""
    return "".join(signature.class_names[int(number)] for number in prediction if number >= 0)


def _array(values: Sequence[int]) -> np.ndarray:
    import numpy as np

    return np.asarray(values, np.int64)
