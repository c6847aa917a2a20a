"""Report of `eval` for detection: a table of classes, COCO metrics, curves, and the highest-scoring errors.

Legend: N detections, G true boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Sequence, Tuple, Type

import numpy as np

from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Figure, Table
from mxtrain.vision.detection.metrics import CollectedBoxes, Overlap, VocAP, box_overlap, voc_matches

if TYPE_CHECKING:
    from PIL import Image

    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.vision.detection.box_figure import BoxedSample
    from mxtrain.vision.detection.coco_ap import CocoResult
    from mxtrain.vision.detection.task import Detection

MAX_SHOWN = 16
MAX_CURVES = 20
COCO_FIGURES = (
    ("AP", None, "all", 100),
    ("AP50", 0.5, "all", 100),
    ("AP75", 0.75, "all", 100),
    ("AP small", None, "small", 100),
    ("AP medium", None, "medium", 100),
    ("AP large", None, "large", 100),
    ("AR 1", None, "all", 1),
    ("AR 10", None, "all", 10),
    ("AR 100", None, "all", 100),
    ("AR small", None, "small", 100),
    ("AR medium", None, "medium", 100),
    ("AR large", None, "large", 100),
)
"""COCO's twelve figures of boxes: name, threshold, sizes of objects, and number of detections per image."""
FIGURE_NAMES = [name for name, *_ in COCO_FIGURES]


class DetectionReport(CollectingReport):
    """Average precision of each class, and the wrong detections with the highest scores.

    Args:
        task: detection task, whose score threshold the table uses.
        decode: decodes outputs to predictions.
        signature: signature with the names of the classes.
        source: source of the samples.
    """

    collects: ClassVar[Type[CollectedBoxes]] = CollectedBoxes

    def __init__(self, task: Detection, decode: Decode, signature: Signature, source: Samples):
        self._collected = self.collects()
        super().__init__(decode, self._collected)
        self._task, self._names, self._source = task, list(signature.class_names), source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        _, true_G8, detection_N8 = self._collected.boxes()
        by_class = VocAP().by_class(true_G8, detection_N8)
        mistakes = self._mistakes(true_G8, detection_N8)
        return [
            Table(
                "classes",
                ["class", "AP50 (VOC)", "AP (COCO)", "AR (COCO)", "objects", "found"],
                self._rows(true_G8, detection_N8, by_class),
            ),
            Table("coco", ["figure", "value"], self._figures()),
            Figure("curves", lambda max_samples: draw_curves(by_class, self._names, title)),
            *([Figure("mistakes", mistakes)] if mistakes is not None else []),
        ]

    def _rows(
        self, true_G8: np.ndarray, detection_N8: np.ndarray, by_class: Mapping[int, Tuple[float, Any, Any, Any]]
    ) -> List[List[Any]]:
        coco = self._collected.coco()
        is_confident_N = detection_N8[:, 2] >= self._task.score_threshold
        rows = []
        for number, name in enumerate(self._names):
            is_there = number in by_class
            rows.append(
                [
                    name,
                    by_class[number][0] if is_there else "",
                    coco.precision(None, "all", 100, number) if is_there else "",
                    coco.recall(None, "all", 100, number) if is_there else "",
                    int((true_G8[:, 1] == number).sum()),
                    int((is_confident_N & (detection_N8[:, 1] == number)).sum()),
                ]
            )
        return rows

    def _figures(self) -> List[List[Any]]:
        return [[name, value] for name, value in zip(FIGURE_NAMES, coco_figures(self._collected.coco()))]

    def overlap(self, true_G8: np.ndarray, detection_N8: np.ndarray) -> Overlap:
        """Returns the function that computes the intersection over union of detections and true boxes."""
        return box_overlap(true_G8, detection_N8)

    def samples(self, detection_N8: np.ndarray, numbers: Sequence[int]) -> List[BoxedSample]:
        """Returns the images of some detections, each with that one alone.

        Args:
            detection_N8: all detections.
            numbers: indices of the detections to show.
        """
        from mxtrain.vision.detection.box_figure import boxed_samples

        selected = detection_N8[list(numbers)]
        return boxed_samples(self._source, [int(row[0]) for row in selected], [row[None, 1:7] for row in selected])

    def _mistakes(self, true_G8: np.ndarray, detection_N8: np.ndarray) -> Any:
        """Draws the highest-scoring false positives; None if there are none."""
        from mxtrain.vision.detection.box_figure import captions_of, draw_mistakes

        overlap = self.overlap(true_G8, detection_N8)
        wrong = false_positives(true_G8, detection_N8, overlap)[:MAX_SHOWN]
        if not wrong:
            return None
        best = []
        for number in wrong:
            candidates = np.flatnonzero(true_G8[:, 0] == detection_N8[number, 0])
            iou_g = overlap(number, candidates) if len(candidates) else np.zeros(0)
            best.append((int(candidates[iou_g.argmax()]), float(iou_g.max())) if len(candidates) else None)
        captions = captions_of(detection_N8[wrong], true_G8, self._names, best)
        return lambda max_samples: draw_mistakes(self.samples(detection_N8, wrong[:max_samples]), captions, self._names)


def coco_figures(coco: CocoResult) -> List[Any]:
    """Returns COCO's figures, in the order of `FIGURE_NAMES`; see `CocoResult.figures`."""
    return coco.figures(COCO_FIGURES)


def false_positives(true_G8: np.ndarray, detection_N8: np.ndarray, overlap: Overlap) -> List[int]:
    """Returns the indices of the detections that match no object at an intersection over union of 0.5, highest score
    first."""
    wrong: List[int] = []
    for number in np.unique(detection_N8[:, 1]):
        true_g, detection_n = np.flatnonzero(true_G8[:, 1] == number), np.flatnonzero(detection_N8[:, 1] == number)

        def class_overlap(
            index: int, candidates: np.ndarray, true: np.ndarray = true_g, detections: np.ndarray = detection_n
        ) -> Any:
            return overlap(int(detections[index]), true[candidates])

        is_hit_N, _, kept_N = voc_matches(true_G8[true_g], detection_N8[detection_n], 0.5, class_overlap)
        wrong += detection_n[kept_N[~is_hit_N]].tolist()
    return sorted(wrong, key=lambda number: -detection_N8[number, 2])


def draw_curves(
    by_class: Mapping[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]], names: Sequence[str], title: str
) -> Image.Image:
    """Draws the precision over the recall of each class, at an intersection over union of 0.5. If there are many
    classes, those with the lowest average precision are drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    from mxtrain.task.figure_fonts import drawable

    selected: Dict[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]] = dict(
        sorted(by_class.items(), key=lambda item: item[1][0])[:MAX_CURVES]
    )
    figure = Figure(figsize=(7, 5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = drawable(names)
    for number, (precision, recall_N, precision_N, _) in sorted(selected.items()):
        axes.plot(recall_N, precision_N, linewidth=1.2, label=f"{labels[number]} {precision:.3f}")
    axes.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1.01), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if selected:
        axes.legend(title="AP50", fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
