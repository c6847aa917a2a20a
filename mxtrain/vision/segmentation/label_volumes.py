"""Joins the predicted masks of the slices of volumes to label volumes."""

from __future__ import annotations

import gzip
from typing import List, Optional, Sequence

import numpy as np

from mxtrain.data.loading.dataset_files import open_regular
from mxtrain.data.spec import Samples
from mxtrain.vision.images.figure import origin_of
from mxtrain.vision.images.nifti import HEAD_READ, NiftiVolume
from mxtrain.vision.images.nifti_labels import encode_labels
from mxtrain.vision.images.volume_files import SlicedFiles
from mxtrain.vision.segmentation.masked_images import MaskedImages


class LabelVolume:
    """Predicted labels of a NIfTI volume, with its sizes, order of axes and place; see `JoinedFile`."""

    def __init__(self, path: str, volume: NiftiVolume, samples: range, values: Sequence[int]) -> None:
        """Stores the settings.

        Args:
            path: file of the volume.
            volume: the volume.
            samples: index of the sample of each slice.
            values: value of each class in a file.
        """
        self.location, self.samples = path, samples
        self.ending = ".nii.gz" if path.lower().endswith(".gz") else ".nii"
        self._volume = volume
        self._value_K = np.asarray(values, np.uint8 if max(values) < 256 else np.uint16)
        self._label_XYZ: Optional[np.ndarray] = None
        self._missing = set(samples)

    def add(self, index: int, prediction: np.ndarray) -> bool:
        """Adds the classes (H, W) of a slice; returns True if it was the last one that was missing."""
        if self._label_XYZ is None:
            self._label_XYZ = np.zeros(self._volume.header.shape[:3], self._value_K.dtype)
        value_HW = self._value_K[prediction.astype(np.int64)]
        self._volume.put_slice(self._label_XYZ, index - self.samples.start, value_HW)
        self._missing.discard(index)
        return not self._missing

    def encode(self) -> bytes:
        """Returns the content of the file, and forgets the labels."""
        assert self._label_XYZ is not None and not self._missing
        label_XYZ, self._label_XYZ = self._label_XYZ, None
        with open_regular(self.location) as (file, _):
            content = encode_labels(file.read(HEAD_READ), label_XYZ)
        return gzip.compress(content, 6, mtime=0) if self.ending.endswith(".gz") else content


def label_volumes(source: Samples, values: Sequence[int]) -> List[LabelVolume]:
    """Returns the label volumes of the NIfTI volumes whose slices are samples of a source.

    Args:
        source: input samples.
        values: value of each class in a file.
    """
    origin, _ = origin_of(source, 0)
    encoded = origin.encoded if isinstance(origin, MaskedImages) else None
    if not isinstance(encoded, SlicedFiles):
        return []
    found: List[LabelVolume] = []
    for first in np.flatnonzero(encoded.number_N == 0).tolist():
        volume = encoded.volume(first)
        if isinstance(volume, NiftiVolume):
            samples = range(first, first + volume.num_slices)
            found.append(LabelVolume(encoded.location(first).file, volume, samples, values))
    return found
