"""Opens encoded images with Pillow, restricted to known formats and to sizes that fit into memory."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 178_956_970
"""The largest image, half a gigabyte in colour: a file of a few kilobytes can claim to be larger than any memory."""
VIDEO_EXTENSIONS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".wmv", ".mpg", ".mpeg")
EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".jfif",
    ".jpe",
    ".png",
    ".bmp",
    ".webp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM")
"""Formats that are read. Others of Pillow's start programs (EPS) or contain no pixels."""


class ImageTooLarge(ValueError):
    """An image has more pixels than are read."""


class ImageNeedsSetting(ValueError):
    """An image can be read, but only with other settings or with a library that is not installed."""


def open_image(content: bytes, formats: Sequence[str] = FORMATS, max_pixels: Optional[int] = None) -> Image.Image:
    """Returns the image that Pillow finds in a file; only its header is read.

    Args:
        content: content of the file.
        formats: what it may be, as Pillow names it.
        max_pixels: largest number of pixels; None = `MAX_PIXELS`.

    Raises:
        Exception: as `pixels.ImageReader` says.
    """
    from PIL import Image, ImageFile

    # GluonCV switches this on for the whole process when it is imported: half an image would pass as a whole one.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.MAX_IMAGE_PIXELS = None  # `require_pixels` checks the limit, with a message of its own
    image = Image.open(io.BytesIO(content), formats=formats)  # lint: bytes in memory
    require_pixels(image.size, max_pixels)
    return image


def require_pixels(size: Tuple[int, int], max_pixels: Optional[int] = None) -> None:
    """Rejects images of too many pixels.

    Args:
        size: (width, height).
        max_pixels: largest allowed number of pixels; None = `MAX_PIXELS`.

    Raises:
        ImageTooLarge: the image has more.
    """
    width, height = size
    largest = MAX_PIXELS if max_pixels is None else max_pixels
    if width * height > largest:
        raise ImageTooLarge(f"it has {width} x {height} pixels, and at most {largest:,} are read")
