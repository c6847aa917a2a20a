"""Key points of digits against their ink."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxtrain.data.digits import read_digits
from mxtrain.data.spec import open_splits
from mxtrain.vision.detection.scenes import interpolation_weights
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.pose.digit_key_points import NAMES, OUTER, DigitKeyPoints, ink_box, ink_points
from mxtrain.vision.pose.key_points import KeypointMeta


def drawn(number: int, size: int, begin: int) -> np.ndarray:
    """The ink of a digit that is so large, and begins there, (64, 64)."""
    image_N1GG, _ = read_digits()
    spread_HG = interpolation_weights(np.array([begin]), np.array([size]), 64)[0]
    return spread_HG @ (image_N1GG[number, 0] / 255.0) @ spread_HG.T > 0.4


@pytest.mark.slow
def test_key_points_are_extremes_of_the_ink() -> None:
    for number in range(0, 1797, 60):
        is_ink_HW = drawn(number, 40, 10)
        left, top, right, bottom = ink_box(is_ink_HW)
        rows, columns = np.nonzero(is_ink_HW)
        assert (left, top, right, bottom) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        points = dict(zip(NAMES, ink_points(is_ink_HW)))
        # On an image that is eight times as large, the share of a row that counts is whole rows.
        fine_HW = is_ink_HW.repeat(8, axis=0).repeat(8, axis=1)
        y_P, x_P = (places + 0.5 for places in np.nonzero(fine_HW))
        height, width = 8 * (bottom - top), 8 * (right - left)
        parts = {
            "top": y_P < 8 * top + OUTER * height,
            "bottom": y_P > 8 * bottom - OUTER * height,
            "left": x_P < 8 * left + OUTER * width,
            "right": x_P > 8 * right - OUTER * width,
            "centre": np.ones(len(y_P), bool),
        }
        for name, part_P in parts.items():
            # Across the part it is exact; along it, the rest of a row counts as if it were the middle of that row.
            slack_x, slack_y = {"left": (0.4, 0), "right": (0.4, 0), "centre": (0, 0)}.get(name, (0, 0.4))
            assert abs(points[name][0] - x_P[part_P].mean() / 8) <= slack_x + 1e-9
            assert abs(points[name][1] - y_P[part_P].mean() / 8) <= slack_y + 1e-9
            assert points[name][2] == 2


@pytest.mark.zoo
def test_key_points_do_not_depend_on_digit_size() -> None:
    """In shares of the box. The outermost pixel itself jumps by 0.07 in the mean."""
    moves = []
    for number in range(0, 1797, 12):
        places = []
        for size, begin in ((24, 3), (40, 10)):
            is_ink_HW = drawn(number, size, begin)
            left, top, right, bottom = ink_box(is_ink_HW)
            places.append((ink_points(is_ink_HW)[:, :2] - [left, top]) / max(right - left, bottom - top))
        moves.append(np.linalg.norm(places[0] - places[1], axis=1))
    move_NJ = np.array(moves)
    assert (move_NJ.mean(axis=0) < 0.03).all() and np.mean(move_NJ > 0.1) < 0.01


@pytest.mark.slow
def test_sample_is_an_unhidden_digit_of_the_scene(describe_run: Any) -> None:
    dataset = describe_run("dataset=digit_key_points", "dataset.num_val=40").dataset
    source = open_splits(dataset).val
    index_B = np.arange(40)
    image_BCHW, point_BJ3, fact_BF = source.fetch(index_B, seed=0, epoch=0, train=False)  # type: ignore[attr-defined]
    *_, is_ink_BHW = source._make(index_B, seed=0, epoch=0, train=False)  # type: ignore[attr-defined]
    assert image_BCHW.shape == (40, 3, 64, 64) and point_BJ3.shape == (40, 5, 3)
    for point_J3, fact_F, is_ink_HW in zip(point_BJ3, fact_BF, is_ink_BHW):
        back_23 = fact_F[KeypointMeta.MATRIX : KeypointMeta.LEFT].reshape(2, 3)
        np.testing.assert_allclose(transform_points(point_J3[:, :2], back_23), ink_points(is_ink_HW)[:, :2], atol=1e-3)
        assert fact_F[KeypointMeta.LEFT : KeypointMeta.AREA].tolist() == list(ink_box(is_ink_HW))
        assert fact_F[KeypointMeta.AREA] == is_ink_HW.sum()
        assert fact_F[: KeypointMeta.MATRIX].tolist() == [64, 64, 64, 64]
        # In what enters the network it is large: its longer side is 64 / 1.25 pixels.
        left, top, right, bottom = ink_box(is_ink_HW)
        assert max(right - left, bottom - top) / back_23[0, 0] == pytest.approx(64 / 1.25)


def test_training_scenes_depend_on_the_epoch_only() -> None:
    splits = DigitKeyPoints(num_train=20, num_val=5).open()
    index_B = np.arange(20)
    first, again, later = (
        splits.train.fetch(index_B, seed=1, epoch=epoch, train=True)
        for epoch in (0, 0, 1)  # type: ignore[attr-defined]
    )
    parts = [splits.train.fetch(index_B[::-1][k : k + 7], seed=1, epoch=0, train=True) for k in (0, 7, 14)]  # type: ignore[attr-defined]
    for number in range(3):
        np.testing.assert_array_equal(first[number], again[number])
        np.testing.assert_array_equal(first[number], np.concatenate([part[number] for part in parts])[::-1])
        assert (first[number] != later[number]).any()
    # Mirrored digits keep left and right: the key point of that name is further left.
    assert (first[1][:, NAMES.index("left"), 0] < first[1][:, NAMES.index("right"), 0]).all()
