"""Log-mel features against sums that are written from their definition, and SpecAugment."""

from __future__ import annotations

import math
from typing import List

import numpy as np
import pytest
from pydantic import ValidationError

from mxtrain.speech.features import Features
from mxtrain.speech.log_mel import log_mel, mel_filters, stored
from mxtrain.speech.spec_augment import SpecAugment

SMALL = Features(sample_rate=4000, window_ms=16.0, step_ms=5.0, num_mels=10, low_hz=100.0, normalize="none")
SOUND = np.random.RandomState(0).uniform(-0.5, 0.5, 300).astype(np.float32)


def by_definition(sound: List[float], features: Features) -> List[List[float]]:
    """Plain sums: no FFT, no matrices."""
    pi, size, rate = math.pi, features.fft_size, features.sample_rate
    emphasized = [sound[0]] + [sound[n] - features.preemphasis * sound[n - 1] for n in range(1, len(sound))]
    to_mel = [2595 * math.log10(1 + hz / 700) for hz in (features.low_hz, rate / 2)]
    step = (to_mel[1] - to_mel[0]) / (features.num_mels + 1)
    corners = [700 * (10 ** ((to_mel[0] + number * step) / 2595) - 1) for number in range(features.num_mels + 2)]
    rows = []
    for begin in range(0, len(sound) - features.window + 1, features.step):
        part = [
            emphasized[begin + n] * (0.5 - 0.5 * math.cos(2 * pi * n / features.window)) for n in range(features.window)
        ]
        power = []
        for number in range(size // 2 + 1):
            real = sum(x * math.cos(2 * pi * number * n / size) for n, x in enumerate(part))
            imaginary = sum(x * math.sin(2 * pi * number * n / size) for n, x in enumerate(part))
            power.append(real**2 + imaginary**2)
        row = []
        for left, top, right in zip(corners, corners[1:], corners[2:]):
            total = 0.0
            for number, one in enumerate(power):
                hz = number * rate / size
                if left < hz <= top:
                    total += one * (hz - left) / (top - left)
                elif top < hz < right:
                    total += one * (right - hz) / (right - top)
            row.append(math.log(total + 1e-10))
        rows.append(row)
    return rows


def test_features_equal_their_definition() -> None:
    wanted = by_definition([float(x) for x in SOUND], SMALL)
    found = log_mel(SOUND, SMALL)
    assert found.dtype == np.float32 and len(found) == len(wanted) == 12
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def test_quiet_bands_beside_a_loud_tone() -> None:
    """An FFT in float32 has rounding errors as loud as the sidelobes of a tone."""
    features = Features(preemphasis=0.0, normalize="none")
    sound_S = (0.9 * np.sin(2 * np.pi * 440 * np.arange(400) / 16000)).astype(np.float32)
    wanted = by_definition([float(x) for x in sound_S], features)
    np.testing.assert_allclose(log_mel(sound_S, features), wanted, rtol=1e-6, atol=1e-5)


def test_bands_are_triangles_that_meet_at_their_tops() -> None:
    weights = mel_filters(Features())
    assert weights.shape == (257, 80) and weights.max() <= 1
    inside = (np.arange(257) * 16000 / 512 > 200) & (np.arange(257) * 16000 / 512 < 7000)
    np.testing.assert_allclose(weights[inside].sum(axis=1), 1, atol=1e-9)


def test_bands_of_an_utterance_are_standardised_at_any_volume() -> None:
    features = SMALL.model_copy(update={"normalize": "utterance"})
    found = log_mel(SOUND, features)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=0), 1, atol=1e-4)
    np.testing.assert_allclose(log_mel(SOUND * np.float32(0.25), features), found, atol=1e-3)


def test_a_band_that_never_changes_becomes_0() -> None:
    features = SMALL.model_copy(update={"normalize": "utterance"})
    assert not log_mel(np.zeros(300, np.float32), features).any()


def test_short_sound_has_one_frame_and_long_sound_is_computed_in_parts(monkeypatch) -> None:
    assert log_mel(SOUND[:5], SMALL).shape == (1, 10)
    whole = log_mel(SOUND, SMALL)
    monkeypatch.setattr("mxtrain.speech.log_mel.FRAMES_AT_ONCE", 5)
    np.testing.assert_allclose(log_mel(SOUND, SMALL), whole, atol=1e-5)
    assert np.abs(stored(whole).astype(np.float32) - whole).max() < 0.005


@pytest.mark.parametrize(
    "given, said",
    [
        ({"num_mels": 256}, "narrower than the step of the spectrum"),
        ({"high_hz": 9000.0}, "at most half of"),
        ({"low_hz": 8000.0}, "must rise"),
        ({"window_ms": 0.01}, "less than 2 samples"),
    ],
)
def test_features_that_cannot_be_are_refused(given, said) -> None:
    with pytest.raises(ValidationError, match=said):
        Features(**given)


def test_stripes_are_a_function_of_seed_epoch_and_utterance() -> None:
    augment, frames = SpecAugment(), np.ones((200, 80), np.float32)

    def hidden(*drawn: int) -> np.ndarray:
        copied = frames.copy()
        augment.apply_masks(copied, *drawn)
        return copied == 0

    first = hidden(0, 1, 2)
    assert (hidden(0, 1, 2) == first).all()
    assert all((hidden(*other) != first).any() for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)))
    found = [hidden(0, epoch, 0) for epoch in range(50)]
    # Rows are hidden whole (time), or columns (bands); never more than what two stripes may take.
    times, bands = zip(*((one.all(axis=1).sum(), one.all(axis=0).sum()) for one in found))
    assert 0 < max(times) <= 70 and 0 < max(bands) <= 30 and np.mean(times) > 10 and np.mean(bands) > 5
    for one in found:
        assert (one == (one.all(axis=1)[:, None] | one.all(axis=0)[None, :])).all()
    short = np.ones((20, 80), np.float32)
    SpecAugment(frequency_masks=0).apply_masks(short, 0, 0, 0)
    assert (short == 0).all(axis=1).sum() <= 8, "at most time_share of an utterance for a stripe"


def test_stripes_have_up_to_their_width_at_any_position() -> None:
    narrow = SpecAugment(time_masks=0, frequency_masks=1, frequency_width=1)
    wide = SpecAugment(time_masks=0, frequency_masks=1, frequency_width=50)  # of 8 bands
    hidden = {"narrow": np.zeros(8), "wide": np.zeros(8)}
    for epoch in range(400):
        for name, augment in (("narrow", narrow), ("wide", wide)):
            frames = np.ones((4, 8), np.float32)
            augment.apply_masks(frames, 0, epoch, 0)
            hidden[name] += (frames == 0).all(axis=0)
    assert 150 < hidden["narrow"].sum() < 250, "half of the time none, half of the time one"
    assert hidden["wide"].sum() == pytest.approx(400 * 4, rel=0.1), "0 to 8, each as often"
    np.testing.assert_allclose(hidden["wide"], hidden["wide"][::-1], rtol=0.25)
