"""Reads the image of a DICOM file with one frame, with its rescale, window and photometric interpretation.

Only the elements in `_TAGS` are read. Names, dates and other personal data are skipped, and messages contain only
numbers and known words, never text of a file. pydicom parses the elements; it is an optional requirement, and importing
this module does not import it.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import math
import warnings
from typing import Any, Callable, Dict, List, MutableSequence, Optional, Tuple

import numpy as np

from mxtrain.config.libraries import EXTRAS, check_versions, install_command
from mxtrain.data.loading.opening import MAX_PIXELS, ImageTooLarge
from mxtrain.errors import DataError
from mxtrain.vision.images.dicom_pixels import IMPLICIT, PixelLayout, read_pixels, require_read
from mxtrain.vision.images.window import (
    FUNCTIONS,
    PERCENTILE,
    WHITE,
    Window,
    linear_exact,
    percentile_range,
    require_grey,
    stretch,
)

MAX_HEADER_BYTES = 16 << 20
"""Size limit of the elements before the pixels. A parsed element needs up to 30 times its size in memory."""
_MAGIC_OFFSET = 128
HEAD_BYTES = _MAGIC_OFFSET + 4
"""Number of bytes at the start of a file that identify DICOM."""

_TAGS = {
    "SamplesPerPixel": 0x00280002,
    "PhotometricInterpretation": 0x00280004,
    "PlanarConfiguration": 0x00280006,
    "NumberOfFrames": 0x00280008,
    "Rows": 0x00280010,
    "Columns": 0x00280011,
    "BitsAllocated": 0x00280100,
    "BitsStored": 0x00280101,
    "HighBit": 0x00280102,
    "PixelRepresentation": 0x00280103,
    "WindowCenter": 0x00281050,
    "WindowWidth": 0x00281051,
    "RescaleIntercept": 0x00281052,
    "RescaleSlope": 0x00281053,
    "VOILUTFunction": 0x00281056,
    "ModalityLUTSequence": 0x00283000,
    "SharedFunctionalGroupsSequence": 0x52009229,
}
"""Elements that are read: the group in the upper 16 bits of a tag, the element in the lower 16."""
_FIRST_PIXELS, _PIXELS = 0x7FE00008, 0x7FE00010
_TRANSFER_SYNTAX = 0x00020010
_POSITION, _PLANE = 0x00200032, 0x00200037
"""ImagePositionPatient and ImageOrientationPatient."""
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_OTHERS = ("PALETTE COLOR", "YBR_PARTIAL_422", "YBR_PARTIAL_420", "XYB", "HSV", "ARGB", "CMYK")
_INSTALL = f"Type: {install_command('dicom')}"


def is_dicom(head: bytes) -> bool:
    """Returns True if a file with these first bytes is DICOM."""
    return head[_MAGIC_OFFSET:HEAD_BYTES] == b"DICM"


def require_pydicom(path: str) -> None:
    """Rejects a DICOM file if pydicom is not installed.

    Raises:
        DataError: pydicom is not installed, or in another version than the project's.
    """
    check_versions(EXTRAS["dicom"], f"'{path}' is a DICOM file, which")
    if importlib.util.find_spec("pydicom") is None:
        raise DataError(f"'{path}' is a DICOM file, and pydicom is not installed, which reads it. {_INSTALL}.")


def slice_position(head: bytes) -> Optional[float]:
    """Returns the position of a slice along the normal of its plane, in millimetres, by ImageOrientationPatient and
    ImagePositionPatient; None if the file does not say it, or is damaged.

    Args:
        head: beginning of the file.
    """
    try:
        syntax, begin = _read_syntax(head)
        file = io.BytesIO(head[begin:])
        header = _read_dataset(file, syntax == IMPLICIT, lambda tag, vr, length: tag > _PLANE, [_POSITION, _PLANE])
        plane_6 = [float(value) for value in header.get("ImageOrientationPatient") or ()]
        position_3 = [float(value) for value in header.get("ImagePositionPatient") or ()]
    except Exception:  # of pydicom; reading the image raises the error
        return None
    if len(plane_6) != 6 or len(position_3) != 3 or not np.isfinite([*plane_6, *position_3]).all():
        return None
    return float(np.cross(plane_6[:3], plane_6[3:]) @ position_3)


class DicomReader:
    """An opened DICOM file. The constructor reads the header, `planes` the pixels.

    Raises:
        ValueError: pydicom is not installed, or the file is damaged, too large, or not a single image of a supported
            kind.
    """

    def __init__(self, content: bytes) -> None:
        """Reads the header.

        Args:
            content: content of the file.
        """
        self._content = content
        self._syntax, begin = _read_syntax(content)
        self._header, self._pixel_span = _read_header(content, begin, self._syntax == IMPLICIT)
        # The first frame is not taken instead: a CT of 300 slices would be trained on by its first, without a word.
        if self._number("NumberOfFrames", 1) != 1:
            raise ValueError(
                f"it has {self._number('NumberOfFrames', 1):.0f} frames, and files of one are read: write each frame "
                "to a file of its own"
            )
        if "ModalityLUTSequence" in self._header or "SharedFunctionalGroupsSequence" in self._header:
            raise ValueError(
                "a table (Modality LUT) or functional groups of an enhanced object say what its values mean, and "
                "RescaleSlope and RescaleIntercept are read: convert it to a classic object"
            )
        self._photometric = self._word("PhotometricInterpretation", (*_GREY, *_COLOUR, *_OTHERS))
        self._layout = self._read_layout()
        self.size = (self._layout.columns, self._layout.rows)
        """(width, height)."""
        self.own_channels = 3
        """See `PlaneReader`: grey and colour become three channels."""

    def planes(self, window: Window, channels: int = 1) -> List[np.ndarray]:
        """Decodes the image, and maps grey values from black to white.

        Args:
            window: see `Decoding.window`; not allowed for colour.
            channels: not used, see `PlaneReader`: a file is grey or in colour.

        Returns:
            The channels, (H, W) each: grey as float32 from 0 to 255; or red, green and blue as uint8, or as float32
            from 0 to 255 if they have more than 8 bits.
        """
        layout = self._layout
        if layout.samples == 3:
            require_grey(self._photometric, window)
            pixels_HWC = read_pixels(self._content, self._pixel_span, layout)
            planes = [pixels_HWC[..., channel] for channel in range(3)]
            if layout.stored == 8:
                return [plane.astype(np.uint8) for plane in planes]
            return [scale_full(plane, *layout.range) for plane in planes]
        to_grey = self._grey_function(window)  # before decoding: it may reject the window
        grey_HW = to_grey(read_pixels(self._content, self._pixel_span, layout))
        return [(WHITE - grey_HW if self._photometric == "MONOCHROME1" else grey_HW).astype(np.float32)]

    def _grey_function(self, window: Window) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the function that maps stored values to grey from 0 to 255: rescale, then window."""
        slope, intercept = self._number("RescaleSlope", 1.0), self._number("RescaleIntercept", 0.0)
        if slope == 0:
            raise ValueError("its RescaleSlope is 0, which makes all pixels alike")
        if not isinstance(window, str):
            centre, width = window
            # A typed window is LINEAR_EXACT for all files: the standard's LINEAR is half a unit beside it and means
            # whole numbers, so a window of width 1 on floats would become a threshold.
            return lambda pixels_HW: linear_exact(pixels_HW * slope + intercept, centre, width)
        if window == PERCENTILE:
            return lambda pixels_HW: _stretched(pixels_HW * slope + intercept)
        file_window = self._file_window() if window == "auto" else None
        if file_window is not None:
            function, centre, width = file_window
            return lambda pixels_HW: FUNCTIONS[function](pixels_HW * slope + intercept, centre, width)
        # A negative slope exchanges the ends of the range.
        low, high = sorted(bound * slope + intercept for bound in self._layout.range)
        return lambda pixels_HW: scale_full(pixels_HW * slope + intercept, low, high)

    def _file_window(self) -> Optional[Tuple[str, float, float]]:
        """Returns function, centre and width of the first window in the file; None if there is none."""
        centre, width = self._number("WindowCenter", None), self._number("WindowWidth", None)
        if centre is None or width is None:
            return None
        function = self._word("VOILUTFunction", tuple(FUNCTIONS), "LINEAR")
        if width <= 0 or function == "LINEAR" and width < 1:
            raise ValueError(
                f"its window is {width:g} wide, which no window can be: type dataset.window=full or "
                "dataset.window=[CENTRE,WIDTH]"
            )
        return function, centre, width

    def _read_layout(self) -> PixelLayout:
        rows, columns = self._count("Rows"), self._count("Columns")
        # Memory follows from Rows and Columns, so they are judged before pixels are decoded.
        if rows * columns > MAX_PIXELS:
            raise ImageTooLarge(f"it has {columns} x {rows} pixels, and at most {MAX_PIXELS:,} are read")
        samples = self._count("SamplesPerPixel", 1)
        allocated = self._count("BitsAllocated")
        stored = self._count("BitsStored", allocated)
        high = self._count("HighBit", stored - 1, at_least=0)
        if self._photometric not in (_GREY if samples == 1 else _COLOUR) or samples not in (1, 3):
            raise ValueError(
                f"its pixels are {self._photometric} in {samples} samples, and {', '.join((*_GREY, *_COLOUR))} are "
                "read: convert it"
            )
        if allocated not in (8, 16, 32) or not stored <= high + 1 <= allocated:
            raise ValueError(
                f"its pixels have {allocated} bits, of which {stored} up to bit {high} count: 8, 16 and 32 are read"
            )
        is_signed = self._count("PixelRepresentation", 0, at_least=0) == 1
        if samples == 3 and (is_signed or allocated > 16 or self._photometric != "RGB" and stored != 8):
            raise ValueError(f"its colours have {stored} bits{', signed' * is_signed}: convert it to 8 bits")
        return PixelLayout(
            rows,
            columns,
            samples,
            allocated,
            stored,
            high,
            is_signed,
            self._count("PlanarConfiguration", 0, at_least=0) == 1,
            self._photometric,
            self._syntax,
        )

    def _word(self, name: str, known: Tuple[str, ...], missing: str = "of no kind") -> str:
        """Returns the first value of an element, which must be one of the `known` words; `missing` if there is none.
        The message of the error does not repeat the text in the file, which may be private."""
        word = _first_value(self._header, name)
        if word is not None and word not in known:
            raise ValueError(f"its element {_shown(name)} holds a word that is not known")
        return missing if word is None else str(word)

    def _number(self, name: str, missing: Any) -> Any:
        """Returns the first number of an element with numbers as text; `missing` if there is none."""
        number = _first_value(self._header, name)
        if number is None:
            return missing
        if not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"its element {_shown(name)} holds no number")
        return float(number)

    def _count(self, name: str, missing: Optional[int] = None, at_least: int = 1) -> int:
        """Returns the number of an element with an unsigned 16-bit integer; `missing`, if given, if there is none."""
        number = _first_value(self._header, name)
        if number is None and missing is not None:
            return missing
        if not isinstance(number, int) or number < at_least:
            raise ValueError(f"it does not say its {name}: it holds no image, or is damaged")
        return number


