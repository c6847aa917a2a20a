"""Boxes that an SSD begins with, and what it makes of true boxes, beside GluonCV's."""

import numpy as np
import pytest

from mxtrain.vision.detection.boxes import Flag, padded, rows_of
from mxtrain.vision.detection.heads.anchors import anchor_maps
from mxtrain.vision.detection.heads.multibox import MultiBoxCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.networks.gluoncv_detectors import SSD, ssd_parts

SIDE, SIZES = 96, [(12, 12), (6, 6), (3, 3)]
RATIOS = [(1.0, 2.0, 0.5), (1.0, 2.0, 0.5, 3.0, 1.0 / 3), (1.0, 2.0, 0.5)]


def small_coding(num_classes=4):
    maps = anchor_maps(SIZES, (3, SIDE, SIDE), SIDE, (10, 24, 45, 80), RATIOS, (8, 16, 32))
    return MultiBoxCoding(num_classes, np.concatenate([one.boxes() for one in maps]), Suppression())


def random_boxes(draw, count, side=SIDE, num_classes=4):
    size_M2 = draw.uniform(0.1, 0.6, (count, 2)) * side
    begin_M2 = draw.uniform(0, 1, (count, 2)) * (side - size_M2)
    return rows_of(np.concatenate([begin_M2, begin_M2 + size_M2], axis=1), draw.randint(0, num_classes, count))


@pytest.mark.parametrize("name", ["ssd_300_vgg16_atrous", "ssd_512_resnet50_v1_coco", "ssd_300_mobilenet1.0_lite"])
def test_boxes_equal_gluoncv_at_its_size(name):
    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.ssd.anchor import LiteAnchorGenerator, SSDAnchorGenerator  # isort: skip

    made_of = ssd_parts(name)
    sizes = [(height, height + 2) for height in range(len(made_of.ratios) + 2, 2, -1)]
    side = made_of.base_size
    maps = anchor_maps(sizes, (3, side, side), side, made_of.sizes, made_of.ratios, made_of.steps, made_of.lite)
    kind = LiteAnchorGenerator if made_of.lite else SSDAnchorGenerator
    for number, one in enumerate(maps):
        pair = made_of.sizes[number : number + 2]
        generator = kind(number, (side, side), pair, made_of.ratios[number], made_of.steps[number], (16, 16))
        generator.initialize()
        wanted = generator(nd.zeros((1, 1, *sizes[number]))).asnumpy()[0]
        assert len(one.shapes) == generator.num_depth
        np.testing.assert_allclose(one.boxes(), wanted, rtol=1e-6, atol=1e-6)


def test_boxes_of_other_sizes_cover_the_image_and_grow_with_it():
    made_of = SSD["ssd_300_vgg16_atrous"]
    maps = anchor_maps([(4, 8), (1, 1)], (3, 150, 600), 300, made_of.sizes[:3], made_of.ratios[:2], made_of.steps[:2])
    fine, coarse = maps[0].boxes(), maps[1].boxes()
    assert fine[0, :2].tolist() == [600 / 16, 150 / 8] and coarse[0, :2].tolist() == [300, 75]
    assert fine[0, 2:].tolist() == [30, 30]  # as large an image as 300 x 300
    np.testing.assert_allclose(fine[-1, :2], [600 - 600 / 16, 150 - 150 / 8])


