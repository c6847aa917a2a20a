"""Boxes by the place that their centre is in, at one of some scales.

Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2, as GluonCV has it.

Legend: B batch, M true boxes of an image, N boxes that the network gives, A shapes of all scales, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.boxes import Column, has_area, is_crowd, is_trained_on, weights
from mxtrain.vision.detection.heads.operators import operators
from mxtrain.vision.detection.heads.scores import log_odds
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Array, OperatorModule

LEADING = 5
"""Of each box: x, y, width, height, and whether something is there."""


class GridCoding:
    """Outputs: raw values of each box (B, N, 5 + K), which are x and y before the sigmoid, logarithms of width and
    height, whether something is there and its classes before the sigmoid; and the edges of boxes (B, N, 4).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of the network's input.
        anchors: width and height in pixels of the boxes of each map, one after the other, the finest map first.
        strides: pixels along the side of a place of each map, the finest first.
        suppression: which detections are left.
    """

    def __init__(
        self, num_classes: int, input_shape: Shape, anchors: Sequence[Sequence[float]], strides: Sequence[int],
        suppression: Suppression,
    ):  # fmt: skip
        self._sides = input_shape[1:]
        self._suppression = suppression
        self._shape_A2 = np.array([size for one in reversed(anchors) for size in one], np.float64).reshape(-1, 2)
        # Of each shape: the boxes of the scales before, places along both sides, its number in the scale, shapes there.
        rows: List[Tuple[int, ...]] = []
        begin = 0
        for one, stride in zip(reversed(anchors), reversed(strides)):
            height, width = (-(-side // stride) for side in self._sides)
            rows += [(begin, height, width, number, len(one) // 2) for number in range(len(one) // 2)]
            begin += height * width * (len(one) // 2)
        self._scale_A5 = np.array(rows)
        self._num_boxes = begin
        self.output_shapes: Sequence[Shape] = ((begin, LEADING + num_classes), (begin, 4))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the assigned boxes (B, N); and for each true box (B, M, 8): the index of its box, target x, y and
        logarithms of width and height, their weight, the class, and whether it is a crowd. The index is -1 if no box is
        assigned: for crowds, and if a later true box has the same one.

        Where true boxes have weights: these, of each box (B, N) and of each true box (B, M).
        """
        count, num_true = box_BMD.shape[:2]
        is_object_BN = np.zeros((count, self._num_boxes), np.float32)
        row_BM8 = np.zeros((count, num_true, 8), np.float32)
        row_BM8[..., 0] = -1
        row_BM8[..., 7] = is_crowd(box_BMD)
        image_P, true_P = np.nonzero(is_trained_on(box_BMD) & has_area(box_BMD))
        if len(image_P):
            number_P, values_P6 = self._places(box_BMD[image_P, true_P].astype(np.float64))
            # Of those with the same number in an image the last one counts.
            key_P = (image_P * self._num_boxes + number_P)[::-1]
            _, first_U = np.unique(key_P, return_index=True)
            kept_U = len(key_P) - 1 - first_U
            is_object_BN[image_P[kept_U], number_P[kept_U]] = 1
            row_BM8[image_P[kept_U], true_P[kept_U], 0] = number_P[kept_U]
            row_BM8[image_P[kept_U], true_P[kept_U], 1:7] = values_P6[kept_U]
        weight_BM = weights(box_BMD)
        if weight_BM is None:
            return is_object_BN, row_BM8
        weight_BN = np.ones_like(is_object_BN)
        matched_BM = row_BM8[..., 0] >= 0
        weight_BN[np.nonzero(matched_BM)[0], row_BM8[matched_BM][:, 0].astype(np.int64)] = weight_BM[matched_BM]
        return is_object_BN, row_BM8, weight_BN, np.where(matched_BM, weight_BM, 0).astype(np.float32)

    def _places(self, box_PD: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the number of the box that each true box should be found by, and the values of `encode`."""
        size_P2 = box_PD[:, 2:4] - box_PD[:, :2]
        centre_P2 = (box_PD[:, :2] + box_PD[:, 2:4]) / 2
        best_P = self._best_shapes(size_P2)
        begin_P, height_P, width_P, number_P, per_place_P = self._scale_A5[best_P].T
        height, width = self._sides
        place_P2 = centre_P2 / (width, height) * np.column_stack([width_P, height_P])
        cell_P2 = np.clip(place_P2.astype(np.int64), 0, np.column_stack([width_P, height_P]) - 1)
        values = [
            place_P2 - cell_P2, np.log(np.maximum(size_P2, 1) / self._shape_A2[best_P]),
            2.0 - size_P2.prod(axis=1) / (height * width), box_PD[:, Column.CLASS],
        ]  # fmt: skip
        return begin_P + (cell_P2[:, 1] * width_P + cell_P2[:, 0]) * per_place_P + number_P, np.column_stack(values)

    def _best_shapes(self, size_P2: np.ndarray) -> np.ndarray:
        """Returns the number of the shape that each size is most like: by intersection over union around one centre."""
        common_PA = np.minimum(size_P2[:, None], self._shape_A2).prod(axis=2)
        return (common_PA / (size_P2.prod(axis=1)[:, None] + self._shape_A2.prod(axis=1) - common_PA)).argmax(axis=1)

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """See `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        raw_BNP = outputs[0].astype("float64")
        log_p_BN1, log_p_BNK = (
            -nd.Activation(-raw_BNP.slice_axis(axis=2, begin=begin, end=end), act_type="softrelu")
            for begin, end in ((LEADING - 1, LEADING), (LEADING, None))
        )
        return log_odds(nd.broadcast_add(log_p_BNK, log_p_BN1)).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`."""
        F = operators(F)
        raw_BNP, edge_BN4 = (F.cast(output, dtype="float32") for output in outputs[:2])
        score_BN1, class_BNK = (
            F.sigmoid(F.slice_axis(raw_BNP, axis=2, begin=begin, end=end))
            for begin, end in ((LEADING - 1, LEADING), (LEADING, None))
        )
        score_BKN = F.transpose(F.broadcast_mul(class_BNK, score_BN1), axes=(0, 2, 1))
        num_boxes, num_numbers = self.output_shapes[0]
        return self._suppression(F, score_BKN, edge_BN4, num_numbers - LEADING, num_boxes)
