"""The polyphase filter against SciPy's in float64."""

from __future__ import annotations

import math
from typing import Tuple

import numpy as np
import pytest
import scipy.signal

from mxtrain.speech.resampling import resampled

RATES = [(8000, 16000), (44100, 16000), (48000, 16000), (16000, 44100), (22050, 16000), (16001, 16000), (192000, 1000)]


@pytest.mark.parametrize("length", [1, 2, 50, 2000])
@pytest.mark.parametrize("rates", RATES)
def test_sound_equals_scipy(rates: Tuple[int, int], length: int) -> None:
    source_rate, rate = rates
    sound_S = np.random.default_rng(length).normal(0, 0.2, length).astype(np.float32)
    common = math.gcd(*rates)
    expected_M = scipy.signal.resample_poly(sound_S.astype(np.float64), rate // common, source_rate // common)
    found_M = resampled(sound_S, source_rate, rate)
    assert found_M.dtype == np.float32
    np.testing.assert_allclose(found_M, expected_M, rtol=0, atol=2.0**-24 * max(np.abs(expected_M).max(), 1e-3))


def test_sound_at_the_rate_is_unchanged_and_silence_stays_empty() -> None:
    sound_S = np.ones(3, np.float32)
    assert resampled(sound_S, 16000, 16000) is sound_S
    assert resampled(sound_S[:0], 8000, 16000).shape == (0,)
