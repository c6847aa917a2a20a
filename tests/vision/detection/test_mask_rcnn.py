"""Mask R-CNN: its predictions and files beside GluonCV's, and what is refused."""

import warnings

import numpy as np
import pydantic
import pytest
from two_stages import SIDE, check_names, check_values, images, nd_array, prepared, spread, stock

from mxtrain.vision.detection.box_arithmetic import REGION_IOU
from mxtrain.vision.detection.box_geometry import intersections_over_unions
from mxtrain.vision.detection.boxes import padded, rows_of
from mxtrain.vision.detection.networks.gluoncv_detectors import MASK_RCNN
from mxtrain.vision.images.class_lists import COCO_CLASSES
from mxtrain.vision.instance_segmentation.mask_rcnn import MaskRCNN

PYRAMID = {
    "name": "mask_rcnn_fpn_custom",
    "backbone": "resnet18_v1b",
    "channels": 8,
    "head_units": 32,
    "mask_channels": 6,
    "mask_convs": 2,
    "regions": 60,
    "proposals": 100,
    "region_samples": 16,
    "init": "msra",
    "max_detections": 40,
}
STAGED = {
    "name": "mask_rcnn_custom",
    "backbone": "resnet18_v1b",
    "channels": 8,
    "mask_channels": 6,
    "regions": 24,
    "proposals": 60,
    "region_samples": 8,
    "init": "msra",
    "max_detections": 20,
}
NAMES = ["cat", "dog", "cow"]


def gluoncvs(fields):
    """GluonCV's network of these settings, by its `get_model` where that has them."""
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.rcnn.mask_rcnn.mask_rcnn import MaskRCNN as Theirs  # isort: skip

    usual = {
        "nms_thresh": 0.5,
        "nms_topk": -1,
        "post_nms": -1,
        "roi_size": (14, 14),
        "clip": 4.42,
        "rpn_channel": 8,
        "rpn_test_post_nms": fields["regions"],
        "rpn_min_size": 1,
        "rpn_train_post_nms": fields["proposals"],
        "num_sample": fields["region_samples"],
        "mask_channels": 6,
        "scales": (2, 4, 8, 16, 32),
    }
    if fields["name"] == "mask_rcnn_custom":
        parts = MaskRCNN(**fields)._blocks()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Theirs(parts.features, parts.region_features, NAMES, **usual)
    return stock(
        "custom_mask_rcnn_fpn",
        classes=NAMES,
        base_network_name="resnet18_v1b",
        num_fpn_filters=8,
        num_box_head_dense_filters=32,
        min_stage=2,
        max_stage=6,
        strides=(4, 8, 16, 32, 64),
        target_roi_scale=2,
        num_fcn_convs=2,
        **usual,
    )


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, pytest.param(STAGED, marks=pytest.mark.zoo)], ids=["pyramid", "staged"])
def test_predictions_equal_gluoncv_with_the_same_file(fields, tmp_path, written_memory):
    coding, ours = prepared(MaskRCNN(**fields))
    check_values(coding, ours, gluoncvs(fields), str(tmp_path / "ours.params"), least=18)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["mask_rcnn_resnet18_v1b_coco", "mask_rcnn_fpn_resnet18_v1b_coco"])
