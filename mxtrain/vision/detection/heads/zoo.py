"""Base classes of GluonCV's detectors: names, and classes of weight files."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Literal, Mapping, Sequence, Tuple, Union

import pydantic

from mxtrain.model.published import require_published, split_name
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.vision.classification.gluoncv import EXCLUDED_OPTIONS, GluonCVModel, no_such_network
from mxtrain.vision.detection.heads.base import Detector
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.networks.gluoncv_detectors import CLASSES_OF_WEIGHTS, without_dataset

BY_NAME = {"ssd_": "ssd", "yolo": "yolo3", "center": "gluoncv_centernet", "faster": "faster_rcnn", "mask": "mask_rcnn"}
"""Prefix of a name -> option of conf/model/."""


class GluonCVDetector(Detector, GluonCVModel):
    """Base class of GluonCV's detectors. Parameter names are GluonCV's, so weights can be exchanged.

    `weights=pretrained` starts from the weights that GluonCV publishes.
    """

    weighs_boxes: ClassVar[bool] = True
    purpose: ClassVar[str] = "detection"
    """Name of its task, for messages."""
    known: ClassVar[Tuple[str, ...]] = ()
    """Names of networks, without a dataset."""
    excluded_options: ClassVar[Mapping[str, str]] = {
        **EXCLUDED_OPTIONS,
        "pretrained_base": "type model.weights=pretrained, or give a file by model.weights=PATH",
        "norm_layer": "it is BatchNorm, whose means parallel.batch_norm takes over several devices",
    }

    name: str
    """GluonCV's name; a suffix of a dataset, as in ssd_512_resnet50_v1_voc, may follow."""
    weights_classes: Union[None, Literal["voc", "coco"], List[str]] = None
    """Classes of the file in `weights`, in the order of its scores; voc or coco: the classes of GluonCV's files.
    Weights of classes with the same name in the dataset are kept. None: from the suffix of published weights; for other
    files by order, if the numbers of classes agree; else classes are learned from scratch."""
    options: Dict[str, Any] = {}
    """Further arguments of GluonCV's function of the backbone, e.g. {norm_kwargs: {momentum: 0.99}}."""

    @pydantic.field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        if name in cls.known or without_dataset(name) in cls.known:
            return name
        raise ValueError(no_such_network(cls.purpose, without_dataset(name), cls.known))

    @pydantic.field_validator("weights_classes")
    @classmethod
    def _different_classes(cls, names: object) -> object:
        if isinstance(names, list) and (not names or len(set(names)) < len(names)):
            raise ValueError("should be voc, coco, or the names of all classes, each once, as in [cat,dog]")
        return names

    @property
    def title(self) -> str:
        return f"model.name={self.name}"

    @property
    def plain_name(self) -> str:
        """Returns the name without a dataset."""
        return self.name if self.name in self.known else without_dataset(self.name)

    @property
    def classes_in_weights(self) -> Sequence[str]:
        """Returns the class names of the weight file; empty if unknown."""
        if isinstance(self.weights_classes, str):
            return CLASSES_OF_WEIGHTS[self.weights_classes]
        published = split_name(require_published(self.weights or "", self.published_name))[1]
        return self.weights_classes or CLASSES_OF_WEIGHTS.get(published.rpartition("_")[2], ())

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels and the native size."""
        return (3, *native[-2:])


class SuppressingDetector(GluonCVDetector):
    """Base class of detectors with a fixed set of predicted boxes, which need non-maximum suppression."""

    nms_iou: OpenFraction = 0.45
    """Threshold of non-maximum suppression: intersection over union with a higher-scoring detection of the same
    class."""
    nms_candidates: Positive = 400
    """Number of highest-scoring detections of an image, over all classes, that enter non-maximum suppression."""
    max_detections: Positive = 100
    """Maximum number of detections per image."""

    @property
    def suppression(self) -> Suppression:
        """Returns the settings of non-maximum suppression."""
        return Suppression(self.nms_iou, self.nms_candidates, self.max_detections)
