"""Reads one encoded image, such as JPEG, PNG or DICOM, as it is displayed: upright, in grey or colour, at its own bit
depth.

White is 255 in the result. Channels of up to 8 bits stay uint8. Deeper ones become float32, scaled by their type:
integers by their largest value (65,535 for 16 bits); floats must lie between 0 and 1; a window overrides the scale.
Transparency is dropped without blending. If a file has several images, the first is read. Importing this module does
not import Pillow. Exported folders have a copy of this module.

Reasons: docs/decisions/0026-image-preprocessing.md.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import IMAGE_TOO_LARGE, UNREADABLE_IMAGE
from mxtrain.data.loading.opening import FORMATS, ImageTooLarge, open_image, require_pixels
from mxtrain.errors import LoaderError
from mxtrain.vision.images.dicom import DicomReader, is_dicom
from mxtrain.vision.images.window import Window, linear_exact, require_grey

if TYPE_CHECKING:
    from PIL import Image

REPLACE = "Replace or remove it, and run the same command again."

_ORIENTATION, _PHOTOMETRIC = 0x0112, 0x0106
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey. Source: ITU-R BT.601, as in Pillow."""
_UNLESS = ", unless dataset.window=[CENTRE,WIDTH] defines black and white"
_DEEP_COLOUR = ("RGB", "RGBA", "RGBX", "LA", "L")
"""Kinds of channels that are read with more than 8 bits each, by OpenCV."""


class ImageReader:
    """An opened image. `resized` decodes it; the constructor only reads the header, except for TIFF files, and for
    images with more than 8 bits per channel that are not DICOM.

    Raises:
        Exception: the content is not an image, or is too large. Pillow raises OSError, SyntaxError, ValueError,
            struct.error and its own errors; `read_error` converts them to one message.
    """

    def __init__(
        self, content: Union[bytes, Image.Image], window: Window = "auto", max_pixels: Optional[int] = None
    ) -> None:
        """Reads the header.

        Args:
            content: content of the file; or a decoded image, upright, which is changed.
            window: range of grey values, see `Decoding.window`.
            max_pixels: largest allowed number of pixels, checked before the image is decoded; None = `MAX_PIXELS` of
                `mxtrain.data.loading.opening`.
        """
        self._window = window
        self._dicom = DicomReader(content) if isinstance(content, bytes) and is_dicom(content) else None
        self.size: Tuple[int, int]
        """(width, height)."""
        if self._dicom is not None:
            self.size = self._dicom.size
            require_pixels(self.size, max_pixels)
            return
        if isinstance(content, bytes):
            image = open_image(content, FORMATS, max_pixels)
        else:
            image = content
            require_pixels(image.size, max_pixels)
        planes = _deep_planes(image, content) if isinstance(window, str) else [_apply_window(image, *window)]
        self._images = [image] if planes is None else planes
        self._is_deep = planes is not None
        if image.format == "TIFF":  # Pillow and OpenCV turn them upright themselves
            image.load()  # Pillow 10 and earlier give the size of the upright image only then
        transpose = None if image.format == "TIFF" else _upright_transpose(image)
        if transpose is not None:  # boxes refer to the upright image
            self._images = [plane.transpose(transpose) for plane in self._images]
        self.size = self._images[0].size

    def resized(
        self, box: Sequence[float], size: Tuple[int, int], channels: int, *, bicubic: bool = False
    ) -> np.ndarray:
        """Returns a part of the image in another size.

        Args:
            box: left, top, right and bottom in pixels.
            size: (width, height) of the result.
            channels: 1 grey, 3 colour.
            bicubic: if True, interpolate with cubic polynomials, which is smoother and slower than bilinear.

        Returns:
            The resized part (C, H, W): uint8, or float32 from 0 to 255 for an image with more than 8 bits.
        """
        from PIL import Image

        if self._dicom is not None:
            self._take_planes(self._dicom.planes(self._window))
        resample = Image.BICUBIC if bicubic else Image.BILINEAR
        if self._is_deep:
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

        self._is_deep = planes[0].dtype == np.float32
        self._images = [Image.fromarray(np.ascontiguousarray(plane)) for plane in planes]
        if not self._is_deep:
            self._images = [Image.merge("RGB", self._images)]
        self._dicom = None


def read_error(name: str, error: Exception, what: str = "an image") -> str:
    """Returns the message for an image that cannot be read; `REPLACE` is the remedy if it cannot be left out."""
    reason = re.sub(r" <_io\.\w+ [^>]*>", "", str(error))  # Pillow names the object that it was given
    return f"{name} cannot be read as {what} ({reason})."


