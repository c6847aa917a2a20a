"""Made-up images in CIFAR-10's binary files, and a dataset that validates on the test file as GluonCV does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mxtrain.dataset.base import Splits
from mxtrain.dataset.checking.problems import STRICT
from mxtrain.dataset.cifar import Cifar10
from mxtrain.dataset.loading.sources import MemorySource
from mxtrain.dataset.loading.splitting import choose_statistics

NAMES = (*Cifar10.train_sha1, *Cifar10.test_sha1)
NUM_CLASSES = 10


def write_files(folder: Path, samples_per_file: int) -> None:
    """Five files to train on and one to test on: a pattern per class, half of each pixel noise.

    Args:
        folder: Is made.
        samples_per_file: The official files have 10,000.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    pattern_KP = rng.randint(0, 256, (NUM_CLASSES, 3 * 32 * 32))
    for name in NAMES:
        label_N = rng.randint(0, NUM_CLASSES, samples_per_file)
        noise_NP = rng.randint(0, 256, (samples_per_file, pattern_KP.shape[1]))
        image_NP = (pattern_KP[label_N] + noise_NP) // 2
        np.concatenate([label_N[:, None], image_NP], axis=1).astype(np.uint8).tofile(folder / name)


class SameWork(Cifar10):
    """CIFAR-10 whose training files are all trained on and whose test file is the validation split."""

    def open(self) -> Splits:
        """See `Dataset.open`."""
        root = self._find()
        class_names = self._class_names(root)
        image_NCHW, label_N, _ = self._read_files(root, self.train_sha1, len(class_names), STRICT)
        val = MemorySource(*self._read_files(root, self.test_sha1, len(class_names), STRICT))
        mean, std = choose_statistics(self.mean, self.std, image_NCHW)
        return Splits(
            train=MemorySource(image_NCHW, label_N), val=val, test=None, class_names=class_names, shape=(3, 32, 32),
            mean=mean, std=std,
        )  # fmt: skip
