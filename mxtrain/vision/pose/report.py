"""Report of `eval` for key points: a table, COCO metrics, and the objects with the largest errors.

Legend: N objects, J key points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence

import numpy as np

from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Figure, Table
from mxtrain.vision.detection.coco_ap import MAX_POSES
from mxtrain.vision.pose.metrics import PCK, CollectedPoses, OksAP, Poses

if TYPE_CHECKING:
    from PIL import Image

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.vision.pose.task import PoseEstimation

MAX_SHOWN = 16
COCO_FIGURES = (
    ("AP", None, "all", MAX_POSES),
    ("AP50", 0.5, "all", MAX_POSES),
    ("AP75", 0.75, "all", MAX_POSES),
    ("AP medium", None, "medium", MAX_POSES),
    ("AP large", None, "large", MAX_POSES),
    ("AR", None, "all", MAX_POSES),
    ("AR50", 0.5, "all", MAX_POSES),
    ("AR75", 0.75, "all", MAX_POSES),
    ("AR medium", None, "medium", MAX_POSES),
    ("AR large", None, "large", MAX_POSES),
)
"""COCO's ten figures of key points: name, threshold of OKS, sizes of objects, and number of detections per image."""


class PoseReport(CollectingReport):
    """Errors of each key point, and the objects with the largest errors.

    Args:
        task: pose-estimation task, whose score threshold figures use.
        decode: decodes outputs to predictions.
        description: configuration; the report uses the fraction and the sigmas of its metrics.
        signature: signature with the names of the key points.
        source: source of the samples.
    """

    def __init__(
        self, task: PoseEstimation, decode: Decode, description: RunParts, signature: Signature, source: Samples
    ):
        self._collected = CollectedPoses()
        super().__init__(decode, self._collected)
        metrics = description.metric.values()
        self._task, self._signature, self._source = task, signature, source
        self._fraction = next((metric.fraction for metric in metrics if isinstance(metric, PCK)), PCK().fraction)
        self._sigmas: Sequence[float] = next((metric.sigmas for metric in metrics if isinstance(metric, OksAP)), ())

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        poses = self._collected.poses()
        heads = ["key point", f"PCK {self._fraction:g}", "median error", "marked", "mean score"]
        return [
            Table("key_points", heads, self._rows(poses)),
            Table("coco", ["figure", "value"], self._figures()),
            *self._worst(poses),
        ]

    def _rows(self, poses: Poses) -> List[List[Any]]:
        rows: List[List[Any]] = []
        for number, name in enumerate(self._signature.class_names):
            known_N = poses.known_NJ[:, number]
            error_N = poses.error_NJ[known_N, number]
            is_marked = len(error_N) > 0
            rows.append(
                [
                    name,
                    float((error_N <= self._fraction).mean()) if is_marked else "",
                    float(np.median(error_N)) if is_marked else "",
                    int(known_N.sum()),
                    float(poses.predicted_NJ3[:, number, 2].mean()) if len(poses.index_N) else "",
                ]
            )
        return rows

    def _figures(self) -> List[List[Any]]:
        coco = self._collected.coco(self._sigmas)
        if coco is None:
            return []
        return [[name, value] for (name, *_), value in zip(COCO_FIGURES, coco.figures(COCO_FIGURES))]

    def _worst(self, poses: Poses) -> List[Artifact]:
        """Returns the objects with the largest mean distance of known key points from their true positions."""
        from mxtrain.vision.pose.pose_figure import draw_gallery, posed_samples

        counts_N = poses.known_NJ.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            error_N = np.where(poses.known_NJ, poses.error_NJ, 0).sum(axis=1) / counts_N
        order = [int(number) for number in np.argsort(-error_N, kind="stable") if counts_N[number]][:MAX_SHOWN]
        if not order:
            return []

        def draw(max_samples: int) -> Image.Image:
            selected = order[:max_samples]
            samples = posed_samples(
                self._source,
                [int(poses.index_N[number]) for number in selected],
                [poses.predicted_NJ3[number] for number in selected],
            )
            captions = [f"mean error {error_N[number]:.2f} of the longer side" for number in selected]
            return draw_gallery(samples, self._signature, self._task.score_threshold, captions)

        return [Figure("worst", draw)]
