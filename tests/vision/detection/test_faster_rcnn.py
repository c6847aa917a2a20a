"""Faster R-CNN: its values, files and samples beside GluonCV's, and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pydantic
import pytest
from two_stages import SIDE, check_names, check_values, images, nd_array, prepared, spread, stock

from mxtrain.errors import ConfigError
from mxtrain.vision.detection.box_geometry import intersections_over_unions
from mxtrain.vision.detection.boxes import Flag, padded, rows_of
from mxtrain.vision.detection.faster_rcnn import FasterRCNN
from mxtrain.vision.detection.heads.regions import ProposalSettings
from mxtrain.vision.detection.networks import gluoncv_detectors
from mxtrain.vision.images.class_lists import COCO_CLASSES, VOC_CLASSES

PYRAMID = {
    "name": "faster_rcnn_fpn_custom",
    "backbone": "mobilenet0.25",
    "channels": 8,
    "head_units": 32,
    "regions": 60,
    "proposals": 100,
    "region_samples": 16,
}
STAGED = {
    "name": "faster_rcnn_custom",
    "backbone": "resnet18_v1b",
    "channels": 8,
    "regions": 20,
    "proposals": 60,
    "region_samples": 8,
}


def gluoncvs(fields, num_classes=3, side=SIDE):
    """GluonCV's class around blocks like ours."""
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import FasterRCNN as Theirs  # isort: skip

    model = FasterRCNN(**fields)
    parts, maps = model._blocks(), model._anchors((3, side, side))
    is_pyramid = len(maps) > 1
    sizes = [one.sizes[0] for one in maps] if is_pyramid else maps[0].sizes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Theirs(
            parts.features,
            parts.region_features,
            [str(number) for number in range(num_classes)],
            parts.box_features,
            min_stage=2 if is_pyramid else 4,
            max_stage=1 + len(maps) if is_pyramid else 4,
            nms_thresh=0.5,
            nms_topk=-1,
            roi_size=(parts.region_side,) * 2,
            clip=4.14,
            rpn_channel=8,
            strides=tuple(one.stride for one in maps) if is_pyramid else 16,
            scales=[size / 16 for size in sizes],
            rpn_test_post_nms=fields["regions"],
            rpn_min_size=1,
            rpn_train_post_nms=fields["proposals"],
            num_sample=fields["region_samples"],
        )


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, pytest.param(STAGED, marks=pytest.mark.zoo)])
def test_predictions_equal_gluoncv_with_the_same_file(fields, tmp_path, written_memory):
    coding, ours = prepared(FasterRCNN(**fields, init="msra"))
    check_values(coding, ours, gluoncvs(fields), str(tmp_path / "ours.params"), SIDE, 20)


@pytest.mark.zoo
@pytest.mark.parametrize(
    "name, side",
    [("faster_rcnn_resnet50_v1b_voc", 96), ("faster_rcnn_fpn_resnet101_v1d_coco", 128)],
)
def test_predictions_of_stock_networks_equal_gluoncv(name, side, tmp_path, written_memory):
    num_classes = len(COCO_CLASSES if name.endswith("coco") else VOC_CLASSES)
    # Of its 300 or 1000 regions each passes the last stage of a ResNet.
    fields = {"name": name, "init": "msra", "nms_candidates": 2000, "max_detections": 60, "regions": 80}
    coding, ours = prepared(FasterRCNN(**fields), num_classes, side)
    theirs = stock(name)
    theirs._rpn_test_post_nms = theirs.rpn._test_post_nms = fields["regions"]
    check_values(coding, ours, theirs, str(tmp_path / "ours.params"), side, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["faster_rcnn_resnet50_v1b_custom", "faster_rcnn_fpn_resnet50_v1b_coco"])
def test_blocks_and_boxes_of_stock_networks_equal_gluoncv(name):
    """Compares without computing anything."""
    ours = FasterRCNN(name=name).build(80, (3, SIDE, SIDE))
    classes = {"classes": [str(number) for number in range(80)]} if name.endswith("_custom") else {}
    check_names(ours, stock(name, **classes))