def _stretched(value_HW: np.ndarray) -> np.ndarray:
    return stretch(value_HW, percentile_range(value_HW))


def scale_full(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Maps values linearly, from 0 at `low` to 255 at `high`."""
    return ((value - low) * (WHITE / (high - low))).astype(np.float32)


def _read_syntax(content: bytes) -> Tuple[str, int]:
    """Reads the file meta information (group 2). Returns the UID of the transfer syntax, and the offset of the data set
    behind it. `pydicom.dcmread` is not called: it would unpack a deflated data set, of any size, first."""
    file = io.BytesIO(content[HEAD_BYTES : HEAD_BYTES + MAX_HEADER_BYTES])
    meta = _read_dataset(file, False, lambda tag, vr, length: tag >> 16 != 2, [_TRANSFER_SYNTAX])
    syntax, offset = _first_value(meta, "TransferSyntaxUID"), HEAD_BYTES + file.tell()
    if offset >= len(content) or not isinstance(syntax, str):
        raise ValueError("it ends before its data set, or does not say its transfer syntax: it is damaged")
    require_read(syntax)
    return syntax, offset


def _read_header(content: bytes, begin: int, is_implicit: bool) -> Tuple[Any, Tuple[int, int]]:
    """Returns a `pydicom.Dataset` with the elements in `_TAGS`, and the offset and the number of the pixel bytes; the
    number is -1 if the pixels are compressed fragments, which end with a delimiter."""
    file = io.BytesIO(content[begin : begin + MAX_HEADER_BYTES])
    reached: Dict[str, int] = {}

    def is_at_pixels(tag: int, vr: Optional[str], length: int) -> bool:
        if tag >= _FIRST_PIXELS:
            reached.update(tag=tag, length=length, begin=begin + file.tell())
        return tag >= _FIRST_PIXELS

    header = _read_dataset(file, is_implicit, is_at_pixels, [*_TAGS.values()])
    if not reached and file.tell() >= MAX_HEADER_BYTES <= len(content) - begin:
        raise ValueError(f"its header takes more than {MAX_HEADER_BYTES >> 20} MiB")
    if reached.get("tag") != _PIXELS:
        raise ValueError("it holds no pixels (PixelData), or is damaged")
    length, begin = reached["length"], reached["begin"]
    if length == 0xFFFFFFFF:
        return header, (begin, -1)
    if not length or begin + length > len(content):
        follow = max(0, len(content) - begin)
        raise ValueError(f"it is cut off: its pixels take {length:,} bytes, and {follow:,} follow")
    return header, (begin, length)


def _read_dataset(file: io.BytesIO, is_implicit: bool, stops_at: Callable[..., bool], tags: List[int]) -> Any:
    """Returns a `pydicom.Dataset` with the elements `tags`. pydicom skips all others, such as names and dates, and
    converts values only when they are accessed."""
    try:
        read_dataset = importlib.import_module("pydicom.filereader").read_dataset
    except ImportError as error:
        raise ValueError(f"it is a DICOM file, and pydicom, which reads it, is not installed. {_INSTALL}") from error
    _silence_pydicom()
    try:
        return read_dataset(file, is_implicit, True, stop_when=stops_at, specific_tags=tags)
    except Exception as error:  # pydicom lets through KeyError, struct.error, RecursionError ...
        # Without the cause, whose text may repeat private content of the file.
        raise ValueError(f"its header is damaged ({type(error).__name__})") from None


def _first_value(dataset: Any, name: str) -> Any:
    """Returns the first value of an element; None if it is missing or empty, and NaN if it is damaged."""
    try:
        value = dataset.get(name)
    except Exception:  # of any type; its text may repeat private content of the file
        return math.nan
    if isinstance(value, MutableSequence):
        value = value[0] if value else None
    if isinstance(value, str):
        value = value.strip(" \0")
    return None if value == "" else value


def _silence_pydicom() -> None:
    """Switches off pydicom's warnings and log, which may repeat private content of a file in the terminal and in the
    run's log."""
    pattern = r"pydicom\b"
    if not any(entry[0] == "ignore" and getattr(entry[3], "pattern", "") == pattern for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=pattern)
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)


def _shown(name: str) -> str:
    return f"({_TAGS[name] >> 16:04x},{_TAGS[name] & 0xFFFF:04x})"
