"""Reads TIFF files with more bands than Pillow reads, or with deep bands in planes of their own, by tifffile.

tifffile is an optional requirement, and importing this module does not import it. Exported folders have a copy of this
module.

Legend: C bands, H height, W width.
"""

from __future__ import annotations

import io
import logging
from typing import Any, List, Optional, Sequence

import numpy as np

from mxtrain.config.libraries import install_command, require_library
from mxtrain.data.loading.opening import MAX_PIXELS, ImageNeedsSetting, ImageTooLarge
from mxtrain.errors import DataError
from mxtrain.vision.images.window import (
    PERCENTILE,
    WHITE,
    Window,
    linear_exact,
    percentile_range,
    require_grey,
    scale_by_type,
    stretch,
)

MAX_BANDS = 512
"""Largest number of bands, or of pages that are bands."""
_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BLACK_IS_ZERO, _WHITE_IS_ZERO, _RGB = 1, 0, 2
_MIN_BITS, _MAX_BITS = 8, 32
_SAMPLES_TAG, _PLANES_TAG, _BITS_TAG = 277, 284, 258
_NEEDED_BY = "a TIFF that Pillow does not read, such as one of more than four bands,"


def is_tiff(head: bytes) -> bool:
    """Returns True if a file with these first bytes is TIFF or BigTIFF."""
    return head[:4] in _MAGIC


