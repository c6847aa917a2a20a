"""Metrics that need all predictions on the host. Collectors store them as rows of numbers.

Each worker measures a part of the samples. The parts are exchanged as float64 rows, so nothing is pickled. Rows are
sorted by the sample's index and deduplicated, so the result does not depend on which worker measured which sample.

Legend: N samples, B batch, R rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, List, Literal, Optional, Sequence, Type, Union

import numpy as np

from mxtrain.metric.spec import Metric
from mxtrain.types.kinds import Number, Takes

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store

HostPredictions = Union[np.ndarray, Sequence[np.ndarray]]
"""One array over the samples of a batch, or one array for each sample where their shapes differ."""


class HostMetric(Metric):
    """Base class of metrics of all predictions and targets of a split. Subclasses implement `compute`."""

    on_host: ClassVar[bool] = True
    collects: ClassVar[Type[Collected]]
    """Class of the collector that the metric reads. Metrics with the same class share one collector."""
    of_single_samples: ClassVar[bool] = False
    """True if the value of a single sample has a meaning, such as the word error rate of a recording."""

    def compute(self, collected: Collected) -> float:
        """Computes the metric over all collected samples, in float64."""
        raise NotImplementedError

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        """Computes the metric as `compute` does, in which each sample counts by its weight.

        Args:
            collected: collected samples.
            weight_N: weight of each sample, float64, sorted by the samples' indices.
        """
        raise NotImplementedError


class Collected:
    """Collects rows of numbers for metrics during one pass over a split. A sample may have any number of rows.

    A row holds the index of the sample in its split, the number of the row within the sample, then `width` values.
    """

    width: ClassVar[int]
    """Number of values in a row, without the two indices."""

    def __init__(self) -> None:
        self.reset()

    @classmethod
    def from_metrics(cls, metrics: Sequence[HostMetric]) -> Collected:
        """Builds an empty collector that `metrics` share."""
        return cls()

    def reset(self) -> None:
        """Discards all rows."""
        self._parts: List[np.ndarray] = []

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch.

        Args:
            index_B: indices of the samples in their split.
            prediction_B: predictions decoded by the task.
            target_B: first target of the batch.
            meta_B: host-side data of the batch, see `Batch.meta`.
        """
        raise NotImplementedError

    def add(self, index: int, rows: np.ndarray) -> None:
        """Adds the rows (R, width) of one sample."""
        indices_R2 = np.stack([np.full(len(rows), index), np.arange(len(rows))], axis=1)
        self._parts.append(np.concatenate([indices_R2, rows], axis=1).astype(np.float64))

    def rows(self) -> np.ndarray:
        """Returns all rows with their indices, (R, 2 + width) float64, in the order of collection."""
        return np.concatenate(self._parts) if self._parts else np.zeros((0, 2 + self.width))

    def merge(self, rows: np.ndarray) -> None:
        """Adds the rows of another collector, (R, 2 + width)."""
        self._parts.append(rows)

    def samples(self) -> np.ndarray:
        """Returns all rows, (R, 2 + width), sorted by sample and row number, without duplicates."""
        rows = self.rows()
        # A sample that two workers measured counts once.
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
        return rows[is_first]


class Pairs(Collected):
    """Collector of one predicted number and one target number per sample."""

    width: ClassVar[int] = 2

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        columns = [index_B, np.zeros(len(index_B)), prediction_B, target_B]
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))


class SampleWeights(Collected):
    """Collector of the weight of each sample."""

    width: ClassVar[int] = 1

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch, whose targets are the weights."""
        self._parts.append(np.stack([index_B, np.zeros(len(index_B)), target_B], axis=1).astype(np.float64))

    def weights(self) -> np.ndarray:
        """Returns the weights of all samples, (N,) float64, sorted by the samples' indices."""
        return self.samples()[:, 2]


def all_gather(collected: Collected, workers: Store) -> None:
    """Exchanges rows, so that each worker has those of all. Collective: every worker must call it."""
    rows = workers.gather_rows(collected.rows())
    collected.reset()
    collected.merge(rows)


