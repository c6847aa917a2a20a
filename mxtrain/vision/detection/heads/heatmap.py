"""Box coding of CenterNets: a heat map of centres for each class, and the size and offset of a box in each cell.

Source: Zhou et al., "Objects as Points" (2019).

Legend: B batch, M boxes of an image, K classes, N detections, P = K h w, h, w height and width of the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.box_arithmetic import take_rows
from mxtrain.vision.detection.heads.operators import operators

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

CENTRES_PER_SIDE = 6.0
"""The side of a box divided by this is the standard deviation of the Gaussian at its centre, so that three standard
deviations are half a side."""
REACH = 3.0
"""Radius of the Gaussian at a centre, in standard deviations; scores are 0 farther away."""
CENTRE_BIAS = -2.19
"""Initial bias of the logits of centres. Nearly all cells have no centre, so the initial probability is a tenth.
Source: Lin et al., "Focal Loss for Dense Object Detection" (2017), section 3.3."""


class HeatmapCoding:
    """Box coding of CenterNets.

    Outputs are the logits of centres (B, K, h, w); and width, height, and the x and y of the centre relative to the
    left top corner of its cell, all in cells (B, 4, h, w).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of the network's input.
        stride: side of a cell in pixels.
        max_detections: largest number of detections per image, N.
    """

    def __init__(self, num_classes: int, input_shape: Shape, stride: int = 4, max_detections: int = 100) -> None:
        self._num_classes, self._stride = num_classes, stride
        self._height, self._width = (-(-side // stride) for side in input_shape[1:])
        # topk refuses to return more elements than there are.
        self._max_detections = min(max_detections, num_classes * self._height * self._width)
        size = (self._height, self._width)
        self.output_shapes: Sequence[Shape] = ((num_classes, *size), (4, *size))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Encodes boxes as score maps (B, K, h, w) from 0 to 1, with 1 in the cells of centres; sizes and offsets of
        the boxes there (B, 4, h, w); and a mask of the cells with centres (B, 1, h, w). If boxes have weights, also the
        weight of the centre in each cell (B, 1, h, w)."""
        from mxtrain.vision.detection.boxes import Column, is_trained_on, weights

        count = len(box_BMD)
        score_BKhw = np.zeros((count, self._num_classes, self._height, self._width), np.float32)
        size_B4hw = np.zeros((count, 4, self._height, self._width), np.float32)
        is_centre_B1hw = np.zeros((count, 1, self._height, self._width), np.float32)
        weight_B1hw = None if weights(box_BMD) is None else np.ones_like(is_centre_B1hw)
        for row, number in zip(*np.nonzero(is_trained_on(box_BMD))):
            left, top, right, bottom = box_BMD[row, number, :4].astype(np.float64) / self._stride
            x, y, width, height = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
            line, column = self.cell_of(box_BMD[row, number])
            self._draw_gaussian(score_BKhw[row, int(box_BMD[row, number, 4])], line, column, width, height)
            size_B4hw[row, :, line, column] = width, height, x - column, y - line
            is_centre_B1hw[row, 0, line, column] = 1.0
            if weight_B1hw is not None:
                weight_B1hw[row, 0, line, column] = box_BMD[row, number, Column.WEIGHT]
        encoded = (score_BKhw, size_B4hw, is_centre_B1hw)
        return encoded if weight_B1hw is None else (*encoded, weight_B1hw)

    def cell_of(self, box_D: np.ndarray) -> Tuple[int, int]:
        """Returns the line and column of the cell that the centre of a box is in."""
        left, top, right, bottom = box_D[:4].astype(np.float64) / self._stride
        x, y = (left + right) / 2, (top + bottom) / 2
        return min(max(int(y), 0), self._height - 1), min(max(int(x), 0), self._width - 1)

    def _draw_gaussian(self, score_hw: np.ndarray, line: int, column: int, width: float, height: float) -> None:
        """Draws a Gaussian around a centre into the score map of a class, which is written to. Higher scores of other
        centres are kept.

        Args:
            score_hw: score map.
            line, column: cell of the centre.
            width, height: size of the box in cells.
        """
        # 1e-3 keeps boxes without area from a division by 0.
        sigma = max(np.sqrt(max(width, 0.0) * max(height, 0.0)) / CENTRES_PER_SIDE, 1e-3)
        reach = int(REACH * sigma)
        lines = np.arange(max(line - reach, 0), min(line + reach + 1, self._height))
        columns = np.arange(max(column - reach, 0), min(column + reach + 1, self._width))
        gaussian_h, gaussian_w = (
            np.exp(-((cells - centre) ** 2) / (2 * sigma**2)) for cells, centre in ((lines, line), (columns, column))
        )
        part = score_hw[lines[0] : lines[-1] + 1, columns[0] : columns[-1] + 1]
        # Overlapping objects of a class take the larger value: a sum would exceed 1.
        np.maximum(part, np.outer(gaussian_h, gaussian_w), out=part)

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns the logits of centres, (B, P); see `BoxCoding.scores`."""
        return outputs[0].astype("float32").reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`: the highest local maxima of the heat maps,
        which need no further suppression."""
        F = operators(F)
        return self.boxes(F, outputs, *self.peaks(F, outputs))

    def peaks(self, F: OperatorModule, outputs: Sequence[Array]) -> Tuple[Array, Array, Array]:
        """Returns score, class and cell of each detection, (B, N) each, highest score first; a score of 0 marks
        padding. Cells are numbered row by row."""
        score_BKhw = F.sigmoid(F.cast(outputs[0], dtype="float32"))
        highest_BKhw = F.Pooling(score_BKhw, kernel=(3, 3), pad=(1, 1), stride=(1, 1), pool_type="max")
        peak_BP = F.reshape(score_BKhw * F.broadcast_equal(highest_BKhw, score_BKhw), shape=(0, -1))
        # As integers: float32 represents integers only up to 2^24.
        score_BN, index_BN = F.topk(peak_BP, k=self._max_detections, ret_typ="both", dtype="int32")
        num_cells, index_BN = self._height * self._width, F.cast(index_BN, dtype="float64")
        class_BN = F.floor(index_BN / num_cells)
        return score_BN, class_BN, index_BN - class_BN * num_cells

    @staticmethod
    def at_cells(F: OperatorModule, map_BPhw: Array, cell_BN: Array) -> Array:
        """Returns the values of a map in some cells, (B, N, P)."""
        return take_rows(F, F.reshape(F.transpose(map_BPhw, axes=(0, 2, 3, 1)), shape=(0, -3, 0)), cell_BN)

    def boxes(
        self, F: OperatorModule, outputs: Sequence[Array], score_BN: Array, class_BN: Array, cell_BN: Array
    ) -> Array:
        """Returns the detections (B, N, 6) for the result of `peaks`; see `decode`."""
        line_BN = F.floor(cell_BN / self._width)
        column_BN = cell_BN - line_BN * self._width
        size_BN4 = self.at_cells(F, F.cast(outputs[1], dtype="float32"), cell_BN)
        parts = F.split(size_BN4, num_outputs=4, axis=2, squeeze_axis=True)
        width_BN, height_BN, right_BN, down_BN = parts
        width_BN, height_BN = F.relu(width_BN), F.relu(height_BN)  # untrained networks predict negative sizes
        x_BN = F.cast(column_BN, dtype="float32") + right_BN
        y_BN = F.cast(line_BN, dtype="float32") + down_BN
        edges = (x_BN - width_BN / 2, y_BN - height_BN / 2, x_BN + width_BN / 2, y_BN + height_BN / 2)
        is_peak_BN = score_BN > 0
        class_BN = F.where(is_peak_BN, F.cast(class_BN, dtype="float32"), -F.ones_like(score_BN))
        # The order of equal scores of 0 is undefined: set the boxes of padding to 0, so that results are deterministic.
        boxes = (F.where(is_peak_BN, edge * self._stride, F.zeros_like(edge)) for edge in edges)
        return F.stack(class_BN, score_BN, *boxes, axis=-1)
