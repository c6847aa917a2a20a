"""Reads files of segmentation masks, which have one value per pixel.

Legend: H height, W width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mxtrain.data.loading.opening import open_image
from mxtrain.vision.images.dicom import HEAD_BYTES, DicomReader, is_dicom

if TYPE_CHECKING:
    from PIL import Image

_FACTOR_BY_RAW_MODE = {"L;2": 85, "L;4": 17}
"""Pillow's raw mode -> factor by which Pillow scales grey values of 2 and 4 bits to 0 to 255."""
MAX_VALUE = 2**16 - 1
"""Largest value of a mask; masks have 8 or 16 bits per pixel."""


def read_mask(content: bytes) -> Image.Image:
    """Decodes a mask file: palette indices, grey values or values of DICOM, as an image of bytes, or of 32-bit integers
    if values are larger than 255.

    Raises:
        ValueError: the mask has colours, or is too large. Pillow raises further exceptions.
    """
    from PIL import Image

    if is_dicom(content[:HEAD_BYTES]):
        return Image.fromarray(DicomReader(content).labels())
    image = open_image(content)
    if image.format in ("JPEG", "MPO"):
        raise ValueError("JPEG changes values: save masks as PNG")
    if _has_several_images(image):
        raise ValueError("it holds several images: a mask is one, in which a pixel has the number of its class")
    if image.mode in ("RGB", "RGBA", "LA", "PA"):
        if ";16" in _raw_mode(image):  # Pillow keeps only the upper 8 bits, so small values become 0
            raise ValueError("it has 16 bits in each of several channels: save it as a grey PNG")
        return _grey(image)
    if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
        raise ValueError(f"its pixels are {image.mode}: a mask has one value a pixel, the number of its class")
    factor = _FACTOR_BY_RAW_MODE.get(_raw_mode(image), 1)
    image.load()
    if image.mode in ("L", "P") and factor == 1:
        return image
    value_HW = np.asarray(image).astype(np.int32) // factor
    low, high = int(value_HW.min()), int(value_HW.max())
    if low < 0 or high > MAX_VALUE:
        raise ValueError(f"its values go from {low} to {high}, and 0 to {MAX_VALUE} are read")
    return Image.fromarray(value_HW.astype(np.uint8) if high < 256 else value_HW)


class NoClassNumbers(ValueError):
    """A mask has colours or transparency instead of one value per pixel."""

    remedy = (
        "Name the colours of the classes in a table, see dataset.colors in docs/tasks/segmentation.md, or save numbers."
    )


def _grey(image: Image.Image) -> Image.Image:
    """Returns the values of a mask whose channels are all equal: grey that was saved as an image in colour.

    Raises:
        NoClassNumbers: the mask has colours, or transparent pixels.
    """
    value_HWC = np.asarray(image.convert("LA" if image.mode == "LA" else "RGBA"))
    if (value_HWC[..., -1] < 255).any():
        raise NoClassNumbers("it has transparent pixels: a mask has one value a pixel, the number of its class")
    if (value_HWC[..., :1] != value_HWC[..., :-1]).any():
        colours = np.unique(value_HWC[..., :-1].reshape(-1, 3), axis=0)[:3].tolist()
        examples = ", ".join(str(tuple(colour)) for colour in colours)
        raise NoClassNumbers(
            f"it has colours, such as {examples}: a mask has one value a pixel, the number of its class"
        )
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(value_HWC[..., 0]))


def _has_several_images(image: Image.Image) -> bool:
    """Returns True if a file has further images as large as the first one. Smaller ones are overviews, as in
    GeoTIFF."""
    if getattr(image, "n_frames", 1) == 1:
        return False
    size = image.size
    image.seek(1)
    other = image.size
    image.seek(0)
    return other == size


def _raw_mode(image: Image.Image) -> str:
    """Returns Pillow's name of the pixel format in the file; empty if unknown."""
    arguments = image.tile[0][3] if image.tile else ""
    return arguments if isinstance(arguments, str) else str(arguments[0])


def values_in(image: Image.Image) -> np.ndarray:
    """Returns the values that occur in a mask, ascending."""
    if image.mode == "I":
        return np.unique(np.asarray(image))
    return np.flatnonzero(image.histogram())
