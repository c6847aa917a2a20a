"""Non-maximum suppression: keeps one of several detections of the same thing.

Legend: B batch, K classes, N boxes of a picture, C candidates, M detections that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Tuple

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

LEAST_SCORE = 0.01
"""What scores less is no detection. Source: GluonCV's, of SSD and YOLOv3."""


@dataclass(frozen=True)
class Suppression:
    """Non-maximum suppression in each class by itself.

    Attributes:
        iou: intersection over union with a box of the same class and a higher score from which on one is suppressed.
        num_candidates: how many of the highest scores of a picture, of all classes, are compared. Without such a limit
            the operator takes 70 times as long.
        max_detections: how many of a picture are kept.
        least_score: what scores less is no detection.
    """

    iou: float = 0.45
    num_candidates: int = 400
    max_detections: int = 100
    least_score: float = LEAST_SCORE

    def __call__(self, score_BKN: NDArray, box_BN4: NDArray) -> NDArray:
        """Detections (B, M, 6), the surest first: class, score, box; rows of class -1 are none.

        Args:
            score_BKN: from 0 to 1.
            box_BN4: left, top, right, bottom in pixels, the same for all classes.
        """
        score_BC, class_BC, box_BC = self._candidates(score_BKN)
        return self._suppress(score_BC, class_BC, _take(box_BN4, box_BC))

    def by_class(self, score_BKN: NDArray, box_BKN4: NDArray) -> NDArray:
        """See `__call__`, for boxes that differ between classes: each class of a region has offsets of its own.

        Args:
            score_BKN: from 0 to 1.
            box_BKN4: left, top, right, bottom in pixels.
        """
        score_BC, class_BC, box_BC = self._candidates(score_BKN)
        place_BC = class_BC * score_BKN.shape[2] + box_BC
        return self._suppress(score_BC, class_BC, _take(box_BKN4.reshape((0, -3, 0)), place_BC))

    def _candidates(self, score_BKN: NDArray) -> Tuple[NDArray, NDArray, NDArray]:
        """The highest scores (B, C), and the class and the place of the box of each, both (B, C) float64."""
        from mxtrain.engine.backend import nd

        _, num_classes, num_boxes = score_BKN.shape
        most = min(self.num_candidates, num_classes * num_boxes)
        # As integers: float32 counts to 2^24 only.
        score_BC, place_BC = nd.topk(score_BKN.reshape((0, -1)), k=most, ret_typ="both", dtype="int32")
        place_BC = place_BC.astype("float64")
        class_BC = nd.floor(place_BC / num_boxes)
        return score_BC, class_BC, place_BC - class_BC * num_boxes

    def _suppress(self, score_BC: NDArray, class_BC: NDArray, box_BC4: NDArray) -> NDArray:
        from mxtrain.engine.backend import nd

        columns = [nd.expand_dims(column, axis=2) for column in (class_BC.astype("float32"), score_BC)]
        found_BC6 = nd.contrib.box_nms(
            nd.concat(*columns, box_BC4, dim=2), overlap_thresh=self.iou, valid_thresh=self.least_score,
            topk=score_BC.shape[1], coord_start=2, score_index=1, id_index=0,
        )  # fmt: skip
        return found_BC6.slice_axis(axis=1, begin=0, end=min(self.max_detections, score_BC.shape[1]))


def _take(box_BN4: NDArray, place_BC: NDArray) -> NDArray:
    """Boxes at some places of each picture, (B, C, 4)."""
    from mxtrain.engine.backend import nd

    size, num_boxes, _ = box_BN4.shape
    first_B1 = nd.arange(size, ctx=box_BN4.context, dtype="float64").reshape((-1, 1)) * num_boxes
    return nd.take(box_BN4.reshape((-1, 4)), nd.broadcast_add(place_BC, first_B1).astype("int32"))
