"""Loads samples of different sizes (tokens, frames): batches group samples of similar size, with a fixed number of
samples or a size budget.

Samples are sorted by size, and boundaries of batches follow from the sorted sizes, which are the same in every epoch.
So the number of steps is known before training, which schedules and resume need; an epoch permutes samples of one size
and the order of batches.

Legend: N samples, B batch.
"""

from __future__ import annotations

from typing import List, Optional

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.randomness import Draw, bits, permutation


class SizedLoader(BatchLoader):
    """Base of loaders of samples that are padded to the largest of a batch.

    With a budget, samples are sorted by size, with ties in random order, and cut into batches of as many as fit. The
    cuts depend on the sizes alone, so each epoch has the same number of batches, in a new random order. An epoch has
    each sample once.

    Args:
        size_N: size of each sample.
        options: options of all loaders; with neither `train` nor `in_order`, samples are sorted by size.
        batch_budget: in training, the maximum of rows times the largest size in a batch; no sample may be larger.
            None = `batch_size` samples.
        batches_per_pool: without it, how many batches' samples are sorted by size together in training; 1 = none.
    """

    def __init__(
        self,
        size_N: np.ndarray,
        options: LoaderOptions,
        *,
        batch_budget: Optional[int] = None,
        batches_per_pool: int = 1,
    ) -> None:
        super().__init__(len(size_N), options)
        self._size_N = size_N
        self._batches_per_pool, self._in_order = batches_per_pool, options.in_order
        self._begin: Optional[np.ndarray] = None
        if options.train and batch_budget is not None:
            self._begin = cut_by_size(np.sort(size_N), batch_budget)
            self._limit_batches(len(self._begin) - 1, options.limit_batches)

    @property
    def num_samples(self) -> int:
        """Samples per epoch. If the size of a part of its batches varies between epochs, the value is of the first
        epoch."""
        if self._begin is None or not self.coverage:
            return super().num_samples if self._begin is None else self.total
        return sum(map(len, self._indices(0, 0)))

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        return order_by_length(
            self._size_N[index_N], self.batch_size, seed=self.seed, epoch=epoch, batches_per_pool=self._batches_per_pool
        )

    def _evaluation_order(self) -> np.ndarray:
        return super()._evaluation_order() if self._in_order else np.argsort(self._size_N, kind="stable")

    def _indices(self, epoch: int, start: int) -> List[np.ndarray]:
        if self._begin is None:
            return super()._indices(epoch, start)
        random_N = bits(self.seed, epoch, np.arange(self.total), Draw.ORDER)
        order = np.lexsort((random_N, self._size_N))
        count = len(self._begin) - 1
        batch_order = np.argsort(bits(self.seed, epoch, np.arange(count), Draw.BATCH_ORDER), kind="stable")
        numbers = batch_order[start : self.num_batches].tolist()
        return [order[self._begin[number] : self._begin[number + 1]] for number in numbers]


def order_by_length(
    length_N: np.ndarray, batch_size: int, *, seed: int, epoch: int, batches_per_pool: int
) -> np.ndarray:
    """Returns the order of an epoch's samples, in which each batch of `batch_size` neighbours has texts of like length.

    The epoch is shuffled and cut into pools; a pool is sorted by length and cut into batches; the full batches are
    shuffled. The remainder comes last. With one batch per pool this is a plain shuffle.

    Returns:
        int64 indices.
    """
    order = permutation(seed, epoch, len(length_N))
    if batches_per_pool < 2:
        return order
    pool = batches_per_pool * batch_size
    # Of the last pool, too, the samples that fill no batch are random ones, not the longest.
    num_full = len(order) // batch_size * batch_size
    for begin in range(0, num_full, pool):
        part = order[begin : min(begin + pool, num_full)]
        part[:] = part[np.argsort(length_N[part], kind="stable")]
    batch_order = np.argsort(bits(seed, epoch, np.arange(num_full // batch_size), Draw.BATCH_ORDER), kind="stable")
    order[:num_full] = order[:num_full].reshape(-1, batch_size)[batch_order].ravel()
    return order


def cut_by_size(size_N: np.ndarray, budget: int) -> np.ndarray:
    """Returns the starts of batches in ascending sizes, and the end of the last. Each batch has as many samples as fit:
    rows times the largest size is at most `budget`, which no size exceeds."""
    begin, end = [0], len(size_N)
    while begin[-1] < end:
        first = begin[-1]
        sizes = size_N[first : first + budget // int(size_N[first])]
        begin.append(first + int(np.searchsorted(sizes * np.arange(1, len(sizes) + 1), budget, side="right")))
    return np.array(begin)
