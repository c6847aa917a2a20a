"""mxtrain's digits, whose images become NaN in worker 1 alone, from the moment on at which a file is there."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Tuple

import numpy as np

from mxtrain.data.spec import Source, Splits
from mxtrain.kvstore.world import WORKER
from mxtrain.vision.classification import digits

FILE = "MXTRAIN_BENCH_POISON"
"""The environment variable with the file's name."""


class Digits(digits.Digits):
    """See above."""

    def open(self) -> Splits:
        """See `Dataset.open`."""
        splits = super().open()
        return replace(splits, train=_Poisoned(splits.train))


class _Poisoned:
    def __init__(self, source: Source):
        self._source = source
        self.shape, self.samples_per_task = source.shape, source.samples_per_task

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        image_BCHW, label_B = self._source.fetch(index_B, seed=seed, epoch=epoch, train=train)
        image_BCHW = image_BCHW.astype(np.float32)
        if os.environ.get(WORKER) == "1" and os.path.exists(os.environ.get(FILE, "")):
            image_BCHW[:] = np.nan
        return image_BCHW, label_B
