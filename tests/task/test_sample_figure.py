"""The image of samples: any size of image, and red where the network is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.task.sample_figure import PredictedImages, draw_samples
from mxtrain.task.sample_results import draw_worst


def test_wrong_predictions_are_red():
    def reds(label, threshold=None):
        image = np.zeros((1, 8, 8, 3), np.uint8)
        samples = PredictedImages(image, np.array([label]), np.array([[0.9, 0.1]]), threshold)
        picture = draw_samples(samples, ["a", "b"], 4)
        return np.all(np.asarray(picture) == (200, 30, 30), axis=2).sum()

    assert reds(label=0) == 0
    assert reds(label=1) > 500
    assert reds(label=1, threshold=0.1) == 0


@pytest.mark.parametrize(
    "cells, is_red",
    [
        ({"true": "dog", "predicted": "cat"}, True),
        ({"true": "dog", "predicted": "dog"}, False),
        ({"true": 3.0, "predicted": 2.5}, False),  # a regression is never exactly right
        ({"missed": 2, "false_positives": 1}, False),
    ],
)
def test_wrong_predictions_among_the_worst_are_red(cells, is_red, monkeypatch):
    monkeypatch.setattr("mxtrain.task.sample_figure.images_of", lambda source: [np.zeros((8, 8, 3), np.uint8)])
    picture = draw_worst(lambda index: None, [{"sample": 0, "loss": 0.5, **cells}], "val")
    assert np.all(np.asarray(picture) == (200, 30, 30), axis=2).any() == is_red


@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (3, 32, 32, 3), (3, 500, 300, 3), (1, 16, 4, 4), (0, 8, 8, 1)])
def test_images_of_any_size(shape):
    samples = PredictedImages(np.zeros(shape, np.uint8), np.zeros(shape[0], int), np.full((shape[0], 20), 0.05))
    image = draw_samples(samples, ["a class with a very long name indeed"], 16)
    assert image.mode == "RGB" and image.width < 700


def test_requested_number_of_samples_is_drawn():
    samples = PredictedImages(np.zeros((9, 8, 8, 1), np.uint8), np.zeros(9, int), np.eye(2)[[0] * 9])
    few, all_of_them = (draw_samples(samples, ["a", "b"], most) for most in (4, 16))
    assert few.height * 2.5 < all_of_them.height < few.height * 3.5 and few.width == all_of_them.width
