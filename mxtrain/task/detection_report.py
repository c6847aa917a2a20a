"""What `eval` shows of detections: a table of classes, COCO's figures, curves, and the surest mistakes.

Legend: N detections, G true boxes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.metric.detection import CollectedBoxes, VocAP, intersection_over_union_of_boxes, voc_matches
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Picture, Table

if TYPE_CHECKING:
    from PIL import Image

    from mxtrain.dataset.base import Samples
    from mxtrain.dataset.signature import Signature
    from mxtrain.engine.predictions import Decode
    from mxtrain.task.detection import Detection

MAX_SHOWN = 16
MAX_CURVES = 20
COCO_FIGURES = (
    ("AP", None, "all", 100), ("AP50", 0.5, "all", 100), ("AP75", 0.75, "all", 100), ("AP small", None, "small", 100),
    ("AP medium", None, "medium", 100), ("AP large", None, "large", 100), ("AR 1", None, "all", 1),
    ("AR 10", None, "all", 10), ("AR 100", None, "all", 100), ("AR small", None, "small", 100),
    ("AR medium", None, "medium", 100), ("AR large", None, "large", 100),
)  # fmt: skip
"""COCO's twelve figures: name, threshold, sizes, detections of a picture."""


class DetectionReport(CollectingReport):
    """Average precision of each class, and where the network is surest and wrong.

    Args:
        task: says what is shown.
        decode: predictions from outputs.
        signature: names the classes.
        source: of the samples.
    """

    def __init__(self, task: Detection, decode: Decode, signature: Signature, source: Samples):
        self._collected = CollectedBoxes()
        super().__init__(decode, self._collected)
        self._task, self._names, self._source = task, list(signature.class_names), source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        _, true_G8, found_N8 = self._collected.boxes()
        by_class = VocAP().by_class(true_G8, found_N8)
        mistakes = self._mistakes(true_G8, found_N8)
        return [
            Table("classes", ["class", "AP50 (VOC)", "AP (COCO)", "AR (COCO)", "things", "found"],
                  self._rows(true_G8, found_N8, by_class)),
            Table("coco", ["figure", "value"], self._figures()),
            Picture("curves", lambda most: draw_curves(by_class, self._names, title)),
            *([Picture("mistakes", mistakes)] if mistakes is not None else []),
        ]  # fmt: skip

    def _rows(
        self, true_G8: np.ndarray, found_N8: np.ndarray, by_class: Mapping[int, Tuple[float, Any, Any, Any]]
    ) -> List[List[Any]]:
        coco = self._collected.coco()
        sure_N = found_N8[:, 2] >= self._task.score_threshold
        rows = []
        for number, name in enumerate(self._names):
            is_there = number in by_class
            rows.append([
                name, by_class[number][0] if is_there else "",
                coco.precision(None, "all", 100, number) if is_there else "",
                coco.recall(None, "all", 100, number) if is_there else "",
                int((true_G8[:, 1] == number).sum()), int((sure_N & (found_N8[:, 1] == number)).sum()),
            ])  # fmt: skip
        return rows

    def _figures(self) -> List[List[Any]]:
        coco = self._collected.coco()
        found = [
            (name, (coco.precision if name.startswith("AP") else coco.recall)(iou, area, most))
            for name, iou, area, most in COCO_FIGURES
        ]
        return [[name, "" if math.isnan(value) else value] for name, value in found]  # of nothing: no number

    def _mistakes(self, true_G8: np.ndarray, found_N8: np.ndarray) -> Any:
        """Draws the surest detections that hit nothing; None where there are none."""
        from mxtrain.task.box_picture import boxed_samples, captions_of, draw_mistakes

        wrong_N8 = misses(true_G8, found_N8)[:MAX_SHOWN]
        if not len(wrong_N8):
            return None
        best = []
        for row in wrong_N8:
            candidates = np.flatnonzero(true_G8[:, 0] == row[0])
            iou_g = intersection_over_union_of_boxes(row[None, 3:7], true_G8[candidates, 3:7])[0]
            best.append((int(candidates[iou_g.argmax()]), float(iou_g.max())) if len(candidates) else None)
        captions = captions_of(wrong_N8, true_G8, self._names, best)

        def draw(most: int) -> Image.Image:
            shown = wrong_N8[:most]
            samples = boxed_samples(self._source, [int(row[0]) for row in shown], [row[None, 1:7] for row in shown])
            return draw_mistakes(samples, captions, self._names)

        return draw


def misses(true_G8: np.ndarray, found_N8: np.ndarray) -> np.ndarray:
    """Detections that hit nothing at an intersection over union of 0.5, the surest first."""
    found: List[np.ndarray] = []
    for number in np.unique(found_N8[:, 1]):
        true, detected = true_G8[true_G8[:, 1] == number], found_N8[found_N8[:, 1] == number]
        is_hit_N, _, kept_N = voc_matches(true, detected, 0.5)
        found.append(detected[kept_N][~is_hit_N])
    wrong = np.concatenate(found) if found else found_N8[:0]
    return wrong[np.argsort(-wrong[:, 2], kind="stable")]


def draw_curves(
    by_class: Mapping[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]], names: Sequence[str], title: str
) -> Image.Image:
    """Precision over recall of each class, at an intersection over union of 0.5; of many classes those with most to
    gain."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    from mxtrain.logger.fonts import drawable

    shown: Dict[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]] = dict(
        sorted(by_class.items(), key=lambda one: one[1][0])[:MAX_CURVES]
    )
    figure = Figure(figsize=(7, 5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = drawable(names)
    for number, (precision, recall_N, precision_N, _) in sorted(shown.items()):
        axes.plot(recall_N, precision_N, linewidth=1.2, label=f"{labels[number]} {precision:.3f}")
    axes.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1.01), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(title="AP50", fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
