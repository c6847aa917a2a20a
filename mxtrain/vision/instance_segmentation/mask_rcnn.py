"""GluonCV's Mask R-CNNs, by their names there or around its networks for classification."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Mapping, Tuple

from mxtrain.types import NonNegative, Positive, Shape
from mxtrain.vision.detection.faster_rcnn import FasterRCNN
from mxtrain.vision.detection.heads.base import InstanceDetector
from mxtrain.vision.detection.heads.masked_regions import MaskedRegionCoding
from mxtrain.vision.detection.networks.gluoncv_detectors import MASK_RCNN, FasterRCNNParts, MaskParts

TYPE = "mask_rcnn"
CUSTOM, CUSTOM_PYRAMID = f"{TYPE}_custom", f"{TYPE}_fpn_custom"


class MaskRCNN(FasterRCNN, InstanceDetector):
    """A Faster R-CNN that looks at what it detects once more, and gives it a mask.

    Source: He et al., "Mask R-CNN" (2017), as GluonCV builds it.
    """

    tasks: ClassVar[Tuple[str, ...]] = InstanceDetector.tasks
    loss_option: ClassVar[str] = "mask_two_stage"
    kind: ClassVar[str] = TYPE
    stock: ClassVar[Mapping[str, FasterRCNNParts]] = MASK_RCNN
    known: ClassVar[Tuple[str, ...]] = (*MASK_RCNN, CUSTOM, CUSTOM_PYRAMID)
    own: ClassVar[Mapping[str, Tuple[str, ...]]] = {
        CUSTOM: ("backbone", "channels", "mask_channels"),
        CUSTOM_PYRAMID: ("backbone", "features", "channels", "head_units", "mask_channels", "mask_convs"),
    }

    name: str = f"{TYPE}_fpn_resnet50_v1b"
    """GluonCV's name, e.g. mask_rcnn_resnet50_v1b, or mask_rcnn_custom, mask_rcnn_fpn_custom; GluonCV's _coco may
    follow."""
    mask_channels: Positive = 256
    """Of the custom ones: of each layer that makes masks."""
    mask_convs: NonNegative = 4
    """Of mask_rcnn_fpn_custom: 3x3 convolutions before masks get twice as fine."""

    def _parts(self) -> FasterRCNNParts:
        parts = super()._parts()
        if not self.is_custom:
            return parts
        is_fine = self.is_pyramid
        return replace(parts, masks=MaskParts(self.mask_channels, self.mask_convs if is_fine else 0, is_fine))

    def _masks(self) -> MaskParts:
        masks = self._parts().masks
        assert masks is not None
        return masks

    def box_coding(self, num_classes: int, input_shape: Shape) -> MaskedRegionCoding:
        """See `Detector.box_coding`.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        side = self._masks().side(self.is_pyramid)
        return MaskedRegionCoding(
            num_classes, input_shape, self._anchors(input_shape), self._settings(), self._suppression(), side
        )

    def _network(self, *args):
        from mxtrain.vision.instance_segmentation.networks import MaskedTwoStageNetwork

        masks, suppression = self._masks(), self._suppression()
        return MaskedTwoStageNetwork(*args, masks=masks, suppression=suppression, prefix="maskrcnn0_")
