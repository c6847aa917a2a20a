"""Losses of networks that find things in pictures. Imports no MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence, Tuple

from mxtrain.loss.losses import Loss
from mxtrain.types import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Shape

if TYPE_CHECKING:
    from mxnet import gluon


class DetectionLoss(Loss):
    """Base: a loss of what a network returns against boxes and what its coding made of them."""

    serves: ClassVar[Tuple[str, ...]] = ("detection",)
    option: ClassVar[str] = ""
    """The option of conf/loss/, by which networks say which loss their outputs are made for."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """A HybridBlock (*outputs, boxes (B, M, D), *encoded) -> loss (B,), weight (B,).

        Args:
            num_classes: of things.
        """
        raise NotImplementedError

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """See `build_detection`, for a loss that depends on the network's outputs.

        Args:
            num_classes: of things.
            output_shapes: of the network's outputs for one sample, see `BoxCoding.output_shapes`.
        """
        return self.build_detection(num_classes)


class HeatmapFocal(DetectionLoss):
    """Loss of centres: focal loss of the scores, and absolute differences of size and offset, over the number of things
    in the global batch.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4.
    """

    option: ClassVar[str] = "heatmap_focal"

    size_weight: NonNegativeFloat = 0.1
    """How much the differences of width and height count, in cells of the map."""
    offset_weight: NonNegativeFloat = 1.0
    """How much the differences of the centre's place in its cell count."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """See `DetectionLoss.build_detection`."""
        from mxtrain.loss.detection_blocks import HeatmapFocalLoss

        return HeatmapFocalLoss(self.size_weight, self.offset_weight)


class MultiBox(DetectionLoss):
    """Loss of scored boxes: cross entropy of things and of the most wrong of the background, and Huber's loss of
    offsets, over the number of boxes with a thing in the global batch.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2, as GluonCV's SSDMultiBoxLoss.
    """

    option: ClassVar[str] = "multibox"

    negative_mining_ratio: NonNegativeFloat = 3.0
    """Boxes of background that count, for each with a thing in the same picture."""
    min_hard_negatives: NonNegative = 3
    """Boxes of background that count in each picture at least, so that one without things is learned from; GluonCV has
    0. Pictures with a thing have more anyway."""
    rho: PositiveFloat = 1.0
    """A difference of offsets counts by its square up to this, above by itself."""
    box_weight: NonNegativeFloat = 1.0
    """How much the differences of offsets count."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """See `DetectionLoss.build_detection`."""
        from mxtrain.loss.detection_blocks import MultiBoxLoss

        return MultiBoxLoss(self.negative_mining_ratio, self.min_hard_negatives, self.rho, self.box_weight)


class YOLOLoss(DetectionLoss):
    """Loss of boxes at places: cross entropy of whether something is there, of where in its place it is, and of each
    class by itself, and absolute differences of the logarithms of width and height; the sum over a picture, and the
    mean over pictures.

    Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2, as GluonCV's YOLOV3Loss.
    """

    option: ClassVar[str] = "yolo3"

    ignore_iou: Fraction = 0.7
    """A box without a thing of its own is not told so where it covers one by more than this: intersection over
    union."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """See `DetectionLoss.build_detection`."""
        from mxtrain.loss.detection_blocks import YOLO3Loss

        return YOLO3Loss(num_classes, self.ignore_iou)


class TwoStage(DetectionLoss):
    """Loss of two-stage detectors: cross entropy of whether anchors hold a thing and of the classes of regions, and
    Huber's loss of the offsets of both; means over a sample of the anchors and over the regions of each picture.

    Source: Ren et al., "Faster R-CNN" (2015), equation 1, with the quotas of GluonCV's recipe.
    """

    option: ClassVar[str] = "two_stage"

    proposal_samples: Positive = 256
    """Anchors of a picture that are trained on, at most half of them (and at least one) with a thing."""
    proposal_rho: PositiveFloat = 1 / 9
    """Huber's loss of the offsets of anchors is quadratic up to this difference, then linear."""
    rho: PositiveFloat = 1.0
    """The same for the offsets of regions."""
    box_weight: NonNegativeFloat = 1.0
    """How much the differences of offsets count."""

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """See `DetectionLoss.build_for`: there are not more anchors to sample than the network has."""
        from mxtrain.loss.region_blocks import TwoStageLoss

        return TwoStageLoss(*self._arguments(num_classes, output_shapes))

    def _arguments(self, num_classes: int, output_shapes: Sequence[Shape]) -> Tuple[int, int, float, float, float]:
        samples = min(self.proposal_samples, output_shapes[0][0])
        return num_classes, samples, self.proposal_rho, self.rho, self.box_weight


class MaskTwoStage(TwoStage):
    """Loss of regions, and for those that hold a thing the cross entropy of the mask of its class: the mean over a
    picture's.

    Source: He et al., "Mask R-CNN" (2017), section 3.
    """

    serves: ClassVar[Tuple[str, ...]] = ("instance_segmentation",)
    option: ClassVar[str] = "mask_two_stage"

    mask_weight: NonNegativeFloat = 1.0
    """How much the cross entropy of masks counts."""

    def build_for(self, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.HybridBlock:
        """See `DetectionLoss.build_for`."""
        from mxtrain.loss.region_blocks import MaskedTwoStageLoss

        return MaskedTwoStageLoss(*self._arguments(num_classes, output_shapes), self.mask_weight)


class YolactLoss(HeatmapFocal):
    """Loss of centres, and for each thing the mean cross entropy of its mask inside its true box, and 1 less Dice's
    coefficient, over the number of things in the global batch.

    Sources: Bolya et al., "YOLACT: Real-time Instance Segmentation" (2019), section 3.2; Milletari et al., "V-Net"
    (2016), section 3.
    """

    serves: ClassVar[Tuple[str, ...]] = ("instance_segmentation",)
    option: ClassVar[str] = "yolact"

    mask_weight: NonNegativeFloat = 2.0
    """How much the mean cross entropy of a mask counts."""
    dice_weight: NonNegativeFloat = 1.0
    """How much it counts what a mask lacks of covering the true one; 0 = nothing."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """See `DetectionLoss.build_detection`."""
        from mxtrain.loss.detection_blocks import PrototypeMaskLoss

        return PrototypeMaskLoss(self.size_weight, self.offset_weight, self.mask_weight, self.dice_weight)
