"""Splits a dataset that fits into memory."""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.loading.splitting import choose_statistics, refuse_empty
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError
from mxtrain.vision.images.dataset import Dataset


def split_in_memory(
    dataset: Dataset,
    image_NCHW: np.ndarray,
    label_N: np.ndarray,
    class_names: Sequence[str],
    test: Optional[MemorySource] = None,
    locations: Optional[DataLocations] = None,
) -> Splits:
    """Holds out validation samples, and test samples if there is no test split. Measures the mean and the standard
    deviation of the remaining training samples.

    Args:
        dataset: settings; `val_fraction`, `test_fraction`, `split_seed`, `mean` and `std` are used.
        image_NCHW: images, uint8.
        label_N: class indices.
        class_names: name of each class.
        test: test split; None: `test_fraction` of the samples.
        locations: source locations of the samples, for messages.

    Raises:
        ConfigError: the array does not hold images.
        DataError: a split would be empty.
    """
    if image_NCHW.ndim != 4 or (image_NCHW.dtype != np.uint8 and "auto" in (dataset.mean, dataset.std)):
        raise ConfigError(
            f"dataset {type(dataset).__name__}: the array is {image_NCHW.dtype} of shape {image_NCHW.shape}. Images "
            "are uint8 of shape (N, channels, height, width). Time series and other arrays train from Python: "
            "mxtrain.train(model=NETWORK, dataset=(x, y))."
        )
    train, val, held_out = dataset.division.divide(label_N, has_test=test is not None)
    refuse_empty(f"dataset {type(dataset).__name__}", len(train), len(val), dataset.val_fraction)

    def source(index_N: np.ndarray) -> MemorySource:
        return MemorySource(
            image_NCHW[index_N], label_N[index_N], None if locations is None else locations.take(index_N)
        )

    if test is None and len(held_out):
        test = source(held_out)
    train_source = source(train)
    mean, std = choose_statistics(dataset.mean, dataset.std, train_source.image_NCHW)
    return Splits(
        train=train_source,
        val=source(val),
        test=test,
        class_names=class_names,
        shape=tuple(image_NCHW.shape[1:]),
        mean=mean,
        std=std,
    )