def test_maps_larger_than_gluoncvs_have_boxes():
    model = FasterRCNN(**STAGED)
    shape = (3, 64, 16 * 130)
    assert model.box_coding(3, shape).edge_N4[:, 2].max() > 16 * 129
    network = model.build(3, shape)
    assert network.rpn.anchor_generator.anchors.value.shape[3] == 130


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, STAGED])
def test_classes_are_found_by_their_names(fields, tmp_path):
    _, before = prepared(FasterRCNN(**fields), 3)
    path = str(tmp_path / "three.params")
    before.save_parameters(path)
    names, kept = ["zebra", "cat"], {**fields, "weights": path, "weights_classes": ["dog", "cat", "cow"]}
    _, fresh = prepared(FasterRCNN(**fields), 2)
    _, found = prepared(FasterRCNN(**kept), 2, output_names=names)
    for layer, lead, width in (("class_predictor", 1, 1), ("box_predictor", 0, 4)):
        for part in ("weight", "bias"):
            ours, old, start = (
                network._collect_params_with_prefix()[f"{layer}.{part}"].data().asnumpy()
                for network in (found, before, fresh)
            )
            np.testing.assert_array_equal(ours[:lead], old[:lead])
            np.testing.assert_array_equal(ours[lead : lead + width], start[lead : lead + width])  # no zebra in the file
            np.testing.assert_array_equal(ours[lead + width :], old[lead + width : lead + 2 * width])


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, STAGED])
def test_file_of_the_backbone_alone_is_loaded(fields, tmp_path):
    from mxtrain.engine.backend import mx
    from mxtrain.vision.networks import gluoncv

    backbone = gluoncv.build(fields["backbone"], 1000, {})
    backbone.initialize(mx.init.Normal(0.1))
    backbone(nd_array(np.zeros((1, 3, 64, 64))))
    path = str(tmp_path / "backbone.params")
    backbone.save_parameters(path)
    _, network = prepared(FasterRCNN(**fields, weights=path))
    found, wanted = (one._collect_params_with_prefix() for one in (network, backbone))
    compared = {here: name for here, name in network.backbone_names.items() if here in found}
    assert len(compared) > 50
    for here, name in compared.items():
        np.testing.assert_array_equal(found[here].data().asnumpy(), wanted[name].data().asnumpy())


def test_boxes_hold_objects_as_in_gluoncv():
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator  # isort: skip

    coding = FasterRCNN(**PYRAMID).box_coding(3, (3, 160, 160))
    # GluonCV makes background of what covers an object best, if that is little; ours are covered well.
    edge_M4 = np.array([[40, 40, 75, 70], [90, 20, 150, 90], [60, 100, 90, 131]], np.float64)
    everything = RPNTargetGenerator(num_sample=10**6, pos_ratio=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind_N, offset_N4, mask_N4 = everything(nd_array(edge_M4), nd_array(coding.edge_N4), 160, 160)
    kind_BN, offset_BN4 = coding.encode(padded([rows_of(edge_M4, [0, 1, 2])], 5))
    assert 5 < (kind_N == 1).sum() < 60 and (kind_N == -1).any()
    np.testing.assert_array_equal(kind_BN[0], kind_N)
    np.testing.assert_allclose(offset_BN4[0] * (mask_N4 > 0), offset_N4, atol=1e-5)


def test_every_object_has_a_box_and_crowds_are_not_background():
    coding = FasterRCNN(**PYRAMID).box_coding(3, (3, 96, 96))
    tiny, crowd = [50, 50, 53, 53], [0, 0, 48, 96]
    rows = rows_of([tiny, crowd], [0, 1])
    rows[1, 5] = Flag.CROWD
    kind_BN, _ = coding.encode(padded([rows, np.zeros((0, 7))], 2))
    centre_N2 = (coding.edge_N4[:, :2] + coding.edge_N4[:, 2:]) / 2
    iou_N = intersections_over_unions(rows[:1, :4], coding.edge_N4)[0]
    assert (kind_BN[0] == 1).any() and 0 < iou_N[kind_BN[0] == 1].min() and iou_N.max() < 0.1
    assert not (kind_BN[0][centre_N2[:, 0] < 40] == 0).any() and (kind_BN[0][centre_N2[:, 0] > 66] == 0).any()
    assert set(kind_BN[1].tolist()) == {0, -1}  # of an image without objects: background, and what reaches out of it


def sampled(network, boxes, noise_BC):
    """Regions that training looks at."""
    image = nd_array(np.random.RandomState(0).uniform(-2, 2, (len(boxes), 3, SIDE, SIDE)))
    return network(image, nd_array(boxes), nd_array(noise_BC))[2].asnumpy()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, STAGED])
