"""Fingerprints of datasets, by which two runs tell whether they were trained on the same samples."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

import numpy as np

from mxtrain.data.loading.samples import Samples, Source, Splits
from mxtrain.errors import DataError, LoaderError

if TYPE_CHECKING:
    from mxtrain.annotations import Json

NUM_SAMPLES = 16
"""Samples of each split that are read. All of a large dataset would take longer than training."""


def fingerprint_splits(splits: Splits) -> Dict[str, Mapping[str, Json]]:
    """Returns {"samples": count, "sha256": hash} by split; see `fingerprint`."""
    found: Mapping[str, Optional[Samples]] = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {name: {"samples": len(one), "sha256": fingerprint(one)} for name, one in found.items() if one is not None}


def fingerprint(samples: Samples) -> Optional[str]:
    """Returns a SHA-256 over the number of samples and the content of a few, spread evenly, as they are read without
    augmentation. None for samples that are not read by index, and for those that cannot be read.
    """
    if not isinstance(samples, Source) or not len(samples):
        return None
    index_B = np.unique(np.linspace(0, len(samples) - 1, NUM_SAMPLES).astype(np.int64))
    digest = hashlib.sha256(str(len(samples)).encode())
    try:
        for array in samples.fetch(index_B, seed=0, epoch=0, train=False):
            _update(digest, array)
    except (DataError, LoaderError, OSError):  # training says it, if it comes to that sample
        return None
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        for item in value:
            _update(digest, item)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    else:
        digest.update(repr(value).encode())
