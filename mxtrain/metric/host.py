"""Metrics that need predictions on the host: reset, update, merge, compute.

A part of the samples is measured by each worker; the parts travel as rows of numbers, so nothing is pickled. Each
sample counts once and has its place by its index, so that a result does not depend on who measured what.

Legend: N samples, B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.metric.metrics import Metric

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store

HostPredictions = Union[np.ndarray, Sequence[np.ndarray]]
"""One array over the samples of a batch, or one array for each sample where their shapes differ."""


class HostMetric(Metric):
    """A metric of all predictions and targets of a split. Subclasses say what it is in `of_samples`."""

    on_host: ClassVar[bool] = True

    def start(self) -> HostMeasure:
        """Starts the measurement of one pass over a split."""
        return HostMeasure(self)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        """The metric of all samples, in the order of their indices, in float64."""
        raise NotImplementedError


class HostMeasure:
    """Collects one number of prediction and one of target for each sample.

    Args:
        metric: says what is made of them.
    """

    def __init__(self, metric: HostMetric):
        self._metric = metric
        self.reset()

    def reset(self) -> None:
        """Forgets all samples."""
        self._batches: List[np.ndarray] = []

    def update(self, index_B: np.ndarray, prediction_B: HostPredictions, targets: Sequence[np.ndarray]) -> None:
        """Notes a batch.

        Args:
            index_B: of the samples in their split.
            prediction_B: what the task decoded.
            targets: of the batch; the first one counts.
        """
        self._batches.append(np.stack([index_B, prediction_B, targets[0]], axis=1).astype(np.float64))

    def rows(self) -> np.ndarray:
        """The samples that were measured here, as they travel to other workers: (N, 3) float64."""
        return np.concatenate(self._batches) if self._batches else np.zeros((0, 3))

    def merge(self, rows: np.ndarray) -> None:
        """Adds what another part's `rows` gave."""
        self._batches.append(rows)

    def compute(self) -> float:
        """The metric of all samples so far, each counted once."""
        rows = self.rows()
        _, first = np.unique(rows[:, 0], return_index=True)
        return self._metric.of_samples(rows[first, 1], rows[first, 2])


def all_gather(measure: HostMeasure, workers: Store) -> None:
    """Gives every worker the samples that all workers have measured. Collective: all workers must call it."""
    rows = workers.gather_rows(measure.rows())
    measure.reset()
    measure.merge(rows)


class Pearson(HostMetric):
    """Pearson's correlation of predictions and targets, from -1 to 1; 0 where one of them does not vary."""

    serves: ClassVar[Tuple[str, ...]] = ("regression",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(prediction_N, target_N)


class Spearman(HostMetric):
    """Spearman's correlation of ranks, from -1 to 1; equal values share their mean rank."""

    serves: ClassVar[Tuple[str, ...]] = ("regression",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(ranks(prediction_N), ranks(target_N))


def correlation(x_N: np.ndarray, y_N: np.ndarray) -> float:
    """Pearson's correlation; 0 where it is not defined."""
    if len(x_N) < 2:
        return 0.0
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    spread = float(np.sqrt((x_N @ x_N) * (y_N @ y_N)))
    return float(x_N @ y_N) / spread if spread > 0 else 0.0


def ranks(value_N: np.ndarray) -> np.ndarray:
    """The ranks of values, from 1; equal values share their mean rank."""
    _, group_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group_N]
