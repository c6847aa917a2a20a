"""GluonCV's Mask R-CNNs, by name or with one of its classification networks as the backbone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Mapping, Optional, Sequence, Tuple

from mxtrain.types import NonNegative, Positive, Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.detection.boxes import NUM_COLUMNS
from mxtrain.vision.detection.faster_rcnn import FasterRCNN
from mxtrain.vision.detection.heads.base import InstanceDetector
from mxtrain.vision.detection.heads.operators import operators
from mxtrain.vision.detection.heads.regions import ProposalSettings, RegionAnchors, RegionCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.networks.gluoncv_detectors import MASK_RCNN, FasterRCNNParts, MaskParts
from mxtrain.vision.kinds import Masks

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule

TYPE = "mask_rcnn"
CUSTOM, CUSTOM_PYRAMID = f"{TYPE}_custom", f"{TYPE}_fpn_custom"


class MaskRCNN(FasterRCNN, InstanceDetector):
    """A Faster R-CNN with a mask head. In prediction, the mask head pools features of the final detections.

    Source: He et al., "Mask R-CNN" (2017), as GluonCV builds it.
    """

    takes: ClassVar[Takes] = Takes(Images, Masks)
    loss_option: ClassVar[str] = "mask_two_stage"
    purpose: ClassVar[str] = "instance segmentation"
    kind: ClassVar[str] = TYPE
    stock: ClassVar[Mapping[str, FasterRCNNParts]] = MASK_RCNN
    known: ClassVar[Tuple[str, ...]] = (*MASK_RCNN, CUSTOM, CUSTOM_PYRAMID)
    custom_fields: ClassVar[Mapping[str, Tuple[str, ...]]] = {
        CUSTOM: ("backbone", "channels", "mask_channels"),
        CUSTOM_PYRAMID: ("backbone", "features", "channels", "head_units", "mask_channels", "mask_convs"),
    }

    name: str = f"{TYPE}_fpn_resnet50_v1b"
    """GluonCV's name, e.g. mask_rcnn_resnet50_v1b, or mask_rcnn_custom, mask_rcnn_fpn_custom; GluonCV's _coco may
    follow."""
    mask_channels: Positive = 256
    """Channels of each layer of the mask head, in custom networks."""
    mask_convs: NonNegative = 4
    """Number of 3x3 convolutions of the mask head before upsampling, in mask_rcnn_fpn_custom."""

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
        """Returns the box coding of Mask R-CNNs.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        side = self._masks().side(self.is_pyramid)
        return MaskedRegionCoding(
            num_classes, input_shape, self._anchors(input_shape), self._settings(), self._suppression(), side
        )

    def _network(self, *args: Any) -> Any:
        from mxtrain.vision.instance_segmentation.networks import MaskedTwoStageNetwork

        masks, suppression = self._masks(), self._suppression()
        return MaskedTwoStageNetwork(*args, masks=masks, suppression=suppression, prefix="maskrcnn0_")


class MaskedRegionCoding(RegionCoding):
    """Box coding of Mask R-CNNs.

    Outputs are those of `RegionCoding`; the boxes of masks (B, Q, 6): class, score, left, top, right, bottom; and mask
    logits (B, Q, S, S). In training, the boxes are regions with the class of their object and a score of 1, or of 0 for
    regions without an object.

    Args:
        side: S.
        num_classes, input_shape, maps, settings, suppression: see `RegionCoding`.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Shape,
        maps: Sequence[RegionAnchors],
        settings: ProposalSettings,
        suppression: Suppression,
        side: int,
    ):
        super().__init__(num_classes, input_shape, maps, settings, suppression)
        max_masks = suppression.count(num_classes, self._count)
        self.output_shapes: Sequence[Shape] = (*self.output_shapes, (max_masks, 6), (max_masks, side, side))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the result of `RegionCoding.encode`. The loss itself matches masks to regions, which depend on the
        network."""
        return super().encode(box_BMD[..., :NUM_COLUMNS])

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6 + S * S), see `InstanceDetector`."""
        F = operators(F)
        detection_BQ6, mask_BQSS = (F.cast(output, dtype="float32") for output in outputs[5:7])
        mask_BQS = F.sigmoid(F.reshape(mask_BQSS, shape=(0, 0, -1)))
        is_one_BQ1 = F.slice_axis(detection_BQ6, axis=2, begin=0, end=1) >= 0
        return F.concat(detection_BQ6, F.broadcast_mul(mask_BQS, is_one_BQ1), dim=2)
