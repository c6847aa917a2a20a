"""Metrics of frames of speech, in decibels.

Legend: B batch, T frames, F mel bands, C cepstral coefficients.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.metric.spec import Metric, ratio
from mxtrain.speech.kinds import MelFrames
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


class FrameMetric(Metric):
    """Base of means over all frames that are no padding, of frames (B, T, F) and the true ones, how many of them
    count, (B,), and the decibels of a unit of each band, (B, F). The sums are the measured value and the number of
    frames."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(MelFrames)

    def size(self, num_classes: int) -> int:
        return 2

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        right_BTF, count_B, unit_BF = targets
        difference_BTF = F.broadcast_mul(outputs[0] - right_BTF, F.expand_dims(unit_BF, axis=1))
        error_BT = self.error(F, difference_BTF, num_classes)
        counts_BT = F.SequenceMask(error_BT, count_B, use_sequence_length=True, value=0.0, axis=1)
        return F.concat(F.sum(counts_BT).reshape((1,)), F.sum(count_B).reshape((1,)), dim=0)

    def error(self, F: OperatorModule, difference_BTF: Array, num_mels: int) -> Array:
        """Returns the error of each frame, (B, T)."""
        raise NotImplementedError

    def value(self, sums: np.ndarray, count: float) -> float:
        return ratio(sums[0], sums[1])


class MelError(FrameMetric):
    """Mean absolute difference of log-mel frames over bands and frames, in dB of power."""

    @property
    def signature(self) -> str:
        return "dB,durations=given"

    def error(self, F: OperatorModule, difference_BTF: Array, num_mels: int) -> Array:
        return F.mean(F.abs(difference_BTF), axis=2)


class MelCepstralDistortion(FrameMetric):
    """Mean over frames of the mel-cepstral distortion in dB, of cepstra that are a cosine transform of log-mel frames;
    the level, coefficient 0, does not count. Frames need no alignment, as durations are given.

    It is the root mean square over bands of the difference that these coefficients hold. Source: Kubichek,
    "Mel-cepstral Distance Measure for Objective Speech Quality Assessment" (1993), equation 2; his cepstra are of a
    linear prediction, so figures compare only between systems that were measured like this.
    """

    num_cepstra: Annotated[int, pydantic.Field(ge=1, le=255)] = 13
    """Coefficients, from the first after the level."""
    in_training: ClassVar[bool] = False

    @property
    def signature(self) -> str:
        return f"dB,cosine_transform,c1-c{self.num_cepstra},durations=given"

    def error(self, F: OperatorModule, difference_BTF: Array, num_mels: int) -> Array:
        band_F1 = F.reshape(F.arange(0.5, num_mels + 0.5, 1.0), shape=(-1, 1))
        order_1C = F.reshape(F.arange(1, min(self.num_cepstra, num_mels - 1) + 1), shape=(1, -1))
        cosine_FC = F.cos(F.broadcast_mul(band_F1, order_1C) * (math.pi / num_mels)) * math.sqrt(2 / num_mels)
        cepstra_BTC = F.dot(difference_BTF, cosine_FC)
        return F.sqrt(F.sum(F.square(cepstra_BTC), axis=2) / num_mels)
