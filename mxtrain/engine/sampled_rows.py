"""Samples initial values of a large table in pieces, equal to those of MXNet's initializer, which samples all at once.

MXNet samples N numbers with up to 1024 generators, each of which fills N / 1024 consecutive elements. So each call for
an array of 1024 rows continues all of these streams, one in each row.

Source: src/common/random_generator.h and src/operator/random/sampler.h of MXNet 1.9.1; a test compares the bits.
"""

from __future__ import annotations

import threading
from typing import Iterator, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd

NUM_STREAMS, MIN_PER_STREAM = 1024, 64
"""MXNet's kNumRandomStates and kMinNumRandomPerThread."""
PIECE = 1 << 11
"""Numbers of each stream that are sampled at once: 8 MB together."""

_generator = threading.Lock()
"""Guards MXNet's random generator, which all threads share."""


def normal_rows(
    seed: int, scale: float, shape: Tuple[int, int], first: int = 0, every: int = 1, piece: int = PIECE
) -> np.ndarray:
    """Returns rows `first`, `first + every`, ... of the array (R, U) that `mx.init.Normal(scale)` samples after a seed.

    Args:
        seed: seed of MXNet's generator.
        scale: standard deviation.
        shape: (R, U), shape of the whole array.
        first: index of the first row to return.
        every: distance of the rows to return, e.g. the number of servers that share the table.
        piece: numbers of each stream that are sampled at once, at least 64.

    Returns:
        The rows, float32.
    """
    num_rows, units = shape
    rows = np.empty((len(range(first, num_rows, every)), units), np.float32)
    flat = rows.reshape(-1)
    # Seed and draws belong together: another thread's draw between them would change the values of the table.
    with _generator:
        mx.random.seed(seed, ctx=mx.cpu(0))
        for begins, sampled in _sample_streams(scale, num_rows * units, piece):
            position = begins[:, None] + np.arange(sampled.shape[1])
            row, column = np.divmod(position, units)
            # The last streams reach beyond the array, because MXNet rounds the length of a stream up.
            is_returned = (position < num_rows * units) & (row % every == first)
            flat[(row[is_returned] // every) * units + column[is_returned]] = sampled[is_returned]
    return rows


def _sample_streams(scale: float, count: int, piece: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yields (indices (S,) of the first number of each stream, the next numbers (S, P) of each stream).

    Args:
        scale: standard deviation.
        count: number of elements of the whole array.
        piece: P, numbers of each stream per call of the generator.
    """
    if count <= NUM_STREAMS * MIN_PER_STREAM:
        yield np.zeros(1, np.int64), nd.random.normal(0, scale, shape=(1, count), ctx=mx.cpu(0)).asnumpy()
        return
    # Below this size MXNet uses fewer generators, hence the single call above.
    length = -(-count // NUM_STREAMS)
    begins = np.arange(NUM_STREAMS, dtype=np.int64) * length
    for begin in range(0, length, piece):
        sampled = nd.random.normal(0, scale, shape=(NUM_STREAMS, piece), ctx=mx.cpu(0)).asnumpy()
        yield begins + begin, sampled[:, : length - begin]
