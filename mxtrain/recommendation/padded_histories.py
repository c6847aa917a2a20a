"""Histories as input of networks that read items in order. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np


def pad_histories(histories: Sequence[np.ndarray], width: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the newest `width` items of each history, oldest first and padded at the end, (B, width) int32, and their
    numbers, (B,) float32."""
    item_BH = np.zeros((len(histories), width), np.int32)
    length_B = np.zeros(len(histories), np.float32)
    for row, history in enumerate(histories):
        newest = history[max(len(history) - width, 0) :]
        item_BH[row, : len(newest)] = newest
        length_B[row] = len(newest)
    return item_BH, length_B
