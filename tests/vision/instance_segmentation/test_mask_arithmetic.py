"""Masks as other boxes see them, beside an image of single pixels."""

import numpy as np
import pytest

from mxtrain.vision.instance_segmentation.mask_arithmetic import resample_masks


def cut(mask_TSS, edge_T4, region_T4, side):
    from mxtrain.engine.backend import nd

    given = (nd.array(one) for one in (mask_TSS, edge_T4, region_T4))
    return resample_masks(nd, *given, nd.zeros((len(mask_TSS), side, side))).asnumpy()


def by_pixels(mask_SS, edge_4, region_4, side):
    """Means over an image in which each square of either is whole pixels."""
    canvas = np.zeros((400, 400))
    left, top, right, bottom = edge_4 + 100
    size = mask_SS.shape[0]
    canvas[top:bottom, left:right] = np.kron(mask_SS, np.ones(((bottom - top) // size, (right - left) // size)))
    left, top, right, bottom = region_4 + 100
    part = canvas[top:bottom, left:right]
    return part.reshape(side, len(part) // side, side, -1).mean(axis=(1, 3))


@pytest.mark.parametrize("side", [3, 6, 12])
def test_values_are_means_over_covered_areas(side):
    draw = np.random.RandomState(0)
    edge_T4 = np.array([[0, 0, 60, 120], [12, 30, 72, 90], [12, 30, 72, 90], [0, 0, 12, 12]])
    region_T4 = np.array([[0, 0, 60, 120], [36, 6, 96, 78], [24, 42, 60, 66], [24, 24, 48, 48]])
    mask_TSS = draw.rand(4, 6, 6)
    found = cut(mask_TSS, edge_T4, region_T4, side)
    for row in range(4):
        wanted = by_pixels(mask_TSS[row], edge_T4[row], region_T4[row], side)
        np.testing.assert_allclose(found[row], wanted, atol=1e-6)
    assert found[:3].any(axis=(1, 2)).all() and not found[3].any()  # the last has nothing in common with its box


def test_boxes_without_an_area_give_numbers():
    empty, full = np.array([[5, 5, 5, 9]]), np.array([[0, 0, 10, 10]])
    for edges in ((empty, full), (full, empty), (empty, empty)):
        assert np.isfinite(cut(np.ones((1, 4, 4)), *edges, 2)).all()