def test_regions_are_a_sample_with_a_quota_for_any_division_of_a_batch(fields):
    coding, network = prepared(FasterRCNN(**fields))
    draws = FasterRCNN(**fields).draws((3, SIDE, SIDE))
    edges = np.array([[10, 10 + shift, 60, 70 + shift] for shift in range(6)])  # each covers the others
    boxes = padded([rows_of(edges, [0] * 6), np.zeros((0, 7)), rows_of([[20, 30, 50, 60]], [2])], 8)
    noise_BC = np.random.RandomState(1).rand(3, draws.regions + 8)
    region_BR5 = sampled(network, boxes, noise_BC)
    count = fields["region_samples"]
    assert region_BR5.shape == (3, count, 5) and region_BR5[..., 4].all()
    for row, truths in ((0, edges), (2, np.array([[20, 30, 50, 60]]))):
        holding = intersections_over_unions(truths, region_BR5[row, :, :4]).max(axis=0) >= 0.5
        assert 1 <= holding.sum() <= count // 4
    for row in range(3):
        alone_BR5 = sampled_alone(network, boxes, noise_BC, row)
        np.testing.assert_allclose(alone_BR5[0], region_BR5[row], atol=1e-4)
    other = sampled(network, boxes, np.random.RandomState(2).rand(*noise_BC.shape))
    assert not np.allclose(other, region_BR5)


def sampled_alone(network, boxes, noise_BC, row):
    image = np.random.RandomState(0).uniform(-2, 2, (len(boxes), 3, SIDE, SIDE))[row : row + 1]
    found = network(nd_array(image), nd_array(boxes[row : row + 1]), nd_array(noise_BC[row : row + 1]))
    return found[2].asnumpy()


@pytest.mark.parametrize("samples, wanted", [(1, (1, 1)), (2, (2, 1)), (128, (128, 32)), (5000, (2000, 500))])
def test_every_sample_has_room_for_an_object(samples, wanted):
    assert ProposalSettings(num_samples=samples).sampled(10000) == wanted


