"""Reports of `eval` for predicted numbers: one target, or several, quantiles and intervals.

Legend: N samples, T targets, P numbers of a prediction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

import numpy as np

from mxtrain.metric.host import r2_score
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from PIL import Image as Pillow

    from mxtrain.data.signature import Signature
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.of_targets import TargetLayout
    from mxtrain.types import Batch


class TargetsReport(Report):
    """Measures each target by itself, beside the mean of the training targets.

    Args:
        decode: function that converts outputs to predictions, (B, T, P).
        layout: names and scales of the targets.
        has_intervals: True if predictions end with the bounds of intervals.
        weighted: True if the last target is the weight of each sample.
        only_name: name of the target if there is one; empty: unknown.
    """

    def __init__(
        self, decode: Decode, layout: TargetLayout, has_intervals: bool, weighted: bool, only_name: str = ""
    ) -> None:
        self._decode, self._layout, self._only_name = decode, layout, only_name
        self._has_intervals, self._weighted = has_intervals, weighted
        self._batches: List[Tuple[Any, ...]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`."""
        self._batches.append((batch.index_B, self._decode(outputs, batch), batch.targets[0], batch.targets[-1]))

    def decode_by(self, decode: Decode) -> None:
        """See `Report`."""
        self._decode = decode

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        order = np.argsort(np.concatenate([batch[0] for batch in self._batches]), kind="stable")
        number_NTP, target_NT, weight_N = (
            np.concatenate([batch[k].asnumpy() for batch in self._batches])[order].astype(np.float64) for k in (1, 2, 3)
        )
        target_NT = target_NT.reshape(len(target_NT), -1)
        weights: Optional[np.ndarray] = weight_N if self._weighted else None
        header = ["target", "root mean squared error", "mean absolute error", "R2", "error of the training mean"]
        header += ["in the interval", "mean width"] if self._has_intervals else []
        rows, figures = [], []
        for number, name in enumerate(self._layout.names):
            predicted_N, target_N = number_NTP[:, number, 0], target_NT[:, number]
            mean_N = np.full(len(target_N), self._layout.scales[number][0])
            row: List[Any] = [name or self._only_name or "target", *errors_of(predicted_N, target_N, weights)]
            row += [_rounded(r2_score(predicted_N, target_N, weights)), errors_of(mean_N, target_N, weights)[0]]
            if self._has_intervals:
                low_N, high_N = number_NTP[:, number, -2], number_NTP[:, number, -1]
                inside_N = (low_N <= target_N) & (target_N <= high_N)
                row += [
                    _rounded(np.average(inside_N, weights=weights)),
                    _rounded(np.average(high_N - low_N, weights=weights)),
                ]
            rows.append(row)
            drawn = partial(_draw, target_N, predicted_N, f"{title}, {name}" if name else title)
            figures.append(Figure(f"scatter_{number + 1}" if name else "scatter", drawn))
        return [Table("targets", header, rows), *figures]


class ScatterReport(Report):
    """Compares the errors of the network with those of the mean training target, and lists and draws predictions.

    Args:
        decode: function that converts outputs to predictions.
        signature: signature of the network, with the scale of the targets.
        weighted: True if the last target is the weight of each sample in the errors.
    """

    def __init__(self, decode: Decode, signature: Signature, weighted: bool = False):
        self._decode, self._signature, self._weighted = decode, signature, weighted
        self._batches: List[Tuple[Any, ...]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        predicted_B: NDArray = self._decode(outputs, batch)  # type: ignore[assignment]  # it is one array
        self._batches.append((batch.index_B, batch.targets[0], predicted_B, *batch.targets[-1:]))

    def artifacts(self, title: str) -> List[Artifact]:
        index_N = np.concatenate([batch[0] for batch in self._batches])
        order = np.argsort(index_N, kind="stable")
        target_N, predicted_N, weight_N = (
            np.concatenate([batch[k].asnumpy() for batch in self._batches])[order] for k in (1, 2, 3)
        )
        weights = weight_N if self._weighted else None
        compared = [("this network", predicted_N)]
        if self._signature.scales_targets:
            mean = self._signature.target_mean
            compared.append((f"mean of the training targets, {mean:.6g}", np.full(len(target_N), mean)))
        return [
            Table(
                "models",
                ("model", "root mean squared error", "mean absolute error"),
                [[name, *errors_of(value_N, target_N, weights)] for name, value_N in compared],
            ),
            Figure("scatter", lambda max_samples: draw_scatter(target_N, predicted_N, title)),
        ]


def _rounded(value: float) -> Any:
    return float(f"{value:.6g}") if np.isfinite(value) else ""


def _draw(target_N: np.ndarray, predicted_N: np.ndarray, title: str, max_samples: int) -> Pillow.Image:
    return draw_scatter(target_N, predicted_N, title)


def errors_of(
    predicted_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None
) -> Tuple[float, float]:
    """Returns root mean squared error and mean absolute error, rounded to six digits; None as weights = all 1."""
    difference_N = predicted_N.astype(np.float64) - target_N
    square, absolute = (np.average(value_N, weights=weight_N) for value_N in (difference_N**2, np.abs(difference_N)))
    return float(f"{np.sqrt(square):.6g}"), float(f"{absolute:.6g}")


def draw_scatter(target_N: np.ndarray, predicted_N: np.ndarray, title: str) -> Pillow.Image:
    """Draws a scatter plot of predictions over targets, with the diagonal of equal values."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot
    from PIL import Image

    figure = Plot(figsize=(4.5, 4.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = float(min(target_N.min(), predicted_N.min())), float(max(target_N.max(), predicted_N.max()))
    axes.plot([low, high], [low, high], color="lightgrey", linewidth=1)
    axes.scatter(target_N, predicted_N, s=8, alpha=0.6)
    axes.set(xlabel="target", ylabel="predicted", title=title)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
