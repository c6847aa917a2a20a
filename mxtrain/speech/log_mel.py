"""Log-mel spectrograms in NumPy. Exported folders contain a copy of this module, so it imports nothing of mxtrain.

Legend: S samples of sound, T frames, W samples of a window, P frequencies of the spectrum, F mel bands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Protocol

import numpy as np

MIN_POWER = 1e-10
"""Added to the power of a band, so that silence has a logarithm: 100 dB below a full sine wave."""
# A band that never changes, e.g. of digital silence, must not be divided by 0.
MIN_DEVIATION = 1e-3
FRAMES_AT_ONCE = 2048
"""Number of frames that are computed at a time, which limits the memory of long sounds."""


class FrameNumbers(Protocol):
    """Settings of the frames, see `mxtrain.speech.features.Features`."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def window_ms(self) -> float: ...
    @property
    def step_ms(self) -> float: ...
    @property
    def num_mels(self) -> int: ...
    @property
    def low_hz(self) -> float: ...
    @property
    def high_hz(self) -> float: ...
    @property
    def preemphasis(self) -> float: ...
    @property
    def normalize(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def fft_size(self) -> int: ...
    @property
    def highest_hz(self) -> float: ...


class FrameSizes:
    """Sizes that follow from the settings."""

    @property
    def window(self: FrameNumbers) -> int:
        """Returns the window length in samples."""
        return round(self.window_ms * self.sample_rate / 1000)

    @property
    def step(self: FrameNumbers) -> int:
        """Returns the hop length in samples."""
        return round(self.step_ms * self.sample_rate / 1000)

    @property
    def fft_size(self: FrameNumbers) -> int:
        """Returns the FFT size: the smallest power of two that is not less than the window length."""
        return 1 << (self.window - 1).bit_length()

    @property
    def highest_hz(self: FrameNumbers) -> float:
        """Returns the upper frequency of the highest band, in Hz."""
        return self.high_hz or self.sample_rate / 2


@dataclass(frozen=True)
class StoredNumbers(FrameSizes):
    """Settings of the frames as stored in a signature."""

    sample_rate: int
    window_ms: float
    step_ms: float
    num_mels: int
    low_hz: float
    high_hz: float
    preemphasis: float
    normalize: str

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> StoredNumbers:
        """Reads the settings from a signature's `audio`."""
        return cls(**values)


def hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Converts Hz to mel. Source: O'Shaughnessy, "Speech Communication: Human and Machine" (1987), as in HTK."""
    return 2595.0 * np.log10(1.0 + np.asarray(hz) / 700.0)


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """Converts mel to Hz, the inverse of `hz_to_mel`."""
    return 700.0 * (10.0 ** (np.asarray(mel) / 2595.0) - 1.0)


def mel_filters(features: FrameNumbers) -> np.ndarray:
    """Returns the mel filter bank, (P, F): triangles of height 1 that end at the peaks of their neighbours."""
    low, high = hz_to_mel(np.array([features.low_hz, features.highest_hz]))
    edge = mel_to_hz(np.linspace(low, high, features.num_mels + 2))
    hz_P1 = (np.arange(features.fft_size // 2 + 1) * features.sample_rate / features.fft_size)[:, None]
    left, top, right = edge[:-2], edge[1:-1], edge[2:]
    return np.maximum(np.minimum((hz_P1 - left) / (top - left), (right - hz_P1) / (right - top)), 0.0)


def log_mel(sound_S: np.ndarray, features: FrameNumbers) -> np.ndarray:
    """Computes the log-mel frames of a recording.

    Args:
        sound_S: sound, float32 from -1 to 1, at `features.sample_rate`.
        features: settings of the frames.

    Returns:
        Frames (T, F), float32, natural logarithm of the power per band.
    """
    if features.preemphasis:
        sound_S = np.append(sound_S[:1], sound_S[1:] - np.float32(features.preemphasis) * sound_S[:-1])
    sound_S = np.pad(sound_S, (0, max(features.window - len(sound_S), 0))).astype(np.float32)
    # In float32, which SciPy and NumPy 2 compute with, rounding errors of loud tones cover the quiet bands.
    window = np.hanning(features.window + 1)[:-1]  # periodic Hann window, float64
    filter_PF = mel_filters(features)
    view_TW = np.lib.stride_tricks.sliding_window_view(sound_S, features.window)[:: features.step]
    frames_TF = np.empty((len(view_TW), features.num_mels), np.float32)
    for begin in range(0, len(view_TW), FRAMES_AT_ONCE):  # an hour of sound would take 3 GB at once
        part = slice(begin, begin + FRAMES_AT_ONCE)
        spectrum_TP = np.fft.rfft(view_TW[part] * window, features.fft_size, axis=1)
        power_TP = np.square(spectrum_TP.real) + np.square(spectrum_TP.imag)
        frames_TF[part] = np.log(power_TP @ filter_PF + MIN_POWER)
    if features.normalize == "utterance":
        # Sums over many frames need float64.
        frames_TF -= frames_TF.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviation_F = np.sqrt(np.square(frames_TF).mean(axis=0, dtype=np.float64))
        frames_TF /= np.maximum(deviation_F, MIN_DEVIATION).astype(np.float32)
    return frames_TF


def centred(sound_S: np.ndarray, features: FrameNumbers) -> np.ndarray:
    """Pads sound with silence so that frame t is centred on its t-th step.

    The padded sound has ceil(S / step) frames, at least one, so the time of a frame is its index times the step.
    """
    steps = max(-(-len(sound_S) // features.step), 1)
    before = (features.window - features.step) // 2
    padded_S = np.zeros((steps - 1) * features.step + max(features.window, features.step), np.float32)
    padded_S[max(before, 0) : max(before, 0) + len(sound_S)] = sound_S[: len(padded_S) - max(before, 0)]
    return padded_S


def stored(frames_TF: np.ndarray) -> np.ndarray:
    """Converts frames to float16 for storage; the rounding error is well below the noise of recordings."""
    return frames_TF.astype(np.float16)
