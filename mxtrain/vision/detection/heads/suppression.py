"""Non-maximum suppression: keeps one of several detections of the same object.

Legend: B batch, K classes, N boxes of an image, C candidates, M kept detections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Tuple

from mxtrain.vision.detection.box_arithmetic import take_rows

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

MIN_SCORE = 0.01
"""Minimum score of a detection. Source: GluonCV's SSD and YOLOv3."""


@dataclass(frozen=True)
class Suppression:
    """Non-maximum suppression, by default separately for each class.

    Attributes:
        iou: threshold: intersection over union with a higher-scoring box of the same class.
        num_candidates: number of highest-scoring boxes of an image, over all classes, that are compared. Without this
            limit the operator takes 70 times as long.
        max_detections: largest number of detections per image.
        min_score: smallest score of a detection.
        across_classes: True if a box suppresses those of other classes, too.
    """

    iou: float = 0.45
    num_candidates: int = 400
    max_detections: int = 100
    min_score: float = MIN_SCORE
    across_classes: bool = False

    def count(self, num_classes: int, num_boxes: int) -> int:
        """Returns the number of rows of detections of a sample, M."""
        return min(self.max_detections, self._num_compared(num_classes * num_boxes))

    def __call__(self, F: OperatorModule, score_BKN: Array, box_BN4: Array, num_classes: int, num_boxes: int) -> Array:
        """Returns detections (B, M, 6), highest score first: class, score, box. Rows of class -1 are padding. Also
        works in a network's graph.

        Args:
            F: MXNet's operators of symbols or of arrays.
            score_BKN: scores, from 0 to 1.
            box_BN4: left, top, right, bottom in pixels, for all classes.
            num_classes, num_boxes: K and N, which the shapes of symbols do not tell.
        """
        score_BC, class_BC, index_BC = self._candidates(F, score_BKN, num_classes, num_boxes)
        return self._suppress(F, score_BC, class_BC, take_rows(F, box_BN4, index_BC), num_classes * num_boxes)

    def by_class(self, F: OperatorModule, score_BKN: Array, box_BKN4: Array, num_classes: int, num_boxes: int) -> Array:
        """Returns detections as `__call__` does, for boxes that differ between classes.

        Args:
            F: MXNet's operators of symbols or of arrays.
            score_BKN: scores, from 0 to 1.
            box_BKN4: left, top, right, bottom in pixels, for each class.
            num_classes, num_boxes: K and N, which the shapes of symbols do not tell.
        """
        score_BC, class_BC, index_BC = self._candidates(F, score_BKN, num_classes, num_boxes)
        box_BC4 = take_rows(F, F.reshape(box_BKN4, shape=(0, -3, 0)), class_BC * num_boxes + index_BC)
        return self._suppress(F, score_BC, class_BC, box_BC4, num_classes * num_boxes)

    def _num_compared(self, num_scores: int) -> int:
        """Returns the number of candidates, C."""
        return min(self.num_candidates, num_scores)

    def _candidates(
        self, F: OperatorModule, score_BKN: Array, num_classes: int, num_boxes: int
    ) -> Tuple[Array, Array, Array]:
        """Returns the highest scores (B, C), and the class and the index of the box of each, (B, C) float64."""
        count = self._num_compared(num_classes * num_boxes)
        # As integers: float32 represents integers only up to 2^24.
        score_BC, index_BC = F.topk(F.reshape(score_BKN, shape=(0, -1)), k=count, ret_typ="both", dtype="int32")
        # In float64 the floor of a quotient of two int32 is exact.
        index_BC = F.cast(index_BC, "float64")
        class_BC = F.floor(index_BC / num_boxes)
        return score_BC, class_BC, index_BC - class_BC * num_boxes

    def _suppress(self, F: OperatorModule, score_BC: Array, class_BC: Array, box_BC4: Array, num_scores: int) -> Array:
        columns = [F.expand_dims(column, axis=2) for column in (F.cast(class_BC, "float32"), score_BC)]
        count = self._num_compared(num_scores)
        # box_nms fills the rows behind the kept boxes with -1, which readers take for no class.
        detection_BC6 = F.contrib.box_nms(
            F.concat(*columns, box_BC4, dim=2),
            overlap_thresh=self.iou,
            valid_thresh=self.min_score,
            topk=count,
            coord_start=2,
            score_index=1,
            id_index=0,
            force_suppress=self.across_classes,
        )
        return F.slice_axis(detection_BC6, axis=1, begin=0, end=min(self.max_detections, count))
