"""Box coding of YOLACT: the mask of an object is a linear combination of a few maps of the whole image (prototypes),
cropped to its box.

Source: Bolya et al., "YOLACT: Real-time Instance Segmentation" (2019), sections 3.1 to 3.3.

Legend: B batch, M boxes of an image, P prototypes, N detections, S cells along a side of a mask, h, w height and width
of the map of centres, H, W of the prototypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.box_arithmetic import bound_edges
from mxtrain.vision.detection.boxes import NUM_COLUMNS, is_trained_on
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.detection.heads.operators import operators
from mxtrain.vision.instance_segmentation.mask_rows import PREDICTED_SIDE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


_MIN_SIDE = 0.01
"""Smallest width and height of a box, in pixels of a prototype. ROIAlign would end the process at a box without an
area, or with NaN."""


class PrototypeCoding(HeatmapCoding):
    """Box coding of YOLACT.

    Outputs are those of `HeatmapCoding`; coefficients: the weights of prototypes in the mask of the object at each cell
    (B, P, h, w); and the prototypes (B, P, H, W).

    Args:
        num_classes: number of object classes.
        input_shape: (C, height, width) of the network's input.
        prototypes: number of prototypes, P.
        mask_stride: stride of the prototypes: pixels of the image per pixel of a prototype.
        stride, max_detections: see `HeatmapCoding`.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Shape,
        prototypes: int,
        mask_stride: int,
        stride: int = 4,
        max_detections: int = 100,
    ) -> None:
        super().__init__(num_classes, input_shape, stride, max_detections)
        self._mask_stride = mask_stride
        factor, size = stride // mask_stride, (self._height, self._width)
        prototype_size = (self._height * factor, self._width * factor)
        self.output_shapes: Sequence[Shape] = (*self.output_shapes, (prototypes, *size), (prototypes, *prototype_size))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the result of `HeatmapCoding.encode`; and for each box the index of the cell of its centre, and its
        edges in pixels of a prototype (B, M, 5). The index is -1 for boxes that are not trained on, whose edges are
        arbitrary."""
        cell_BM, is_object_BM = np.full(box_BMD.shape[:2], -1.0), is_trained_on(box_BMD)
        for row, number in zip(*np.nonzero(is_object_BM)):
            line, column = self.cell_of(box_BMD[row, number])
            cell_BM[row, number] = line * self._width + column
        edge_BM4 = box_BMD[..., :4] / self._mask_stride
        edge_BM4[cell_BM < 0] = 0
        edge_BM4[..., 2:] = np.maximum(edge_BM4[..., 2:], edge_BM4[..., :2] + _MIN_SIDE)
        object_BM5 = np.concatenate([cell_BM[..., None], edge_BM4], axis=2)
        return (*super().encode(box_BMD[..., :NUM_COLUMNS]), object_BM5.astype(np.float32))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6 + S * S), see `InstanceDetector`."""
        F = operators(F)
        coefficient_BPhw, prototype_BPHW = (F.cast(output, dtype="float32") for output in outputs[2:4])
        score_BN, class_BN, cell_BN = self.peaks(F, outputs)
        detection_BN6 = self.boxes(F, outputs, score_BN, class_BN, cell_BN)
        coefficient_BNP = self.at_cells(F, coefficient_BPhw, cell_BN)
        # Padding rows get the index of their image, too: for the image -1, ROIAlign would write into the mask of
        # another row.
        first_B1 = F.reshape(F.contrib.arange_like(score_BN, axis=0), shape=(-1, 1))
        image_BN1 = F.expand_dims(F.broadcast_like(first_B1, score_BN), axis=2)
        edge_BN4 = _bounded(F, F.slice_axis(detection_BN6, axis=2, begin=2, end=6) / self._mask_stride)
        part = F.contrib.ROIAlign(
            prototype_BPHW,
            F.reshape(F.concat(image_BN1, edge_BN4, dim=2), shape=(-1, 5)),
            pooled_size=(PREDICTED_SIDE, PREDICTED_SIDE),
            spatial_scale=1.0,
            sample_ratio=1,
            aligned=True,
        )
        weight = F.expand_dims(F.reshape(coefficient_BNP, shape=(-3, 0)), axis=1)
        logit = F.batch_dot(weight, F.reshape(part, shape=(0, 0, -1)))
        mask = F.sigmoid(F.reshape(logit, shape=(-3, 0)))
        mask = F.where(F.reshape(score_BN, shape=(-1,)) > 0, mask, F.zeros_like(mask))
        mask_BNS = F.reshape_like(mask, score_BN, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
        return F.concat(detection_BN6, mask_BNS, dim=2)


def _bounded(F: OperatorModule, edge_BN4: Array) -> Array:
    """Replaces edges that are not finite or have no area, as of untrained or diverged networks, by edges that ROIAlign
    accepts."""
    bounded_BN4 = bound_edges(F, edge_BN4)
    begin_BN2, end_BN2 = (F.slice_axis(bounded_BN4, axis=2, begin=begin, end=begin + 2) for begin in (0, 2))
    return F.concat(begin_BN2, F.maximum(end_BN2, begin_BN2 + _MIN_SIDE * (1 + F.abs(begin_BN2))), dim=2)
