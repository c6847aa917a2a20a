"""Draws initial values of a large table in pieces, equal to those of MXNet's initializer, which draws all at once.

MXNet draws N numbers with up to 1024 generators, each of which fills N / 1024 consecutive elements. So each draw of an
array of 1024 rows continues all of these streams, row by row.

Source: src/common/random_generator.h and src/operator/random/sampler.h of MXNet 1.9.1; a test compares the bits.
"""

from __future__ import annotations

import threading
from typing import Iterator, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd

STREAMS, LEAST_OF_STREAM = 1024, 64
"""MXNet's kNumRandomStates and kMinNumRandomPerThread."""
PIECE = 1 << 11
"""Numbers of each stream at once: 8 MB in all."""

_generator = threading.Lock()
"""MXNet has one for all threads."""


def normal_rows(
    seed: int, scale: float, shape: Tuple[int, int], first: int = 0, every: int = 1, piece: int = PIECE
) -> np.ndarray:
    """Returns rows `first`, `first + every`, ... of the array (R, U) that `mx.init.Normal(scale)` draws after a seed.

    Args:
        seed: seed of MXNet's generator.
        scale: standard deviation.
        shape: (R, U), shape of the whole array.
        first: index of the first row to return.
        every: distance of the rows to return, e.g. the number of servers that share the table.
        piece: numbers of each stream that are drawn at once, at least 64.
    """
    num_rows, units = shape
    found = np.empty((len(range(first, num_rows, every)), units), np.float32)
    flat = found.reshape(-1)
    with _generator:
        mx.random.seed(seed, ctx=mx.cpu(0))
        for begins, drawn in _drawn(scale, num_rows * units, piece):
            place = begins[:, None] + np.arange(drawn.shape[1])
            row, column = np.divmod(place, units)
            own = (place < num_rows * units) & (row % every == first)
            flat[(row[own] // every) * units + column[own]] = drawn[own]
    return found


def _drawn(scale: float, count: int, piece: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yields (indices (S,) of the first number of each stream, the next numbers (S, P) of each stream).

    Args:
        scale: standard deviation.
        count: number of elements of the whole array.
        piece: P, numbers of each stream per draw.
    """
    if count <= STREAMS * LEAST_OF_STREAM:
        yield np.zeros(1, np.int64), nd.random.normal(0, scale, shape=(1, count), ctx=mx.cpu(0)).asnumpy()
        return
    # Below this size MXNet uses fewer generators, hence the single draw above.
    length = -(-count // STREAMS)
    begins = np.arange(STREAMS, dtype=np.int64) * length
    for begin in range(0, length, piece):
        drawn = nd.random.normal(0, scale, shape=(STREAMS, piece), ctx=mx.cpu(0)).asnumpy()
        yield begins + begin, drawn[:, : length - begin]
