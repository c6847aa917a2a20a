"""Settings of log-mel features, the frames of a recording that enter a network. They depend on the recording alone.

Legend: S samples of sound, T frames, P frequencies of the spectrum, F mel bands.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.speech.log_mel import FrameSizes, mel_filters
from mxtrain.types import NonNegativeFloat, OpenFraction, PositiveFloat, Spec


class Features(FrameSizes, Spec):
    """Settings of the frames computed from a recording."""

    sample_rate: Annotated[int, pydantic.Field(ge=1000, le=192_000)] = 16000
    """Sample rate in Hz; recordings with another rate are resampled."""
    window_ms: PositiveFloat = 25.0
    """Length of the window of a frame, in milliseconds."""
    step_ms: PositiveFloat = 10.0
    """Hop between frames, in milliseconds."""
    num_mels: Annotated[int, pydantic.Field(ge=8, le=256)] = 80
    """Number of mel bands, i.e. of values per frame."""
    low_hz: NonNegativeFloat = 0.0
    """Lowest frequency of the lowest band."""
    high_hz: Annotated[float, pydantic.Field(ge=0)] = 0.0
    """Highest frequency of the highest band; 0 = half the sample rate."""
    preemphasis: OpenFraction = 0.97
    """Coefficient of pre-emphasis: share of the previous sample that is subtracted from each sample; 0 = none."""
    normalize: Literal["utterance", "none"] = "utterance"
    """utterance = each band has mean 0 and deviation 1 over a recording."""

    @pydantic.model_validator(mode="after")
    def _check_bands(self) -> Features:
        if self.window < 2 or self.step < 1:
            raise ValueError(
                f"window_ms={self.window_ms} and step_ms={self.step_ms} are less than 2 samples and 1 sample at "
                f"sample_rate={self.sample_rate}"
            )
        if not self.low_hz < self.highest_hz <= self.sample_rate / 2:
            raise ValueError(
                f"low_hz={self.low_hz} and high_hz={self.highest_hz} must rise, and high_hz be at most half of "
                f"sample_rate={self.sample_rate}"
            )
        empty = np.flatnonzero(~mel_filters(self).any(axis=0))
        if len(empty):
            raise ValueError(
                f"num_mels={self.num_mels}: band {empty[0]} is narrower than the step of the spectrum, "
                f"{self.sample_rate / self.fft_size:.1f} Hz. Choose fewer, or a longer window_ms"
            )
        return self
