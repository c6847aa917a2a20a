"""Arithmetic of boxes on the device: what a match, an offset and a sample with a quota are."""

import numpy as np
import pytest

from mxtrain.vision.detection.box_arithmetic import (
    REGION_VARIANCES,
    apply_offsets,
    is_object,
    match_boxes,
    offsets_to,
    sampling_keys,
)
from mxtrain.vision.detection.boxes import Column, Flag, padded, rows_of


@pytest.fixture
def nd():
    from mxtrain.engine.backend import nd

    return nd


def true_boxes():
    """An object, a difficult one, a crowd, one without an area; and a row that is none."""
    rows = rows_of([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 60, 20], [5, 5, 5, 9]], [0, 1, 2, 0])
    rows[1, Column.FLAGS], rows[2, Column.FLAGS] = Flag.DIFFICULT, Flag.CROWD
    return padded([rows], 5)


def test_objects_exclude_crowds_and_empty_boxes(nd):
    assert is_object(nd, nd.array(true_boxes())).asnumpy().tolist() == [[1, 1, 0, 0, 0]]


def test_a_match_is_the_object_that_is_covered_best(nd):
    edges = [[0, 0, 10, 20], [22, 0, 30, 10], [40, 0, 60, 20], [50, 0, 69, 20], [50, 0, 71, 20], [7, 7, 7, 7]]
    found = match_boxes(nd, nd.array([edges]), nd.array(true_boxes()))
    np.testing.assert_allclose(found.iou_BN.asnumpy(), [[0.5, 0.8, 0, 0, 0, 0]], atol=1e-6)
    assert found.index_BN.asnumpy()[0, :2].tolist() == [0, 1]
    assert found.in_crowd_BN.asnumpy().tolist() == [[0, 0, 1, 1, 0, 0]]  # by more than half of their own area


def test_offsets_move_boxes_to_their_targets(nd):
    draw = np.random.RandomState(0)
    begin_2N2, size_2N2 = draw.uniform(0, 50, (2, 7, 2)), draw.uniform(1, 40, (2, 7, 2))
    box_14, true_14 = (nd.array(one[None]) for one in np.concatenate([begin_2N2, begin_2N2 + size_2N2], axis=2))
    offset = offsets_to(nd, box_14, true_14, REGION_VARIANCES)
    np.testing.assert_allclose(
        apply_offsets(nd, box_14, offset, REGION_VARIANCES, 80.0).asnumpy(), true_14.asnumpy(), atol=1e-3
    )


def test_sides_grow_and_shrink_by_a_limited_factor(nd):
    edge = nd.array([[[10, 10, 20, 30]]])
    found = apply_offsets(nd, edge, nd.array([[[0, 0, 50, -50]]]), (1.0, 1.0, 1.0, 1.0), np.log(4.0)).asnumpy()
    np.testing.assert_allclose(found, [[[-5, 17.5, 35, 22.5]]], atol=1e-4)


@pytest.mark.parametrize(
    "num_samples, share, chosen",
    [
        (4, 0.5, [0, 1, 4, 5]),  # two of three positives, by their numbers, and the negatives
        (5, 0.5, [0, 1, 3, 4, 5]),  # a positive beyond the quota before what is neither
        (1, 0.25, [1]),
        (2, 0.25, [1, 5]),  # of quotas below 1, one
    ],
)
def test_samples_have_a_quota_of_positives(nd, num_samples, share, chosen):
    positive, negative = nd.array([[1, 1, 0, 1, 0, 0]]), nd.array([[0, 0, 0, 0, 1, 1]])
    noise = nd.array([[0.6, 0.7, 0.99, 0.1, 0.2, 0.3]])
    key_N = sampling_keys(nd, positive, negative, noise, num_samples, share).asnumpy()[0]
    assert sorted(np.argsort(-key_N)[:num_samples].tolist()) == chosen
    assert key_N[2] == 0 and (key_N[[0, 1, 3, 4, 5]] >= 1).all()
