"""Running mean and variance over batches of all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Numbers

    Total = Callable[[Numbers], np.ndarray]
    """Sums of some numbers over workers, see `Store.total`."""


class RunningMoments:
    """Count, mean and variance of each element of arrays, in float64.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).

    Args:
        shape: shape of an array.
    """

    def __init__(self, shape: Tuple[int, ...]):
        self.shape = shape
        self.count = 0.0
        self.mean, self._squares = np.zeros(shape), np.zeros(shape)

    @property
    def variance(self) -> np.ndarray:
        """Returns the population variance; 1 before the first update."""
        return self._squares / self.count if self.count else np.ones(self.shape)

    def update(self, rows: np.ndarray, total: Total = np.asarray) -> None:
        """Adds the rows (N, ...) of all workers. Collective.

        Args:
            rows: rows of this worker.
            total: function that sums over all workers.
        """
        rows = rows.reshape((len(rows), -1)).astype(np.float64)
        count, *sums = total([len(rows), *rows.sum(axis=0)])
        if not count:
            return
        # Two collective sums: subtracting the mean before squaring avoids cancellation.
        mean = np.array(sums) / count
        squares = np.asarray(total(((rows - mean) ** 2).sum(axis=0)))
        shift = mean.reshape(self.shape) - self.mean
        total_count = self.count + count
        self.mean = self.mean + shift * (count / total_count)
        self._squares = self._squares + squares.reshape(self.shape) + shift**2 * (self.count * count / total_count)
        self.count = total_count

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Returns the state for a checkpoint."""
        return {"count": np.array([self.count]), "mean": self.mean.reshape(-1), "squares": self._squares.reshape(-1)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the state from `arrays`."""
        self.count = float(arrays["count"][0])
        self.mean, self._squares = (np.asarray(arrays[name]).reshape(self.shape) for name in ("mean", "squares"))