def gluoncv_targets(coding, box_BMD):
    """Classes and offsets by GluonCV."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401

    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator  # isort: skip

    generator = SSDTargetGenerator(iou_thresh=0.5, negative_mining_ratio=-1)
    num_boxes, num_classes = coding.output_shapes[0]
    found = generator(
        nd.array(coding.anchor_N4[None]),
        nd.zeros((len(box_BMD), num_boxes, num_classes)),
        nd.array(box_BMD[..., :4]),
        nd.array(box_BMD[..., 4:5]),
    )
    return [array.asnumpy() for array in found[:2]]


def test_targets_equal_gluoncv():
    coding, draw = small_coding(), np.random.RandomState(0)
    box_BMD = padded([random_boxes(draw, 1 + number % 9) for number in range(60)], 9)
    class_BN, offset_BN4 = coding.encode(box_BMD)
    wanted_class_BN, wanted_offset_BN4 = gluoncv_targets(coding, box_BMD)
    assert 300 < (class_BN > 0).sum() < 5000 and (class_BN >= 0).all()
    np.testing.assert_array_equal(class_BN, wanted_class_BN)
    np.testing.assert_allclose(offset_BN4, wanted_offset_BN4, atol=1e-4)
    assert class_BN.dtype == offset_BN4.dtype == np.float32


def test_two_objects_with_the_same_best_box_both_have_one():
    coding = small_coding()
    box_BMD = padded([rows_of([[20, 20, 44, 44], [20.5, 20, 44, 44], [21, 20, 44, 44]], [0, 1, 2])], 3)
    class_BN, offset_BN4 = coding.encode(box_BMD)
    assert {1, 2, 3} <= set(class_BN[0].tolist())
    np.testing.assert_array_equal(class_BN, gluoncv_targets(coding, box_BMD)[0])


def test_difficult_objects_are_trained_on_and_crowds_ignored():
    coding = small_coding()
    object, crowd = rows_of([[4, 4, 20, 20]], [2])[0], rows_of([[40, 40, 96, 96]], [1])[0]
    object[5], crowd[5] = Flag.DIFFICULT, Flag.CROWD
    (class_N,), _ = coding.encode(padded([np.stack([object, crowd])], 4))
    centre_N2, size_N2 = coding.anchor_N4[:, :2], coding.anchor_N4[:, 2:]
    assert set(class_N.tolist()) == {-1, 0, 3}
    inside_N = (centre_N2 - size_N2 / 2 >= 40).all(axis=1)
    assert inside_N.any() and (class_N[inside_N] == -1).all()
    assert (class_N[(centre_N2 + size_N2 / 2 <= 40).all(axis=1)] >= 0).all()


def test_images_without_objects_and_boxes_without_area_are_background():
    coding = small_coding()
    box_BMD = padded([rows_of([], []), rows_of([[5, 5, 5, 30], [200, 200, 230, 230]], [0, 1])], 2)
    class_BN, offset_BN4 = coding.encode(box_BMD)
    assert not class_BN.any() and not offset_BN4.any()


def test_decoding_inverts_encoding():
    from mxtrain.engine.backend import nd

    coding, draw = small_coding(), np.random.RandomState(3)
    box_BMD = padded([rows_of([[10, 10, 30, 50], [60, 20, 90, 90]], [3, 0]), random_boxes(draw, 1)], 4)
    class_BN, offset_BN4 = coding.encode(box_BMD)
    logit_BNK = 20.0 * (class_BN[..., None] == np.arange(5))
    found_BN6 = coding.decode((nd.array(logit_BNK), nd.array(offset_BN4))).asnumpy()
    for found_N6, true_MD in zip(found_BN6, box_BMD):
        found_N6, true_MD = found_N6[found_N6[:, 0] >= 0], true_MD[true_MD[:, 4] >= 0]
        assert len(found_N6) == len(true_MD)
        order = np.argsort(found_N6[:, 0])
        wanted = true_MD[np.argsort(true_MD[:, 4])]
        np.testing.assert_array_equal(found_N6[order, 0], wanted[:, 4])
        np.testing.assert_allclose(found_N6[order, 2:], wanted[:, :4], atol=1e-3)
        assert (found_N6[:, 1] > 0.99).all()


def test_scores_have_gradients_even_near_1():
    from mxtrain.engine.backend import autograd, nd

    coding, draw = small_coding(), np.random.RandomState(4)
    outputs = [nd.array(draw.randn(3, *shape) * factor) for shape, factor in zip(coding.output_shapes, (4, 0.1))]
    first_B6 = coding.decode(outputs)[:, 0].asnumpy()
    outputs[0].attach_grad()
    with autograd.record():
        score_BP = coding.scores(outputs)
        best_B = score_BP.max(axis=1)
    best_B.backward()
    class_B = score_BP.asnumpy().argmax(axis=1) // len(coding.anchor_N4)
    np.testing.assert_array_equal(class_B, first_B6[:, 0])
    np.testing.assert_allclose(1 / (1 + np.exp(-best_B.asnumpy())), first_B6[:, 1], rtol=1e-5)
    assert (first_B6[:, 1] > 0.99).all() and (np.abs(outputs[0].grad.asnumpy()).max(axis=(1, 2)) > 0.5).all()
