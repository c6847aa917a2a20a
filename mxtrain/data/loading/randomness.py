"""Random numbers as a function of (seed, epoch, sample index, draw), independent of process and order.

No generator has a state here: a number is the hash of its coordinates, computed for a whole batch at once. So batches,
workers, threads and resumes do not change the augmentation of a sample.

Source: the hash is SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) read
at position `index` of a stream whose start is hashed from the other coordinates, i.e. used as a counter-based generator
(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import numpy as np

from mxtrain.data.loading.uniform_hash import GOLDEN, mix_integer
from mxtrain.data.loading.uniform_hash import bits as bits  # the hash alone
from mxtrain.data.loading.uniform_hash import uniform as uniform  # used with those below
from mxtrain.types import NamedInt


class Draw(NamedInt):
    """Purpose of a random number. Values are part of the results: never renumber them.

    These are the streams that samples of any kind have. Each field has a class like this one for its own streams, with
    other numbers; streams of two fields may share a number, because no sample is of both.
    """

    ORDER = 0
    SPLIT = 1
    BATCH_ORDER = 15
    CLASS_SHARE = 400
    CLASS_ORDER = 401
    COLUMN = 702
    """Of `uniform_rows` alone: what differs from one number of a row to the next."""
    MIX_SHARE = 1000
    """And those above it: rejection sampling takes a new one each round."""


def uniform_rows(seed: int, epoch: int, index_B: np.ndarray, draw: int, count: int) -> np.ndarray:
    """`count` float32 in [0, 1) per index, (B, count), from the upper 24 bits; the first are the same for any `count`.

    Source: the last steps of SplitMix64, of the exclusive or of two hashes.
    """
    start_B1 = bits(seed, epoch, index_B, draw)[:, None]
    # A stream of its own: with `draw`, number n of index n would be 0 in epoch 0 of seed 0, and rows symmetric.
    row_BN = bits(0, 0, np.arange(count), Draw.COLUMN)[None] ^ start_B1
    row_BN *= np.uint64(0xBF58476D1CE4E5B9)
    row_BN ^= row_BN >> np.uint64(31)
    row_BN *= np.uint64(0x94D049BB133111EB)
    return (row_BN >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def uniform_number(key: int, number: int) -> float:
    """A float in [0, 1): a number of the stream that begins at `key`, as 64 random bits, counted from 0. Python's own
    integers are faster than arrays of one number."""
    return float((mix_integer(key + number * GOLDEN) >> 11) * 2.0**-53)


def integers(seed: int, epoch: int, index_B: np.ndarray, draw: int, high: int) -> np.ndarray:
    """An int64 in [0, high) per index."""
    return (uniform(seed, epoch, index_B, draw) * high).astype(np.int64)


def permutation(seed: int, epoch: int, length: int) -> np.ndarray:
    """The order in which an epoch visits the samples, as int64 indices."""
    return np.argsort(bits(seed, epoch, np.arange(length), Draw.ORDER), kind="stable")


def seed_of_repeat(seed: int, repeat: int) -> int:
    """Returns the seed for the occurrence number `repeat` of a sample within an epoch: `seed` itself for the first.

    Each is a seed that a user could type, as sources of their own may give it to any generator.
    """
    return (seed + repeat * 2654435761) % 2**31 if repeat else seed


def beta(seed: int, epoch: int, index_B: np.ndarray, alpha: float) -> np.ndarray:
    """A float64 in [0, 1] per index, distributed as Beta(alpha, alpha).

    Source: a ratio of two Gamma(alpha) by Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables" (2000),
    in logarithms so that a small alpha does not underflow.
    """
    first = _log_gamma_variate(seed, epoch, index_B, alpha, int(Draw.MIX_SHARE))
    second = _log_gamma_variate(seed, epoch, index_B, alpha, int(Draw.MIX_SHARE) + 500)
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(second - first))


def _log_gamma_variate(seed: int, epoch: int, index_B: np.ndarray, alpha: float, draw: int) -> np.ndarray:
    boost_B = np.log1p(-uniform(seed, epoch, index_B, draw)) / alpha  # Gamma(a) = Gamma(a + 1) * U ** (1 / a)
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    result_B = np.full(len(index_B), np.log(d))
    waiting = np.arange(len(index_B))
    for attempt in range(1, 499, 3):  # a round accepts over 95 percent
        if not len(waiting):
            break
        index = np.asarray(index_B)[waiting]
        radius = np.sqrt(-2.0 * np.log1p(-uniform(seed, epoch, index, draw + attempt)))
        normal = radius * np.cos(2.0 * np.pi * uniform(seed, epoch, index, draw + attempt + 1))
        v = (1.0 + c * normal) ** 3
        log_v = np.log(np.maximum(v, 1e-300))
        log_u = np.log1p(-uniform(seed, epoch, index, draw + attempt + 2))
        accepted = (v > 0) & (log_u < 0.5 * normal**2 + d - d * v + d * log_v)
        result_B[waiting[accepted]] = np.log(d) + log_v[accepted]
        waiting = waiting[~accepted]
    return result_B + boost_B
