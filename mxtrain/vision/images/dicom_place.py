"""Places of DICOM slices in the patient, and the map from the voxels of several slices to millimetres. Exported folders
have a copy of this module.

Source: DICOM PS3.3, C.7.6.2.1.1 (Image Plane).
Legend: F slices.
"""

from __future__ import annotations

import io
from typing import NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.vision.images.dicom import numbers_of, read_dataset, read_syntax
from mxtrain.vision.images.dicom_pixels import IMPLICIT

PLACE_BYTES = 1 << 17
"""Number of bytes at the beginning of a DICOM file in which the place of its slice is searched."""
SAME_DIRECTION = 1e-3
"""Largest difference of direction cosines of slices that are parallel."""
_UNEVEN = 0.05
"""Largest distance of a slice from its even place that a volume may have, as a share of the distance of slices."""
_TAGS = {
    "SeriesInstanceUID": 0x0020000E,
    "ImagePositionPatient": 0x00200032,
    "ImageOrientationPatient": 0x00200037,
    "Rows": 0x00280010,
    "Columns": 0x00280011,
    "PixelSpacing": 0x00280030,
}


class SlicePlace(NamedTuple):
    """Place of a slice in the patient. Directions are those of DICOM: left, posterior, superior.

    Attributes:
        series: UID of the series.
        position_3: centre of the first pixel, in millimetres.
        plane_6: direction cosines of a row and of a column.
        spacing_2: distances of rows and of columns, in millimetres; None: the file does not say them.
        size: (width, height) in pixels.
    """

    series: str
    position_3: np.ndarray
    plane_6: np.ndarray
    spacing_2: Optional[np.ndarray]
    size: Tuple[int, int]

    @property
    def height(self) -> float:
        """Returns the position along the normal of the plane, in millimetres."""
        return float(np.cross(self.plane_6[:3], self.plane_6[3:]) @ self.position_3)

    @property
    def tolerance(self) -> float:
        """Returns the smaller side of a pixel, in millimetres, or 1. Images of one place differ by less."""
        return 1.0 if self.spacing_2 is None else float(self.spacing_2.min())

    def distance(self, other: SlicePlace) -> float:
        """Returns the largest distance between the first pixels, and between the last ones, of two slices, in
        millimetres."""
        return float(max(np.linalg.norm(one - another) for one, another in zip(self._ends(), other._ends())))

    def _ends(self) -> Tuple[np.ndarray, np.ndarray]:
        spacing_2 = np.ones(2) if self.spacing_2 is None else self.spacing_2
        width, height = self.size
        along_3 = self.plane_6[:3] * spacing_2[1] * (width - 1) + self.plane_6[3:] * spacing_2[0] * (height - 1)
        return self.position_3, self.position_3 + along_3


def read_place(head: bytes) -> Optional[SlicePlace]:
    """Returns the place of a slice; None if the file does not say it, or is damaged, so that reading the image fails.

    Args:
        head: the first `PLACE_BYTES` of the file.
    """
    try:
        syntax, begin = read_syntax(head)
        last = max(_TAGS.values())
        file = io.BytesIO(head[begin:])
        header = read_dataset(file, syntax == IMPLICIT, lambda tag, vr, length: tag > last, [*_TAGS.values()])
        position_3 = numbers_of(header, "ImagePositionPatient", 3)
        plane_6 = numbers_of(header, "ImageOrientationPatient", 6)
        if position_3 is None or plane_6 is None:
            return None
        size = (int(header.get("Columns") or 0), int(header.get("Rows") or 0))
        series = str(header.get("SeriesInstanceUID") or "")
        return SlicePlace(series, position_3, plane_6, numbers_of(header, "PixelSpacing", 2), size)
    except Exception:  # of pydicom
        return None


def affine_of(position_F3: np.ndarray, plane_6: np.ndarray, spacing_2: Optional[np.ndarray]) -> np.ndarray:
    """Returns the map (3, 4) from column, row and number of a slice to millimetres, towards right, anterior and
    superior as in NIfTI.

    Args:
        position_F3: see `SlicePlace`, of at least two parallel slices in their order.
        plane_6, spacing_2: see `SlicePlace`.

    Raises:
        ValueError: the slices do not lie at equal distances, or the spacing is missing.
    """
    if spacing_2 is None or min(spacing_2) <= 0:
        raise ValueError("they do not say their PixelSpacing")
    step_3 = (position_F3[-1] - position_F3[0]) / (len(position_F3) - 1)
    even_F3 = position_F3[0] + np.arange(len(position_F3))[:, None] * step_3
    distance = float(np.linalg.norm(step_3))
    if np.linalg.norm(position_F3 - even_F3, axis=1).max() > _UNEVEN * distance or not distance:
        raise ValueError("they do not lie at equal distances: some are missing, or several lie in one place")
    columns = [plane_6[:3] * spacing_2[1], plane_6[3:] * spacing_2[0], step_3, position_F3[0]]
    return np.column_stack(columns) * [[-1.0], [-1.0], [1.0]]
