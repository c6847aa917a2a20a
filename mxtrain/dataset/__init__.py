"""Datasets: their descriptions, their splits, and the loaders that feed a device.

`Dataset.open()` gives `Splits` of random-access sources; `Loader` turns a source into batches on a device.
"""

from mxtrain.dataset.base import BaseDataset, Dataset, Source, Splits
from mxtrain.dataset.image.settings import Augment

__all__ = ["Augment", "BaseDataset", "Dataset", "Source", "Splits"]
