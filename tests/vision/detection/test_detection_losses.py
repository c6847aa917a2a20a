"""Losses of detectors beside GluonCV's, their gradients, and what is divided by."""

import numpy as np
import pytest

from mxtrain.vision.detection.boxes import Flag, padded, rows_of
from mxtrain.vision.detection.heads.grid import GridCoding
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.detection.heads.multibox import MultiBoxCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.losses import HeatmapFocal, MultiBox, YOLOLoss
from mxtrain.vision.detection.networks.gluoncv_detectors import YOLO3_ANCHORS

K, N, B = 4, 300, 5
SIDE, STRIDES = 64, (8, 16, 32)


def multibox_arrays(draw, objects=(9, 0, 1, 40, 3)):
    """Scores, offsets, boxes, classes and true offsets."""
    logit_BNK, offset_BN4 = draw.randn(B, N, 1 + K) * 2, draw.randn(B, N, 4)
    class_BN, true_offset_BN4 = np.zeros((B, N)), np.zeros((B, N, 4))
    for row, count in enumerate(objects):
        place = draw.permutation(N)[:count]
        class_BN[row, place] = draw.randint(1, 1 + K, count)
        true_offset_BN4[row, place] = draw.randn(count, 4) * 2
    return logit_BNK, offset_BN4, np.full((B, 1, 7), -1.0), class_BN, true_offset_BN4


def computed(loss, arrays, num_outputs=2):
    """Returns the loss and the gradients of its sum with respect to the outputs."""
    from mxtrain.engine.backend import autograd, nd

    given = [nd.array(array) for array in arrays]
    for one in given[:num_outputs]:
        one.attach_grad()
    with autograd.record():
        found = loss(*given)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        total = found[0].sum()
    total.backward()
    return [one.asnumpy() for one in found], [one.grad.asnumpy() for one in given[:num_outputs]]


@pytest.mark.parametrize("rho, box_weight", [(1.0, 1.0), (0.5, 2.0)])
def test_multibox_loss_equals_gluoncv(rho, box_weight):
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.loss import SSDMultiBoxLoss  # isort: skip

    arrays = multibox_arrays(np.random.RandomState(0))
    theirs = SSDMultiBoxLoss(negative_mining_ratio=3, rho=rho, lambd=box_weight)
    ours = MultiBox(rho=rho, box_weight=box_weight, min_hard_negatives=0).build_detection(K)
    (loss_B, weight_B), gradients = computed(ours, arrays)
    wanted, wanted_gradients = computed(
        lambda logit, offset, box, *targets: theirs(logit, offset, *targets)[0][0], arrays
    )
    assert weight_B.tolist() == [9, 0, 1, 40, 3] and loss_B[1] == 0
    np.testing.assert_allclose(loss_B / weight_B.sum(), wanted[0], rtol=1e-5)
    for found, gradient in zip(gradients, wanted_gradients):
        np.testing.assert_allclose(found / weight_B.sum(), gradient, atol=1e-7)


@pytest.mark.parametrize("ratio, num_objects, hard", [(1.5, 1, 2), (1.5, 2, 3), (1.5, 3, 5), (0.4, 1, 1), (2.01, 1, 3)])
def test_fractional_hard_negatives_are_rounded_up(ratio, num_objects, hard):
    """GluonCV counts an order that is less than the number of objects times the ratio."""
    logit_BNK, class_BN = np.zeros((1, 12, 1 + K)), np.zeros((1, 12))
    logit_BNK[0, :, 0] = -np.arange(12.0)  # the further behind, the more wrong of background
    class_BN[0, :num_objects] = 1
    arrays = (logit_BNK, np.zeros((1, 12, 4)), np.full((1, 1, 7), -1.0), class_BN, np.zeros((1, 12, 4)))
    _, (logit_gradient, _) = computed(
        MultiBox(negative_mining_ratio=ratio, min_hard_negatives=0).build_detection(K), arrays
    )
    learned_N = np.abs(logit_gradient[0]).sum(axis=1) > 0
    assert learned_N[:num_objects].all()
    assert np.flatnonzero(learned_N[num_objects:]).tolist() == list(range(12 - num_objects - hard, 12 - num_objects))


def test_images_without_objects_are_learned_from_as_background():
    loss = MultiBox().build_detection(K)
    arrays = multibox_arrays(np.random.RandomState(1), objects=(0,) * B)
    (loss_B, weight_B), (by_logit_BNK, by_offset_BN4) = computed(loss, arrays)
    assert (loss_B > 0).all() and not weight_B.any() and loss.least_weight == 1
    counted_BN = np.abs(by_logit_BNK).sum(axis=2) > 0
    assert counted_BN.sum(axis=1).tolist() == [3] * B and not by_offset_BN4.any()
    logit_BNK = arrays[0].astype(np.float32)
    wrong_BN = np.log(np.exp(logit_BNK).sum(axis=2)) - logit_BNK[..., 0]
    assert (wrong_BN[counted_BN].reshape(B, 3).min(axis=1) >= np.sort(wrong_BN, axis=1)[:, -3]).all()