def unreadable(name: str, error: Exception, what: str = "an image", kind: str = UNREADABLE_IMAGE) -> LoaderError:
    """Returns the error for an image that cannot be read: `read_error`, the remedy and the kind of problem."""
    return LoaderError(
        read_error(name, error, what), REPLACE, IMAGE_TOO_LARGE if isinstance(error, ImageTooLarge) else kind
    )


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
        planes_CHW = [_scale_to_255(np.asarray(image), bits, flags)]
        if _is_white_zero(image):
            planes_CHW = [255.0 - planes_CHW[0]]
    elif kind in _DEEP_COLOUR and isinstance(content, bytes):  # Pillow would keep only 8 bits
        image.load()  # raises if the file is damaged; OpenCV may return the undamaged part silently
        planes_CHW = [_to_unit_range(plane, maximum) * 255.0 for plane in _read_colour(image.size, content)]
    else:
        raise ValueError(f"{kind} with {bits} bits is not read: save it as RGB")
    return [Image.fromarray(plane.astype(np.float32)) for plane in planes_CHW]


def _apply_window(image: Image.Image, centre: float, width: float) -> Image.Image:
    """Maps the grey values in the file of an image through a window, to floats from 0 to 255.

    Args:
        image: opened image.
        centre, width: the window, in the values of the file.

    Raises:
        ValueError: the image has colours, or values that are not finite.
    """
    from PIL import Image

    _, bits, flags, _ = _depth(image)
    # Pillow scales the values of a PNM file to the whole range of 8 or 16 bits; this is undone below.
    arguments = image.tile[0][3] if image.format == "PPM" and image.tile[0][0].startswith("ppm") else ""
    largest = 0 if isinstance(arguments, str) else int(arguments[1])
    if image.mode[0] not in "IFL" or len(image.getbands()) > 1:
        require_grey(image.mode, (centre, width))
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
    shown_HW = linear_exact(value_HW.astype(np.float64), centre, width)
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


def _scale_to_255(array_HW: np.ndarray, bits: int, flags: str) -> np.ndarray:
    """Scales the pixels of one channel to the range from 0 to 255."""
    if array_HW.dtype.kind == "f":
        low, high = float(array_HW.min()), float(array_HW.max())
        if not (0 <= low and high <= 1):
            raise ValueError(
                f"its pixels are floats from {low:g} to {high:g}; they must lie between 0 and 1, white{_UNLESS}"
            )
        return array_HW.astype(np.float64) * 255.0
    if "S" not in flags and bits == 32:
        array_HW = array_HW.view(np.uint32)
    # The scale is that of the type: an image's own largest value would hide its brightness from the network.
    maximum = (1 << (bits - 1 if "S" in flags else bits)) - 1
    low, high = int(array_HW.min()), int(array_HW.max())
    if low < 0:
        raise ValueError(f"its pixels are whole numbers from {low} to {high}; none may be below 0, black{_UNLESS}")
    # 510 = 2 * 255: below half a step of 8 bits the whole image is black.
    if bits > 16 and 0 < high * 510 < maximum:
        raise ValueError(
            f"its pixels have {bits} bits, and the brightest is {high} of {maximum}, which is black. Save it with 16 "
            f"bits, or as floats from 0 to 1{_UNLESS}"
        )
    return array_HW.astype(np.float64) * (255.0 / maximum)


def _to_unit_range(array_HW: np.ndarray, maximum: int) -> np.ndarray:
    """Scales pixels from the range 0 to `maximum`, which the file declares, to 0 to 1."""
    if array_HW.max() > maximum:
        raise ValueError(f"it says that white is {maximum}, and a pixel is {array_HW.max()}")
    return array_HW.astype(np.float64) / maximum


def _read_colour(size: Tuple[int, int], content: bytes) -> List[np.ndarray]:
    """Returns red, green and blue, or grey, at their bit depth and without transparency."""
    import cv2

    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None or decoded.dtype != np.uint16 or decoded.shape[1::-1] != tuple(size):
        raise ValueError("OpenCV cannot read its 16 bits a channel: save it as PNG")
    if decoded.ndim == 2:
        return [decoded]
    # OpenCV orders blue, green, red; transparency, the fourth, is dropped as in torchvision.
    return [decoded[..., channel] for channel in (2, 1, 0)]


def _as_channels(planes: List[np.ndarray], channels: int) -> List[np.ndarray]:
    """Converts grey to colour or colour to grey, if the number of channels differs."""
    if len(planes) == channels:
        return planes
    if channels == 3:
        return planes * 3
    return [sum(plane * np.float32(weight) for plane, weight in zip(planes, _LUMA))]  # type: ignore[list-item]
