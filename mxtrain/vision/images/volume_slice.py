"""Slices of volumes, as images. Exported folders have a copy of this module.

Legend: H height, W width of a slice.
"""

from __future__ import annotations

from typing import List, Protocol, Tuple

import numpy as np

from mxtrain.vision.images.window import Window

MAX_LABEL = 2**16 - 1
"""Largest number of a class in a label volume."""


class Volume(Protocol):
    """A volume whose slices, or frames, are images of one size.

    Attributes:
        num_slices: number of slices.
        size: (width, height) of a slice.
        own_channels: see `PlaneReader`.
        num_values: number of values of all slices.
    """

    num_slices: int
    size: Tuple[int, int]
    own_channels: int
    num_values: int

    def planes(self, number: int, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes a slice; see `PlaneReader.planes`.

        Args:
            number: number of the slice.
            window, channels: see `PlaneReader.planes`.
        """

    def labels(self, number: int) -> np.ndarray:
        """Returns the labels of a slice, (H, W), as uint8 or int32.

        Raises:
            ValueError: values are not whole numbers from 0 to 65,535, or there are several for a pixel.
        """

    def identity(self) -> bytes:
        """Returns a digest of all stored values, by which volumes are compared."""


class VolumeSlice:
    """A slice of a volume, as `PlaneReader` of `mxtrain.vision.images.pixels`.

    Attributes:
        volume: the volume.
        number: number of the slice.
    """

    def __init__(self, volume: Volume, number: int) -> None:
        self.volume, self.number = volume, number
        self.size, self.own_channels = volume.size, volume.own_channels

    def planes(self, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes the slice; see `PlaneReader`."""
        return self.volume.planes(self.number, window, channels)


def as_labels(value_HW: np.ndarray) -> np.ndarray:
    """Returns values, such as floats, as labels, uint8 or int32.

    Raises:
        ValueError: they are not whole numbers from 0 to `MAX_LABEL`.
    """
    require_finite(value_HW)
    label_HW = np.rint(value_HW)
    if (np.abs(label_HW - value_HW) > 1e-3).any():
        raise ValueError("its values are no whole numbers: a mask has the number of a class in each voxel")
    low, high = int(label_HW.min()), int(label_HW.max())
    if low < 0 or high > MAX_LABEL:
        raise ValueError(f"its values go from {low} to {high}, and 0 to {MAX_LABEL} are read")
    return label_HW.astype(np.uint8 if high < 256 else np.int32)


def require_finite(value: np.ndarray) -> None:
    """Rejects NaN and infinite values.

    Raises:
        ValueError: there is one.
    """
    if not np.isfinite(value).all():
        raise ValueError("some of its values are no finite numbers: replace them, e.g. by 0")
