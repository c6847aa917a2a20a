"""Report of `eval` for several targets, quantiles and intervals.

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
    """

    def __init__(self, decode: Decode, layout: TargetLayout, has_intervals: bool, weighted: bool) -> None:
        self._decode, self._layout = decode, layout
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
        from mxtrain.task.regression import draw_scatter, errors_of

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
            row: List[Any] = [name or "target", *errors_of(predicted_N, target_N, weights)]
            row += [_rounded(r2_score(predicted_N, target_N, weights)), errors_of(mean_N, target_N, weights)[0]]
            if self._has_intervals:
                low_N, high_N = number_NTP[:, number, -2], number_NTP[:, number, -1]
                inside_N = (low_N <= target_N) & (target_N <= high_N)
                row += [
                    _rounded(np.average(inside_N, weights=weights)),
                    _rounded(np.average(high_N - low_N, weights=weights)),
                ]
            rows.append(row)
            drawn = partial(draw_scatter, target_N, predicted_N, f"{title}, {name}" if name else title)
            figures.append(
                Figure("scatter" if not name else f"scatter_{number + 1}", lambda max_samples, draw=drawn: draw())
            )
        return [Table("targets", header, rows), *figures]


def _rounded(value: float) -> Any:
    return float(f"{value:.6g}") if np.isfinite(value) else ""
