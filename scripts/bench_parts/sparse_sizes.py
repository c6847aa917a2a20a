"""What both sides of the comparison of sparse gradients compute. Needs NumPy only."""

from __future__ import annotations

from typing import Iterator, Tuple

import numpy as np

BATCH, FIELDS, UNITS = 1024, 8, 16
"""8192 ids a step."""
LR = 0.001
NUM_BATCHES = 40
"""So many different ones, again and again."""


def batches(rows: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """(ids (B, F) int32, targets (B, 1) float32 of 0 and 1), the same on all sides; each id is as likely as another."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_BATCHES):
        id_BF = rng.integers(0, rows, (BATCH, FIELDS), dtype=np.int64).astype(np.int32)
        yield id_BF, (id_BF.sum(axis=1, keepdims=True) % 2).astype(np.float32)
