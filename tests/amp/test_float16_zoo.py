"""Every network of GluonCV's that `model.name=` offers passes MXNet's inference of types in float16. Symbols alone."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Tuple

import pytest
from inferred import without_own_operators, wrong_in_network

from mxtrain.model.base import Model
from mxtrain.model.center_net import GluonCVCenterNet
from mxtrain.model.faster_rcnn import FasterRCNN
from mxtrain.model.gluoncv import GluonCV
from mxtrain.model.gluoncv_segmentation import NUM_AUXILIARY, GluonCVSegmentation
from mxtrain.model.mask_rcnn import MaskRCNN
from mxtrain.model.networks.gluoncv_names import CLASSIFICATION_NAMES
from mxtrain.model.simple_pose import NAMES, SimplePose
from mxtrain.model.ssd import SSD
from mxtrain.model.yolo3 import YOLO3

SIDE = 256
ONE, BOTH = (1,), (1, 3)
"""Numbers of inputs: pictures, and in the training of detectors of two stages what they draw besides."""
ZOO: Dict[str, Tuple[Any, Tuple[str, ...], Tuple[int, ...]]] = {
    "classification": (GluonCV, CLASSIFICATION_NAMES, ONE),
    "segmentation": (GluonCVSegmentation, tuple(NUM_AUXILIARY), ONE),
    "pose": (SimplePose, NAMES, ONE),
    "ssd": (SSD, SSD.known, ONE),
    "yolo3": (YOLO3, YOLO3.known, ONE),
    "center_net": (GluonCVCenterNet, GluonCVCenterNet.known, ONE),
    "faster_rcnn": (FasterRCNN, FasterRCNN.known, BOTH),
    "mask_rcnn": (MaskRCNN, MaskRCNN.known, BOTH),
}
"""Kind -> (description, names, numbers of inputs)."""


def network_of(model: Model) -> Any:
    side = model.usual_side or SIDE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GluonCV's, of networks without weights
        return model.build(5, model.input_shape((3, side, side)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ZOO)
def test_every_name_passes_inference_of_types_in_float16(kind: str, monkeypatch: Any) -> None:
    without_own_operators(monkeypatch)
    describe, names, inputs = ZOO[kind]
    wrong: Dict[str, List[str]] = {}
    for name in names:
        model = describe(name=name, **({"backbone": "resnet18_v1b"} if "custom" in name else {}))
        for num_inputs in inputs:
            wrong[f"{name}, {num_inputs} inputs"] = wrong_in_network(network_of(model), num_inputs)
    assert {name: found for name, found in wrong.items() if found} == {}
    assert len(wrong) == len(names) * len(inputs) > 0
