"""YOLOv3's encoding of true boxes, compared with GluonCV's."""

import numpy as np
import pytest

from mxtrain.vision.detection.boxes import Flag, padded, rows_of
from mxtrain.vision.detection.heads.grid import GridCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.networks.gluoncv_detectors import YOLO3_ANCHORS

HEIGHT, WIDTH = 90, 124
STRIDES = (8, 16, 32)


def coding(num_classes=4):
    return GridCoding(num_classes, (3, HEIGHT, WIDTH), YOLO3_ANCHORS, STRIDES, Suppression())


def random_boxes(draw, count, num_classes=4):
    size_M2 = draw.uniform(0.02, 0.8, (count, 2)) * (WIDTH, HEIGHT)
    begin_M2 = draw.uniform(0, 1, (count, 2)) * ((WIDTH, HEIGHT) - size_M2)
    return rows_of(np.concatenate([begin_M2, begin_M2 + size_M2], axis=1), draw.randint(0, num_classes, count))


def gluoncv_targets(box_BMD, num_classes=4):
    """Returns objectness, centre, size, weight and class of every box, by GluonCV."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.yolo.yolo_target import YOLOV3PrefetchTargetGenerator  # isort: skip

    maps, anchors, offsets = [], [], []
    for sizes, stride in zip(YOLO3_ANCHORS[::-1], STRIDES[::-1]):
        height, width = -(-HEIGHT // stride), -(-WIDTH // stride)
        maps.append(nd.zeros((1, 1, height, width)))
        anchors.append(nd.array(np.reshape(sizes, (1, 1, -1, 2))))
        offsets.append(nd.array(np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)[None, None]))
    found = YOLOV3PrefetchTargetGenerator(num_classes)(
        nd.zeros((1, 3, HEIGHT, WIDTH)), maps, anchors, offsets, nd.array(box_BMD[..., :4]), nd.array(box_BMD[..., 4:5])
    )
    return [array.asnumpy() for array in found]


@pytest.mark.slow
def test_targets_equal_gluoncv():
    draw = np.random.RandomState(0)
    box_BMD = padded([random_boxes(draw, 1 + number % 12) for number in range(50)], 12)
    is_object_BN, row_BM8 = coding().encode(box_BMD)
    there_BN1, centre_BN2, size_BN2, weight_BN2, class_BNK = gluoncv_targets(box_BMD)
    np.testing.assert_array_equal(is_object_BN, there_BN1[..., 0])
    image_P, true_P = np.nonzero(row_BM8[..., 0] >= 0)
    assert len(image_P) == is_object_BN.sum() > 250
    number_P, row_P8 = row_BM8[image_P, true_P, 0].astype(int), row_BM8[image_P, true_P]
    np.testing.assert_allclose(row_P8[:, 1:3], centre_BN2[image_P, number_P], atol=1e-5)
    np.testing.assert_allclose(row_P8[:, 3:5], size_BN2[image_P, number_P], atol=1e-5)
    np.testing.assert_allclose(row_P8[:, 5], weight_BN2[image_P, number_P, 0], atol=1e-5)
    np.testing.assert_array_equal(row_P8[:, 6], class_BNK[image_P, number_P].argmax(axis=1))
    assert (row_BM8[..., 7] == 0).all()


def test_last_of_two_objects_in_one_box_counts():
    box_BMD = padded([rows_of([[30, 30, 50, 60], [31, 30, 51, 60]], [0, 3])], 3)
    is_object_BN, row_BM8 = coding().encode(box_BMD)
    assert is_object_BN.sum() == 1 and row_BM8[0, :, 0].tolist()[::2] == [-1, -1] and row_BM8[0, 1, 0] >= 0
    assert gluoncv_targets(box_BMD)[4][0, int(row_BM8[0, 1, 0])].tolist() == [0, 0, 0, 1]


def test_crowds_and_boxes_without_area_have_no_box_and_the_image_ends_at_its_edge():
    crowd, flat, edge = rows_of([[10, 10, 60, 60], [5, 5, 5, 9], [WIDTH, HEIGHT, WIDTH + 20, HEIGHT + 20]], [0, 1, 2])
    crowd[5] = Flag.CROWD
    is_object_BN, row_BM8 = coding().encode(padded([np.stack([crowd, flat, edge]), np.zeros((0, 7))], 3))
    assert is_object_BN[0].sum() == 1 and row_BM8[0, :2, 0].tolist() == [-1, -1]
    assert row_BM8[0, :, 7].tolist() == [1, 0, 0]
    assert not is_object_BN[1].any() and (row_BM8[1, :, 0] == -1).all()


def test_scores_rise_with_those_of_detections_and_have_gradients():
    from mxtrain.engine.backend import autograd, nd

    made, draw = coding(), np.random.RandomState(4)
    raw = nd.array(draw.randn(3, *made.output_shapes[0]) * 4)
    edges = nd.array(np.tile([0.0, 0.0, 9.0, 9.0], (3, made.output_shapes[1][0], 1)))
    first_B6 = made.decode((raw, edges))[:, 0].asnumpy()
    raw.attach_grad()
    with autograd.record():
        score_BP = made.scores((raw, edges))
        best_B = score_BP.max(axis=1)
    best_B.backward()
    np.testing.assert_array_equal(score_BP.asnumpy().argmax(axis=1) // made.output_shapes[0][0], first_B6[:, 0])
    np.testing.assert_allclose(1 / (1 + np.exp(-best_B.asnumpy())), first_B6[:, 1], rtol=1e-5)
    assert (np.abs(raw.grad.asnumpy()).sum(axis=(1, 2)) > 0.1).all()
