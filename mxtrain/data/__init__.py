"""Datasets of all fields: their descriptions, splits, and the loaders that feed a device.

`BaseDataset.open()` gives `Splits` of random-access sources; `build_loader` turns one into batches on a device.
"""

from mxtrain.data.spec import BaseDataset, Source, Splits

__all__ = ["BaseDataset", "Source", "Splits"]