class PairMetric(HostMetric):
    """Base class of metrics of one predicted number and one target number per sample."""

    collects: ClassVar[Type[Collected]] = Pairs
    takes: ClassVar[Takes] = Takes(Number)

    def compute(self, collected: Collected) -> float:
        rows = collected.samples()
        return self.of_samples(rows[:, 2], rows[:, 3])

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        rows = collected.samples()
        return self.of_weighted(rows[:, 2], rows[:, 3], weight_N)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        """Computes the metric from float64 predictions and targets, sorted by the samples' indices."""
        raise NotImplementedError

    def of_weighted(self, prediction_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray) -> float:
        """Computes the metric as `of_samples` does, with a weight for each sample. Metrics with `takes_weights` define
        it."""
        raise NotImplementedError


class Pearson(PairMetric):
    """Pearson correlation of predictions and targets, from -1 to 1.

    The value is NaN if the targets are constant, and 0 if only the predictions are.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(prediction_N, target_N)

    def of_weighted(self, prediction_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray) -> float:
        return weighted_correlation(prediction_N, target_N, weight_N)


class Spearman(PairMetric):
    """Spearman rank correlation, from -1 to 1; equal values have their mean rank. Constant values as in `Pearson`.

    With weights, a sample of weight 2 has the ranks of two equal samples.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(ranks(prediction_N), ranks(target_N))

    def of_weighted(self, prediction_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray) -> float:
        kept_N = weight_N > 0  # a rank of weight 0 would only round differently
        x_N, y_N, weight_N = prediction_N[kept_N], target_N[kept_N], weight_N[kept_N]
        return weighted_correlation(weighted_ranks(x_N, weight_N), weighted_ranks(y_N, weight_N), weight_N)


class R2(PairMetric):
    """Coefficient of determination: 1 minus the mean squared error divided by the variance of the targets.

    1 is perfect, 0 as good as the mean of these targets, and worse predictions are negative. NaN for constant targets.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return r2_score(prediction_N, target_N)

    def of_weighted(self, prediction_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray) -> float:
        return r2_score(prediction_N, target_N, weight_N)


def r2_score(prediction_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
    """Computes the coefficient of determination, see `R2`; None as weights = each sample counts once."""
    weight_N = np.ones(len(target_N)) if weight_N is None else weight_N
    counted_N = target_N[weight_N > 0]
    if not len(counted_N) or counted_N.min() == counted_N.max():
        return math.nan
    deviation_N = target_N - np.average(target_N, weights=weight_N)
    return float(1 - weight_N @ (prediction_N - target_N) ** 2 / (weight_N @ deviation_N**2))


def correlation(prediction_N: np.ndarray, target_N: np.ndarray) -> float:
    """Computes the Pearson correlation; see `Pearson` for constant values."""
    # Compared exactly: the mean of equal numbers can differ from them in the last digit.
    if not len(target_N) or target_N.min() == target_N.max():
        return math.nan
    if prediction_N.min() == prediction_N.max():
        return 0.0
    x_N, y_N = prediction_N - prediction_N.mean(), target_N - target_N.mean()
    return float(x_N @ y_N / np.sqrt((x_N @ x_N) * (y_N @ y_N)))


def weighted_correlation(prediction_N: np.ndarray, target_N: np.ndarray, weight_N: np.ndarray) -> float:
    """Computes the Pearson correlation of samples with weights; constant values as in `Pearson`."""
    kept_N = weight_N > 0
    prediction_N, target_N, weight_N = prediction_N[kept_N], target_N[kept_N], weight_N[kept_N]
    if not len(target_N) or target_N.min() == target_N.max():
        return math.nan
    if prediction_N.min() == prediction_N.max():
        return 0.0
    x_N, y_N = (value_N - np.average(value_N, weights=weight_N) for value_N in (prediction_N, target_N))
    return float((weight_N * x_N) @ y_N / np.sqrt(((weight_N * x_N) @ x_N) * ((weight_N * y_N) @ y_N)))


def ranks(value_N: np.ndarray) -> np.ndarray:
    """Returns the ranks of values, starting at 1; equal values have their mean rank."""
    _, group_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group_N]


def weighted_ranks(value_N: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """Returns the weight below each value plus half of the weight at it: with whole numbers as weights, the mean rank,
    minus 1/2, among samples that are repeated as often."""
    _, group_N = np.unique(value_N, return_inverse=True)
    weight = np.bincount(group_N, weights=weight_N)
    return (np.cumsum(weight) - weight / 2)[group_N]
