"""Metrics of semantic segmentation, over all pixels that are not ignored.

Legend: B batch, K classes, H height, W width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Tuple

from mxtrain.metric.metrics import ConfusionMetric, count_cells
from mxtrain.metric.spec import ratio
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import ClassMap

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


class PixelMetric(ConfusionMetric):
    """Base class of the metrics of scores (B, K, H, W) and masks (B, H, W), in which -1 is ignored.

    They are NaN if all pixels are ignored.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(ClassMap)
    in_training: ClassVar[bool] = False  # the argmax over pixels takes a tenth of the step of a small network

    def sums(self, F: OperatorModule, logits_BKHW: Array, mask_BHW: Array, num_classes: int) -> Array:
        cell_BHW = mask_BHW * num_classes + F.argmax(logits_BKHW, axis=1)
        ignored_BHW = mask_BHW < 0
        cell_BHW = F.where(ignored_BHW, -F.ones_like(cell_BHW), cell_BHW)  # outside of the range, so not counted
        return count_cells(F, cell_BHW, num_classes * num_classes)


class PixelAccuracy(PixelMetric):
    """Share of pixels whose highest score is their class's, from 0 to 1."""

    def of_confusion(self, confusion_KK: np.ndarray) -> float:
        return ratio(confusion_KK.trace(), confusion_KK.sum())


class MeanIoU(PixelMetric):
    """Mean over classes of the intersection over union of the true and the predicted pixels.

    Source: Everingham et al., "The Pascal Visual Object Classes Challenge: A Retrospective" (2015), section 4.1.4.
    """

    absent_classes: Literal["left_out", "zero"] = "left_out"
    """Value of a class that occurs in no mask and no prediction: mmsegmentation ignores it, GluonCV counts 0."""

    @property
    def signature(self) -> str:
        return f"absent_classes={self.absent_classes}"

    def of_confusion(self, confusion_KK: np.ndarray) -> float:
        iou_K, is_present_K = intersection_over_union(confusion_KK)
        num_classes = len(iou_K) if self.absent_classes == "zero" and is_present_K.any() else is_present_K.sum()
        return ratio(iou_K.sum(), num_classes)  # absent classes are 0


def intersection_over_union(confusion_KK: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the intersection over union of each class, 0 for absent classes, and a mask of the present classes.

    Args:
        confusion_KK: numbers of pixels; rows are true classes, columns predicted classes.
    """
    import numpy as np

    shared_K = np.diag(confusion_KK)
    union_K = confusion_KK.sum(axis=0) + confusion_KK.sum(axis=1) - shared_K
    return shared_K / np.maximum(union_K, 1), union_K > 0
