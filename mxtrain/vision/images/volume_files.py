"""Opens volumes in files, NIfTI and DICOM with several frames, as their slices, each of which is a sample.

Unpacked volumes are kept in memory up to `MAX_CACHED_BYTES`, because neighbouring samples of an epoch are slices of
different volumes.

Legend: N samples, F files.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, OrderedDict, Set, Tuple, TypeVar, Union, cast

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.dataset_files import open_regular, read_bytes
from mxtrain.errors import DataError
from mxtrain.vision.images import nifti
from mxtrain.vision.images.dicom import HEAD_READ, DicomFile, has_frames
from mxtrain.vision.images.dicom_volume import DicomVolume
from mxtrain.vision.images.files import MAX_BYTES, ImageFiles, is_medical
from mxtrain.vision.images.nifti import NiftiHeader, NiftiVolume
from mxtrain.vision.images.pixels import read_error, unreadable
from mxtrain.vision.images.volume_slice import VolumeSlice

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import ImageContent

MAX_CACHED_BYTES = 2 << 30
"""Largest size of the volumes that are kept in memory."""
AnyVolume = Union[NiftiVolume, DicomVolume]
Content = TypeVar("Content", np.ndarray, memoryview)


def is_volume(path: str) -> bool:
    """Returns True if a file is a volume (NIfTI), by its name."""
    return path.lower().endswith(nifti.ENDINGS)


def has_slices(path: str) -> bool:
    """Returns True if a file is a volume by its name, or a DICOM file with several frames by its content."""
    if is_volume(path) or not is_medical(path):
        return is_volume(path)
    try:
        with open_regular(path) as (file, _):
            return has_frames(file)
    except DataError:  # reading the file as an image raises it
        return False


class VolumeCache:
    """Keeps the values, or the contents of the files, of the volumes that were used last. Safe to use from several
    threads."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[str, Union[np.ndarray, memoryview]] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._loading: Dict[str, threading.Lock] = {}

    def get(self, key: str, load: Callable[[], Content]) -> Content:
        """Returns the values of a volume; `load` is called if they are not kept."""
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:  # several threads want slices of one volume: one of them loads it
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return cast(Content, self._values[key])
            values = load()
            with self._lock:
                self._values[key] = values
                while len(self._values) > 1 and sum(map(_num_bytes, self._values.values())) > self._max_bytes:
                    self._values.popitem(last=False)
            return values


def _num_bytes(values: Union[np.ndarray, memoryview]) -> int:
    return values.nbytes


CACHE = VolumeCache()
"""Volumes of all sources of the process."""


def read_header(path: str) -> NiftiHeader:
    """Reads the header of a volume.

    Raises:
        DataError: the file cannot be read.
        ValueError: it is damaged, too large or of an unsupported kind.
    """
    with open_regular(path) as (file, _):
        begin = file.read(nifti.HEAD_READ)
    return nifti.read_header(begin)


def open_volume(path: str, direction: str) -> AnyVolume:
    """Opens a volume as slices; its values are read when they are needed. Raises as `read_header`."""
    return open_nifti(path, direction) if is_volume(path) else _open_frames(path)


def open_nifti(path: str, direction: str) -> NiftiVolume:
    """Opens a NIfTI volume as `open_volume`."""
    header = read_header(path)

    def load() -> np.ndarray:
        return CACHE.get(path, lambda: nifti.values_in(read_bytes(path, MAX_BYTES), header))

    return NiftiVolume(header, direction, load)


def _open_frames(path: str) -> DicomVolume:
    """Opens a DICOM file with several frames, which have the directions in which they were taken."""
    with open_regular(path) as (file, size):
        head = file.read(HEAD_READ)

    def load() -> bytes:
        return cast(bytes, CACHE.get(path, lambda: memoryview(read_bytes(path, MAX_BYTES))).obj)

    return DicomVolume(DicomFile(head, size), load)