class TiffReader:
    """An opened TIFF file. The constructor reads the header, `planes` the pixels.

    Attributes:
        size: (width, height).
        own_channels: see `PlaneReader`.

    Raises:
        ImageNeedsSetting: tifffile is not installed.
        ValueError: the file is damaged, too large, or of an unsupported kind.
    """

    def __init__(self, content: bytes) -> None:
        """Reads the header.

        Args:
            content: content of the file.
        """
        self._file = _open(content)
        try:
            self._pages = _full_pages(self._file)
        except ValueError:
            raise
        except Exception as error:  # tifffile lets through struct.error, KeyError, IndexError ...
            raise ValueError(f"its TIFF header is damaged ({type(error).__name__})") from None
        page = self._pages[0]
        self.size = (int(page.imagewidth), int(page.imagelength))
        self.bands = int(page.samplesperpixel)
        """Number of bands of the first page."""
        self._require_supported(page)
        self._is_colour = page.photometric == _RGB and self.bands <= 4
        self.own_channels = 3 if self._is_colour or self.bands == 1 else self.bands

    def planes(self, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes the bands: those of the first page, or pages of one band each, if there are as many as `channels`.

        Args:
            window: see `Decoding.window`; not allowed for red, green and blue.
            channels: number of channels that are wanted.

        Returns:
            The bands, (H, W) each: uint8, or float32 from 0 to 255.
        """
        pages = self._pages[:1]
        is_colour = self._is_colour
        if is_colour:
            require_grey("RGB", window)
        if self.bands == 1 and channels not in (1, 3) and len(self._pages) > 1:
            if len(self._pages) == 3:  # with three channels, the first page is a grey image
                raise ImageNeedsSetting(
                    f"it has 3 pages of one band each, and dataset.channels={channels}: write them as one page of 3 "
                    "bands"
                )
            require_bands(len(self._pages), channels, "pages of one band each")
            pages = self._pages
        elif self.bands > 1 and not (is_colour and channels in (1, 3)):
            require_bands(self.bands, channels)
        planes = [self._shown(plane, window) for page in pages for plane in _decode(page)]
        return planes[:3] if is_colour and channels in (1, 3) else planes  # without transparency

    def _shown(self, plane_HW: np.ndarray, window: Window) -> np.ndarray:
        """Maps the values of a band to 0 to 255."""
        page = self._pages[0]
        if plane_HW.dtype.kind == "f" and not np.isfinite(plane_HW).all():
            raise ValueError("its pixels are floats, and some are no finite numbers")
        is_white_zero = page.photometric == _WHITE_IS_ZERO
        bits = int(page.bitspersample)
        if plane_HW.dtype == np.uint8 and bits == 8 and window in ("auto", "full"):
            return 255 - plane_HW if is_white_zero else plane_HW
        if window == PERCENTILE:
            shown_HW = stretch(plane_HW.astype(np.float64), percentile_range(plane_HW))
        elif isinstance(window, str):
            shown_HW = scale_by_type(plane_HW, bits, plane_HW.dtype.kind == "i")
        else:
            shown_HW = linear_exact(plane_HW.astype(np.float64), *window)
        return (WHITE - shown_HW if is_white_zero else shown_HW).astype(np.float32)

    def _require_supported(self, page: Any) -> None:
        width, height = self.size
        if width * height * max(self.bands, 1) > MAX_PIXELS * 3 or width * height > MAX_PIXELS:
            raise ImageTooLarge(
                f"it has {width} x {height} pixels of {self.bands} bands, and at most {MAX_PIXELS:,} are read"
            )
        if not 1 <= self.bands <= MAX_BANDS:
            raise ValueError(f"it has {self.bands} bands, and at most {MAX_BANDS} are read")
        if page.photometric not in (_BLACK_IS_ZERO, _WHITE_IS_ZERO, _RGB):
            kind = getattr(page.photometric, "name", page.photometric)
            raise ValueError(f"its colours are {kind}, and MINISBLACK, MINISWHITE and RGB are read: convert it")
        dtype = page.dtype
        is_number = dtype is not None and np.dtype(dtype).kind in "uif" and _is_whole(page.bitspersample)
        if not is_number or not _MIN_BITS <= int(page.bitspersample) <= _MAX_BITS:
            raise ValueError(
                f"its pixels have {page.bitspersample} bits of the type {dtype}, and 8 to 32 bits of one type are read"
            )


def require_bands(bands: int, channels: int, kind: str = "bands") -> None:
    """Rejects an image with another number of bands than the network takes.

    Raises:
        ImageNeedsSetting: the numbers differ, and neither a grey nor a colour image is meant.
    """
    if bands != channels:
        raise ImageNeedsSetting(
            f"it has {bands} {kind}, and dataset.channels={channels}: type dataset.channels={bands}, or write the "
            f"{channels} that are meant to a file of their own"
        )


def needs_tifffile(image: Any) -> bool:
    """Returns True for a TIFF that Pillow opens, but reads wrongly: several bands in planes, of which it takes the
    first one, or planes of more than 8 bits, of which it takes bytes.

    Args:
        image: image that Pillow opened.
    """
    if image.format != "TIFF":
        return False
    samples, is_planar = image.tag_v2.get(_SAMPLES_TAG, 1), image.tag_v2.get(_PLANES_TAG, 1) == 2
    bits = image.tag_v2.get(_BITS_TAG, 1)
    deepest = max(bits) if isinstance(bits, tuple) else bits
    return bool(samples > 1 and (is_planar and deepest > 8 or len(image.getbands()) == 1))


def _open(content: bytes) -> Any:
    try:
        tifffile = require_library("tifffile", "tiff", _NEEDED_BY)
    except DataError as error:
        raise ImageNeedsSetting(str(error)) from error
    logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)  # its log repeats parts of damaged files
    try:
        return tifffile.TiffFile(io.BytesIO(content))
    except Exception as error:  # of any type
        raise ValueError(f"its TIFF header is damaged ({type(error).__name__})") from None


def tiff_example(bands: int, size: Sequence[int]) -> bytes:
    """Returns a TIFF file of 16 bits with random pixels.

    Args:
        bands: number of bands.
        size: (height, width).
    """
    tifffile = require_library("tifffile", "tiff", _NEEDED_BY)
    value_CHW = np.random.default_rng(0).integers(0, 1 << 16, (bands, *size), dtype=np.uint16)
    file = io.BytesIO()
    tifffile.imwrite(file, value_CHW, photometric="minisblack", planarconfig="separate")
    return file.getvalue()


def _full_pages(file: Any) -> List[Any]:
    """Returns the first page, and the following ones of the same size and type. Overviews and masks are left out."""
    pages: List[Any] = []
    for page in file.pages:
        if page.is_reduced or page.is_mask:
            continue
        if pages and (page.shape, page.dtype) != (pages[0].shape, pages[0].dtype):
            break
        pages.append(page)
        if len(pages) > MAX_BANDS:
            break
    if not pages:
        raise ValueError("it holds no image")
    return pages


def _decode(page: Any) -> List[np.ndarray]:
    """Returns the bands of a page, (H, W) each."""
    try:
        array: np.ndarray = page.asarray(maxworkers=1)
    except Exception as error:  # decoders raise exceptions of any type
        if "imagecodecs" in str(error):
            raise ImageNeedsSetting(
                f"its compression {getattr(page.compression, 'name', page.compression)} needs the package imagecodecs. "
                f"Type: {install_command('tiff')}"
            ) from None
        raise ValueError(f"its pixels are damaged ({type(error).__name__})") from None
    if array.ndim == 2:
        return [array]
    axis = str(page.axes).find("S")
    if array.ndim != 3 or axis < 0:
        raise ValueError(f"its axes are {page.axes}, and images of height, width and bands are read")
    return list(np.moveaxis(array, axis, 0))


def _is_whole(value: Optional[object]) -> bool:
    return isinstance(value, int)
