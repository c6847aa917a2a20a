"""Masks of single objects: what is seen of polygons and of bitmaps, and masks in their boxes and images."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from mxtrain.vision.instance_segmentation.mask_rows import decode_mask, encode_masks, paste_masks
from mxtrain.vision.instance_segmentation.outlines import Bitmap, Polygons

STAR = np.array([[10, 2], [13, 18], [1, 7], [19, 7], [7, 18.3]], float)
SQUARE = np.array([[20.0, 20], [26, 20], [26, 30], [20, 30]])


def is_inside(point_K2, x, y):
    """By the angle that the corners are seen in from a point: an odd number of turns around it."""
    angle_K = np.arctan2(point_K2[:, 1] - y, point_K2[:, 0] - x)
    step_K = (np.roll(angle_K, -1) - angle_K + np.pi) % (2 * np.pi) - np.pi
    return round(step_K.sum() / (2 * np.pi)) % 2 != 0


@pytest.mark.parametrize("window", [(0, 0, 32, 32), (3.3, 4.1, 17.7, 12.9), (-5, 2, 40, 31), (8, 8, 11, 9)])
def test_grid_cell_is_inside_by_its_centre(window):
    left, top, right, bottom = window
    found = Polygons([STAR, SQUARE]).on_grid(window, 24)
    for line, column in np.ndindex(24, 24):
        x = left + (column + 0.5) * (right - left) / 24
        y = top + (line + 0.5) * (bottom - top) / 24
        assert found[line, column] == any(is_inside(one, x, y) for one in (STAR, SQUARE)), (line, column)


def test_a_corner_on_a_line_of_middles_is_crossed_once():
    rhombus = np.array([[4.0, 0.5], [7.5, 4.5], [4.0, 7.5], [0.5, 4.5]])
    rows = Polygons([rhombus]).on_grid((0, 0, 8, 8), 8).sum(axis=1)
    assert rows.tolist() == [0, 2, 4, 6, 7, 4, 2, 0]


def test_polygon_equals_pycocotools():
    given = [STAR.ravel().tolist(), SQUARE.ravel().tolist()]
    wanted = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(given, 33, 40)))
    np.testing.assert_array_equal(Polygons([STAR, SQUARE]).in_image((33, 40)), wanted)
    far = Polygons([SQUARE * [1e9, 1]])
    assert far.in_image((33, 40)).shape == (33, 40)  # and no memory is filled with its edges


def test_cropped_bitmap_keeps_the_visible_part():
    mask_hw = np.zeros((30, 40), np.uint8)
    mask_hw[10:20, 8:24] = 1
    outline = Bitmap(mask_hw)
    assert outline.edges() == (8, 10, 24, 20)
    assert outline.on_grid((8, 10, 24, 20), 56).all() and not outline.on_grid((24, 0, 40, 30), 56).any()
    half = outline.on_grid((0, 10, 16, 20), 56)
    assert not half[:, :28].any() and half[:, 28:].all()
    # Smaller than its pixels: where half of them are.
    quarter = outline.on_grid((0, 0, 40, 30), 10)  # 3 lines and 4 columns each
    assert quarter.sum() == 16 and quarter[3:7, 2:6].all()


def test_a_mask_in_its_box_becomes_the_same_mask_in_its_image():
    rng = np.random.RandomState(0)
    for _ in range(5):
        left, top = rng.randint(0, 10, 2)
        mask_hw = np.zeros((50, 60), np.uint8)
        mask_hw[top : top + 28, left : left + 28] = rng.rand(28, 28) > 0.5
        edges = (left, top, left + 28, top + 28)
        seen_SS = Bitmap(mask_hw).on_grid(edges, 28)
        (found_hw,) = paste_masks(seen_SS[None].astype(float), np.array([edges], float), (50, 60))
        np.testing.assert_array_equal(found_hw, mask_hw)


def test_mask_is_clipped_to_its_box_and_image():
    whole = np.ones((3, 28, 28))
    edge_N4 = np.array([[2.4, 3.5, 9.6, 8.0], [-5.0, -5, 400, 7], [30.0, 30, 40, 40]])
    first, second, third = paste_masks(whole, edge_N4, (13, 17))
    assert np.argwhere(first).min(axis=0).tolist() == [3, 2] and np.argwhere(first).max(axis=0).tolist() == [7, 9]
    assert first.sum() == 5 * 8 and second[:7].all() and not second[7:].any() and not third.any()


def test_codes_equal_pycocotools():
    rng = np.random.RandomState(1)
    masks = [(rng.rand(13, 17) > share).astype(np.uint8) for share in (0.0, 0.3, 0.9, 1.0)]
    codes = encode_masks(masks)
    assert codes == [coco_mask.encode(np.asfortranarray(mask))["counts"] for mask in masks] and encode_masks([]) == []
    for code, mask_hw in zip(codes, masks):
        np.testing.assert_array_equal(decode_mask(code, (13, 17)), mask_hw)
