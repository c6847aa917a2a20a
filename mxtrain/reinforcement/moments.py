"""Running mean and variance of numbers that come in batches, from several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Numbers

    Total = Callable[[Numbers], np.ndarray]
    """Sums of some numbers over workers, see `Store.total`."""


class RunningMoments:
    """Count, mean and variance of all that was seen, for each number of an array of some shape, in float64.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).

    Args:
        shape: of the array.
    """

    def __init__(self, shape: Tuple[int, ...]):
        self.shape = shape
        self.count = 0.0
        self.mean, self._squares = np.zeros(shape), np.zeros(shape)

    @property
    def variance(self) -> np.ndarray:
        """Returns the variance of the population; 1 where nothing was seen."""
        return self._squares / self.count if self.count else np.ones(self.shape)

    def update(self, rows: np.ndarray, total: Total = np.asarray) -> None:
        """Adds the rows (N, ...) of all workers. Collective.

        Args:
            rows: of this worker.
            total: sums over workers, who have others.
        """
        rows = rows.reshape((len(rows), -1)).astype(np.float64)
        count, *sums = total([len(rows), *rows.sum(axis=0)])
        if not count:
            return
        # Twice, as a mean that is known takes the mean out before numbers are squared.
        mean = np.array(sums) / count
        squares = np.asarray(total(((rows - mean) ** 2).sum(axis=0)))
        shift = mean.reshape(self.shape) - self.mean
        whole = self.count + count
        self.mean = self.mean + shift * (count / whole)
        self._squares = self._squares + squares.reshape(self.shape) + shift**2 * (self.count * count / whole)
        self.count = whole

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Returns all of it, as a checkpoint holds it."""
        return {"count": np.array([self.count]), "mean": self.mean.reshape(-1), "squares": self._squares.reshape(-1)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts back what `arrays` gave."""
        self.count = float(arrays["count"][0])
        self.mean, self._squares = (np.asarray(arrays[name]).reshape(self.shape) for name in ("mean", "squares"))
