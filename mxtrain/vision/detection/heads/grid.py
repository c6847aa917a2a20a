"""Box coding of YOLOv3: a true box is assigned to an anchor in the cell of its centre, on one of several maps.

Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2, as in GluonCV.

Legend: B batch, M true boxes of an image, N predicted boxes of an image, A anchors of all maps, P true boxes of a
batch, U assigned true boxes of a batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.boxes import Column, has_area, is_crowd, is_trained_on, weights
from mxtrain.vision.detection.heads.operators import log_odds, operators
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

NUM_BOX_VALUES = 5
"""Number of values of a predicted box before its classes: x, y, width, height and objectness."""


class GridCoding:
    """Box coding of YOLOv3.

    Outputs are the raw values of each box (B, N, 5 + K): x and y before the sigmoid, logarithms of width and height,
    logits of objectness and of classes; and the edges of boxes (B, N, 4).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of the network's input.
        anchors: width and height in pixels of the anchors of each map, one after the other, the finest map first.
        strides: distance of neighbouring cells of each map in pixels, the finest map first.
        suppression: non-maximum suppression of detections.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Shape,
        anchors: Sequence[Sequence[float]],
        strides: Sequence[int],
        suppression: Suppression,
    ):
        self._sides = input_shape[1:]
        self._suppression = suppression
        self._shape_A2 = np.array([size for sizes in reversed(anchors) for size in sizes], np.float64).reshape(-1, 2)
        # For each anchor: index of the first box of its map, height and width of the map in cells, index of the anchor
        # among those of the map, and their number.
        rows: List[Tuple[int, ...]] = []
        begin = 0
        for sizes, stride in zip(reversed(anchors), reversed(strides)):
            height, width = (-(-side // stride) for side in self._sides)
            num_anchors = len(sizes) // 2
            rows += [(begin, height, width, number, num_anchors) for number in range(num_anchors)]
            begin += height * width * num_anchors
        self._map_A5 = np.array(rows)
        self._num_boxes = begin
        self.output_shapes: Sequence[Shape] = ((begin, NUM_BOX_VALUES + num_classes), (begin, 4))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns a mask of the boxes with an assigned true box (B, N); and for each true box (B, M, 8): the index of
        its box, target x, y and logarithms of width and height, the weight of these four, the class, and 1 for crowd
        regions. The index is -1 if no box is assigned: for crowd regions, and if a later true box is assigned to the
        same box.

        If true boxes have weights, also the weight of each box (B, N) and of each true box (B, M).
        """
        count, num_true = box_BMD.shape[:2]
        is_object_BN = np.zeros((count, self._num_boxes), np.float32)
        row_BM8 = np.zeros((count, num_true, 8), np.float32)
        row_BM8[..., 0] = -1
        row_BM8[..., 7] = is_crowd(box_BMD)
        image_P, true_P = np.nonzero(is_trained_on(box_BMD) & has_area(box_BMD))
        if len(image_P):
            index_P, values_P6 = self._assign(box_BMD[image_P, true_P].astype(np.float64))
            # If several true boxes of an image have the same index, the last one is assigned.
            key_P = (image_P * self._num_boxes + index_P)[::-1]
            _, first_U = np.unique(key_P, return_index=True)
            kept_U = len(key_P) - 1 - first_U
            is_object_BN[image_P[kept_U], index_P[kept_U]] = 1
            row_BM8[image_P[kept_U], true_P[kept_U], 0] = index_P[kept_U]
            row_BM8[image_P[kept_U], true_P[kept_U], 1:7] = values_P6[kept_U]
        weight_BM = weights(box_BMD)
        if weight_BM is None:
            return is_object_BN, row_BM8
        weight_BN = np.ones_like(is_object_BN)
        matched_BM = row_BM8[..., 0] >= 0
        weight_BN[np.nonzero(matched_BM)[0], row_BM8[matched_BM][:, 0].astype(np.int64)] = weight_BM[matched_BM]
        return is_object_BN, row_BM8, weight_BN, np.where(matched_BM, weight_BM, 0).astype(np.float32)

    def _assign(self, box_PD: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the index of the box that should predict each true box, (P,), and its targets, (P, 6), see
        `encode`."""
        size_P2 = box_PD[:, 2:4] - box_PD[:, :2]
        centre_P2 = (box_PD[:, :2] + box_PD[:, 2:4]) / 2
        best_P = self._best_anchors(size_P2)
        begin_P, height_P, width_P, anchor_P, num_anchors_P = self._map_A5[best_P].T
        height, width = self._sides
        position_P2 = centre_P2 / (width, height) * np.column_stack([width_P, height_P])  # in cells
        cell_P2 = np.clip(position_P2.astype(np.int64), 0, np.column_stack([width_P, height_P]) - 1)
        values = [
            position_P2 - cell_P2,
            np.log(np.maximum(size_P2, 1) / self._shape_A2[best_P]),
            # Small boxes weigh up to twice as much as large ones, as in YOLOv3.
            2.0 - size_P2.prod(axis=1) / (height * width),
            box_PD[:, Column.CLASS],
        ]
        index_P = begin_P + (cell_P2[:, 1] * width_P + cell_P2[:, 0]) * num_anchors_P + anchor_P
        return index_P, np.column_stack(values)

    def _best_anchors(self, size_P2: np.ndarray) -> np.ndarray:
        """Returns the index of the anchor with the highest intersection over union with a box of each size and the same
        centre, (P,)."""
        common_PA = np.minimum(size_P2[:, None], self._shape_A2).prod(axis=2)
        return (common_PA / (size_P2.prod(axis=1)[:, None] + self._shape_A2.prod(axis=1) - common_PA)).argmax(axis=1)

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns the logit of each class of each box, (B, K N); see `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        raw_BNP = outputs[0].astype("float64")
        log_p_BN1, log_p_BNK = (
            -nd.Activation(-raw_BNP.slice_axis(axis=2, begin=begin, end=end), act_type="softrelu")
            for begin, end in ((NUM_BOX_VALUES - 1, NUM_BOX_VALUES), (NUM_BOX_VALUES, None))
        )
        return log_odds(nd.broadcast_add(log_p_BNK, log_p_BN1)).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`."""
        F = operators(F)
        raw_BNP, edge_BN4 = (F.cast(output, dtype="float32") for output in outputs[:2])
        score_BN1, class_BNK = (
            F.sigmoid(F.slice_axis(raw_BNP, axis=2, begin=begin, end=end))
            for begin, end in ((NUM_BOX_VALUES - 1, NUM_BOX_VALUES), (NUM_BOX_VALUES, None))
        )
        score_BKN = F.transpose(F.broadcast_mul(class_BNK, score_BN1), axes=(0, 2, 1))
        num_boxes, num_values = self.output_shapes[0]
        return self._suppression(F, score_BKN, edge_BN4, num_values - NUM_BOX_VALUES, num_boxes)