def test_boxes_in_crowds_are_ignored():
    arrays = multibox_arrays(np.random.RandomState(2))
    arrays[3][:, 50:] = -1
    _, (by_logit_BNK, by_offset_BN4) = computed(MultiBox().build_detection(K), arrays)
    assert not by_logit_BNK[:, 50:].any() and not by_offset_BN4[:, 50:].any() and by_logit_BNK[:, :50].any()


def test_loss_does_not_depend_on_the_division_of_a_batch():
    arrays = multibox_arrays(np.random.RandomState(3))
    loss = MultiBox().build_detection(K)
    whole = computed(loss, arrays)
    parts = [computed(loss, [array[rows] for array in arrays]) for rows in (slice(0, 2), slice(2, B))]
    for wanted, *found in zip(whole[0] + whole[1], *(part[0] + part[1] for part in parts)):
        np.testing.assert_array_equal(wanted, np.concatenate(found))


def yolo_arrays(draw, capacity=6, scale=1.0, mixed=False):
    """Raw values, edges, boxes and what the coding makes of them; some boxes cover an object by nearly all."""
    coding = GridCoding(K, (3, SIDE, SIDE), YOLO3_ANCHORS, STRIDES, Suppression())
    size_M2 = draw.uniform(0.1, 0.8, (B, capacity, 2)) * SIDE
    begin_M2 = draw.uniform(0, 1, (B, capacity, 2)) * (SIDE - size_M2)
    edge_BM4 = np.concatenate([begin_M2, begin_M2 + size_M2], axis=2)
    rows = [rows_of(edge_M4[: 1 + n], draw.randint(0, K, 1 + n)) for n, edge_M4 in enumerate(edge_BM4)]
    rows[-1] = np.zeros((0, 7))
    if mixed:
        rows = [np.column_stack([row_MD, draw.uniform(0.1, 1, len(row_MD))]) for row_MD in rows]
    box_BMD = padded(rows, capacity)
    num_boxes = coding.output_shapes[0][0]
    edge_BN4 = draw.uniform(0, SIDE, (B, num_boxes, 4))
    edge_BN4.sort(axis=2)
    for row in range(B):
        near = edge_BM4[row, draw.randint(0, capacity, num_boxes // 2)]
        edge_BN4[row, : len(near)] = near + draw.uniform(-3, 3, near.shape)
    return (draw.randn(B, num_boxes, 5 + K) * scale, edge_BN4, box_BMD, *coding.encode(box_BMD))


@pytest.mark.parametrize("mixed", [False, True])
def test_yolo3_loss_equals_gluoncv(mixed):
    from mxtrain.engine.backend import autograd, nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401

    from gluoncv.loss import YOLOV3Loss  # isort: skip
    from gluoncv.model_zoo.yolo.yolo_target import YOLOV3TargetMerger  # isort: skip

    arrays = yolo_arrays(np.random.RandomState(0), mixed=mixed)
    raw_BNP, edge_BN4, box_BMD, is_object_BN, row_BM8 = arrays[:5]
    dense = [np.zeros((*is_object_BN.shape, width), np.float32) for width in (2, 2, 2)]
    class_BNK = np.full((*is_object_BN.shape, K), -1.0)
    for row, number in zip(*np.nonzero(row_BM8[..., 0] >= 0)):
        place = (row, int(row_BM8[row, number, 0]))
        dense[0][place], dense[1][place], dense[2][place] = (row_BM8[row, number, part] for part in ([1, 2], [3, 4], 5))
        class_BNK[place] = np.arange(K) == row_BM8[row, number, 6]

    def theirs(raw, edges, boxes, is_object, rows, *weights):
        ratio = is_object * weights[0] if weights else is_object  # of mixup, at the boxes that have an object
        targets = [ratio.expand_dims(2), *map(nd.array, (*dense, class_BNK))]
        with autograd.pause():
            merged = YOLOV3TargetMerger(K, 0.7)(edges, boxes.slice_axis(axis=2, begin=0, end=4), *targets)
        parts = [raw.slice_axis(axis=2, begin=begin, end=end) for begin, end in ((4, 5), (0, 2), (2, 4), (5, None))]
        ignored.append((merged[0].asnumpy() < 0).sum())
        return sum(YOLOV3Loss()(*parts, *merged))

    ignored = []
    (loss_B,), gradients = computed(YOLOLoss().build_detection(K), arrays)
    (wanted_B,), wanted = computed(theirs, arrays)
    assert ignored[0] > 20, "some boxes have to cover objects of others"
    np.testing.assert_allclose(loss_B, wanted_B, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], wanted[0], atol=1e-5)
    assert not gradients[1].any() and not wanted[1].any()


def test_box_in_a_crowd_has_no_background_loss():
    draw = np.random.RandomState(0)
    coding = GridCoding(K, (3, SIDE, SIDE), YOLO3_ANCHORS, STRIDES, Suppression())
    crowd = rows_of([[0, 0, SIDE, SIDE / 2]], [0])
    crowd[0, 5] = Flag.CROWD
    box_BMD = padded([crowd], 2)
    num_boxes = coding.output_shapes[0][0]
    edge_1N4 = np.tile([10.0, 40.0, 20.0, 50.0], (1, num_boxes, 1))
    edge_1N4[:, :7] = [10.0, 10.0, 14.0, 14.0]
    raw_1NP = draw.randn(1, num_boxes, 5 + K)
    _, (by_raw_1NP, _) = computed(YOLOLoss().build_detection(K), (raw_1NP, edge_1N4, box_BMD, *coding.encode(box_BMD)))
    assert not by_raw_1NP[0, :7].any() and (by_raw_1NP[0, 7:, 4] > 0).all()


def test_losses_of_extreme_outputs_are_finite():
    raw_BNP, edge_BN4, *rest = yolo_arrays(np.random.RandomState(5), scale=200.0)
    edge_BN4[:, ::3, :2], edge_BN4[:, ::3, 2:] = -np.inf, np.inf
    (loss_B,), (by_raw_BNP, _) = computed(YOLOLoss().build_detection(K), (raw_BNP, edge_BN4, *rest))
    assert np.isfinite(loss_B).all() and np.isfinite(by_raw_BNP).all()
    logit_BNK, *others = multibox_arrays(np.random.RandomState(5))
    (loss_B, _), (by_logit_BNK, _) = computed(MultiBox().build_detection(K), (logit_BNK * 500, *others))
    assert np.isfinite(loss_B).all() and np.isfinite(by_logit_BNK).all()


def test_boxes_of_mixed_images_count_by_their_share():
    """The gradient of each object is multiplied by its weight; a weight of 1 changes no bit."""
    draw = np.random.RandomState(4)
    arrays = multibox_arrays(draw, objects=(9, 4, 1, 40, 3))
    loss = MultiBox(negative_mining_ratio=0, min_hard_negatives=0).build_detection(K)
    whole, whole_gradients = computed(loss, arrays)
    same, same_gradients = computed(loss, [*arrays, np.ones((B, N))])
    for wanted, found in zip((*whole, *whole_gradients), (*same, *same_gradients)):
        np.testing.assert_array_equal(wanted, found)
    weight_BN = draw.uniform(0.1, 1, (B, N))
    (loss_B, weight_B), (by_logit_BNK, by_offset_BN4) = computed(loss, [*arrays, weight_BN])
    np.testing.assert_allclose(weight_B, (weight_BN * (arrays[3] > 0)).sum(axis=1), rtol=1e-6)
    for found, wanted in ((by_logit_BNK, whole_gradients[0]), (by_offset_BN4, whole_gradients[1])):
        np.testing.assert_allclose(found, wanted * weight_BN[..., None], atol=1e-6)
    mined = computed(MultiBox().build_detection(K), [*arrays, weight_BN])[1][0]
    plain = computed(MultiBox().build_detection(K), arrays)[1][0]
    np.testing.assert_array_equal(mined[arrays[3] == 0], plain[arrays[3] == 0])  # background counts as it did


def test_centres_of_mixed_images_count_by_their_share():
    coding = HeatmapCoding(K, (3, 32, 32))
    edge_M4 = [[2, 2, 12, 12], [18, 16, 30, 30]]
    row_MD = np.column_stack([rows_of(edge_M4, [0, 1]), [0.25, 0.75]])
    *encoded, weight_B1hw = coding.encode(padded([row_MD], 2))
    assert weight_B1hw[encoded[2] == 1].tolist() == [0.25, 0.75]
    draw = np.random.RandomState(0)
    outputs = [draw.randn(1, *shape) for shape in coding.output_shapes]
    loss = HeatmapFocal().build_detection(K)
    plain, by_plain = computed(loss, [*outputs, padded([rows_of(edge_M4, [0, 1])], 2), *encoded])
    (loss_B, count_B), by_mixed = computed(loss, [*outputs, padded([row_MD], 2), *encoded, weight_B1hw])
    assert plain[1] == 2 and count_B == 1 and loss_B < plain[0]
    for found, wanted in zip(by_mixed, by_plain):
        counted = np.broadcast_to(encoded[2] == 1, wanted.shape)
        np.testing.assert_array_equal(found[~counted], wanted[~counted])
    np.testing.assert_allclose(by_mixed[1], by_plain[1] * weight_B1hw, rtol=1e-6)
    is_one = encoded[0] == 1
    np.testing.assert_allclose(by_mixed[0][is_one], by_plain[0][is_one] * [0.25, 0.75], rtol=1e-5)


def test_boxes_that_find_mixed_objects_have_their_weights():
    anchor_N4 = np.array([[8, 8, 16, 16], [24, 24, 16, 16], [40, 40, 16, 16]], np.float32)
    row_MD = np.column_stack([rows_of([[0, 0, 16, 16], [17, 17, 32, 32]], [0, 1]), [0.25, 0.75]])
    class_BN, _, weight_BN = MultiBoxCoding(K, anchor_N4, Suppression()).encode(padded([row_MD], 3))
    assert class_BN.tolist() == [[1, 2, 0]] and weight_BN.tolist() == [[0.25, 0.75, 1]]
