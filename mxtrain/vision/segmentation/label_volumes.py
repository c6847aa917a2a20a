"""Joins the predicted masks of the slices of volumes and of DICOM series to label volumes."""

from __future__ import annotations

import collections
import gzip
import itertools
import logging
import os
from typing import Iterator, List, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.loading.dataset_files import open_regular
from mxtrain.data.spec import Samples
from mxtrain.vision.images.dicom_place import SAME_DIRECTION, SlicePlace, affine_of
from mxtrain.vision.images.dicom_volume import DicomVolume
from mxtrain.vision.images.figure import origin_of
from mxtrain.vision.images.files import ImageFiles, place_of
from mxtrain.vision.images.nifti import HEAD_READ, NiftiVolume
from mxtrain.vision.images.nifti_labels import encode_labels, header_of
from mxtrain.vision.images.volume_files import SlicedFiles
from mxtrain.vision.segmentation.masked_images import MaskedImages

log = logging.getLogger(__name__)


class LabelGrid(Protocol):
    """Voxels of a label volume.

    Attributes:
        shape: sizes (X, Y, Z).
    """

    @property
    def shape(self) -> Tuple[int, int, int]: ...

    def put(self, label_XYZ: np.ndarray, number: int, value_HW: np.ndarray) -> None:
        """Writes the labels of a slice into a volume of this shape."""

    def head(self) -> bytes:
        """Returns the first bytes of a NIfTI file that lies there; see `encode_labels`."""


class NiftiGrid:
    """Voxels of a NIfTI volume, with its sizes, order of axes and place."""

    def __init__(self, path: str, volume: NiftiVolume) -> None:
        self._path, self._volume = path, volume
        self.shape = volume.header.shape[:3]

    def put(self, label_XYZ: np.ndarray, number: int, value_HW: np.ndarray) -> None:
        """See `LabelGrid`."""
        self._volume.put_slice(label_XYZ, number, value_HW)

    def head(self) -> bytes:
        """See `LabelGrid`."""
        with open_regular(self._path) as (file, _):
            return file.read(HEAD_READ)


class DicomGrid:
    """Voxels of DICOM slices: X are columns, Y rows, Z slices in the order of their positions.

    Args:
        affine_34: see `affine_of`.
        size: (width, height) of a slice.
        rank_F: index along Z of each slice, in the order of the samples.
    """

    def __init__(self, affine_34: np.ndarray, size: Tuple[int, int], rank_F: Sequence[int]) -> None:
        self._affine_34, self._rank_F = affine_34, rank_F
        self.shape = (*size, len(rank_F))

    def put(self, label_XYZ: np.ndarray, number: int, value_HW: np.ndarray) -> None:
        """See `LabelGrid`."""
        label_XYZ[:, :, self._rank_F[number]] = value_HW.T

    def head(self) -> bytes:
        """See `LabelGrid`."""
        return header_of(self._affine_34)


class LabelVolume:
    """Predicted labels of a volume or of a series, as a NIfTI file; see `JoinedFile`."""

    def __init__(self, location: str, ending: str, samples: range, values: Sequence[int], grid: LabelGrid) -> None:
        """Stores the settings.

        Args:
            location: file of the volume, or folder of the series.
            ending: .nii or .nii.gz.
            samples: index of the sample of each slice.
            values: value of each class in a file.
            grid: voxels of the volume.
        """
        self.location, self.ending, self.samples = location, ending, samples
        self._grid = grid
        self._value_K = np.asarray(values, np.uint8 if max(values) < 256 else np.uint16)
        self._label_XYZ: Optional[np.ndarray] = None
        self._missing = set(samples)

    def add(self, index: int, prediction: np.ndarray) -> bool:
        """Adds the classes (H, W) of a slice; returns True if it was the last one that was missing."""
        if self._label_XYZ is None:
            self._label_XYZ = np.zeros(self._grid.shape, self._value_K.dtype)
        self._grid.put(self._label_XYZ, index - self.samples.start, self._value_K[prediction.astype(np.int64)])
        self._missing.discard(index)
        return not self._missing

    def encode(self) -> bytes:
        """Returns the content of the file, and forgets the labels."""
        assert self._label_XYZ is not None and not self._missing
        label_XYZ, self._label_XYZ = self._label_XYZ, None
        content = encode_labels(self._grid.head(), label_XYZ)
        return gzip.compress(content, 6, mtime=0) if self.ending.endswith(".gz") else content


