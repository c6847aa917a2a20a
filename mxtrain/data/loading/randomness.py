"""Counter-based random numbers: functions of (seed, epoch, sample index, draw), independent of process and order.

There is no generator with a state: a number is a hash of its coordinates, computed for a whole batch at once. So the
batch size, the number of workers or threads, and resuming do not change the augmentation of a sample.

Source: the hash is SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) read
at position `index` of a stream whose start is hashed from the other coordinates, i.e. used as a counter-based generator
(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import numpy as np

from mxtrain.data.loading.uniform_hash import COLUMN, GOLDEN, mix_integer
from mxtrain.data.loading.uniform_hash import bits as bits  # the hash alone
from mxtrain.data.loading.uniform_hash import uniform as uniform  # used with those below
from mxtrain.data.loading.uniform_hash import uniform_rows as uniform_rows
from mxtrain.types import NamedInt


class Draw(NamedInt):
    """Streams of random numbers, by their purpose. Values determine results: never renumber them.

    These are the streams of all kinds of samples. Each field (vision, text, ...) has such a class for its own streams
    with other numbers. Streams of two fields may share a number, because no sample belongs to both.
    """

    ORDER = 0
    SPLIT = 1
    BATCH_ORDER = 15
    CLASS_SHARE = 400
    CLASS_ORDER = 401
    GROUP_CLASS = 403
    FOLD = 410
    COLUMN = COLUMN
    """Stream by which `uniform_rows` distinguishes the columns of a row."""
    MIX_SHARE = 1000
    """First of 1,000 streams: `beta` samples by rejection twice, with three new streams in each round."""


def uniform_number(key: int, number: int) -> float:
    """Returns number `number` (from 0) of the stream with the 64-bit key `key`, a float in [0, 1).

    Python's integers are faster here than NumPy arrays of one element.
    """
    return float((mix_integer(key + number * GOLDEN) >> 11) * 2.0**-53)


def integers(seed: int, epoch: int, index_B: np.ndarray, draw: int, high: int) -> np.ndarray:
    """Returns an int64 in [0, high) per index, (B,)."""
    return (uniform(seed, epoch, index_B, draw) * high).astype(np.int64)


def permutation(seed: int, epoch: int, length: int) -> np.ndarray:
    """Returns the random order of the samples of an epoch, (length,) int64."""
    return np.argsort(bits(seed, epoch, np.arange(length), Draw.ORDER), kind="stable")


def seed_of_repeat(seed: int, repeat: int) -> int:
    """Returns the seed for occurrence `repeat` of a sample within an epoch; `seed` itself for the first one.

    All results are below 2^31, so that a user's own source can pass them to any random generator.
    """
    return (seed + repeat * 2654435761) % 2**31 if repeat else seed


def beta(seed: int, epoch: int, index_B: np.ndarray, alpha: float) -> np.ndarray:
    """Returns a float64 in [0, 1] per index, (B,), distributed as Beta(alpha, alpha).

    Source: a ratio of two Gamma(alpha) by Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables" (2000),
    in logarithms so that a small alpha does not underflow.
    """
    first = _log_gamma_variate(seed, epoch, index_B, alpha, int(Draw.MIX_SHARE))
    second = _log_gamma_variate(seed, epoch, index_B, alpha, int(Draw.MIX_SHARE) + _STREAMS_PER_GAMMA)
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(second - first))


_STREAMS_PER_GAMMA = 500


def _log_gamma_variate(seed: int, epoch: int, index_B: np.ndarray, alpha: float, draw: int) -> np.ndarray:
    """Returns logarithms of Gamma(alpha), (B,), from the `_STREAMS_PER_GAMMA` random streams from `draw` on. The names
    d, c, v are those of the paper, see `beta`."""
    boost_B = np.log1p(-uniform(seed, epoch, index_B, draw)) / alpha  # Gamma(a) = Gamma(a + 1) * U ** (1 / a)
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    result_B = np.full(len(index_B), np.log(d))
    pending = np.arange(len(index_B))
    # A round needs three streams and accepts over 95 percent, so all are accepted long before the last round.
    for attempt in range(1, _STREAMS_PER_GAMMA - 1, 3):
        if not len(pending):
            break
        index = np.asarray(index_B)[pending]
        radius = np.sqrt(-2.0 * np.log1p(-uniform(seed, epoch, index, draw + attempt)))
        normal = radius * np.cos(2.0 * np.pi * uniform(seed, epoch, index, draw + attempt + 1))
        v = (1.0 + c * normal) ** 3
        # v may be negative where the proposal is rejected anyway; the bound only keeps NumPy from warning.
        log_v = np.log(np.maximum(v, 1e-300))
        log_u = np.log1p(-uniform(seed, epoch, index, draw + attempt + 2))
        accepted = (v > 0) & (log_u < 0.5 * normal**2 + d - d * v + d * log_v)
        result_B[pending[accepted]] = np.log(d) + log_v[accepted]
        pending = pending[~accepted]
    return result_B + boost_B
