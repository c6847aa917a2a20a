"""Metrics that need predictions on the host: collection of rows (reset, update, merge), and the computed values.

A part of the samples is measured by each worker; the parts travel as rows of numbers, so nothing is pickled. Each
sample counts once and has its place by its index, so that a result does not depend on who measured what.

Legend: N samples, B batch, R rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Optional, Sequence, Tuple, Type, Union

import numpy as np

from mxtrain.metric.metrics import Metric

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store

HostPredictions = Union[np.ndarray, Sequence[np.ndarray]]
"""One array over the samples of a batch, or one array for each sample where their shapes differ."""


class HostMetric(Metric):
    """A metric of all predictions and targets of a split. Subclasses say what it is in `compute`."""

    on_host: ClassVar[bool] = True
    collects: ClassVar[Type[Collected]]
    """Collects what the metric needs of each sample. Metrics with equal collectors share one, which is filled once."""

    def compute(self, collected: Collected) -> float:
        """The metric of all samples that were collected, in float64."""
        raise NotImplementedError


class Collected:
    """Rows of numbers that metrics need of the samples of a pass; a sample has any number of rows.

    Row: index of the sample in its split, number of the row within the sample, then `width` numbers.
    """

    width: ClassVar[int]
    """Numbers in a row besides the first two."""

    def __init__(self) -> None:
        self.reset()

    @classmethod
    def of(cls, metrics: Sequence[HostMetric]) -> Collected:
        """An empty one for metrics that share it."""
        return cls()

    def reset(self) -> None:
        """Forgets all samples."""
        self._parts: List[np.ndarray] = []

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Notes a batch.

        Args:
            index_B: of the samples in their split.
            prediction_B: what the task decoded.
            target_B: the first target of the batch.
            meta_B: what stays on the host of the batch, see `Batch.meta`.
        """
        raise NotImplementedError

    def add(self, index: int, rows: np.ndarray) -> None:
        """Notes the rows (R, width) of one sample."""
        places_R2 = np.stack([np.full(len(rows), index), np.arange(len(rows))], axis=1)
        self._parts.append(np.concatenate([places_R2, rows], axis=1).astype(np.float64))

    def rows(self) -> np.ndarray:
        """Returns the rows collected by this worker, as they are sent to the others: (R, 2 + width) float64."""
        return np.concatenate(self._parts) if self._parts else np.zeros((0, 2 + self.width))

    def merge(self, rows: np.ndarray) -> None:
        """Adds what another part's `rows` gave."""
        self._parts.append(rows)

    def samples(self) -> np.ndarray:
        """All rows in the order of the samples, each once, whoever collected them."""
        rows = self.rows()
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
        return rows[is_first]


class Pairs(Collected):
    """One number of prediction and one of target for each sample."""

    width: ClassVar[int] = 2

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        columns = [index_B, np.zeros(len(index_B)), prediction_B, target_B]
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))


def all_gather(collected: Collected, workers: Store) -> None:
    """Gives every worker what all workers have collected. Collective: all workers must call it."""
    rows = workers.gather_rows(collected.rows())
    collected.reset()
    collected.merge(rows)


class OfPairs(HostMetric):
    """Base of metrics of one number of prediction and one of target for each sample."""

    collects: ClassVar[Type[Collected]] = Pairs
    tasks: ClassVar[Tuple[str, ...]] = ("regression",)

    def compute(self, collected: Collected) -> float:
        rows = collected.samples()
        return self.of_samples(rows[:, 2], rows[:, 3])

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        """The metric of all samples, in the order of their indices, in float64."""
        raise NotImplementedError


class Pearson(OfPairs):
    """Pearson's correlation of predictions and targets, from -1 to 1; 0 where one of them does not vary."""

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(prediction_N, target_N)


class Spearman(OfPairs):
    """Spearman's correlation of ranks, from -1 to 1; equal values share their mean rank."""

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return correlation(ranks(prediction_N), ranks(target_N))


def correlation(x_N: np.ndarray, y_N: np.ndarray) -> float:
    """Pearson's correlation; 0 if it is not defined."""
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