def label_volumes(source: Samples, values: Sequence[int]) -> List[LabelVolume]:
    """Returns the label volumes of the NIfTI volumes, the DICOM files of several frames and the DICOM series whose
    slices are samples of a source. Slices that form no volume have none, and a warning says why.

    Args:
        source: input samples.
        values: value of each class in a file.
    """
    origin, _ = origin_of(source, 0)
    encoded = origin.encoded if isinstance(origin, MaskedImages) else None
    if not isinstance(encoded, (ImageFiles, SlicedFiles)):
        return []
    found = [*_volumes_of_files(encoded, values), *_volumes_of_series(encoded, values)]
    return sorted(found, key=lambda volume: volume.samples.start)


def _volumes_of_files(encoded: Union[ImageFiles, SlicedFiles], values: Sequence[int]) -> Iterator[LabelVolume]:
    """Yields the label volumes of files with several slices."""
    if not isinstance(encoded, SlicedFiles):
        return
    for first in np.flatnonzero(encoded.number_N == 0).tolist():
        volume = encoded.volume(first)
        path = encoded.location(first).file
        if isinstance(volume, NiftiVolume):
            ending = ".nii.gz" if path.lower().endswith(".gz") else ".nii"
            samples = range(first, first + volume.num_slices)
            yield LabelVolume(path, ending, samples, values, NiftiGrid(path, volume))
        elif isinstance(volume, DicomVolume) and volume.position_F3 is not None:  # others are films
            samples = range(first, first + volume.num_slices)
            try:
                grid = DicomGrid(volume.affine(), volume.size, range(volume.num_slices))
            except ValueError as error:
                _warn(f"the frames of '{path}'", error)
                continue
            yield LabelVolume(path, ".nii.gz", samples, values, grid)


def _volumes_of_series(encoded: Union[ImageFiles, SlicedFiles], values: Sequence[int]) -> Iterator[LabelVolume]:
    """Yields the label volumes of DICOM files with a slice each: consecutive samples of a folder and a series."""
    paths = [encoded.location(index).file for index in range(len(encoded))]
    is_file = [not isinstance(encoded, SlicedFiles) or encoded.volume(index) is None for index in range(len(encoded))]
    places = [place_of(path) if alone else None for path, alone in zip(paths, is_file)]

    def key(index: int) -> Tuple[str, str]:
        place = places[index]
        return os.path.dirname(paths[index]), "" if place is None else f"series {place.series}"

    runs = [(name, list(group)) for name, group in itertools.groupby(range(len(encoded)), key)]
    num_runs = collections.Counter(name for name, _ in runs)
    for (folder, series), indices in runs:
        if not series or len(indices) < 2:
            continue
        try:
            if num_runs[folder, series] > 1:
                raise ValueError("files without a place, or of another series, lie between them")
            grid = _grid_of([place for index in indices if (place := places[index]) is not None])
        except ValueError as error:
            _warn(f"the slices in '{folder}'", error)
            continue
        yield LabelVolume(folder, ".nii.gz", range(indices[0], indices[-1] + 1), values, grid)


def _grid_of(places: Sequence[SlicePlace]) -> DicomGrid:
    """Returns the voxels of at least two slices.

    Raises:
        ValueError: they form no volume.
    """
    first = places[0]
    if any(np.abs(place.plane_6 - first.plane_6).max() > SAME_DIRECTION for place in places):
        raise ValueError("they are not parallel")
    spacings = [None if place.spacing_2 is None else place.spacing_2.tolist() for place in places]
    if any(place.size != first.size for place in places) or any(spacing != spacings[0] for spacing in spacings):
        raise ValueError("they differ in Rows, Columns or PixelSpacing")
    order = np.argsort([place.height for place in places], kind="stable")
    affine_34 = affine_of(np.array([places[index].position_3 for index in order]), first.plane_6, first.spacing_2)
    return DicomGrid(affine_34, first.size, np.argsort(order).tolist())


def _warn(slices: str, reason: ValueError) -> None:
    log.warning("%s have a mask each instead of a label volume, since %s", slices, reason)
