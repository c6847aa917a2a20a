"""Windows, against the text of the standard, one number at a time."""

import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from mxtrain.dataset.image.window import FUNCTIONS


def linear(x, c, w):
    """PS3.3 C.11.2.1.2.1."""
    if x <= c - 0.5 - (w - 1) / 2:
        return 0
    if x > c - 0.5 + (w - 1) / 2:
        return 255
    return ((x - (c - 0.5)) / (w - 1) + 0.5) * 255


def linear_exact(x, c, w):
    """PS3.3 C.11.2.1.3.2."""
    if x <= c - w / 2:
        return 0
    if x > c + w / 2:
        return 255
    return ((x - c) / w + 0.5) * 255


def sigmoid(x, c, w):
    """PS3.3 C.11.2.1.3.1."""
    return 255 / (1 + math.exp(-4 * (x - c) / w))


STANDARD = {"LINEAR": linear, "LINEAR_EXACT": linear_exact, "SIGMOID": sigmoid}


@pytest.mark.parametrize("centre, width", [(40, 400), (0, 1), (2048, 4096), (-600.5, 1500.25), (10, 2)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_windows_are_those_of_the_standard(name, centre, width):
    value = np.unique(np.r_[np.arange(-1500, 4000, 7), centre + np.arange(-3, 4) / 2, centre - width / 2, centre])
    expected = [STANDARD[name](float(x), centre, width) if abs(x - centre) < 150 * width else 255 * (x > centre)
                for x in value]  # fmt: skip
    assert np.abs(FUNCTIONS[name](value, centre, width) - expected).max() < 1e-9


def test_the_sigmoid_overflows_for_no_value():
    assert FUNCTIONS["SIGMOID"](np.array([-1e9, 0.0, 1e9]), 0.0, 1.0).tolist() == [0, 127.5, 255]
