"""Counter-based random numbers: the hash of `randomness`, without anything else. Exported folders have a copy of this
module, so it imports nothing but NumPy.
"""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
COLUMN = 702
"""Stream of `uniform_rows`, see `mxtrain.data.loading.randomness.Draw`."""
_MASK = (1 << 64) - 1
_AT_ONCE = 1 << 18


def bits(seed: int, epoch: int, index_B: np.ndarray, draw: int) -> np.ndarray:
    """Draws 64 random bits per index.

    Args:
        seed: Any integer.
        epoch: Any integer.
        index_B: Non-negative integers.
        draw: Random stream: a member of `Draw`, or of a class like it.

    Returns:
        uint64 of the same length.
    """
    key = mix_integer(mix_integer(mix_integer(seed) + epoch) + int(draw))
    index_B = np.atleast_1d(index_B)
    hash_B = np.empty(index_B.shape, np.uint64)
    for begin in range(0, len(index_B), _AT_ONCE):  # each needs a few arrays of its own length
        hash_B[begin : begin + _AT_ONCE] = _hash(index_B[begin : begin + _AT_ONCE], key)
    return hash_B


def _hash(index_B: np.ndarray, key: int) -> np.ndarray:
    state = index_B.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def uniform(seed: int, epoch: int, index_B: np.ndarray, draw: int) -> np.ndarray:
    """Returns a float64 in [0, 1) per index, from the upper 53 bits."""
    # 53 bits are what a float64 holds: with more, rounding could give 1.
    return (bits(seed, epoch, index_B, draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_rows(seed: int, epoch: int, index_B: np.ndarray, draw: int, count: int) -> np.ndarray:
    """Returns `count` float32 numbers in [0, 1) per index, (B, count). The first n do not depend on `count`.

    Source: the last steps of SplitMix64, applied to the XOR of two hashes; the upper 24 bits become the number.
    """
    start_B1 = bits(seed, epoch, index_B, draw)[:, None]
    # Columns have their own stream. With `draw` for both, the XOR would be 0 for number n of index n, and symmetric.
    row_BN = bits(0, 0, np.arange(count), COLUMN)[None] ^ start_B1
    row_BN *= np.uint64(0xBF58476D1CE4E5B9)
    row_BN ^= row_BN >> np.uint64(31)
    row_BN *= np.uint64(0x94D049BB133111EB)
    return (row_BN >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def mix_integer(value: int) -> int:
    value = (value + GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
