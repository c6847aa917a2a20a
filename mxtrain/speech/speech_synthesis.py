"""Speech synthesis with given durations: symbols become log-mel frames, and these sound.

Legend: B batch, T frames, F mel bands.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.speech.kinds import MelFrames
from mxtrain.speech.signature import AudioSignature
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Audio, Figure, NonNegative, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.speech.aligned import AlignedSource
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, LossBlock


class SpeechSynthesis(Task):
    """Frames (B, T, F) against the recording's frames, normalised by `Signature.mean` and `std`. Predictions are
    the frames of each sample, (T, F), as logarithms of power."""

    name: ClassVar[str] = "speech_synthesis"
    takes: ClassVar[Takes] = Takes(MelFrames)

    iterations: NonNegative = 60
    """Iterations of the Griffin-Lim algorithm, which reconstructs sound from frames; with more, the sound is less
    metallic."""
    shown_sounds: NonNegative = 2
    """Number of validation samples whose predicted and true sound TensorBoard plays."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        if isinstance(description.loss, CustomLoss):
            raise ConfigError(
                "loss: task=speech_synthesis has to leave out the padding behind the frames of each sample, which a "
                "loss of (predictions, labels) does not know. Type loss=frame_l1 or loss=frame_l2."
            )
        description.loss.require_unsmoothed("frames have no classes to smooth over")

    def num_classes(self, signature: Signature) -> int:
        signature = AudioSignature.cast(signature)
        return signature.audio.num_mels

    def output_names(self, signature: Signature) -> Sequence[str]:
        return []

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(shapes_of(signature.shape)[2][0], self.num_classes(signature))]

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        return partial(decode_frames, signature)

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the length of the utterance."""
        audio = AudioSignature.cast(signature).audio
        return {"frames": len(prediction), "seconds": round(len(prediction) * audio.step / audio.sample_rate, 3)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.speech.frame_figure import ComparedFrames, draw_compared

        signature = AudioSignature.cast(signature)
        spoken: AlignedSource = source  # type: ignore[assignment]  # of symbols
        pairs = [
            ComparedFrames(prediction, spoken.read(index), spoken.utterances[index].utterance.text)
            for index, prediction in enumerate(predictions)
        ]
        sounds, rate = list[Artifact](), signature.audio.sample_rate
        for number, pair in enumerate(pairs[: self.shown_sounds]):
            # Both sounds are made of frames, also the true one, so both lack what frames do not contain.
            for name, frames_TF in (("predicted", pair.predicted_TF), ("true", pair.true_TF)):
                sounds.append(Audio(f"{name}_{number}", rate, partial(self._sound, signature, frames_TF)))
        return [Figure("frames", lambda max_samples: draw_compared(pairs, max_samples)), *sounds]

    def _sound(self, signature: Signature, frames_TF: np.ndarray) -> bytes:
        return self.prediction_format().encode_file(signature, frames_TF, (), 0)

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.speech.synthesis_report import SynthesisReport

        decode = self.build_decode(description, signature)
        return SynthesisReport(decode, description.dataset, signature, source)  # type: ignore[arg-type]  # of symbols

    def prediction_format(self) -> PredictionFormat:
        return SpeechSynthesisFormat(self)


class SpeechSynthesisFormat(PredictionFormat):
    """Rows and files of the predictions of `SpeechSynthesis`."""

    task: SpeechSynthesis

    writes: ClassVar[str] = "audio"
    writes_ending: ClassVar[str] = ".wav"

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """Yields the text and the length of each utterance."""
        spoken: AlignedSource = source  # type: ignore[assignment]  # of symbols
        for number, prediction in predictions:
            yield (
                number,
                {"text": spoken.utterances[number].utterance.text, **self.task.row(signature, prediction, top_k)},
            )

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns a WAV file."""
        from mxtrain.speech.griffin_lim import frames_to_sound, wav_bytes

        signature = AudioSignature.cast(signature)
        return wav_bytes(
            frames_to_sound(prediction, signature.audio, self.task.iterations), signature.audio.sample_rate
        )


def decode_frames(signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch) -> List[NDArray]:
    """Returns the frames of each sample, (T, F), without padding, as logarithms of power."""
    from mxtrain.engine.backend import nd

    frames_BTF, context = outputs[0].astype("float32"), outputs[0].context
    mean_11F, deviation_11F = (nd.array([[list(values)]], ctx=context) for values in (signature.mean, signature.std))
    log_power_BTF = nd.broadcast_add(nd.broadcast_mul(frames_BTF, deviation_11F), mean_11F)
    assert batch.meta is not None
    return [log_power_BTF[row, :frames] for row, frames in enumerate(batch.meta.tolist())]
