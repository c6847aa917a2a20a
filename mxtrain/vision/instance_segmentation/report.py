"""Report of `eval` for masks: a table of classes, COCO metrics, curves, and the highest-scoring errors.

Legend: N detections, G objects, R recalls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Sequence, Tuple, Type

import numpy as np

from mxtrain.types import Artifact, Figure, Table
from mxtrain.vision.detection.coco_ap import AREA_NAMES, CocoResult
from mxtrain.vision.detection.detection_report import FIGURE_NAMES, DetectionReport, coco_figures, draw_curves
from mxtrain.vision.detection.metrics import CollectedBoxes, Overlap
from mxtrain.vision.instance_segmentation.mask_rows import decode_mask
from mxtrain.vision.instance_segmentation.metrics import CollectedMasks

if TYPE_CHECKING:
    from mxtrain.vision.detection.box_figure import BoxedSample

RECALLS = np.linspace(0, 1, 101)
"""Recalls at which COCO's tool evaluates the precision."""


class InstanceReport(DetectionReport):
    """Average precision of the masks of each class, with that of boxes beside it, and the wrong detections with
    the highest scores."""

    collects: ClassVar[Type[CollectedBoxes]] = CollectedMasks

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        assert isinstance(self._collected, CollectedMasks)
        _, true_G8, detection_N8 = self._collected.boxes()
        masks, boxes = self._collected.mask_coco(), self._collected.coco()
        mistakes = self._mistakes(true_G8, detection_N8)
        figures = [list(row) for row in zip(FIGURE_NAMES, coco_figures(masks), coco_figures(boxes))]
        curves = curves_of(masks)
        return [
            Table(
                "classes",
                ["class", "mask AP50", "mask AP", "mask AR", "box AP", "objects", "found"],
                self._mask_rows(true_G8, detection_N8, masks, boxes),
            ),
            Table("coco", ["figure", "masks", "boxes"], figures),
            Figure("curves", lambda max_samples: draw_curves(curves, self._names, title)),
            *([Figure("mistakes", mistakes)] if mistakes is not None else []),
        ]

    def _mask_rows(
        self, true_G8: np.ndarray, detection_N8: np.ndarray, masks: CocoResult, boxes: CocoResult
    ) -> List[List[Any]]:
        is_confident_N = detection_N8[:, 2] >= self._task.score_threshold
        rows = []
        for number, name in enumerate(self._names):
            count = int((true_G8[:, 1] == number).sum())
            values = [
                masks.precision(0.5, "all", 100, number),
                masks.precision(None, "all", 100, number),
                masks.recall(None, "all", 100, number),
                boxes.precision(None, "all", 100, number),
            ]
            # NaN if a class has only crowd regions.
            cells = ["" if np.isnan(value) else value for value in values]
            rows.append([name, *cells, count, int((is_confident_N & (detection_N8[:, 1] == number)).sum())])
        return rows

    def overlap(self, true_G8: np.ndarray, detection_N8: np.ndarray) -> Overlap:
        """Returns the function that computes the intersection over union of masks."""
        assert isinstance(self._collected, CollectedMasks)
        return self._collected.overlap()

    def samples(self, detection_N8: np.ndarray, numbers: Sequence[int]) -> List[BoxedSample]:
        """Returns the images of some detections, each with the mask of this detection; see
        `DetectionReport.samples`."""
        assert isinstance(self._collected, CollectedMasks)
        _, codes = self._collected.codes()
        return [
            replace(sample, detection_masks=[decode_mask(codes[number], sample.image_HWC.shape[:2])])
            for number, sample in zip(numbers, super().samples(detection_N8, numbers))
        ]


def curves_of(coco: CocoResult) -> Dict[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns the precision-recall curve at an intersection over union of 0.5 of each class that has objects: average
    precision, recalls, precisions, and again recalls instead of the unused scores of `VocAP.by_class`."""
    precision_RK = coco.precision_TRKAM[0, :, :, AREA_NAMES.index("all"), coco.max_detections.index(100)]
    return {
        number: (float(precision_R.mean()), RECALLS, precision_R, RECALLS)
        for number, precision_R in zip(coco.class_K, precision_RK.T)
        if precision_R.min() > -1
    }
