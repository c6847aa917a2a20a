"""Sound from log-mel frames by Griffin and Lim's algorithm: a spectrogram says nothing of phases, which are searched.
Exported folders have a copy of this module.

Powers of the spectrum are found by the pseudo-inverse of the filters and ten multiplicative updates: the error is 0.03
dB, against 0.26 dB for least squares with negative powers cut off.

Legend: S samples of sound, T frames, P frequencies of the spectrum, F mel bands.
"""

from __future__ import annotations

import io
import itertools
import wave

import numpy as np

from mxtrain.speech.log_mel import MIN_POWER, FrameNumbers, mel_filters

MOMENTUM = 0.99
"""Momentum, called alpha in the source: Perraudin, Balazs and Sondergaard, "A Fast Griffin-Lim Algorithm" (2013)."""
UPDATES = 10
"""Number of iterations that fit powers to the bands; more change little."""
_TINY = 1e-12


def mel_to_magnitude(frames_TF: np.ndarray, features: FrameNumbers) -> np.ndarray:
    """Returns the magnitudes (T, P) of spectra whose band powers approximate log-mel frames.

    The pseudo-inverse of the filters gives powers, some of them below 0; with these set to nearly 0, multiplicative
    updates bring the bands back. Source: Lee and Seung, "Algorithms for Non-negative Matrix Factorization" (2001),
    equation 5, with the filters as the fixed factor.
    """
    target_TF, filter_PF = np.exp(frames_TF.astype(np.float64)), mel_filters(features)
    # Powers below 0 that are only cut off leave an error of 0.26 dB on digits; the updates leave 0.03 dB.
    power_TP = np.maximum(target_TF @ np.linalg.pinv(filter_PF), MIN_POWER)
    sum_P = filter_PF.sum(axis=1)
    for _ in range(UPDATES):
        ratio_TF = target_TF / np.maximum(power_TP @ filter_PF, _TINY)
        power_TP *= ratio_TF @ filter_PF.T / np.maximum(sum_P, _TINY)
    return np.sqrt(power_TP)


def stft(sound_S: np.ndarray, features: FrameNumbers) -> np.ndarray:
    """Returns the spectra (T, P) of sound, as `features.log_mel` computes them without pre-emphasis; whole windows
    only."""
    view_TW = np.lib.stride_tricks.sliding_window_view(sound_S, features.window)[:: features.step]
    return np.fft.rfft(view_TW * _window(features), features.fft_size, axis=1)


def istft(spectrum_TP: np.ndarray, features: FrameNumbers) -> np.ndarray:
    """Returns the sound (S,) whose spectra are the nearest to these in the sense of least squares.

    Source: Griffin and Lim, "Signal Estimation from Modified Short-Time Fourier Transform" (1984), equation 6: windowed
    frames are added up and divided by the sum of the squared windows.
    """
    window_W, step = _window(features), features.step
    frame_TW = np.fft.irfft(spectrum_TP, features.fft_size, axis=1)[:, : features.window] * window_W
    sound_S = np.zeros((len(spectrum_TP) - 1) * step + features.window)
    weight_S = np.zeros_like(sound_S)
    for begin, frame_W in zip(range(0, len(sound_S), step), frame_TW):
        sound_S[begin : begin + features.window] += frame_W
        weight_S[begin : begin + features.window] += window_W**2
    return sound_S / np.maximum(weight_S, 1e-3 * weight_S.max())  # at both ends windows are nearly 0


def griffin_lim(magnitude_TP: np.ndarray, features: FrameNumbers, iterations: int) -> np.ndarray:
    """Returns a sound (S,) whose spectra have about these magnitudes.

    Each iteration keeps the phases of the spectra of a sound, and replaces their magnitudes. Source: Griffin and Lim
    (1984), section III, with the momentum of Perraudin et al. (2013), algorithm 2.

    Args:
        magnitude_TP: target magnitudes.
        features: windows and steps.
        iterations: number of iterations, at least 0; more approximate the magnitudes better.
    """
    # The stream of RandomState is frozen in NumPy, so the initial phases are the same in later versions.
    phase_TP = np.random.RandomState(0).uniform(-np.pi, np.pi, magnitude_TP.shape)
    estimate_TP: np.ndarray = magnitude_TP * np.exp(1j * phase_TP)
    previous_TP: np.ndarray = np.zeros_like(estimate_TP)
    for _ in range(iterations):
        spectrum_TP = stft(istft(estimate_TP, features), features)
        accelerated_TP: np.ndarray = spectrum_TP + MOMENTUM * (spectrum_TP - previous_TP)
        previous_TP = spectrum_TP
        estimate_TP = magnitude_TP * accelerated_TP / np.maximum(np.abs(accelerated_TP), _TINY)
    return istft(estimate_TP, features)


def frames_to_sound(frames_TF: np.ndarray, features: FrameNumbers, iterations: int) -> np.ndarray:
    """Returns the sound (S,) of frames that are `features.centred`, float32 at `features.sample_rate`: step samples a
    frame.

    Args:
        frames_TF: logarithms of power, not normalised.
        features: settings of the frames.
        iterations: number of iterations of `griffin_lim`.
    """
    sound_S = griffin_lim(mel_to_magnitude(frames_TF, features), features, iterations)
    if features.preemphasis:
        coefficient = features.preemphasis
        # The recursion stays in Python: SciPy's lfilter would be one more requirement of exported folders.
        sound_S = np.fromiter(itertools.accumulate(sound_S.tolist(), lambda before, x: x + coefficient * before), float)
    # `centred` put this much silence in front of the first frame.
    begin = max((features.window - features.step) // 2, 0)
    return sound_S[begin : begin + len(frames_TF) * features.step].astype(np.float32)


def wav_bytes(sound_S: np.ndarray, sample_rate: int) -> bytes:
    """Encodes a WAV file of one channel and 16 bits; sound louder than 1 is scaled down, so that nothing is clipped."""
    loudest = max(1.0, float(sound_S.max()), -float(sound_S.min()))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:  # lint: writes
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        # 32767 and not 32768, which int16 does not have on the positive side.
        writer.writeframes(np.rint(sound_S / loudest * 32767).astype("<i2").tobytes())
    return file.getvalue()


def _window(features: FrameNumbers) -> np.ndarray:
    return np.hanning(features.window + 1)[:-1]  # periodic, as in `features.log_mel`