def test_predictions_of_stock_networks_equal_gluoncv(name, tmp_path, written_memory):
    fields = {"name": name, "init": "msra", "nms_candidates": 2000, "max_detections": 40, "regions": 60}
    coding, ours = prepared(MaskRCNN(**fields), len(COCO_CLASSES))
    theirs = stock(name, rpn_test_post_nms=60, rcnn_max_dets=60)
    check_values(coding, ours, theirs, str(tmp_path / "ours.params"), least=30, least_classes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_rcnn_resnet101_v1d_coco", "mask_rcnn_fpn_resnet50_v1b_coco"])
def test_blocks_and_boxes_of_stock_networks_equal_gluoncv(name):
    """Compares without computing anything."""
    check_names(MaskRCNN(name=name).build(80, (3, SIDE, SIDE)), stock(name))


def test_names_and_settings_equal_gluoncv():
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo import get_model_list  # isort: skip

    names = [name for name in get_model_list() if name.startswith("mask_rcnn_") and "syncbn" not in name]
    assert len(names) == 6 and {MaskRCNN(name=name).plain_name for name in names} == set(MASK_RCNN)


@pytest.mark.parametrize("name", sorted(MASK_RCNN))
def test_settings_of_stock_networks_equal_gluoncv(name, monkeypatch):
    """Compares with the arguments that GluonCV's functions pass to its class, without building it."""
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    import gluoncv.model_zoo.rcnn.mask_rcnn.predefined_models as module  # isort: skip

    given = {}
    monkeypatch.setattr(module, "get_mask_rcnn", lambda **arguments: given.update(arguments))
    monkeypatch.setattr(module, "FPNFeatureExpander", lambda **arguments: given.update(outputs=arguments["outputs"]))
    getattr(module, f"{name}_coco")(pretrained_base=False)
    model = MaskRCNN(name=name)
    parts, settings = model._parts(), model._settings()
    assert parts.features == tuple(given.get("outputs", ())) and parts.channels == given["rpn_channel"]
    assert (settings.post_nms, settings.num_samples) == (given["rpn_test_post_nms"], given["num_sample"])
    assert (settings.min_size, settings.max_log_scale) == (given["rpn_min_size"], given["clip"])
    assert parts.nms_iou == given["nms_thresh"] and parts.sizes == tuple(16 * scale for scale in given["scales"])
    masks, side = parts.masks, given["roi_size"][0] * given.get("target_roi_scale", 1)
    assert (masks.channels, masks.convs) == (given["mask_channels"], given.get("num_fcn_convs", 0))
    assert masks.side(model.is_pyramid) == side


@pytest.mark.slow
def test_a_file_of_gluoncvs_is_loaded(tmp_path):
    """The other way round: of a network for other classes, of which one has the name of ours."""
    from mxtrain.engine.backend import mx

    theirs = gluoncvs(PYRAMID)
    theirs.initialize(mx.init.Normal(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs(images(1))
    path = str(tmp_path / "theirs.params")
    theirs.save_parameters(path)
    _, same = prepared(MaskRCNN(**PYRAMID, weights=path))
    _, fresh = prepared(MaskRCNN(**PYRAMID), 2)
    _, found = prepared(MaskRCNN(**PYRAMID, weights=path, weights_classes=NAMES), 2, output_names=["zebra", "dog"])
    wanted = {name: one.data().asnumpy() for name, one in theirs._collect_params_with_prefix().items()}
    for name, parameter in same._collect_params_with_prefix().items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), wanted[name], name)
    for part in ("weight", "bias"):
        ours, start = (
            network._collect_params_with_prefix()[f"mask.mask.{part}"].data().asnumpy() for network in (found, fresh)
        )
        np.testing.assert_array_equal(ours, [start[0], wanted[f"mask.mask.{part}"][1]])
    assert found.mask.mask.weight.shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, STAGED], ids=["pyramid", "staged"])
def test_masks_are_learned_of_regions_that_hold_an_object(fields):
    _, network = prepared(MaskRCNN(**fields))
    draws = MaskRCNN(**fields).draws((3, SIDE, SIDE))
    edges = np.array([[10, 10 + shift, 60, 70 + shift] for shift in range(6)])  # each covers the others
    kinds = [0, 1, 2, 0, 1, 2]
    boxes = padded([rows_of(edges, kinds), np.zeros((0, 7)), rows_of([[20, 30, 50, 60]], [2])], 8)
    noise_BC = np.random.RandomState(1).rand(3, draws.regions + 8)
    outputs = network(images(3), nd_array(boxes), nd_array(noise_BC))
    region_BR5, found_BQ6, mask_BQSS = (outputs[number].asnumpy() for number in (2, 5, 6))
    count = fields["region_samples"] // 4
    side = 28 if fields is PYRAMID else 14
    assert found_BQ6.shape == (3, count, 6) and mask_BQSS.shape == (3, count, side, side)
    np.testing.assert_array_equal(found_BQ6[..., 2:], region_BR5[:, :count, :4])
    assert found_BQ6[0, :, 1].all() and not found_BQ6[1, :, 1].any() and 0 < found_BQ6[2, :, 1].sum()
    for row, truths, classes in ((0, edges, kinds), (2, np.array([[20, 30, 50, 60]]), [2])):
        iou_MR = intersections_over_unions(truths, region_BR5[row, :, :4])
        holds_R = iou_MR.max(axis=0) >= REGION_IOU
        np.testing.assert_array_equal(found_BQ6[row, :, 1], holds_R[:count])
        best_Q = np.array(classes)[iou_MR.argmax(axis=0)][:count]
        np.testing.assert_array_equal(found_BQ6[row, holds_R[:count], 0], best_Q[holds_R[:count]])
        assert holds_R.sum() == holds_R[:count].sum()  # no region that holds an object is left out


