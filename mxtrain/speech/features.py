"""Log-mel features: what of a recording enters a network. They are a function of the recording alone.

Legend: S samples of sound, T frames, P frequencies of the spectrum, F mel bands.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.types import NonNegativeFloat, OpenFraction, PositiveFloat, Spec

LEAST_POWER = 1e-10
"""Added to the power of a band, so that silence has a logarithm: 100 dB below a full sine wave."""
LEAST_DEVIATION = 1e-3
_FRAMES_AT_ONCE = 2048


class Features(Spec):
    """Settings of the frames computed from a recording."""

    sample_rate: Annotated[int, pydantic.Field(ge=1000, le=192_000)] = 16000
    """Samples a second; recordings of another rate are resampled."""
    window_ms: PositiveFloat = 25.0
    """Length of what one frame is of, in milliseconds."""
    step_ms: PositiveFloat = 10.0
    """From one frame to the next, in milliseconds."""
    num_mels: Annotated[int, pydantic.Field(ge=8, le=256)] = 80
    """Mel bands, which is how many numbers a frame has."""
    low_hz: NonNegativeFloat = 0.0
    """Lowest frequency of the lowest band."""
    high_hz: Annotated[float, pydantic.Field(ge=0)] = 0.0
    """Highest frequency of the highest band; 0 = half the sample rate."""
    preemphasis: OpenFraction = 0.97
    """Of each sample so much of the one before is taken away; 0 = nothing."""
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

    @property
    def window(self) -> int:
        """Samples of a frame."""
        return round(self.window_ms * self.sample_rate / 1000)

    @property
    def step(self) -> int:
        """Samples from one frame to the next."""
        return round(self.step_ms * self.sample_rate / 1000)

    @property
    def fft_size(self) -> int:
        """The next power of two."""
        return 1 << (self.window - 1).bit_length()

    @property
    def highest_hz(self) -> float:
        """Returns the upper frequency of the highest band, in Hz."""
        return self.high_hz or self.sample_rate / 2

    def count_frames(self, num_samples: int) -> int:
        """The frames of a recording: only whole windows, but at least one."""
        return max(1 + (num_samples - self.window) // self.step, 1)


def hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Source: O'Shaughnessy, "Speech Communication: Human and Machine" (1987), as in HTK."""
    return 2595.0 * np.log10(1.0 + np.asarray(hz) / 700.0)


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """The inverse of `hz_to_mel`."""
    return 700.0 * (10.0 ** (np.asarray(mel) / 2595.0) - 1.0)


def mel_filters(features: Features) -> np.ndarray:
    """The weight of each frequency of a spectrum in each band, (P, F): triangles of height 1, whose feet are the tops
    of their neighbours."""
    low, high = hz_to_mel(np.array([features.low_hz, features.highest_hz]))
    edge = mel_to_hz(np.linspace(low, high, features.num_mels + 2))
    hz_P1 = (np.arange(features.fft_size // 2 + 1) * features.sample_rate / features.fft_size)[:, None]
    left, top, right = edge[:-2], edge[1:-1], edge[2:]
    return np.maximum(np.minimum((hz_P1 - left) / (top - left), (right - hz_P1) / (right - top)), 0.0)


def log_mel(sound_S: np.ndarray, features: Features) -> np.ndarray:
    """The frames (T, F) of a recording, float32.

    Args:
        sound_S: float32 from -1 to 1, at `features.sample_rate`.
        features: what to compute.
    """
    import scipy.fft

    if features.preemphasis:
        sound_S = np.append(sound_S[:1], sound_S[1:] - np.float32(features.preemphasis) * sound_S[:-1])
    sound_S = np.pad(sound_S, (0, max(features.window - len(sound_S), 0))).astype(np.float32)
    window = np.hanning(features.window + 1)[:-1].astype(np.float32)  # periodic
    filter_PF = mel_filters(features).astype(np.float32)
    view_TW = np.lib.stride_tricks.sliding_window_view(sound_S, features.window)[:: features.step]
    frames_TF = np.empty((len(view_TW), features.num_mels), np.float32)
    for begin in range(0, len(view_TW), _FRAMES_AT_ONCE):  # an hour of sound would take 3 GB at once
        part = slice(begin, begin + _FRAMES_AT_ONCE)
        spectrum_TP = scipy.fft.rfft(view_TW[part] * window, features.fft_size, axis=1)
        power_TP = np.square(spectrum_TP.real) + np.square(spectrum_TP.imag)
        frames_TF[part] = np.log(power_TP @ filter_PF + np.float32(LEAST_POWER))
    if features.normalize == "utterance":
        frames_TF -= frames_TF.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviation_F = np.sqrt(np.square(frames_TF).mean(axis=0, dtype=np.float64))
        frames_TF /= np.maximum(deviation_F, LEAST_DEVIATION).astype(np.float32)
    return frames_TF


def centred(sound_S: np.ndarray, features: Features) -> np.ndarray:
    """Sound with silence around it, of which frame t is centred in the middle of its t-th step: there is a frame for
    each step that has begun, ceil(S / step), and a time is a place among frames."""
    steps = max(-(-len(sound_S) // features.step), 1)
    before = (features.window - features.step) // 2
    padded_S = np.zeros((steps - 1) * features.step + max(features.window, features.step), np.float32)
    padded_S[max(before, 0) : max(before, 0) + len(sound_S)] = sound_S[: len(padded_S) - max(before, 0)]
    return padded_S


def stored(frames_TF: np.ndarray) -> np.ndarray:
    """Converts frames for storage: in float16, with a rounding error of at most 0.001, far below the noise."""
    return frames_TF.astype(np.float16)


