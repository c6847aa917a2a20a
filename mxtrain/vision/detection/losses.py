"""Losses of object detectors. Does not import MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence, Tuple

from mxtrain.loss.spec import Loss
from mxtrain.types import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Shape
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import Boxes, Masks

if TYPE_CHECKING:
    from mxnet import gluon


class DetectionLoss(Loss):
    """Base class of losses of a detector's outputs against true boxes and the targets that its coding encodes."""

    takes: ClassVar[Takes] = Takes(Boxes)
    option: ClassVar[str] = ""
    """Option of conf/loss/, which networks name as the loss for their outputs."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """Returns a HybridBlock (*outputs, boxes (B, M, D), *encoded) -> loss (B,), weight (B,).

        Args:
            num_classes: number of object classes.
        """
        raise NotImplementedError

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """Returns the block of a loss that depends on the network's outputs; by default that of `build_detection`.

        Args:
            num_classes: number of object classes.
            output_shapes: shapes of the network's outputs for one sample, see `BoxCoding.output_shapes`.
        """
        return self.build_detection(num_classes)


class HeatmapFocal(DetectionLoss):
    """Loss of centres: focal loss of the scores, and absolute errors of size and offset, divided by the number of
    objects in the global batch.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4.
    """

    option: ClassVar[str] = "heatmap_focal"

    size_weight: NonNegativeFloat = 0.1
    """Weight of the errors of width and height, in cells of the map."""
    offset_weight: NonNegativeFloat = 1.0
    """Weight of the errors of the centre's offset in its cell."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the loss block; see `DetectionLoss.build_detection`."""
        from mxtrain.vision.detection.detection_blocks import HeatmapFocalLoss

        return HeatmapFocalLoss(self.size_weight, self.offset_weight)


class MultiBox(DetectionLoss):
    """Loss of SSDs: cross entropy of anchors with an object and of the hardest background anchors, and Huber's loss of
    offsets, divided by the number of anchors with an object in the global batch.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2, as GluonCV's SSDMultiBoxLoss.
    """

    option: ClassVar[str] = "multibox"

    negative_mining_ratio: NonNegativeFloat = 3.0
    """Number of background boxes in the loss per box with an object in the same image."""
    min_hard_negatives: NonNegative = 3
    """Smallest number of background boxes in the loss of each image, so that images without objects are used;
    GluonCV's is 0. Images with an object have more anyway."""
    rho: PositiveFloat = 1.0
    """Huber's loss of box offsets is quadratic up to this difference, then linear."""
    box_weight: NonNegativeFloat = 1.0
    """Weight of the errors of box offsets."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the loss block; see `DetectionLoss.build_detection`."""
        from mxtrain.vision.detection.detection_blocks import MultiBoxLoss

        return MultiBoxLoss(self.negative_mining_ratio, self.min_hard_negatives, self.rho, self.box_weight)


class YOLOLoss(DetectionLoss):
    """Loss of YOLOv3: binary cross entropy of objectness, of the position in the cell, and of each class, and absolute
    differences of the logarithms of width and height; the sum over an image, and the mean over images.

    Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2, as GluonCV's YOLOV3Loss.
    """

    option: ClassVar[str] = "yolo3"

    ignore_iou: Fraction = 0.7
    """Intersection over union with an object above which a box without an object of its own is not trained as
    background."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the loss block; see `DetectionLoss.build_detection`."""
        from mxtrain.vision.detection.detection_blocks import YOLO3Loss

        return YOLO3Loss(num_classes, self.ignore_iou)


class TwoStage(DetectionLoss):
    """Loss of two-stage detectors: cross entropy of the objectness of anchors and of the classes of regions, and
    Huber's loss of the offsets of both; means over a sample of the anchors and over the regions of each image.

    Source: Ren et al., "Faster R-CNN" (2015), equation 1, with the quotas of GluonCV's recipe.
    """

    option: ClassVar[str] = "two_stage"

    proposal_samples: Positive = 256
    """Number of sampled anchors of an image, at most half of them (and at least one) with an object."""
    proposal_rho: PositiveFloat = 1 / 9
    """Huber's loss of the offsets of anchors is quadratic up to this difference, then linear."""
    rho: PositiveFloat = 1.0
    """The same for the offsets of regions."""
    box_weight: NonNegativeFloat = 1.0
    """Weight of the errors of box offsets."""

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """Returns the loss block, which samples at most as many anchors as the network has."""
        from mxtrain.vision.detection.region_blocks import TwoStageLoss

        return TwoStageLoss(*self._arguments(num_classes, output_shapes))

    def _arguments(self, num_classes: int, output_shapes: Sequence[Shape]) -> Tuple[int, int, float, float, float]:
        samples = min(self.proposal_samples, output_shapes[0][0])
        return num_classes, samples, self.proposal_rho, self.rho, self.box_weight


class MaskTwoStage(TwoStage):
    """Loss of regions, and the cross entropy of the mask of the object's class for regions with an object: the mean
    over the regions of an image.

    Source: He et al., "Mask R-CNN" (2017), section 3.
    """

    takes: ClassVar[Takes] = Takes(Masks)
    option: ClassVar[str] = "mask_two_stage"

    mask_weight: NonNegativeFloat = 1.0
    """Weight of the cross entropy of masks."""

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """Returns the loss block, which samples at most as many anchors as the network has."""
        from mxtrain.vision.detection.region_blocks import MaskedTwoStageLoss

        return MaskedTwoStageLoss(*self._arguments(num_classes, output_shapes), self.mask_weight)


class YolactLoss(HeatmapFocal):
    """Loss of centres, the mean cross entropy of the mask of each object inside its true box, and 1 minus its dice
    coefficient, divided by the number of objects in the global batch.

    Sources: Bolya et al., "YOLACT: Real-time Instance Segmentation" (2019), section 3.2; Milletari et al., "V-Net"
    (2016), section 3.
    """

    takes: ClassVar[Takes] = Takes(Masks)
    option: ClassVar[str] = "yolact"

    mask_weight: NonNegativeFloat = 2.0
    """Weight of the mean cross entropy of a mask."""
    dice_weight: NonNegativeFloat = 1.0
    """Weight of the dice loss; 0 = none."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the loss block; see `DetectionLoss.build_detection`."""
        from mxtrain.vision.detection.detection_blocks import PrototypeMaskLoss

        return PrototypeMaskLoss(self.size_weight, self.offset_weight, self.mask_weight, self.dice_weight)
