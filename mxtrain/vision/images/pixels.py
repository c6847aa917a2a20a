"""Reads one encoded image, such as JPEG, PNG or DICOM, as it is displayed: upright, in grey, in colour or in any number
of bands, at its own bit depth.

White is 255 in the result. Channels of up to 8 bits stay uint8. Deeper ones become float32, scaled by their type:
integers by their largest value (65,535 for 16 bits); floats must lie between 0 and 1; a window overrides the scale.
Transparency is dropped without blending. If a file has several images, the first is read. Importing this module does
not import Pillow. Exported folders have a copy of this module.

Reasons: docs/decisions/0026-image-preprocessing.md.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, List, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import IMAGE_TOO_LARGE, UNREADABLE_IMAGE
from mxtrain.data.loading.opening import FORMATS, ImageNeedsSetting, ImageTooLarge, open_image, require_pixels
from mxtrain.errors import LoaderError
from mxtrain.vision.images.dicom import DicomReader, is_dicom
from mxtrain.vision.images.nifti import is_nifti, is_packed_nifti
from mxtrain.vision.images.tiff import TiffReader, is_tiff, needs_tifffile, require_bands
from mxtrain.vision.images.volume_slice import VolumeSlice
from mxtrain.vision.images.window import (
    Window,
    linear_exact,
    percentile_range,
    require_grey,
    scale_by_type,
    stretch,
)

if TYPE_CHECKING:
    from PIL import Image

REPLACE = "Replace or remove it, and run the same command again."

_ORIENTATION, _PHOTOMETRIC = 0x0112, 0x0106
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey. Source: ITU-R BT.601, as in Pillow."""
_DEEP_COLOUR = ("RGB", "RGBA", "RGBX", "LA", "L")
"""Kinds of channels that are read with more than 8 bits each, by OpenCV."""


