"""A formant synthesiser: sound of phonemes with given durations, made of nothing but a table.

The excitation of a voice and noise pass through resonances that move from phoneme to phoneme. There is one voice, which
does not sound like a person; its purpose is that where each phoneme begins is known to the sample, everywhere.

Joining recorded words would give durations of words, not of phonemes.

Legend: S samples of sound, T frames of the synthesis, N phonemes, P frequencies, R resonances.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Sequence, Tuple

import numpy as np

SILENCE = "_"
VERSION = 1
"""Version of the synthesis: another version makes other sounds."""
Formants = Tuple[int, int, int]
BANDWIDTH_R = np.array([60.0, 90.0, 150.0])
"""Bandwidth of each resonance, in Hz."""
PITCH_HZ = (130.0, 95.0)
"""Pitch of the voice at the beginning and at the end of an utterance."""
_FRAME_S, _GLIDE_FRAMES, _ONSET_FRAMES = 0.01, 7, 3
"""The step of the synthesis, and over how many steps resonances and loudness move from one phoneme to the next."""

_ROOM = 3e-4
"""Amplitude of noise that is always there, as in any recording."""


class Phoneme(NamedTuple):
    """Acoustic parameters of a phoneme.

    Attributes:
        duration_s: about how long it is.
        begin, end: resonances, Hz; the phoneme moves from the one to the other.
        voice: amplitude of the voice.
        noise: amplitude of the noise.
        noise_hz: centre of its band, and half of its width.
        closure: share of the phoneme that is silent before a burst, as in stops.
    """

    duration_s: float
    begin: Formants
    end: Formants
    voice: float = 1.0
    noise: float = 0.0
    noise_hz: Tuple[float, float] = (4000.0, 2000.0)
    closure: float = 0.0


PHONEMES: Dict[str, Phoneme] = {
    SILENCE: Phoneme(0.10, (500, 1500, 2500), (500, 1500, 2500), 0.0),
    "AH": Phoneme(0.10, (640, 1190, 2390), (640, 1190, 2390)),
    "AO": Phoneme(0.13, (570, 840, 2410), (570, 840, 2410)),
    "AY": Phoneme(0.18, (730, 1090, 2440), (390, 1990, 2550)),
    "EH": Phoneme(0.10, (530, 1840, 2480), (530, 1840, 2480)),
    "EY": Phoneme(0.17, (530, 1840, 2480), (270, 2290, 3010)),
    "IH": Phoneme(0.09, (390, 1990, 2550), (390, 1990, 2550)),
    "IY": Phoneme(0.16, (270, 2290, 3010), (270, 2290, 3010)),
    "OW": Phoneme(0.18, (570, 840, 2410), (300, 870, 2240)),
    "UW": Phoneme(0.16, (300, 870, 2240), (300, 870, 2240)),
    "N": Phoneme(0.08, (280, 1340, 2470), (280, 1340, 2470), 0.4),
    "R": Phoneme(0.08, (310, 1060, 1380), (310, 1060, 1380), 0.7),
    "W": Phoneme(0.08, (290, 610, 2150), (290, 610, 2150), 0.6),
    "V": Phoneme(0.07, (220, 1100, 2080), (220, 1100, 2080), 0.3, 0.03, (4500, 3500)),
    "Z": Phoneme(0.10, (240, 1390, 2530), (240, 1390, 2530), 0.3, 0.10, (6000, 1200)),
    "F": Phoneme(0.10, (340, 1100, 2080), (340, 1100, 2080), 0.0, 0.06, (4500, 3500)),
    "S": Phoneme(0.12, (320, 1390, 2530), (320, 1390, 2530), 0.0, 0.25, (6000, 1200)),
    "TH": Phoneme(0.10, (320, 1290, 2540), (320, 1290, 2540), 0.0, 0.05, (5500, 2500)),
    "K": Phoneme(0.09, (300, 1990, 2850), (300, 1990, 2850), 0.0, 0.20, (2000, 600), 0.6),
    "T": Phoneme(0.09, (400, 1600, 2600), (400, 1600, 2600), 0.0, 0.20, (4200, 1200), 0.6),
}
"""Formants of the English digits. Source: Peterson and Barney, "Control Methods Used in a Study of the Vowels" (1952),
table II, men; consonants after Klatt, "Software for a Cascade/Parallel Formant Synthesizer" (1980), table III."""
DIGITS: Dict[str, Sequence[str]] = {
    "zero": ("Z", "IH", "R", "OW"),
    "one": ("W", "AH", "N"),
    "two": ("T", "UW"),
    "three": ("TH", "R", "IY"),
    "four": ("F", "AO", "R"),
    "five": ("F", "AY", "V"),
    "six": ("S", "IH", "K", "S"),
    "seven": ("S", "EH", "V", "AH", "N"),
    "eight": ("EY", "T"),
    "nine": ("N", "AY", "N"),
}
"""The phonemes of words."""


def say(symbols: Sequence[str], samples_N: Sequence[int], sample_rate: int, seed: int) -> np.ndarray:
    """Returns the sound of phonemes, (S,) float32 from -1 to 1.

    Args:
        symbols: names in `PHONEMES`.
        samples_N: number of samples of each phoneme, at least 0.
        sample_rate: sample rate in Hz.
        seed: seed of the noise.
    """
    step = max(round(_FRAME_S * sample_rate), 1)
    end_N = np.cumsum(samples_N)
    total = int(end_N[-1])
    time_T = np.arange(0, total + 2 * step, step)
    number_T = np.minimum(np.searchsorted(end_N, time_T, side="right"), len(symbols) - 1)
    passed_T = 1 - (end_N[number_T] - time_T) / np.maximum(np.asarray(samples_N)[number_T], 1)
    phonemes = [PHONEMES[symbol] for symbol in symbols]

    def column(values: Sequence[object]) -> np.ndarray:
        return np.asarray(values, np.float64)[number_T]

    passed_T1 = np.clip(passed_T, 0, 1)[:, None]
    begin_TR, end_TR = column([phoneme.begin for phoneme in phonemes]), column([phoneme.end for phoneme in phonemes])
    formant_TR = _smoothed(begin_TR + passed_T1 * (end_TR - begin_TR), _GLIDE_FRAMES)
    voice_T1 = _smoothed(column([phoneme.voice for phoneme in phonemes])[:, None], _ONSET_FRAMES)
    is_open_T = passed_T >= column([phoneme.closure for phoneme in phonemes])
    noise_T1 = (column([phoneme.noise for phoneme in phonemes]) * is_open_T)[:, None]
    band_T2 = _smoothed(column([phoneme.noise_hz for phoneme in phonemes]), _GLIDE_FRAMES)
    # Frames of two steps overlap by half; their windows add up to 1. A frame is in the middle of its transform, so that
    # resonances before and after it do not wrap around.
    size = 1 << (3 * step - 1).bit_length()
    hz_P = np.fft.rfftfreq(size, 1 / sample_rate)
    voiced_S = _filtered(_excitation(total, sample_rate), voice_T1 * _resonances(formant_TR, hz_P), step, size)
    # The stream of RandomState is frozen in NumPy, so a seed gives the same sound in later versions.
    noise_S, room_S = np.random.RandomState(seed).standard_normal((2, total))
    hiss_TP = noise_T1 * np.exp(-0.5 * ((hz_P - band_T2[:, :1]) / band_T2[:, 1:]) ** 2)
    sound_S = voiced_S + _filtered(noise_S, hiss_TP, step, size) + _ROOM * room_S
    return np.tanh(2 * sound_S).astype(np.float32)


def _excitation(total: int, sample_rate: int) -> np.ndarray:
    """Returns the pulses of the voice (S,), one at the end of each period, with a power that is independent of the
    pitch."""
    pitch_S = np.linspace(*PITCH_HZ, total)
    is_new_S = np.diff(np.floor(np.cumsum(pitch_S) / sample_rate), prepend=0.0) > 0
    return np.where(is_new_S, np.sqrt(sample_rate / pitch_S), 0.0)


def _resonances(formant_TR: np.ndarray, hz_P: np.ndarray) -> np.ndarray:
    """Returns the magnitudes (T, P) of cascaded resonances, and of a voice that falls by 6 dB per octave."""
    ratio_TRP = hz_P / formant_TR[:, :, None]
    width_R1 = (BANDWIDTH_R / formant_TR)[:, :, None]
    gain_TP = np.prod(1 / np.sqrt((1 - ratio_TRP**2) ** 2 + (width_R1 * ratio_TRP) ** 2), axis=1)
    tilt_P = 1 / np.sqrt(1 + (hz_P / 300.0) ** 2)
    higher_P = np.sqrt(1 + (hz_P / 2500.0) ** 4)  # approximates the resonances above the third
    return np.minimum(gain_TP, 30.0) * tilt_P * higher_P * 0.1


def _smoothed(value_TR: np.ndarray, width: int) -> np.ndarray:
    """Smooths values over `width` frames with a raised cosine, because phonemes depend on their neighbours."""
    kernel = np.hanning(width + 2)[1:-1]
    padded = np.pad(value_TR, ((width // 2, width // 2), (0, 0)), mode="edge")
    return np.stack([np.convolve(value_T, kernel / kernel.sum(), mode="valid") for value_T in padded.T], axis=1)


def _filtered(source_S: np.ndarray, gain_TP: np.ndarray, step: int, size: int) -> np.ndarray:
    """Applies a filter that changes from frame to frame; returns the filtered source, (S,)."""
    import scipy.fft

    window_W = np.hanning(2 * step + 1)[:-1]
    padded = np.pad(source_S, (step, (len(gain_TP) + 1) * step - len(source_S)))
    frame_TW = np.lib.stride_tricks.sliding_window_view(padded, 2 * step)[: len(gain_TP) * step : step] * window_W
    before = (size - 2 * step) // 2
    placed_TS = np.zeros((len(frame_TW), size))
    placed_TS[:, before : before + 2 * step] = frame_TW
    filtered_TS = scipy.fft.irfft(scipy.fft.rfft(placed_TS, axis=1) * gain_TP[: len(frame_TW)], size, axis=1)
    sound = np.zeros(len(padded) + size)
    for number, filtered_S in enumerate(filtered_TS):
        sound[number * step : number * step + size] += filtered_S
    return sound[before + step : before + step + len(source_S)]