@pytest.mark.zoo
def test_regions_that_are_missing_do_not_count():
    """An image with fewer proposals than regions: the rest is the whole image, and nothing is predicted of it."""
    fields = {**STAGED, "anchor_sizes": [32.0, 33.0, 34.0], "regions": 200, "proposals": 200, "region_samples": 100}
    coding, network = prepared(FasterRCNN(**fields), side=64)  # 4 x 4 places with 9 boxes, of which 3 are nearly alike
    image = nd_array(np.random.RandomState(0).uniform(-1, 1, (2, 3, 64, 64)))
    outputs = network(image)
    assert outputs[2].shape == (2, 144, 5)
    counts_BR = outputs[2].asnumpy()[..., 4]
    assert (0 < counts_BR.sum(axis=1)).all() and (counts_BR.sum(axis=1) < 100).all()
    rest_P4 = outputs[2].asnumpy()[counts_BR == 0, :4]
    np.testing.assert_array_equal(rest_P4, [[0, 0, 64, 64]] * len(rest_P4))
    found_BN6 = coding.decode(outputs).asnumpy()
    assert np.isfinite(found_BN6).all()


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"name": "faster_rcnn_resnet50_v1"}, "Did you mean 'faster_rcnn_resnet50_v1b'"),
        ({"name": "faster_rcnn_fpn_syncbn_resnet50_v1b_coco"}, "or model.name=faster_rcnn_fpn_resnet50_v1b"),
        ({"name": "faster_rcnn_fpn_custom"}, "type model.backbone=NAME, e.g. resnet18_v1b"),
        ({"name": "faster_rcnn_custom", "backbone": "mobilenet0.25"}, "no classification network 'mobilenet0.25'"),
        ({"backbone": "resnet18_v1b"}, "part of faster_rcnn_fpn_resnet50_v1b. Type model.name=faster_rcnn_fpn_custom"),
        ({"name": "faster_rcnn_custom", "backbone": "resnet18_v1b", "head_units": 3}, "head_units is part of faster"),
        ({"regions": 0}, "greater than 0"),
    ],
)
def test_unsupported_settings_are_refused_with_alternatives(fields, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        FasterRCNN(**fields)


def test_sizes_that_do_not_fit_are_refused_with_suitable_ones():
    with pytest.raises(ConfigError, match="the network has 5 maps, so as many sizes.*32, 64, 128, 256, 512"):
        FasterRCNN(**PYRAMID, anchor_sizes=[8.0]).box_coding(3, (3, 64, 64))


def test_names_equal_gluoncv():
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo import get_model_list  # isort: skip

    names = [name for name in get_model_list() if name.startswith("faster_rcnn_") and "syncbn" not in name]
    plain = {FasterRCNN(name=name).plain_name for name in names}
    assert len(names) == 8 and plain == set(gluoncv_detectors.FASTER_RCNN)


WIDE = (3, 64, 96)


def test_proposals_are_cut_at_an_image_that_is_no_square_and_have_a_least_size():
    from mxtrain.engine.backend import nd

    network = FasterRCNN(**STAGED).build(3, WIDE)
    network._settings = replace(network._settings, min_size=16.0)
    edges = [[80, 10, 120, 90], [10, 10, 30, 25], [10, 30, 30, 44.9], [40, 10, 54.9, 40], [81, 10, 120, 90]]
    scores = nd.array([[5, 4, 9, 8, 3]])
    found = network._propose(nd, scores, nd.zeros((1, 5, 4)), nd.array([edges]), 5, 4).asnumpy()
    # Sides of 15 pixels have 16, as GluonCV counts them; the last one is suppressed by the first.
    rest = [0, 0, 96, 64, 0]
    assert found.tolist() == [[[80, 10, 96, 64, 1], [10, 10, 30, 25, 1], rest, rest]]


def test_anchors_beyond_an_image_that_is_no_square_are_ignored():
    coding = FasterRCNN(**STAGED).box_coding(3, (3, 96, 256))
    label_BN, _ = coding.encode(padded([np.zeros((0, 7))], 1))
    left_N, top_N, right_N, bottom_N = coding.edge_N4.T
    is_inside_N = (left_N >= 0) & (top_N >= 0) & (right_N < 256) & (bottom_N < 96)
    assert (right_N[is_inside_N] > 96).any()
    np.testing.assert_array_equal(label_BN[0], np.where(is_inside_N, 0, -1))


def test_proposals_in_a_crowd_are_no_background():
    from mxtrain.engine.backend import nd

    network = FasterRCNN(**STAGED).build(3, WIDE)
    rows = rows_of([[0, 0, 48, 64], [60, 10, 90, 40]], [0, 1])
    rows[0, 5] = Flag.CROWD
    inside, outside = [[5, 5, 30, 40]] * 6, [[50, 40, 80, 64]] * 2
    proposals = np.column_stack([np.array(inside + outside, float), np.ones(8)])
    found = network._sample(nd, nd.array(proposals[None]), nd.array(padded([rows], 2)), nd.ones((1, 10)) * 0.5)
    counted = found.asnumpy()[0][found.asnumpy()[0, :, 4] > 0, :4].tolist()
    assert sorted(counted) == sorted([*outside, [60, 10, 90, 40]])


def test_regions_are_read_from_the_map_of_their_size():
    """GluonCV counts the last pixel of a side: 224 pixels belong to the map of stride 16."""
    from mxtrain.engine.backend import nd

    network = FasterRCNN(**PYRAMID).build(3, (3, 256, 256))
    assert network._strides == [4, 8, 16, 32, 64]
    maps = [nd.full((1, 1, 256 // stride, 256 // stride), stride) for stride in network._strides]
    maps = [nd.concat(one, one + 1, dim=0) for one in maps]
    sides = [20, 110, 111, 222, 223, 255]
    edges = nd.array([[[0, 0, side, side] for side in order] for order in (sides, sides[::-1])])
    found = network.align_regions(nd, maps, edges, 6, 2).asnumpy()
    # Every number: ROIAlign sets numbers of one region to 0 for another region that is in another map.
    wanted_Q = np.array([4, 4, 8, 8, 16, 16, 17, 17, 9, 9, 5, 5])
    np.testing.assert_allclose(found, np.broadcast_to(wanted_Q[:, None, None, None], (12, 1, 2, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, pytest.param(STAGED, marks=pytest.mark.zoo)])
def test_own_operators_equal_mxnets(fields, monkeypatch):
    """In both forms, with gradients of what is trained; in float64, since norms take most of a gradient away."""
    from mxtrain.engine.backend import autograd, native_operators
    from mxtrain.engine.native import Library
    from mxtrain.vision.detection.networks import region_operators

    if native_operators().path is None:
        pytest.skip(native_operators().why)
    draws = FasterRCNN(**fields).draws((3, SIDE, SIDE))
    boxes = nd_array(padded([rows_of([[10, 10, 60, 70]], [0]), rows_of([[5, 40, 30, 90]], [1])], 1))
    noise = nd_array(np.random.RandomState(1).rand(2, draws.regions + 1))
    monkeypatch.setattr(region_operators, "CANONICAL_SIDE", 90.0)  # images are small

    def computed():
        _, network = prepared(FasterRCNN(**fields, init="msra"))
        image = images(2)
        spread(network, image)
        network.cast("float64")
        network.hybridize()
        image = image.astype("float64")
        with autograd.record():
            outputs = network(image, boxes.astype("float64"), noise.astype("float64"))
            loss = sum((one * one).mean() for one in outputs[:2] + outputs[3:])
        loss.backward()
        trained = [one for one in network.collect_params().values() if one.grad_req != "null"]
        return [*(one.asnumpy() for one in (*outputs, *network(image))), *(one.grad().asnumpy() for one in trained)]

    found = computed()
    monkeypatch.setattr(region_operators, "native_operators", lambda: Library(None, "left out"))
    wanted = computed()
    assert len(found) == len(wanted) > 30
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9 * abs(wanted[0]).max())


def test_padding_gives_no_detections():
    from mxtrain.engine.backend import nd

    coding = FasterRCNN(**STAGED).box_coding(3, WIDE)
    shapes = [(1, *shape) for shape in coding.output_shapes]
    region, logit = np.tile(np.float32([0, 0, 96, 64, 0]), (*shapes[2][:2], 1)), np.zeros(shapes[3])
    region[0, 1], logit[..., 2] = [10, 20, 40, 50, 1], 9.0
    outputs = (nd.zeros(shapes[0]), nd.zeros(shapes[1]), nd.array(region), nd.array(logit), nd.zeros(shapes[4]))
    found_N6 = coding.decode(outputs).asnumpy()[0]
    found_N6 = found_N6[(found_N6[:, 0] >= 0) & (found_N6[:, 1] > 0.01)]
    assert len(found_N6) == 1 and found_N6[0, 0] == 1
    np.testing.assert_allclose(found_N6[0, 2:], [10, 20, 40, 50], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2])
def test_samples_of_so_few_regions_that_a_quarter_is_less_than_one(samples):
    _, network = prepared(FasterRCNN(**{**STAGED, "region_samples": samples}))
    draws = FasterRCNN(**STAGED).draws((3, SIDE, SIDE))
    boxes = padded([rows_of([[10, 10, 60, 70]], [0])], 1)
    region_BR5 = sampled(network, boxes, np.random.RandomState(0).rand(1, draws.regions + 1))
    assert region_BR5.shape == (1, samples, 5) and region_BR5[..., 4].all()
