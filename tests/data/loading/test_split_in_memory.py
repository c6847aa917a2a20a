"""Datasets in memory: arrays that are no images are refused."""

import numpy as np
import pytest

from mxtrain.errors import ConfigError
from mxtrain.vision.classification.synthetic import Synthetic
from mxtrain.vision.images.memory import split_in_memory


@pytest.mark.parametrize(
    "shape, dtype, why",
    [
        ((40, 1, 64), "float32", r"float32 of shape \(40, 1, 64\).*mxtrain.train\(model=NETWORK, dataset=\(x, y\)\)"),
        ((40, 1, 64), "uint8", "uint8 of shape"),
        ((40, 1, 8, 8), "float32", "float32 of shape"),
    ],
)
def test_arrays_that_are_not_images_are_refused(shape, dtype, why):
    with pytest.raises(ConfigError, match=why):
        split_in_memory(Synthetic(), np.zeros(shape, dtype), np.arange(40) % 2, ["a", "b"])


def test_numbers_of_a_known_scale_are_images():
    dataset = Synthetic(mean=[0.5], std=[0.25])
    splits = split_in_memory(dataset, np.zeros((40, 1, 8, 8), "float32"), np.arange(40) % 2, ["a", "b"])
    assert splits.shape == (1, 8, 8) and list(splits.mean) == [0.5]
