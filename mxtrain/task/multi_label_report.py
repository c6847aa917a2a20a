"""Report of `eval` for multi-label classification: measures of each class, and the effect of its threshold.

Legend: N samples, K classes, T thresholds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.metric.binary import average_precision, sigmoid
from mxtrain.metric.multi_label import DecisionCurve, f1_of
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from PIL import Image

    from mxtrain.types import Batch

_DIGITS = 4
CURVE_ROWS = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Thresholds of the table of a curve."""


class MultiLabelReport(Report):
    """Measures each class by itself.

    Args:
        class_names: names of the K classes.
        thresholds: threshold of each class.
        weighted: True if the last target is the weight of each sample, which counts in all measures but the numbers of
            samples.
    """

    def __init__(self, class_names: Sequence[str], thresholds: Sequence[float], weighted: bool = False):
        self._class_names, self._thresholds = list(class_names), np.asarray(thresholds)
        self._weighted = weighted
        self._found: List[Tuple[NDArray, NDArray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`. The arrays are read after the pass, so that no batch waits for the device."""
        self._found.append((outputs[0].astype("float32"), batch.targets[0], batch.targets[-1]))

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        score_NK, target_NK, weight_N = (np.concatenate([part[k].asnumpy() for part in self._found]) for k in (0, 1, 2))
        weight_N = weight_N.astype(np.float64) if self._weighted else np.ones(len(score_NK))
        weight_N1 = weight_N[:, None]
        probability_NK, target_NK = sigmoid(score_NK), target_NK > 0
        predicted_NK = probability_NK >= self._thresholds
        f1_K = f1_of(predicted_NK, target_NK, weight_N)
        hit_K, true_K, chosen_K = (
            (is_K * weight_N1).sum(axis=0) for is_K in (predicted_NK & target_NK, target_NK, predicted_NK)
        )
        rows: List[List[Any]] = []
        for k, name in enumerate(self._class_names):
            count, num_predicted = int(target_NK[:, k].sum()), int(predicted_NK[:, k].sum())
            rows.append(
                [
                    name,
                    count,
                    num_predicted,
                    _rounded(average_precision(score_NK[:, k], target_NK[:, k], weight_N)),
                    round(float(self._thresholds[k]), _DIGITS),
                    _rounded(hit_K[k] / chosen_K[k] if chosen_K[k] else np.nan),
                    _rounded(hit_K[k] / true_K[k] if true_K[k] else np.nan),
                    _rounded(f1_K[k]),
                ]
            )
        header = ("class", "samples", "predicted", "average precision", "threshold", "precision", "recall", "F1")
        return [Table("classes", header, rows)]


def _rounded(value: float) -> Any:
    return round(float(value), _DIGITS) if np.isfinite(value) else ""


def curve_artifacts(
    score_N: np.ndarray, target_N: np.ndarray, title: str, weight_N: Optional[np.ndarray] = None
) -> List[Artifact]:
    """Returns precision, recall and F1 of the positive class over the threshold, as a table and a figure. The last row
    is the threshold of the highest F1.

    Args:
        score_N: logits of the positive class.
        target_N: True for positive samples.
        title: title of the figure.
        weight_N: weight of each sample; None = each counts once.
    """
    probability_N, target_N = sigmoid(score_N), target_N > 0
    if not target_N.any() or not np.isfinite(probability_N).all():
        return []
    curve = DecisionCurve(probability_N, target_N, weight_N)
    best = curve.best()
    weight_N = np.ones(len(score_N)) if weight_N is None else weight_N
    rows = [_row(probability_N, target_N, weight_N, threshold, None) for threshold in CURVE_ROWS]
    rows.append(_row(probability_N, target_N, weight_N, float(curve.threshold_T[best]), "best F1"))
    header = ("threshold", "precision", "recall", "F1", "")
    return [
        Table("thresholds", header, rows),
        Figure("threshold_curve", lambda max_samples: draw_curve(curve, title)),
    ]


def _row(
    probability_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray, threshold: float, note: Optional[str]
) -> List[Any]:
    predicted_N = probability_N >= threshold
    hits, chosen, true = (float(weight_N[is_N].sum()) for is_N in (predicted_N & target_N, predicted_N, target_N))
    measures = (hits / chosen if chosen else np.nan, hits / true, float(f1_of(predicted_N, target_N, weight_N)))
    return [round(threshold, _DIGITS), *map(_rounded, measures), note or ""]


def draw_curve(curve: DecisionCurve, title: str) -> Image.Image:
    """Draws precision, recall and F1 over the threshold, with a line at the highest F1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(4.5, 4.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, value_T in (("precision", curve.precision_T), ("recall", curve.recall_T), ("F1", curve.f1_T)):
        axes.plot(curve.threshold_T, value_T, label=name, linewidth=1)
    axes.axvline(curve.threshold_T[curve.best()], color="lightgrey", linewidth=1)
    axes.set(xlabel="threshold", title=title, xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="lower center")
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