@pytest.mark.slow
@pytest.mark.parametrize("fields", [PYRAMID, pytest.param(STAGED, marks=pytest.mark.zoo)], ids=["pyramid", "staged"])
def test_prediction_does_not_depend_on_other_images(fields):
    coding, network = prepared(MaskRCNN(**{**fields, "regions": 8, "max_detections": 6}))
    image = images(3)
    spread(network, image)
    together = coding.decode(network(image)).asnumpy()
    for row in range(3):
        alone = coding.decode(network(image[row : row + 1])).asnumpy()[0]
        np.testing.assert_allclose(alone, together[row], atol=1e-3)


@pytest.mark.slow
def test_the_second_look_at_regions_keeps_all_of_their_features(monkeypatch):
    """Regions of several maps are each seen as if alone."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.detection.networks import region_operators

    monkeypatch.setattr(region_operators, "CANONICAL_SIDE", 90.0)  # images are small
    _, network = prepared(MaskRCNN(**PYRAMID))
    image, kept = images(2), []
    spread(network, image)
    network.mask.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].asnumpy()))
    edge_BQ4 = network(image)[5][:, :, 2:].asnumpy()
    maps = network.features(image)
    sides_BQ = np.sqrt((edge_BQ4[..., 2:] - edge_BQ4[..., :2] + 1).prod(axis=-1))
    assert (sides_BQ < 45).sum() > 10 and (sides_BQ > 45).sum() > 10
    alone = [
        network.align_regions(nd, [one[row : row + 1] for one in maps], nd_array(edge_4[None, None]), 1, 14).asnumpy()
        for row, edge_Q4 in enumerate(edge_BQ4)
        for edge_4 in edge_Q4
    ]
    np.testing.assert_allclose(kept[-1], np.concatenate(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_undetected_objects_have_no_mask():
    coding, _ = prepared(MaskRCNN(**STAGED))
    outputs = [nd_array(np.random.RandomState(0).randn(2, *shape)) for shape in coding.output_shapes]
    outputs[5][:, :, 0] = nd_array(np.tile([[0, -1]], (2, outputs[5].shape[1] // 2)))
    found_BNR = coding.decode(outputs).asnumpy()
    assert found_BNR[:, ::2, 6:].min() > 0 and not found_BNR[:, 1::2, 6:].any()


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"name": "mask_rcnn_resnet50_v1"}, "no instance segmentation network.*Did you mean 'mask_rcnn_resnet50_v1b'"),
        ({"name": "mask_rcnn_fpn_syncbn_resnet18_v1b_coco"}, "model.name=mask_rcnn_fpn_custom.*mask_rcnn_fpn_resnet50"),
        ({"name": "mask_rcnn_fpn_custom"}, "type model.backbone=NAME, e.g. resnet18_v1b"),
        ({"name": "mask_rcnn_custom", "backbone": "mobilenet0.25"}, "no classification network 'mobilenet0.25'"),
        ({"mask_channels": 8}, "part of mask_rcnn_fpn_resnet50_v1b. Type model.name=mask_rcnn_fpn_custom"),
        ({"name": "mask_rcnn_custom", "backbone": "resnet18_v1b", "mask_convs": 2}, "mask_convs is part of mask_rcnn"),
        ({"name": "faster_rcnn_resnet50_v1b"}, "no instance segmentation network"),
    ],
)
def test_unsupported_settings_are_refused_with_alternatives(fields, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        MaskRCNN(**fields)
