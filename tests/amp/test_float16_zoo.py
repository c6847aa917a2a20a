"""Every network of GluonCV's that `model.name=` offers passes MXNet's inference of types in float16. Symbols alone."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Tuple

import pytest
from gluoncv_families import CLASSIFIERS
from inferred import without_own_operators, wrong_in_network

from mxtrain.model.spec import Model
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.detection.faster_rcnn import FasterRCNN
from mxtrain.vision.detection.gluoncv_centernet import GluonCVCenterNet
from mxtrain.vision.detection.ssd import SSD
from mxtrain.vision.detection.yolo3 import YOLO3
from mxtrain.vision.instance_segmentation.mask_rcnn import MaskRCNN
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES
from mxtrain.vision.pose.simple_pose import NAMES, SimplePose
from mxtrain.vision.segmentation.gluoncv_segmentation import NUM_AUXILIARY, GluonCVSegmentation
from mxtrain.vision.video.gluoncv_video import LEAST_FRAMES, VIDEO_NAMES, GluonCVVideo

SIDE = 256
ONE, BOTH = (1,), (1, 3)
"""Numbers of inputs: images, and in the training of detectors of two stages what they draw besides."""
ZOO: Dict[str, Tuple[Any, Tuple[str, ...], Tuple[int, ...]]] = {
    "classification": (GluonCV, CLASSIFICATION_NAMES, ONE),
    "segmentation": (GluonCVSegmentation, tuple(NUM_AUXILIARY), ONE),
    "pose": (SimplePose, NAMES, ONE),
    "ssd": (SSD, SSD.known, ONE),
    "yolo3": (YOLO3, YOLO3.known, ONE),
    "center_net": (GluonCVCenterNet, GluonCVCenterNet.known, ONE),
    "faster_rcnn": (FasterRCNN, FasterRCNN.known, BOTH),
    "mask_rcnn": (MaskRCNN, MaskRCNN.known, BOTH),
    "video": (GluonCVVideo, VIDEO_NAMES, ONE),
}
"""Kind -> (description, names, numbers of inputs)."""


def network_of(model: Model) -> Any:
    side = model.usual_side or SIDE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GluonCV's, of networks without weights
        channels = 3 * LEAST_FRAMES if isinstance(model, GluonCVVideo) else 3
        return model.build(5, model.input_shape((channels, side, side)))


SMALL: Dict[str, Tuple[str, ...]] = {
    "classification": CLASSIFIERS,
    "segmentation": (
        "fcn_resnet50",
        "psp_resnet50",
        "deeplab_resnet50",
        "icnet_resnet50",
        "danet_resnet50",
        "fastscnn",
    ),
    "pose": NAMES[:1],
    "ssd": ("ssd_300_mobilenet0.25",),
    "yolo3": ("yolo3_mobilenet0.25",),
    "center_net": ("center_net_mobilenetv3_small_duc",),
    "faster_rcnn": ("faster_rcnn_fpn_custom", "faster_rcnn_custom"),
    "mask_rcnn": ("mask_rcnn_fpn_custom", "mask_rcnn_custom"),
    "video": ("resnet18_v1b_kinetics400", "i3d_inceptionv1_kinetics400"),
}
"""One name of each family."""


@pytest.mark.zoo_cases("classification", "segmentation", "ssd", "yolo3")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ZOO)
def test_one_name_of_each_family_passes_inference_of_types_in_float16(kind: str, monkeypatch: Any) -> None:
    check_types(kind, SMALL[kind], monkeypatch)


@pytest.mark.zoo
@pytest.mark.parametrize("kind", ZOO)
def test_every_name_passes_inference_of_types_in_float16(kind: str, monkeypatch: Any) -> None:
    check_types(kind, ZOO[kind][1], monkeypatch)


def check_types(kind: str, names: Tuple[str, ...], monkeypatch: Any) -> None:
    without_own_operators(monkeypatch)
    describe, known, inputs = ZOO[kind]
    assert set(names) <= set(known)
    wrong: Dict[str, List[str]] = {}
    for name in names:
        model = describe(name=name, **({"backbone": "resnet18_v1b"} if "custom" in name else {}))
        for num_inputs in inputs:
            wrong[f"{name}, {num_inputs} inputs"] = wrong_in_network(network_of(model), num_inputs)
    assert {name: found for name, found in wrong.items() if found} == {}
    assert len(wrong) == len(names) * len(inputs) > 0
