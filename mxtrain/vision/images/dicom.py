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
import struct
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from mxtrain.config.libraries import EXTRAS, check_versions, installing
from mxtrain.data.loading.opening import MAX_PIXELS, ImageTooLarge
from mxtrain.errors import DataError
from mxtrain.vision.images.dicom_pixels import IMPLICIT, PixelLayout, read_pixels, require_read
from mxtrain.vision.images.window import FUNCTIONS, WHITE, Window, linear_exact, require_grey

MAX_HEADER_BYTES = 16 << 20
"""Size limit of the elements before the pixels. A parsed element needs up to 30 times its size in memory."""
_MAGIC_AT = 128
HEAD_BYTES = _MAGIC_AT + 4
"""Number of bytes at the start of a file that identify DICOM."""

# Tags of elements: the group in the upper 16 bits, the element in the lower 16.
_SAMPLES, _PHOTOMETRIC, _PLANAR, _FRAMES = 0x00280002, 0x00280004, 0x00280006, 0x00280008
_ROWS, _COLUMNS, _ALLOCATED, _STORED, _HIGH, _SIGNED = (
    0x00280010,
    0x00280011,
    0x00280100,
    0x00280101,
    0x00280102,
    0x00280103,
)
_CENTRE, _WIDTH, _INTERCEPT, _SLOPE, _FUNCTION, _MODALITY_LUT = (
    0x00281050,
    0x00281051,
    0x00281052,
    0x00281053,
    0x00281056,
    0x00283000,
)
_FUNCTIONAL_GROUPS = 0x52009229
_TAGS = (
    _SAMPLES,
    _PHOTOMETRIC,
    _PLANAR,
    _FRAMES,
    _ROWS,
    _COLUMNS,
    _ALLOCATED,
    _STORED,
    _HIGH,
    _SIGNED,
    _CENTRE,
    _WIDTH,
    _INTERCEPT,
    _SLOPE,
    _FUNCTION,
    _MODALITY_LUT,
    _FUNCTIONAL_GROUPS,
)
_FIRST_PIXELS, _PIXELS = 0x7FE00008, 0x7FE00010
_LONG_LENGTH = (b"OB", b"OW", b"OF", b"OD", b"OL", b"UN", b"SQ", b"UT", b"UC", b"UR", b"OV", b"SV", b"UV")
"""Value representations with a length of 32 bits, after 2 reserved bytes. Others have a length of 16 bits."""
_TRANSFER_SYNTAX = 0x00020010
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_OTHERS = ("PALETTE COLOR", "YBR_PARTIAL_422", "YBR_PARTIAL_420", "XYB", "HSV", "ARGB", "CMYK")
_INSTALL = f"Type: {installing('dicom')}"


def is_dicom(head: bytes) -> bool:
    """Returns True if a file with these first bytes is DICOM."""
    return head[_MAGIC_AT:HEAD_BYTES] == b"DICM"


