"""DICOM files with several frames, as volumes of slices: enhanced CT, MR and PET, ultrasound, angiography. Exported
folders have a copy of this module.

Legend: F frames, H height, W width.
"""

from __future__ import annotations

import hashlib
import io
import threading
from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.vision.images.dicom import DicomFile, has_frames
from mxtrain.vision.images.dicom_place import SAME_DIRECTION, SlicePlace, affine_of
from mxtrain.vision.images.volume_slice import as_labels
from mxtrain.vision.images.window import Window


class DicomVolume:
    """A DICOM file whose slices are its frames.

    Frames are sorted by their position along the normal of their planes if all frames say it and are parallel, as those
    of a volume; otherwise they have the order of the file, as those of a film.

    Attributes:
        num_slices, size, own_channels, num_values: see `Volume`.
        position_F3: centre of the first pixel of each slice, in millimetres; None: they have the order of the file.
    """

    def __init__(self, file: DicomFile, load: Callable[[], bytes]) -> None:
        """Sorts the frames; decodes none.

        Args:
            file: header of the file.
            load: returns the content of the file.
        """
        self._file, self._load = file, load
        self.num_slices, self.size = file.num_frames, file.size
        self.own_channels = 3
        self.num_values = file.num_frames * file.size[0] * file.size[1]
        self._order, self.position_F3 = _sorted_frames(file)
        self._lock = threading.Lock()
        self._digest = b""

    def planes(self, number: int, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes a slice; see `Volume.planes`."""
        return self._file.planes(self._load(), self._order[number], window)

    def affine(self) -> np.ndarray:
        """Returns the map from column, row and number of a slice to millimetres; see `affine_of`.

        Raises:
            ValueError: the frames do not say their places, or do not lie at equal distances.
        """
        plane_6 = self._file.vector("ImageOrientationPatient", 0, 6)
        if self.position_F3 is None or plane_6 is None:
            raise ValueError("they do not say their places, or are not parallel")
        return affine_of(self.position_F3, plane_6, self._file.vector("PixelSpacing", 0, 2))

    def distance(self, other: DicomVolume) -> Tuple[float, float]:
        """Returns the largest distance between frames of two files with as many, in millimetres, and the largest one
        that images of one place may have.

        Raises:
            ValueError: one of them says the places of its frames, and the other does not: their orders may differ.
        """
        if self.position_F3 is None or other.position_F3 is None:
            if self.position_F3 is not other.position_F3:
                raise ValueError(
                    "its frames, or those of its image, do not say their places, so that they cannot be paired"
                )
            return 0.0, 0.0
        places, others = self._places(self.position_F3), other._places(other.position_F3)
        return max(one.distance(another) for one, another in zip(places, others)), others[0].tolerance

    def _places(self, position_F3: np.ndarray) -> List[SlicePlace]:
        """Returns the places of all frames, which are parallel."""
        plane_6 = self._file.vector("ImageOrientationPatient", 0, 6)
        assert plane_6 is not None
        spacing_2 = self._file.vector("PixelSpacing", 0, 2)
        return [SlicePlace("", position_3, plane_6, spacing_2, self.size) for position_3 in position_F3]

    def labels(self, number: int) -> np.ndarray:
        """Returns the labels of a slice; see `Volume.labels`."""
        return as_labels(self._file.values(self._load(), self._order[number]))

    def identity(self) -> bytes:
        """Returns a digest of the file."""
        with self._lock:
            if not self._digest:
                self._digest = hashlib.blake2b(self._load(), digest_size=16).digest()
            return self._digest


def _sorted_frames(file: DicomFile) -> Tuple[Sequence[int], Optional[np.ndarray]]:
    """Returns the numbers of the frames in the order of slices, and their positions in that order, or None."""
    in_file = range(file.num_frames)
    plane = file.vector("ImageOrientationPatient", 0, 6)
    positions: List[np.ndarray] = []
    for frame in in_file:
        position, own = (
            file.vector(name, frame, length)
            for name, length in (("ImagePositionPatient", 3), ("ImageOrientationPatient", 6))
        )
        if plane is None or position is None or own is None or np.abs(own - plane).max() > SAME_DIRECTION:
            return in_file, None
        positions.append(position)
    assert plane is not None
    distance_F = np.array(positions) @ np.cross(plane[:3], plane[3:])
    order = np.argsort(distance_F, kind="stable")  # frames of one place, such as times, stay in the order of the file
    return order.tolist(), np.array(positions)[order]


def open_frames(content: bytes) -> Optional[DicomVolume]:
    """Opens the content of a file; returns None if it is not a DICOM file with several frames.

    Raises:
        ValueError: as `DicomFile`.
    """
    if not has_frames(io.BytesIO(content)):
        return None
    return DicomVolume(DicomFile(content, len(content)), lambda: content)
