"""Sources that need no files: arrays in memory, and a part of another source."""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checks, FetchedChecks, SubsetChecks, checks_of
from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.samples import prefetch
from mxtrain.data.loading.sampling import class_labels
from mxtrain.data.sample_weights import weights_of
from mxtrain.data.spec import Source


class MemorySource:
    """Images held in memory."""

    samples_per_task = 0

    def __init__(self, image_NCHW: np.ndarray, label_N: np.ndarray, locations: Optional[DataLocations] = None) -> None:
        """Keeps the arrays; nothing is copied.

        Args:
            image_NCHW: uint8, or float32 from 0 to 255.
            label_N: class indices, or numbers to predict.
            locations: Where they were read, for messages.
        """
        if len(image_NCHW) != len(label_N):
            raise ValueError(f"{len(image_NCHW)} images but {len(label_N)} labels")
        self.image_NCHW = image_NCHW
        self.label_N = label_N.astype(np.float32 if label_N.dtype.kind == "f" else np.int32)
        self.shape = tuple(image_NCHW.shape[1:])
        self._locations = locations

    def __len__(self) -> int:
        return len(self.label_N)

    def read_labels(self) -> np.ndarray:
        """Returns the class of each image, or the number to predict."""
        return self.label_N

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """Returns a copy of the samples; see `Source.fetch`."""
        return self.image_NCHW[index_B], self.label_N[index_B]

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return FetchedChecks(self, self._locations)


class Subset:
    """Some samples of another source, in a given order."""

    def __init__(self, source: Source, index_N: np.ndarray) -> None:
        """Chooses samples by index.

        Args:
            source: Where samples come from.
            index_N: Their indices in `source`.
        """
        self.source = source
        self.index_N = np.asarray(index_N, dtype=np.int64)
        self.shape = source.shape
        self.samples_per_task = source.samples_per_task

    def __len__(self) -> int:
        return len(self.index_N)

    def read_labels(self) -> np.ndarray:
        """Returns the class of each chosen sample; raises as `class_labels`."""
        return class_labels(self.source)[self.index_N]

    def read_weights(self) -> Optional[np.ndarray]:
        """Returns the weight of each chosen sample; None if the source has none."""
        weight_N = weights_of(self.source)
        return None if weight_N is None else weight_N[self.index_N]

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns the chosen samples; see `Source.fetch`."""
        return self.source.fetch(self.index_N[index_B], seed=seed, epoch=epoch, train=train)

    def prefetch(self, index_N: np.ndarray) -> None:
        """Requests samples that will be read soon; see `SupportsPrefetch`."""
        prefetch(self.source, self.index_N[index_N])

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return SubsetChecks(checks_of(self.source), self.index_N)

    def index_in_source(self, index: int) -> int:
        """See `Wrapper`."""
        return int(self.index_N[index])