def require_pydicom(path: str) -> None:
    """Rejects a DICOM file if pydicom is not installed.

    Raises:
        DataError: pydicom is not installed, or in another version than the project's.
    """
    check_versions(EXTRAS["dicom"], f"'{path}' is a DICOM file, which")
    if importlib.util.find_spec("pydicom") is None:
        raise DataError(f"'{path}' is a DICOM file, and pydicom is not installed, which reads it. {_INSTALL}.")


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
        self._element, offset = _read_elements(content, begin, self._syntax == IMPLICIT)
        self._pixel_span = _find_pixels(content, offset)
        # The first frame is not taken instead: a CT of 300 slices would be trained on by its first, without a word.
        if self._number(_FRAMES, 1) != 1:
            raise ValueError(
                f"it has {self._number(_FRAMES, 1):.0f} frames, and files of one are read: write each frame to a file "
                "of its own"
            )
        if _MODALITY_LUT in self._element or _FUNCTIONAL_GROUPS in self._element:
            raise ValueError(
                "a table (Modality LUT) or functional groups of an enhanced object say what its values mean, and "
                "RescaleSlope and RescaleIntercept are read: convert it to a classic object"
            )
        self._photometric = self._word(_PHOTOMETRIC, (*_GREY, *_COLOUR, *_OTHERS))
        self._layout = self._read_layout()
        self.size = (self._layout.columns, self._layout.rows)
        """(width, height)."""

    def planes(self, window: Window) -> List[np.ndarray]:
        """Decodes the image, and maps grey values from black to white.

        Args:
            window: see `Decoding.window`; not allowed for colour.

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
        slope, intercept = self._number(_SLOPE, 1.0), self._number(_INTERCEPT, 0.0)
        if slope == 0:
            raise ValueError("its RescaleSlope is 0, which makes all pixels alike")
        if not isinstance(window, str):
            centre, width = window
            # A typed window is LINEAR_EXACT for all files: the standard's LINEAR is half a unit beside it and means
            # whole numbers, so a window of width 1 on floats would become a threshold.
            return lambda pixels_HW: linear_exact(pixels_HW * slope + intercept, centre, width)
        file_window = self._file_window() if window == "auto" else None
        if file_window is not None:
            function, centre, width = file_window
            return lambda pixels_HW: FUNCTIONS[function](pixels_HW * slope + intercept, centre, width)
        # A negative slope exchanges the ends of the range.
        low, high = sorted(bound * slope + intercept for bound in self._layout.range)
        return lambda pixels_HW: scale_full(pixels_HW * slope + intercept, low, high)

    def _file_window(self) -> Optional[Tuple[str, float, float]]:
        """Returns function, centre and width of the first window in the file; None if there is none."""
        centre, width = self._number(_CENTRE, None), self._number(_WIDTH, None)
        if centre is None or width is None:
            return None
        function = self._word(_FUNCTION, tuple(FUNCTIONS), "LINEAR")
        if width <= 0 or function == "LINEAR" and width < 1:
            raise ValueError(
                f"its window is {width:g} wide, which no window can be: type dataset.window=full or "
                "dataset.window=[CENTRE,WIDTH]"
            )
        return function, centre, width

    def _read_layout(self) -> PixelLayout:
        rows, columns = self._count(_ROWS, "Rows"), self._count(_COLUMNS, "Columns")
        # Memory follows from Rows and Columns, so they are judged before pixels are decoded.
        if rows * columns > MAX_PIXELS:
            raise ImageTooLarge(f"it has {columns} x {rows} pixels, and at most {MAX_PIXELS:,} are read")
        samples = self._count(_SAMPLES, "SamplesPerPixel", 1)
        allocated = self._count(_ALLOCATED, "BitsAllocated")
        stored = self._count(_STORED, "BitsStored", allocated)
        high = self._count(_HIGH, "HighBit", stored - 1, at_least=0)
        if self._photometric not in (_GREY if samples == 1 else _COLOUR) or samples not in (1, 3):
            raise ValueError(
                f"its pixels are {self._photometric} in {samples} samples, and {', '.join((*_GREY, *_COLOUR))} are "
                "read: convert it"
            )
        if allocated not in (8, 16, 32) or not stored <= high + 1 <= allocated:
            raise ValueError(
                f"its pixels have {allocated} bits, of which {stored} up to bit {high} count: 8, 16 and 32 are read"
            )
        is_signed = self._count(_SIGNED, "PixelRepresentation", 0, at_least=0) == 1
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
            self._count(_PLANAR, "PlanarConfiguration", 0, at_least=0) == 1,
            self._photometric,
            self._syntax,
        )

    def _values(self, tag: int) -> List[bytes]:
        """Returns the values of a text element, which are separated by backslashes; empty if it is missing."""
        value = self._element.get(tag)
        return [part.strip(b" \0") for part in value.split(b"\\")] if value else []

    def _word(self, tag: int, known: Tuple[str, ...], missing: str = "of no kind") -> str:
        """Returns the first value of an element, which must be one of the `known` words; `missing` if there is none.
        The message of the error does not repeat the text in the file, which may be private."""
        word = [word for word in known if self._values(tag)[:1] == [word.encode()]]
        if not word and self._values(tag)[:1] not in ([], [b""]):
            raise ValueError(f"its element {_shown(tag)} holds a word that is not known")
        return word[0] if word else missing

    def _number(self, tag: int, missing: Any) -> Any:
        """Returns the first number of an element with numbers as text; `missing` if there is none."""
        first = (self._values(tag) or [b""])[0]
        if not first:
            return missing
        try:
            number = float(first)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"its element {_shown(tag)} holds no number")
        return number

    def _count(self, tag: int, name: str, missing: Optional[int] = None, at_least: int = 1) -> int:
        """Returns the number of an element with an unsigned 16-bit integer; `missing`, if given, if there is none."""
        value = self._element.get(tag) or b""
        if not value and missing is not None:
            return missing
        number = int.from_bytes(value[:2], "little")
        if len(value) < 2 or number < at_least:
            raise ValueError(f"it does not say its {name}: it holds no image, or is damaged")
        return number


def scale_full(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Maps values linearly, from 0 at `low` to 255 at `high`."""
    return ((value - low) * (WHITE / (high - low))).astype(np.float32)


