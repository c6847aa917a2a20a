"""Metrics of several predicted numbers, with quantiles and intervals: each metric of one number is computed for each
target, in the unit of the target, and averaged over the targets.

Legend: B batch, N samples, T targets, Q quantiles.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, List, Literal, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic

from mxtrain.metric.host import Collected, HostMetric, HostPredictions, PairMetric
from mxtrain.metric.spec import Metric
from mxtrain.types.kinds import Number, Takes

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class TargetLayout(NamedTuple):
    """Outputs of a network for several targets: (B, T * Q), the quantiles of a target side by side."""

    names: Sequence[str]
    """Names of the targets."""
    scales: Sequence[Tuple[float, float]]
    """Mean and deviation of each target."""
    levels: Sequence[float] = ()
    """Levels of the quantiles; empty: one output for each target."""

    @property
    def width(self) -> int:
        """Returns the number of outputs of a target."""
        return max(len(self.levels), 1)

    def point(self, F: OperatorModule, output: Array, target: int) -> Array:
        """Returns the value or the median of a target in its unit, (B, 1). Quantiles that cross are sorted."""
        mean, std = self.scales[target]
        part = F.slice_axis(output, axis=1, begin=target * self.width, end=(target + 1) * self.width)
        if self.width > 1:
            part = F.slice_axis(F.sort(part, axis=1), axis=1, begin=self.width // 2, end=self.width // 2 + 1)
        return part * std + mean

    def true(self, F: OperatorModule, target: Array, number: int) -> Array:
        """Returns one of the targets, (B,)."""
        if len(self.names) == 1:
            return target
        return F.slice_axis(target, axis=1, begin=number, end=number + 1).reshape((-1,))


class _Wrapped(Metric):
    """Base class of metrics of some of the targets."""

    _inner: Any = pydantic.PrivateAttr(None)
    _layout: Any = pydantic.PrivateAttr(None)
    _chosen: Tuple[int, ...] = pydantic.PrivateAttr(())

    @classmethod
    def around(cls, inner: Metric, layout: TargetLayout, chosen: Sequence[int]) -> Any:
        """Builds the mean of a metric over targets.

        Args:
            inner: metric of one target.
            layout: outputs of the network.
            chosen: indices of the targets.
        """
        metric = cls(better=inner.better)
        metric._inner, metric._layout, metric._chosen = inner, layout, tuple(chosen)
        return metric

    @property
    def takes_weights(self) -> bool:  # type: ignore[override]  # depends on the metric
        """See `Metric`."""
        return bool(self._inner.takes_weights)

    @property
    def better_direction(self) -> Literal["max", "min", "unknown"]:
        """See `Metric`."""
        return self._inner.better_direction


class OfTargets(_Wrapped):
    """Mean over targets of a metric on the device."""

    def size(self, num_classes: int) -> int:
        return len(self._chosen) * self._inner.size(1)

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        parts = [self._inner.measure(F, *self._pair(F, outputs, targets, t), 1) for t in self._chosen]
        return F.concat(*parts, dim=0)

    def measure_weighted(
        self,
        F: OperatorModule,
        outputs: Sequence[Array],
        targets: Sequence[Array],
        weight_B: Array,
        num_classes: int,
    ) -> Array:
        parts = [
            self._inner.measure_weighted(F, *self._pair(F, outputs, targets, t), weight_B, 1) for t in self._chosen
        ]
        return F.concat(*parts, dim=0)

    def _pair(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], t: int) -> Any:
        return [self._layout.point(F, outputs[0], t)], [self._layout.true(F, targets[0], t)]

    def value(self, sums: np.ndarray, count: float) -> float:
        parts = np.split(sums, len(self._chosen))
        return float(np.mean([self._inner.value(part, count) for part in parts]))


class TargetRows(Collected):
    """Collector of a row for each target of a sample: predicted value, bounds of the interval, true value. Without
    intervals both bounds are the value."""

    width: ClassVar[int] = 4

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch of predictions (B, T, P) in the form of `number_rows.numbers_of`, and targets (B, T) or (B,)."""
        number_BTP = np.asarray(prediction_B, np.float64)
        size, count, _ = number_BTP.shape
        columns = [
            np.repeat(index_B, count),
            np.tile(np.arange(count), size),
            number_BTP[:, :, 0].ravel(),
            number_BTP[:, :, -2 if number_BTP.shape[2] > 1 else 0].ravel(),
            number_BTP[:, :, -1].ravel(),
            target_B.ravel(),
        ]
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))

    def of_target(self, number: int) -> np.ndarray:
        """Returns value, low, high and true value of each sample, (N, 4), sorted by the samples' indices."""
        rows = self.samples()
        return rows[rows[:, 1] == number][:, 2:]


class HostOfTargets(_Wrapped, HostMetric):
    """Mean over targets of a metric of pairs on the host."""

    collects: ClassVar[Type[Collected]] = TargetRows

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, TargetRows)
        pairs = [collected.of_target(number) for number in self._chosen]
        return float(np.mean([self._inner.of_samples(row_N4[:, 0], row_N4[:, 3]) for row_N4 in pairs]))

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        assert isinstance(collected, TargetRows)
        pairs = [collected.of_target(number) for number in self._chosen]
        return float(np.mean([self._inner.of_weighted(row_N4[:, 0], row_N4[:, 3], weight_N) for row_N4 in pairs]))


