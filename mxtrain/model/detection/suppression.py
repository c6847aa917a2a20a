"""Leaves one of several detections of the same thing.

Legend: B batch, K classes, N boxes of a picture, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

LEAST_SCORE = 0.01
"""What scores less is no detection; GluonCV's."""


@dataclass(frozen=True)
class Suppression:
    """Non-maximum suppression in each class by itself.

    Attributes:
        iou: intersection over union with a surer one of the class from which on a box is left out.
        num_candidates: how many of the highest scores of a picture are looked at. Without such a limit the operator
            takes 70 times as long.
        max_detections: how many of a picture are kept.
    """

    iou: float = 0.45
    num_candidates: int = 400
    max_detections: int = 100

    def __call__(self, score_BKN: NDArray, box_BN4: NDArray) -> NDArray:
        """Detections (B, M, 6), the surest first: class, score, box; rows of class -1 are none.

        Args:
            score_BKN: from 0 to 1.
            box_BN4: edges.
        """
        from mxtrain.engine.backend import nd

        size, num_classes, num_boxes = score_BKN.shape
        most = min(self.num_candidates, num_classes * num_boxes)
        # As integers: float32 counts to 2^24 only.
        score_BC, place_BC = nd.topk(score_BKN.reshape((0, -1)), k=most, ret_typ="both", dtype="int32")
        place_BC = place_BC.astype("float64")
        class_BC = nd.floor(place_BC / num_boxes)
        box_BC = place_BC - class_BC * num_boxes
        first_B1 = nd.arange(size, ctx=score_BC.context, dtype="float64").reshape((-1, 1)) * num_boxes
        box_BC4 = nd.take(box_BN4.reshape((-1, 4)), nd.broadcast_add(box_BC, first_B1).astype("int32"))
        columns = [nd.expand_dims(column, axis=2) for column in (class_BC.astype("float32"), score_BC)]
        found_BC6 = nd.contrib.box_nms(
            nd.concat(*columns, box_BC4, dim=2), overlap_thresh=self.iou, valid_thresh=LEAST_SCORE, topk=most,
            coord_start=2, score_index=1, id_index=0,
        )  # fmt: skip
        return found_BC6.slice_axis(axis=1, begin=0, end=min(self.max_detections, most))
