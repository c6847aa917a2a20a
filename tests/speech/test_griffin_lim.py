"""Griffin and Lim's algorithm: spectra and back, nearer with each iteration, and files."""

from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.signal
import soundfile

from mxtrain.speech.features import Features
from mxtrain.speech.formant import DIGITS, PHONEMES, SILENCE, say
from mxtrain.speech.griffin_lim import (
    frames_to_sound,
    griffin_lim,
    istft,
    mel_to_magnitude,
    stft,
    wav_bytes,
)
from mxtrain.speech.log_mel import centred, log_mel, mel_filters

FEATURES = Features(sample_rate=8000, window_ms=32.0, step_ms=8.0, num_mels=40, preemphasis=0.0, normalize="none")


def chirp(seconds: float = 0.5) -> np.ndarray:
    time_S = np.arange(int(seconds * 8000)) / 8000
    found: np.ndarray = 0.4 * np.sin(2 * np.pi * (300 * time_S + 800 * time_S**2))
    return found.astype(np.float32)


def speech() -> np.ndarray:
    symbols = [SILENCE, *DIGITS["one"], *DIGITS["six"], SILENCE]
    return say(symbols, [round(8000 * PHONEMES[symbol].duration_s) for symbol in symbols], 8000, 0)


def spectral_convergence(sound_S: np.ndarray, magnitude_TP: np.ndarray) -> float:
    """Returns the relative distance between the magnitudes of a sound and the target magnitudes; 0 is exact."""
    actual_TP = np.abs(stft(sound_S, FEATURES))
    return float(np.linalg.norm(actual_TP - magnitude_TP)) / float(np.linalg.norm(magnitude_TP))


def test_spectra_equal_scipy_and_are_inverted() -> None:
    sound_S = chirp()[: 256 + 64 * 50]
    window = scipy.signal.get_window("hann", 256)
    _, _, wanted_PT = scipy.signal.stft(
        sound_S, 8000, window, 256, 192, 256, boundary=None, padded=False, scaling="spectrum"
    )
    np.testing.assert_allclose(stft(sound_S, FEATURES), wanted_PT.T * window.sum(), atol=1e-4)
    np.testing.assert_allclose(istft(stft(sound_S, FEATURES), FEATURES)[32:-32], sound_S[32:-32], atol=1e-6)


@pytest.mark.parametrize("sound_S", [chirp(), speech()], ids=["chirp", "speech"])
def test_each_iteration_is_nearer_to_the_magnitudes(sound_S: np.ndarray) -> None:
    wanted_TP = np.abs(stft(sound_S, FEATURES))
    found = [spectral_convergence(griffin_lim(wanted_TP, FEATURES, count), wanted_TP) for count in (0, 1, 5, 30)]
    assert found == sorted(found, reverse=True) and found[0] > 0.4 and found[-1] < 0.15
    assert spectral_convergence(sound_S, wanted_TP) < 1e-6


def test_magnitudes_of_frames_have_the_power_of_their_bands() -> None:
    frames_TF = log_mel(centred(speech(), FEATURES), FEATURES)
    power_TF = mel_to_magnitude(frames_TF, FEATURES) ** 2 @ mel_filters(FEATURES)
    assert np.abs(np.log(power_TF) - frames_TF).mean() < 0.02


@pytest.mark.parametrize("preemphasis", [0.0, 0.9])
def test_the_sound_of_frames_has_these_frames_and_their_length(preemphasis: float) -> None:
    features = FEATURES.model_copy(update={"preemphasis": preemphasis})
    frames_TF = log_mel(centred(speech(), features), features)
    sound_S = frames_to_sound(frames_TF, features, 30)
    assert len(sound_S) == len(frames_TF) * features.step
    again_TF = log_mel(centred(sound_S, features), features)
    assert np.abs(again_TF - frames_TF).mean() < 0.5, "of 20 between the loudest and the quietest"
    np.testing.assert_array_equal(sound_S, frames_to_sound(frames_TF, features, 30))


@pytest.mark.parametrize("length, frames", [(1, 1), (64, 1), (65, 2), (6400, 100)])
def test_centred_sound_has_a_frame_for_each_step(length: int, frames: int) -> None:
    assert len(log_mel(centred(np.ones(length, np.float32), FEATURES), FEATURES)) == frames


def test_a_frame_is_centred_in_its_step() -> None:
    sound_S = np.zeros(64 * 20, np.float32)
    sound_S[64 * 7 + 32] = 1.0  # in the middle of step 7
    energy_T = log_mel(centred(sound_S, FEATURES), FEATURES).mean(axis=1)
    assert energy_T.argmax() == 7 and abs(energy_T[6] - energy_T[8]) < 0.1


def test_wav_files_are_readable_by_soundfile_and_unclipped() -> None:
    quiet, rate = soundfile.read(io.BytesIO(wav_bytes(chirp(), 8000)))
    assert rate == 8000 and np.abs(quiet - chirp()).max() < 1e-4
    loud, _ = soundfile.read(io.BytesIO(wav_bytes(5 * chirp(), 8000)))
    np.testing.assert_allclose(loud, chirp() / np.abs(chirp()).max(), atol=1e-4)