def metric_of_targets(metric: Metric, layout: TargetLayout, chosen: Sequence[int]) -> Metric:
    """Returns the mean of a metric over some of the targets. Metrics of users on the host get all predictions."""
    if isinstance(metric, PairMetric):
        return HostOfTargets.around(metric, layout, chosen)
    return metric if isinstance(metric, HostMetric) else OfTargets.around(metric, layout, chosen)


class Margins:
    """Margins of intervals, one for each target, that the last validation has chosen; checkpoints store them. See
    `Stateful`."""

    def __init__(self) -> None:
        self.values: List[float] = []

    def save_state(self) -> Tuple[Any, Any]:
        """See `Stateful`."""
        return {}, {"values": self.values}

    def load_state(self, arrays: Any, values: Any, source: str) -> None:
        """See `Stateful`."""
        self.values = list(values.get("values", ()))


class IntervalMetric(HostMetric):
    """Base class of metrics of prediction intervals; the mean over some of the targets."""

    collects: ClassVar[Type[Collected]] = TargetRows
    takes: ClassVar[Takes] = Takes(Number)
    takes_weights: ClassVar[bool] = True

    _chosen: Tuple[int, ...] = pydantic.PrivateAttr(())
    _level: Optional[float] = pydantic.PrivateAttr(None)
    _keeper: Optional[Margins] = pydantic.PrivateAttr(None)

    @classmethod
    def of(cls, chosen: Sequence[int], level: Optional[float] = None, keeper: Optional[Margins] = None) -> Any:
        """Builds the metric.

        Args:
            chosen: indices of the targets.
            level: share of the samples that intervals should contain; None: intervals are complete.
            keeper: gets the margins that reach `level` on the samples of the pass, which then widen the intervals.
        """
        metric = cls()
        metric._chosen, metric._level, metric._keeper = tuple(chosen), level, keeper
        return metric

    def compute(self, collected: Collected) -> float:
        return self.compute_weighted(collected, np.ones(len(collected.samples())))

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        assert isinstance(collected, TargetRows)
        values, margins = [], []
        for number in self._chosen:
            row_N4 = collected.of_target(number)
            weights_N = weight_N[: len(row_N4)]
            if not weights_N.any():
                return math.nan
            low_N, high_N, true_N = row_N4[:, 1], row_N4[:, 2], row_N4[:, 3]
            if self._level is not None:
                margins.append(conformal_margin(low_N, high_N, true_N, self._level, weights_N))
                low_N, high_N = low_N - margins[-1], high_N + margins[-1]
            values.append(float(np.average(self.of_bounds(low_N, high_N, true_N), weights=weights_N)))
        if self._keeper is not None:
            self._keeper.values = margins
        return float(np.mean(values))

    def of_bounds(self, low_N: np.ndarray, high_N: np.ndarray, true_N: np.ndarray) -> np.ndarray:
        """Computes the value of each sample, (N,)."""
        raise NotImplementedError


class IntervalCoverage(IntervalMetric):
    """Share of the true values that are in their intervals, bounds included."""

    def of_bounds(self, low_N: np.ndarray, high_N: np.ndarray, true_N: np.ndarray) -> np.ndarray:
        return (low_N <= true_N) & (true_N <= high_N)


class IntervalWidth(IntervalMetric):
    """Mean width of the intervals."""

    direction: ClassVar[Literal["max", "min"]] = "min"

    def of_bounds(self, low_N: np.ndarray, high_N: np.ndarray, true_N: np.ndarray) -> np.ndarray:
        return high_N - low_N


def conformal_margin(
    low_N: np.ndarray, high_N: np.ndarray, true_N: np.ndarray, level: float, weight_N: np.ndarray
) -> float:
    """Returns the margin that bounds need on either side to contain a share of new values: the ceil((N + 1) level)-th
    smallest distance of the N values from their bounds, negative for values inside; the largest one if N is too small.
    With weights it is the smallest distance up to which the sum of the weights reaches level * (sum + mean).

    Source: Romano et al., "Conformalized Quantile Regression" (2019), https://arxiv.org/abs/1905.03222, equations 6 to
    8; with both bounds equal to the prediction it is split-conformal prediction with absolute residuals.
    """
    counted_N = weight_N > 0
    score_N = np.maximum(low_N - true_N, true_N - high_N)[counted_N]
    weight_N = weight_N[counted_N]
    order = np.argsort(score_N, kind="stable")
    reached_N = np.cumsum(weight_N[order])
    needed = level * (reached_N[-1] + weight_N.mean())
    # The tolerance keeps a rounding error of the product from choosing the next distance.
    position = int(np.searchsorted(reached_N, needed * (1 - 1e-12)))
    return float(score_N[order][min(position, len(score_N) - 1)])
