"""Mean and standard deviation of uint8 arrays that Python code gives as a dataset."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.data.given import input_moments
from mxtrain.data.given_samples import splits_of


@pytest.mark.parametrize("count", [1, 1024, 1025, 2049])
def test_moments_of_given_images_match_all_samples(count: int) -> None:
    image_NHW = np.random.default_rng(count).integers(0, 256, (count, 3, 2), dtype=np.uint8)
    image_NHW[-1], image_NHW[0, 0, 0] = 255, 0
    (mean,), (std,) = input_moments(splits_of((image_NHW, np.arange(count) % 2))["all"])
    assert (mean, std) == pytest.approx((image_NHW.mean(), image_NHW.std()), rel=1e-12)
    (_,), (least,) = input_moments(splits_of((np.full_like(image_NHW, 7), np.arange(count) % 2))["all"])
    assert least == pytest.approx(1e-3)


def test_other_inputs_are_not_standardised() -> None:
    number_NC, image_NC = np.full((3, 2), 5, np.float32), np.full((3, 2), 5, np.uint8)
    assert input_moments(splits_of((number_NC, np.arange(3)))["all"]) == ([], [])
    assert input_moments(splits_of(((number_NC, image_NC), np.arange(3)))["all"])[0] == [0, 5]