class SlicedFiles:
    """Image files and slices of volumes, as `EncodedImages`: a sample for each slice.

    Attributes:
        files: the files.
        file_N: index of the file of each sample.
        number_N: number of the slice of each sample; 0 for images.
    """

    def __init__(self, files: ImageFiles, direction: str, is_strict: bool = True) -> None:
        """Reads the headers of all volumes.

        Args:
            files: images and volumes.
            direction: direction of the slices, see `NiftiVolume`.
            is_strict: if False, a volume that cannot be opened becomes one sample, and reading it raises the error.

        Raises:
            DataError: a volume cannot be opened.
        """
        self.files, self._direction = files, direction
        self._volumes: Dict[int, AnyVolume] = {}
        self._unopened: Set[int] = set()
        counts = [self._open(index, path, is_strict) for index, path in enumerate(files.paths)]
        self.file_N = np.repeat(np.arange(len(counts)), counts)
        self.number_N = np.concatenate([np.arange(count) for count in counts]) if counts else np.zeros(0, np.int64)
        self.label_N = files.label_N[self.file_N]

    def _open(self, index: int, path: str, is_strict: bool) -> int:
        """Opens a volume; returns the number of its samples."""
        if not has_slices(path):
            return 1
        try:
            self._volumes[index] = open_volume(path, self._direction)
        except (DataError, ValueError) as error:
            if is_strict:
                raise volume_error(path, error) from error
            self._unopened.add(index)
            return 1
        return self._volumes[index].num_slices

    def __len__(self) -> int:
        return len(self.file_N)

    @property
    def paths(self) -> List[str]:
        """Returns the source location of each sample: a file, or `FILE:NUMBER` for a slice."""
        return [
            f"{self.files.paths[file]}:{number}" if file in self._volumes else self.files.paths[file]
            for file, number in zip(self.file_N.tolist(), self.number_N.tolist())
        ]

    def name(self, index: int) -> str:
        """Returns the path in quotes, with the number of the slice."""
        file = int(self.file_N[index])
        slice_name = f"slice {self.number_N[index]} of " if file in self._volumes else ""
        return f"{slice_name}{self.files.name(file)}"

    def location(self, index: int) -> DataLocation:
        """Returns the file; a slice is a record of it."""
        file = int(self.file_N[index])
        path = self.files.paths[file]
        return DataLocation(path, record=int(self.number_N[index])) if file in self._volumes else DataLocation(path)

    def volume(self, index: int) -> Optional[AnyVolume]:
        """Returns the volume of a sample; None if it is an image, or the volume cannot be opened."""
        return self._volumes.get(int(self.file_N[index]))

    def read_labels(self) -> np.ndarray:
        """Returns the class of each sample."""
        return self.label_N

    def read(self, index: int) -> Tuple[ImageContent, int]:
        """Returns a slice, or the bytes of an image file, and its label.

        Raises:
            LoaderError: the volume cannot be opened.
        """
        file = int(self.file_N[index])
        if file in self._unopened:
            path = self.files.paths[file]
            try:
                open_volume(path, self._direction)
            except ValueError as error:
                raise unreadable(f"'{path}'", error, "a volume") from error
        if file not in self._volumes:
            return self.files.read(file)
        return VolumeSlice(self._volumes[file], int(self.number_N[index])), int(self.label_N[index])


def volume_error(path: str, error: Exception) -> DataError:
    """Returns the error for a volume that cannot be opened."""
    return error if isinstance(error, DataError) else DataError(read_error(f"'{path}'", error, "a volume"))


def sliced(files: ImageFiles, direction: str, is_strict: bool = True) -> Union[ImageFiles, SlicedFiles]:
    """Returns files with slices in the place of volumes; the files themselves if there are no volumes.

    Args:
        files: images and volumes.
        direction, is_strict: see `SlicedFiles`.
    """
    return SlicedFiles(files, direction, is_strict) if any(map(has_slices, files.paths)) else files
