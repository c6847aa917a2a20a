"""Mask R-CNN: its predictions and files beside GluonCV's, and what is refused."""

import re
import warnings

import numpy as np
import pydantic
import pytest

from mxtrain.dataset.image.box_arithmetic import REGION_IOU
from mxtrain.dataset.image.boxes import padded, rows_of
from mxtrain.model.detection.overlaps import intersections_over_unions
from mxtrain.model.mask_rcnn import MaskRCNN
from mxtrain.model.networks.gluoncv_detectors import COCO_CLASSES, MASK_RCNN
from mxtrain.model.prepare import prepare_network

SIDE = 96
PYRAMID = {
    "name": "mask_rcnn_fpn_custom", "backbone": "resnet18_v1b", "channels": 8, "head_units": 32, "mask_channels": 6,
    "mask_convs": 2, "regions": 60, "proposals": 100, "region_samples": 16, "init": "msra", "max_detections": 40,
}  # fmt: skip
STAGED = {
    "name": "mask_rcnn_custom", "backbone": "resnet18_v1b", "channels": 8, "mask_channels": 6, "regions": 40,
    "proposals": 60, "region_samples": 8, "init": "msra", "max_detections": 40,
}  # fmt: skip
NAMES = ["cat", "dog", "cow"]


def prepared(fields, num_classes=3, side=SIDE, **arguments):
    model = MaskRCNN(**fields)
    coding = model.box_coding(num_classes, (3, side, side))
    network = prepare_network(
        model, num_classes=num_classes, input_shape=(3, side, side), seed=3, output_shapes=coding.output_shapes,
        **arguments,
    ).network  # fmt: skip
    return coding, network


def gluoncvs(fields):
    """GluonCV's network of these settings, by its `get_model` where that has them."""
    from mxtrain.model.networks import gluoncv

    from gluoncv.model_zoo.rcnn.mask_rcnn.mask_rcnn import MaskRCNN as Theirs  # isort: skip

    usual = {
        "nms_thresh": 0.5, "nms_topk": -1, "post_nms": -1, "roi_size": (14, 14), "clip": 4.42, "rpn_channel": 8,
        "rpn_test_post_nms": fields["regions"], "rpn_min_size": 1, "rpn_train_post_nms": fields["proposals"],
        "num_sample": fields["region_samples"], "mask_channels": 6, "scales": (2, 4, 8, 16, 32),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fields["name"] == "mask_rcnn_custom":
            parts = MaskRCNN(**fields)._blocks()
            return Theirs(parts.features, parts.region_features, NAMES, **usual)
        return gluoncv.get_model(
            "custom_mask_rcnn_fpn", classes=NAMES, pretrained_base=False, base_network_name="resnet18_v1b",
            num_fpn_filters=8, num_box_head_dense_filters=32, min_stage=2, max_stage=6, strides=(4, 8, 16, 32, 64),
            target_roi_scale=2, num_fcn_convs=2, **usual,
        )  # fmt: skip


def nd_array(array):
    from mxtrain.engine.backend import nd

    return nd.array(array)


def pictures(count, side=SIDE):
    return nd_array(np.random.RandomState(0).uniform(-2, 2, (count, 3, side, side)))


def spread(network, image):
    """Heads whose values differ from place to place: those of a fresh network are all alike."""
    draw = np.random.RandomState(1)

    def fill(layer, inputs):
        size = max(float(inputs[0].asnumpy().std()), 1e-30)
        shape = layer.weight.shape
        # A sigmoid that is 1 would leave GluonCV's order of proposals to chance.
        factor = {id(network.class_predictor): 1.5, id(network.box_predictor): 0.4, id(network.mask.mask): 2}
        scale = factor.get(id(layer), 0.25) / (size * np.prod(shape[1:]) ** 0.5)
        layer.weight.set_data(nd_array(draw.randn(*shape) * scale))

    head = getattr(network.rpn, "rpn_head", network.rpn)
    # What proposes decides what comes to the others.
    for layers in ((head.score, head.loc), (network.class_predictor, network.box_predictor), (network.mask.mask,)):
        handles = [layer.register_forward_pre_hook(fill) for layer in layers]
        network(image)
        for handle in handles:
            handle.detach()


@pytest.fixture
def written_memory(monkeypatch):
    """GluonCV's pyramid adds up what ROIAlign leaves unwritten of regions in other maps, which is 0 at best. It leaves
    them out where MXNet is as old as not to have `box_encode`."""
    from mxtrain.engine.backend import nd

    monkeypatch.delattr(nd.contrib, "box_encode")


def with_area(found_NR):
    """Detections of something."""
    return found_NR[(found_NR[:, 0] >= 0) & (found_NR[:, 4:6] > found_NR[:, 2:4]).all(axis=1)]


def check_values(coding, ours, theirs, path, side, least):
    image = pictures(2, side)
    spread(ours, image)
    ours.save_parameters(path)
    theirs.load_parameters(path)  # has all of them, and no other
    ours.hybridize()
    outputs = ours(image)
    assert [one.shape[1:] for one in outputs] == list(coding.output_shapes)
    found_BNR = coding.decode(outputs).asnumpy()
    for row in range(2):  # GluonCV's takes one picture at a time
        class_N1, score_N1, edge_N4, mask_NSS = (one.asnumpy()[0] for one in theirs(image[row : row + 1]))
        wanted_NR = np.concatenate([class_N1, score_N1, edge_N4, mask_NSS.reshape(len(mask_NSS), -1)], axis=1)
        # Where it has fewer regions than it expects it looks at ones without an area.
        found_NR, wanted_NR = with_area(found_BNR[row]), with_area(wanted_NR)
        wanted_NR = wanted_NR[np.argsort(-wanted_NR[:, 1], kind="stable")]
        number = min(len(found_NR), len(wanted_NR))
        assert number >= least and len(set(wanted_NR[:number, 0])) > 1
        assert found_NR.shape[1] == wanted_NR.shape[1] and wanted_NR[:number, 6:].std() > 0.05
        found_NR, wanted_NR = found_NR[:number], wanted_NR[:number]
        np.testing.assert_allclose(found_NR[:, 1], wanted_NR[:, 1], atol=1e-4)
        # Of equal scores either may come first.
        same_N = (np.abs(found_NR - wanted_NR) <= 1e-3 * (1 + np.abs(wanted_NR))).all(axis=1)
        assert same_N.mean() > 0.95, (found_NR[~same_N][:3], wanted_NR[~same_N][:3])


@pytest.mark.parametrize("fields", [PYRAMID, STAGED], ids=["pyramid", "staged"])
def test_predictions_are_gluoncvs_with_the_same_file(fields, tmp_path, written_memory):
    coding, ours = prepared(fields)
    check_values(coding, ours, gluoncvs(fields), str(tmp_path / "ours.params"), SIDE, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, side", [("mask_rcnn_resnet18_v1b_coco", 96), ("mask_rcnn_fpn_resnet50_v1b_coco", 128)]
)
def test_predictions_of_stock_networks_are_gluoncvs(name, side, tmp_path, written_memory):
    from mxtrain.model.networks import gluoncv

    fields = {"name": name, "init": "msra", "nms_candidates": 2000, "max_detections": 60}
    coding, ours = prepared(fields, len(COCO_CLASSES), side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gluoncv.get_model(name, pretrained_base=False)
    check_values(coding, ours, theirs, str(tmp_path / "ours.params"), side, 40)
