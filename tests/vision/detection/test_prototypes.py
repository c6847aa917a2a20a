"""Prototypes and coefficients: targets, loss and gradients against NumPy, and masks that are put together of them."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Flag, rows_of
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.detection.heads.prototypes import PrototypeCoding
from mxtrain.vision.detection.losses import HeatmapFocal, YolactLoss
from mxtrain.vision.instance_segmentation.mask_rows import PREDICTED_SIDE, TRUE_COLUMNS, TRUE_SIDE, append_masks
from mxtrain.vision.instance_segmentation.yolact import Yolact

SHAPE = (3, 32, 40)
CODING = PrototypeCoding(3, SHAPE, prototypes=4, mask_stride=2, max_detections=20)


def objects() -> np.ndarray:
    """Four images: two objects; one that is cut off, and one so thin that it has hardly an area; a crowd; none."""
    rng = np.random.RandomState(0)
    row_BMR = np.full((4, 2, TRUE_COLUMNS), -1, np.float32)
    for image, edges in ((0, [[2, 3, 13, 12], [20, 8, 34, 30]]), (1, [[36, 0, 40, 7], [8, 8, 8.0001, 16]])):
        masks = rng.rand(2, TRUE_SIDE, TRUE_SIDE) > 0.4
        row_BMR[image] = append_masks(rows_of(edges, [0, 2]), masks)
    crowd = rows_of([[0, 0, 30, 30]], [1])
    crowd[0, 5] = float(Flag.CROWD)
    row_BMR[2, :1] = append_masks(crowd, np.zeros((1, TRUE_SIDE, TRUE_SIDE)))
    return row_BMR


def outputs() -> List[np.ndarray]:
    rng = np.random.RandomState(1)
    return [rng.randn(4, *shape).astype(np.float32) for shape in CODING.output_shapes]


def sampled(map_PHW: np.ndarray, edges: np.ndarray, per_side: int, side: int) -> np.ndarray:
    """A map at the middles of some squares of a box, (P, side, side), each the mean of per_side^2 places in it; places
    are in pixels of the map, whose first has its middle at 0.5."""
    begin_2, end_2 = edges[:2].astype(np.float64), edges[2:].astype(np.float64)
    at = (np.arange(side * per_side) + 0.5) / (side * per_side)
    x, y = (begin_2[axis] + at * (end_2[axis] - begin_2[axis]) - 0.5 for axis in (0, 1))
    _, height, width = map_PHW.shape

    def weights(place: np.ndarray, length: int) -> np.ndarray:
        inside = place.clip(0, length - 1)
        weight = np.maximum(0, 1 - np.abs(inside[:, None] - np.arange(length)))
        weight[(place < -1) | (place > length)] = 0
        return weight

    values = weights(y, height) @ map_PHW.astype(np.float64) @ weights(x, width).T
    return values.reshape(-1, side, per_side, side, per_side).mean(axis=(2, 4))


def mask_loss(outputs: List[np.ndarray], row_BMR: np.ndarray) -> np.ndarray:
    """Returns the part of masks in the loss of each image, in float64."""
    _, _, coefficient_BPhw, prototype_BPHW = outputs
    loss_B = np.zeros(len(row_BMR))
    for image, row_MR in enumerate(row_BMR):
        for row in row_MR:
            if row[4] < 0 or row[5]:
                continue
            edges = row[:4] / 2
            edges[2:] = np.maximum(edges[2:], edges[:2] + np.float32(0.01))
            column, line = int((row[0] + row[2]) / 8), int((row[1] + row[3]) / 8)
            part = sampled(prototype_BPHW[image], edges, 2, PREDICTED_SIDE)
            logit = np.tensordot(coefficient_BPhw[image, :, line, column].astype(np.float64), part, 1)
            share = row[NUM_COLUMNS:].reshape(PREDICTED_SIDE, 2, PREDICTED_SIDE, 2).mean(axis=(1, 3))
            p = 1 / (1 + np.exp(-logit))
            loss_B[image] += 2 * -(share * np.log(p) + (1 - share) * np.log(1 - p)).mean()
            loss_B[image] += 1 - (2 * (p * share).sum() + 1) / ((p**2).sum() + (share**2).sum() + 1)
    return loss_B


def computed(values: List[np.ndarray], row_BMR: np.ndarray, head: Any = None) -> Tuple[np.ndarray, List[np.ndarray]]:
    """The loss of each image, and gradients, after memory was filled with what is no number."""
    block = YolactLoss().build_detection(3)
    block.hybridize(static_alloc=True)
    arrays, targets = [nd.array(one) for one in values], list(map(nd.array, (row_BMR, *CODING.encode(row_BMR))))
    for one in arrays:
        one.attach_grad()
    sizes = (8 * 4 * PREDICTED_SIDE**2, 8 * PREDICTED_SIDE**2, 64, 1280)
    junk = [nd.full((size,), np.nan) for size in sizes for _ in range(4)]
    mx.nd.waitall()
    del junk
    with autograd.record():
        loss_B, weight_B = block(*arrays, *targets)
    loss_B.backward(nd.array(np.ones(4) if head is None else head))
    assert weight_B.asnumpy().tolist() == [2, 2, 0, 0]
    return loss_B.asnumpy(), [one.grad.asnumpy() for one in arrays]


def test_targets_match_centres_and_masks() -> None:
    encoded = CODING.encode(objects())
    for mine, plain in zip(encoded, HeatmapCoding(3, SHAPE).encode(objects()[..., :NUM_COLUMNS])):
        np.testing.assert_array_equal(mine, plain)
    assert encoded[3][..., 0].tolist() == [[1 * 10 + 1, 4 * 10 + 6], [0 * 10 + 9, 3 * 10 + 2], [-1, -1], [-1, -1]]
    np.testing.assert_array_equal(encoded[3][0, :, 1:], objects()[0, :, :4] / 2)
    assert (encoded[3][1, 1, 3:] - encoded[3][1, 1, 1:3] >= 0.0099).all()  # ROIAlign ends the process else


def test_loss_and_gradients_match_numpy() -> None:
    values, row_BMR, head = outputs(), objects(), np.array([1.0, 2.0, 1.0, 3.0])
    loss_B, gradients = computed(values, row_BMR, head)
    plain_B, _ = HeatmapFocal().build_detection(3)(
        *map(nd.array, (*values[:2], row_BMR, *HeatmapCoding(3, SHAPE).encode(row_BMR[..., :NUM_COLUMNS])))
    )
    masks_B = mask_loss(values, row_BMR)
    assert (masks_B[:2] > 1).all() and masks_B[2:].tolist() == [0, 0]
    np.testing.assert_allclose(loss_B, plain_B.asnumpy() + masks_B, rtol=1e-5)
    rng = np.random.RandomState(2)
    for number in (2, 3):
        places = np.argwhere(np.abs(gradients[number]) > 1e-3)
        chosen = [tuple(places[at]) for at in rng.randint(0, len(places), 15)]
        chosen += [tuple(rng.randint(0, side) for side in values[number].shape) for _ in range(15)]
        for place in chosen:
            moved = []
            for step in (1e-3, -1e-3):
                changed = [one.astype(np.float64) for one in values]
                changed[number][place] += step
                moved.append((head * mask_loss(changed, row_BMR)).sum())
            assert gradients[number][place] == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=1e-2, abs=1e-5)


def test_images_without_objects_are_learned_from() -> None:
    nothing = np.full((4, 2, TRUE_COLUMNS), -1, np.float32)
    block = YolactLoss().build_detection(3)
    arrays = [nd.array(one) for one in outputs()]
    for one in arrays:
        one.attach_grad()
    with autograd.record():
        loss_B, weight_B = block(*arrays, *map(nd.array, (nothing, *CODING.encode(nothing))))
    loss_B.backward()
    assert np.isfinite(loss_B.asnumpy()).all() and not weight_B.asnumpy().any() and block.least_weight == 1
    assert np.abs(arrays[0].grad.asnumpy()).max() > 0 and not arrays[3].grad.asnumpy().any()


def test_masks_are_put_together_of_prototypes_inside_their_boxes() -> None:
    row_BMR = objects()
    score, size, _, _ = CODING.encode(row_BMR)
    values = [np.where(score >= 1, 5.0, -9.0), size, *outputs()[2:]]
    found_BNR = CODING.decode(tuple(map(nd.array, values))).asnumpy()
    plain_BN6 = HeatmapCoding(3, SHAPE, max_detections=20).decode(tuple(map(nd.array, values[:2]))).asnumpy()
    np.testing.assert_array_equal(found_BNR[..., :6], plain_BN6)
    assert found_BNR.shape == (4, 20, 6 + PREDICTED_SIDE**2)
    sure = [(image, row) for image in (0, 1) for row in found_BNR[image] if row[1] > 0.9 and row[4] - row[2] > 1]
    assert len(sure) == 3
    for image, row in sure:
        column, line = int((row[2] + row[4]) / 8), int((row[3] + row[5]) / 8)
        part = sampled(values[3][image], row[2:6] / 2, 1, PREDICTED_SIDE)
        logit = np.tensordot(values[2][image, :, line, column], part, 1)
        np.testing.assert_allclose(row[6:].reshape(PREDICTED_SIDE, -1), 1 / (1 + np.exp(-logit)), atol=1e-4)
    assert not found_BNR[found_BNR[..., 0] < 0][:, 6:].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -5.0])
def test_a_diverged_network_does_not_end_the_process(value: float) -> None:
    values = [outputs()[0], *(np.full((4, *shape), value) for shape in CODING.output_shapes[1:])]
    assert CODING.decode(tuple(map(nd.array, values))).asnumpy().shape == (4, 20, 6 + PREDICTED_SIDE**2)


@pytest.mark.parametrize("stride, size", [(1, (30, 45)), (2, (32, 40)), (4, (33, 47))])
def test_output_shapes_match_the_coding_for_any_size(stride: int, size: Tuple[int, int]) -> None:
    model = Yolact(channels=[8, 16], width=8, prototypes=3, mask_stride=stride)
    network = model.build(5, (3, *size))
    network.initialize()
    found = network(nd.zeros((2, 3, *size)))
    assert [one.shape[1:] for one in found] == list(model.box_coding(5, (3, *size)).output_shapes)


def test_padding_rows_do_not_affect_results() -> None:
    """Not even a single number of others, as they do where ROIAlign is given -1 for their image."""
    values, row_BMR = outputs(), objects()
    wider_BMR = np.full((4, 40, TRUE_COLUMNS), -1, np.float32)
    wider_BMR[:, [7, 30]] = row_BMR
    (loss_B, gradients), (same_B, others) = computed(values, row_BMR), computed(values, wider_BMR)
    for one, other in zip([loss_B, *gradients], [same_B, *others]):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