class PlaneReader(Protocol):
    """An opened image whose channels are decoded at once, by a library of its format.

    Attributes:
        size: (width, height).
        own_channels: number of channels that `channels=auto` means: 3 for grey and colour, otherwise that of the file.
    """

    size: Tuple[int, int]
    own_channels: int

    def planes(self, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes the image.

        Args:
            window: range of grey values, see `Decoding.window`.
            channels: number of channels that are wanted.

        Returns:
            The channels, (H, W) each: uint8, or float32 from 0 to 255.
        """


class ImageReader:
    """An opened image. `resized` decodes it; the constructor only reads the header, except for TIFF files, and for
    images with more than 8 bits per channel that are not DICOM.

    Raises:
        Exception: the content is not an image, or is too large. Pillow raises OSError, SyntaxError, ValueError,
            struct.error and its own errors; `read_error` converts them to one message.
    """

    def __init__(
        self,
        content: Union[bytes, Image.Image, VolumeSlice],
        window: Window = "auto",
        max_pixels: Optional[int] = None,
    ) -> None:
        """Reads the header.

        Args:
            content: content of the file; a decoded image, upright, which is changed; or a slice of a volume.
            window: range of grey values, see `Decoding.window`.
            max_pixels: largest allowed number of pixels, checked before the image is decoded; None = `MAX_PIXELS` of
                `mxtrain.data.loading.opening`.
        """
        self._window, self._content = window, content
        self._reader = _open_planes(content)
        self.size: Tuple[int, int]
        """(width, height)."""
        if self._reader is None:
            assert not isinstance(content, VolumeSlice)
            self._open_with_pillow(content, max_pixels)
        if self._reader is not None:
            self.size = self._reader.size
            require_pixels(self.size, max_pixels)

    def _open_with_pillow(self, content: Union[bytes, Image.Image], max_pixels: Optional[int]) -> None:
        """Opens the formats of Pillow, and TIFF files that it does not read by `TiffReader`."""
        window = self._window
        if isinstance(content, bytes):
            try:
                image = open_image(content, FORMATS, max_pixels)
            except OSError:  # Pillow's error for contents that it does not know
                if not is_tiff(content):
                    raise
                self._reader = TiffReader(content)
                return
            if needs_tifffile(image):
                self._reader = TiffReader(content)
                return
        else:
            image = content
            require_pixels(image.size, max_pixels)
        planes = _deep_planes(image, content) if window in ("auto", "full") else [_apply_window(image, window)]
        self._images = [image] if planes is None else planes
        self._are_planes = planes is not None
        if image.format == "TIFF":  # Pillow and OpenCV turn them upright themselves
            image.load()  # Pillow 10 and earlier give the size of the upright image only then
        transpose = None if image.format == "TIFF" else _upright_transpose(image)
        if transpose is not None:  # boxes refer to the upright image
            self._images = [plane.transpose(transpose) for plane in self._images]
        self.size = self._images[0].size

    @property
    def own_channels(self) -> int:
        """Returns the number of channels that `channels=auto` means for files like this one; see `PlaneReader`."""
        return 3 if self._reader is None else self._reader.own_channels

    def resized(
        self, box: Sequence[float], size: Tuple[int, int], channels: int, *, bicubic: bool = False
    ) -> np.ndarray:
        """Returns a part of the image in another size.

        Args:
            box: left, top, right and bottom in pixels.
            size: (width, height) of the result.
            channels: 1 grey, 3 colour; another number: that of the file.
            bicubic: if True, interpolate with cubic polynomials, which is smoother and slower than bilinear.

        Returns:
            The resized part (C, H, W): uint8, or float32 from 0 to 255 for an image with more than 8 bits.
        """
        from PIL import Image

        if self._reader is not None:
            self._take_planes(self._reader.planes(self._window, channels))
        elif channels not in (1, 3) and not (self._are_planes and len(self._images) == channels):
            self._take_planes(self._bands(channels))
        resample = Image.BICUBIC if bicubic else Image.BILINEAR
        if self._are_planes:
            planes = [np.asarray(plane.resize(size, resample, box=tuple(box))) for plane in self._images]
            return np.stack(_as_channels(planes, channels))
        mode = "L" if channels == 1 else "RGB"
        image, box = _draft(self._images[0], mode, tuple(box), size)
        if image.mode != mode:
            image.info.pop("transparency", None)  # Pillow warns of palettes with partial transparency
            image = image.convert(mode)
        array_HWC = np.asarray(image.resize(size, resample, box=box))
        return array_HWC[None] if channels == 1 else array_HWC.transpose(2, 0, 1)

    def _take_planes(self, planes: List[np.ndarray]) -> None:
        """Converts decoded planes to Pillow images."""
        from PIL import Image

        self._images = [Image.fromarray(np.ascontiguousarray(plane)) for plane in planes]
        self._are_planes = len(planes) != 3 or planes[0].dtype == np.float32
        if not self._are_planes:
            self._images = [Image.merge("RGB", self._images)]
        self._reader = None

    def _bands(self, channels: int) -> List[np.ndarray]:
        """Returns all channels of an image that Pillow has opened, with transparency."""
        content = self._content
        if isinstance(content, bytes) and is_tiff(content):
            return TiffReader(content).planes(self._window, channels)
        image = self._images[0]
        if self._are_planes and len(self._images) == 3 and isinstance(content, bytes):
            deep = _read_colour(image.size, content, keeps_alpha=True)
            require_bands(len(deep), channels)
            return [(plane * (255.0 / 65535)).astype(np.float32) for plane in deep]
        names = image.getbands() if not self._are_planes else ("L",) * len(self._images)
        require_bands(len(names), channels)
        return [np.asarray(plane) for plane in image.split()]


def _open_planes(content: Union[bytes, Image.Image, VolumeSlice]) -> Optional[PlaneReader]:
    """Returns the reader of a format that Pillow does not know; None for others."""
    if isinstance(content, VolumeSlice):
        return content
    if not isinstance(content, bytes):
        return None
    if is_nifti(content) or is_packed_nifti(content):
        raise ValueError("it is a volume (NIfTI), and an image is expected here: write the slices to PNG files")
    return DicomReader(content) if is_dicom(content) else None


def read_error(name: str, error: Exception, what: str = "an image") -> str:
    """Returns the message for an image that cannot be read; `REPLACE` is the remedy if it cannot be left out."""
    reason = re.sub(r" <_io\.\w+ [^>]*>", "", str(error))  # Pillow names the object that it was given
    return f"{name} cannot be read as {what} ({reason})."


def unreadable(name: str, error: Exception, what: str = "an image", kind: str = UNREADABLE_IMAGE) -> LoaderError:
    """Returns the error for an image that cannot be read: `read_error`, the remedy and the kind of problem."""
    kind = IMAGE_TOO_LARGE if isinstance(error, ImageTooLarge) else kind
    # The reason says what to type, and the file is not to be replaced.
    return LoaderError(read_error(name, error, what), "" if isinstance(error, ImageNeedsSetting) else REPLACE, kind)


def _draft(
    image: Image.Image, mode: str, box: Tuple[float, ...], target: Tuple[int, int]
) -> Tuple[Image.Image, Tuple[float, ...]]:
    """Lets the JPEG decoder scale the image down by a power of 2, which saves most of the work. The box keeps at least
    as many pixels as the target. Returns the image, and the box in its pixels.

    Args:
        image: opened image, of any format.
        mode: Pillow mode of the result.
        box: left, top, right and bottom in pixels.
        target: (width, height) of the result.
    """
    full_width, full_height = image.size
    shrink = min((box[2] - box[0]) / target[0], (box[3] - box[1]) / target[1])
    if shrink >= 2 and hasattr(image, "draft"):  # a rotated image is decoded already, and has no `draft`
        image.draft(mode, (math.ceil(full_width / shrink), math.ceil(full_height / shrink)))
        scale_x, scale_y = image.size[0] / full_width, image.size[1] / full_height
        right, bottom = min(box[2] * scale_x, image.size[0]), min(box[3] * scale_y, image.size[1])
        box = (box[0] * scale_x, box[1] * scale_y, right, bottom)
    return image, box


def _upright_transpose(image: Image.Image) -> Optional[int]:
    """Returns the Pillow transposition that corrects the EXIF orientation; None if the image is upright."""
    from PIL import Image

    orientation = image.getexif().get(_ORIENTATION, 1)
    return {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)


def _deep_planes(image: Image.Image, content: Union[bytes, Image.Image]) -> Optional[List[Image.Image]]:
    """Decodes an image with more than 8 bits per channel. Returns its channels as images of floats from 0 to 255; None
    for other images."""
    from PIL import Image

    kind, bits, flags, maximum = _depth(image)
    if bits <= 8:
        return None
    if image.mode[0] in "IF":  # one channel, which Pillow reads at its bit depth
        planes_CHW = [_scale_grey(np.asarray(image), bits, flags)]
        if _is_white_zero(image):
            planes_CHW = [255.0 - planes_CHW[0]]
    elif kind in _DEEP_COLOUR and isinstance(content, bytes):  # Pillow would keep only 8 bits
        image.load()  # raises if the file is damaged; OpenCV may return the undamaged part silently
        planes_CHW = [_to_unit_range(plane, maximum) * 255.0 for plane in _read_colour(image.size, content)]
    else:
        raise ValueError(f"{kind} with {bits} bits is not read: save it as RGB")
    return [Image.fromarray(plane.astype(np.float32)) for plane in planes_CHW]


def _apply_window(image: Image.Image, window: Window) -> Image.Image:
    """Maps the grey values in the file of an image through a window, to floats from 0 to 255.

    Args:
        image: opened image.
        window: (centre, width) in the values of the file, or `percentile`.

    Raises:
        ValueError: the image has colours, or values that are not finite.
    """
    from PIL import Image

    _, bits, flags, _ = _depth(image)
    # Pillow scales the values of a PNM file to the whole range of 8 or 16 bits; this is undone below.
    arguments = image.tile[0][3] if image.format == "PPM" and image.tile[0][0].startswith("ppm") else ""
    largest = 0 if isinstance(arguments, str) else int(arguments[1])
    if image.mode[0] not in "IFL" or len(image.getbands()) > 1:
        require_grey(image.mode, window)
    value_HW = np.asarray(image)
    # Pillow's mode I is int32, in which unsigned values from 2^31 on are negative.
    if image.mode == "I" and bits == 32 and "S" not in flags:
        value_HW = value_HW.view(np.uint32)
    if largest:
        value_HW = value_HW * (largest / (255 if image.mode == "L" else 65535))
    is_white_zero = _is_white_zero(image)
    if is_white_zero and image.mode == "L":  # Pillow has inverted 8-bit values
        value_HW = 255 - value_HW
    if not np.isfinite(value_HW).all():
        raise ValueError("its pixels are floats, and some are no finite numbers")
    value_HW = value_HW.astype(np.float64)
    if isinstance(window, str):
        shown_HW = stretch(value_HW, percentile_range(value_HW))
    else:
        shown_HW = linear_exact(value_HW, *window)
    return Image.fromarray((255.0 - shown_HW if is_white_zero else shown_HW).astype(np.float32))


def _is_white_zero(image: Image.Image) -> bool:
    """Returns True for a grey TIFF in which 0 is white. Pillow inverts the values only if they have 8 bits."""
    return image.format == "TIFF" and image.tag_v2.get(_PHOTOMETRIC) == 0


def _depth(image: Image.Image) -> Tuple[str, int, str, int]:
    """Returns the kind of channels in Pillow's raw mode, the bits of each, the flags (S signed, F floats), and the
    largest value."""
    if image.format is None and image.mode == "I;16":  # decoded, without a file
        return "I", 16, "", 65535
    if image.format not in ("PNG", "TIFF", "PPM") or not image.tile:
        return image.mode, 8, "", 255
    codec, arguments = image.tile[0][0], image.tile[0][3]
    raw = arguments if isinstance(arguments, str) else str(arguments[0])
    if codec.startswith("ppm") and not isinstance(arguments, str):  # PBM files have no largest value
        maximum = int(arguments[1])
        if maximum <= 255:
            return raw, 8, "", 255
        return (raw, 16, "", maximum) if raw != "L" else (raw, 16, "", 65535)  # Pillow scales grey to 16 bits itself
    match = re.fullmatch(r"(\w+);(\d+)(\w*)", raw)
    if match is None:
        return image.mode, 8, "", 255
    bits = int(match[2])
    return match[1], bits, match[3], (1 << bits) - 1


def _scale_grey(array_HW: np.ndarray, bits: int, flags: str) -> np.ndarray:
    """Scales the pixels of one channel to the range from 0 to 255."""
    # Pillow's mode I is int32, in which unsigned values from 2^31 on are negative.
    if array_HW.dtype.kind != "f" and "S" not in flags and bits == 32:
        array_HW = array_HW.view(np.uint32)
    return scale_by_type(array_HW, bits, "S" in flags)


def _to_unit_range(array_HW: np.ndarray, maximum: int) -> np.ndarray:
    """Scales pixels from the range 0 to `maximum`, which the file declares, to 0 to 1."""
    if array_HW.max() > maximum:
        raise ValueError(f"it says that white is {maximum}, and a pixel is {array_HW.max()}")
    return array_HW.astype(np.float64) / maximum


def _read_colour(size: Tuple[int, int], content: bytes, keeps_alpha: bool = False) -> List[np.ndarray]:
    """Returns red, green and blue, or grey, at their bit depth; without transparency, unless `keeps_alpha`."""
    import cv2

    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None or decoded.dtype != np.uint16 or decoded.shape[1::-1] != tuple(size):
        raise ValueError("OpenCV cannot read its 16 bits a channel: save it as PNG")
    if decoded.ndim == 2:
        return [decoded]
    # OpenCV orders blue, green, red; transparency, the fourth, is dropped as in torchvision.
    order = (2, 1, 0, 3) if keeps_alpha and decoded.shape[2] == 4 else (2, 1, 0)
    return [decoded[..., channel] for channel in order]


def _as_channels(planes: List[np.ndarray], channels: int) -> List[np.ndarray]:
    """Converts grey to colour or colour to grey, if the number of channels differs.

    Raises:
        ValueError: there is another number of channels.
    """
    if len(planes) == channels:
        return planes
    if channels == 3 and len(planes) == 1:
        return planes * 3
    if channels != 1 or len(planes) != 3:
        require_bands(len(planes), channels)
    return [sum(plane * np.float32(weight) for plane, weight in zip(planes, _LUMA))]  # type: ignore[list-item]