def _read_syntax(content: bytes) -> Tuple[str, int]:
    """Reads the file meta information (group 2), which is always explicit little endian. Returns the UID of the
    transfer syntax, and the offset of the data set behind it."""
    offset, syntax = HEAD_BYTES, ""
    while content[offset : offset + 2] == b"\x02\x00":
        is_long = content[offset + 4 : offset + 6] in _LONG_LENGTH
        head = content[offset : offset + (12 if is_long else 8)]
        if len(head) < (12 if is_long else 8):
            break
        group, element = struct.unpack_from("<HH", head)
        (length,) = struct.unpack_from("<I", head, 8) if is_long else struct.unpack_from("<H", head, 6)
        offset += len(head)
        if group << 16 | element == _TRANSFER_SYNTAX:
            syntax = content[offset : offset + min(length, 64)].strip(b" \0").decode("ascii", "replace")
        offset += length
    if offset >= len(content) or not syntax:
        raise ValueError("it ends before its data set, or does not say its transfer syntax: it is damaged")
    require_read(syntax)
    return syntax, offset


def _read_elements(content: bytes, begin: int, is_implicit: bool) -> Tuple[Dict[int, bytes], int]:
    """Returns the raw bytes of the elements in `_TAGS` by tag, and the offset of the pixel element."""
    try:
        read_dataset = importlib.import_module("pydicom.filereader").read_dataset
    except ImportError as error:
        raise ValueError(f"it is a DICOM file, and pydicom, which reads it, is not installed. {_INSTALL}") from error
    _quieten()
    file = io.BytesIO(content[begin : begin + MAX_HEADER_BYTES])
    try:
        # With the list of tags pydicom passes over names and dates unread.
        dataset = read_dataset(file, is_implicit, True, stop_when=_is_at_pixels, specific_tags=list(_TAGS))
        # Raw elements: pydicom would warn of invalid values when it converts them, and repeat them in the warning.
        element = {int(each.tag): each.value for each in dataset.elements()}
    except Exception as error:  # pydicom lets through KeyError, struct.error, RecursionError ...
        # Without the cause, whose text may repeat private content of the file.
        raise ValueError(f"its header is damaged ({type(error).__name__})") from None
    offset = begin + file.seek(0, io.SEEK_CUR)
    if begin + MAX_HEADER_BYTES <= min(offset, len(content)):
        raise ValueError(f"its header takes more than {MAX_HEADER_BYTES >> 20} MiB")
    return {tag: value if isinstance(value, bytes) else b"" for tag, value in element.items()}, offset


def _is_at_pixels(tag: int, vr: Optional[str], length: int) -> bool:
    return tag >= _FIRST_PIXELS


def _quieten() -> None:
    """Silences pydicom: its warnings may repeat private content of a file in the terminal and in the run's log."""
    pattern = r"pydicom\b"
    if not any(entry[0] == "ignore" and getattr(entry[3], "pattern", "") == pattern for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=pattern)
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)


def _find_pixels(content: bytes, offset: int) -> Tuple[int, int]:
    """Returns the offset and the number of the pixel bytes; the number is -1 if the pixels are compressed fragments,
    which end with a delimiter."""
    if len(content) < offset + 8 or _tag(content, offset) != _PIXELS:
        raise ValueError("it holds no pixels (PixelData), or is damaged")
    # An implicit element has its length here. Lengths are even, and the codes of O and U are odd.
    is_explicit = content[offset + 4 : offset + 6] in (b"OB", b"OW", b"UN")
    begin = offset + (12 if is_explicit else 8)
    length = int.from_bytes(content[begin - 4 : begin], "little")
    if length == 0xFFFFFFFF:
        return begin, -1
    if not length or begin + length > len(content):
        follow = max(0, len(content) - begin)
        raise ValueError(f"it is cut off: its pixels take {length:,} bytes, and {follow:,} follow")
    return begin, length


def _tag(content: bytes, offset: int) -> int:
    group, element = struct.unpack_from("<HH", content, offset)
    return int(group << 16 | element)


def _shown(tag: int) -> str:
    return f"({tag >> 16:04x},{tag & 0xFFFF:04x})"
