"""What is said in a recording, or written in a line, by connectionist temporal classification.

Legend: B batch, T scores of a sample, K characters and the blank, which is the last class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Mapping, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.model.base import FrameModel
from mxtrain.task.base import Report, Task
from mxtrain.types import Artifact, Table, shapes_of

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Json, LossBlock
    from mxtrain.dataset.base import Samples
    from mxtrain.dataset.loading.sample_reader import Encode
    from mxtrain.dataset.signature import Signature
    from mxtrain.dataset.speech.source import TranscribedSource
    from mxtrain.description.groups import Description
    from mxtrain.types import Batch, Shape


class SpeechRecognition(Task):
    """Scores (B, T, K) against characters (B, L), -1 behind the last, and how many scores of each sample count, (B,).

    Predictions are (B, T): the number of a character where it is found, -1 elsewhere.
    """

    name: ClassVar[str] = "speech_recognition"
    loss_option: ClassVar[str] = "ctc"
    metric_option: ClassVar[str] = "cer"

    def check(self, description: Description) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: task=speech_recognition trains with CTC: transcripts have no fixed place in the frames, which a "
                "loss of (scores, labels) would need. Type loss=ctc."
            )
        description.loss.require_unsmoothed("CTC has no single target to smooth")

    def num_classes(self, signature: Signature) -> int:
        return len(signature.class_names) + 1

    def output_names(self, signature: Signature) -> Sequence[str]:
        return [*signature.class_names, "blank"]

    def output_shapes(self, description: Description, signature: Signature) -> List[Shape]:
        count = self._count_scores(description, signature)
        (scores,) = count(_array([shapes_of(signature.shape)[0][0]]))
        return [(int(scores[0]), self.num_classes(signature))]

    def build_encode(self, description: Description, signature: Signature, training: bool) -> Encode:
        """How many scores the network gives for numbers of frames (N,)."""
        return self._count_scores(description, signature)

    def _count_scores(self, description: Description, signature: Signature) -> Encode:
        model = description.model
        if isinstance(model, FrameModel):
            return lambda frame_N: (_array([model.count_scores(int(frames)) for frames in frame_N]),)
        from mxtrain.task.traced_scores import TracedScores

        return TracedScores(model, self.num_classes(signature), signature)

    def build_loss(self, description: Description, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def metric_signatures(self, description: Description, signature: Signature) -> Mapping[str, str]:
        own = getattr(description.dataset, "transcript_signature", "none")
        found = super().metric_signatures(description, signature)
        return {name: f"{said},text={own}" for name, said in found.items()}

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """The likeliest class of each frame, repetitions and blanks left out, (B, T), -1 where there is nothing."""
        from mxtrain.engine.backend import nd

        score_BTK = outputs[0].astype("float32")
        blank = score_BTK.shape[2] - 1
        best_BT = score_BTK.argmax(axis=-1)
        before_BT = nd.concat(nd.full((best_BT.shape[0], 1), blank, ctx=best_BT.context), best_BT[:, :-1], dim=1)
        place_1T = nd.arange(best_BT.shape[1], ctx=best_BT.context).expand_dims(0)
        counts_BT = nd.broadcast_lesser(place_1T, batch.targets[1].astype("float32").expand_dims(1))
        is_new_BT = counts_BT * (best_BT != before_BT) * (best_BT != blank)
        return nd.where(is_new_BT, best_BT, -nd.ones_like(best_BT))

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """The text of a sample."""
        return {"text": text_of(signature, prediction)}

    def can_show(self, description: Description) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:  # fmt: skip
        samples: TranscribedSource = source  # type: ignore[assignment]  # of transcribed frames
        rows = [[str(samples.place(index)), samples.transcript(index).text, text_of(signature, prediction)]
                for index, prediction in enumerate(predictions)]  # fmt: skip
        return [Table("samples", ["sample", "said", "predicted"], rows)]

    def build_report(self, description: Description, signature: Signature, source: Samples) -> Report:
        from mxtrain.task.speech_report import SpeechReport

        return SpeechReport(self.build_decode(description, signature), source)  # type: ignore[arg-type]


def text_of(signature: Signature, prediction: np.ndarray) -> str:
    """The text of a row of numbers, in which -1 stands for nothing."""
    return "".join(signature.class_names[int(number)] for number in prediction if number >= 0)


def _array(values: Sequence[int]) -> np.ndarray:
    import numpy as np

    return np.asarray(values, np.int64)
