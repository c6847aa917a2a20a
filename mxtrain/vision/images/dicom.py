"""Reads the frames of a DICOM file, with their rescale, window and photometric interpretation, which enhanced objects
have in functional groups. Exported folders have a copy of this module.

Only the elements in `_TAGS` are read. Names, dates and other personal data are skipped, and messages contain only
numbers and known words, never text of a file. pydicom parses the elements; it is an optional requirement, and importing
this module does not import it.

Source: DICOM PS3.3, C.7.6.16 (functional groups).
Legend: C channels, H height, W width.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import math
import threading
import warnings
from typing import Any, BinaryIO, Callable, Dict, List, MutableSequence, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.libraries import EXTRAS, check_versions, install_command
from mxtrain.data.loading.opening import MAX_PIXELS, ImageTooLarge
from mxtrain.errors import DataError
from mxtrain.vision.images.dicom_pixels import (
    IMPLICIT,
    PixelLayout,
    find_frames,
    read_pixels,
    require_frames,
    require_read,
)
from mxtrain.vision.images.volume_slice import as_labels
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
HEAD_READ = HEAD_BYTES + 2 * MAX_HEADER_BYTES
"""Number of bytes at the start of a file that contain its header."""
_HEAD_SEARCHED = 1 << 16
"""Number of bytes at the start of a file that tell most files of one frame."""
_PERCENTILE_VALUES = 1 << 20
"""Number of values of which percentiles are computed; more change only the third digit."""

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
    "SegmentationType": 0x00620001,
    "SharedFunctionalGroupsSequence": 0x52009229,
    "PerFrameFunctionalGroupsSequence": 0x52009230,
}
"""Elements that are read: the group in the upper 16 bits of a tag, the element in the lower 16."""
_GROUPS = {
    "RescaleIntercept": "PixelValueTransformationSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "WindowCenter": "FrameVOILUTSequence",
    "WindowWidth": "FrameVOILUTSequence",
    "VOILUTFunction": "FrameVOILUTSequence",
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
}
"""Element -> functional group in which enhanced objects have it."""
_ITEM = b"\xfe\xff\x00\xe0"
_MAX_ITEMS = 100_000
"""Largest number of items of sequences in a header. A parsed item takes more than a kilobyte, and 8 bytes in a file."""
_MAX_FRAMES = 100_000
_NUMBER_OF_FRAMES, _ROWS = b"\x28\x00\x08\x00", b"\x28\x00\x10\x00"
"""Tags as they lie in files."""
_FIRST_PIXELS, _PIXELS = 0x7FE00008, 0x7FE00010
_TRANSFER_SYNTAX = 0x00020010
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


class DicomFile:
    """Header of a DICOM file, by which its frames are decoded.

    Attributes:
        num_frames: number of frames.
        size: (width, height) of a frame.
    """

    def __init__(self, head: bytes, file_size: int) -> None:
        """Reads the header.

        Args:
            head: content of the file, or its first `HEAD_READ` bytes.
            file_size: size of the file in bytes.

        Raises:
            ValueError: pydicom is not installed, or the file is damaged, too large, or not of a supported kind.
        """
        self._syntax, begin = read_syntax(head)
        self._header, self._pixel_span = _read_header(head, begin, self._syntax == IMPLICIT, file_size)
        if "ModalityLUTSequence" in self._header:
            raise ValueError(
                "a table (Modality LUT) says what its values mean, and RescaleSlope and RescaleIntercept are read: "
                "convert it"
            )
        kind = self._word("SegmentationType", ("LABELMAP", "BINARY", "FRACTIONAL"), "LABELMAP")
        if kind != "LABELMAP":
            raise ValueError(
                f"it is a segmentation object (DICOM SEG) of the type {kind}, which has frames of single segments, and "
                "label images are read: write the number of the class of each pixel"
            )
        self._photometric = self._word("PhotometricInterpretation", (*_GREY, *_COLOUR, *_OTHERS))
        self._layout = self._read_layout()
        self.size = (self._layout.columns, self._layout.rows)
        self.num_frames = self._read_frames()
        self._parts: Optional[List[Sequence[slice]]] = None
        self._bounds: Optional[Tuple[float, float]] = None
        self._ends: Optional[Tuple[float, float]] = None
        self._lock = threading.Lock()
        require_frames(self._pixel_span, self._layout, self.num_frames, file_size)

    def planes(self, content: bytes, frame: int, window: Window) -> List[np.ndarray]:
        """Decodes a frame, and maps grey values from black to white.

        Args:
            content: content of the file.
            frame: number of the frame, from 0.
            window: see `Decoding.window`; not allowed for colour.

        Returns:
            The channels, (H, W) each: grey as float32 from 0 to 255; or red, green and blue as uint8, or as float32
            from 0 to 255 if they have more than 8 bits.
        """
        layout = self._layout
        if layout.samples == 3:
            require_grey(self._photometric, window)
            pixels_HWC = self._stored(content, frame)
            planes = [pixels_HWC[..., channel] for channel in range(3)]
            if layout.stored == 8:
                return [plane.astype(np.uint8) for plane in planes]
            return [scale_full(plane, *layout.range) for plane in planes]
        to_grey = self._grey_function(content, frame, window)  # before decoding: it may reject the window
        grey_HW = to_grey(self.values(content, frame))
        return [(WHITE - grey_HW if self._photometric == "MONOCHROME1" else grey_HW).astype(np.float32)]

    def values(self, content: bytes, frame: int) -> np.ndarray:
        """Decodes the rescaled values of a grey frame, (H, W).

        Raises:
            ValueError: the frame is damaged, or in colour.
        """
        if self._layout.samples == 3:
            raise ValueError(f"it is in colour ({self._photometric}), and values are grey")
        slope, intercept = self._rescale(frame)
        return self._stored(content, frame) * slope + intercept

    def vector(self, name: str, frame: int, length: int) -> Optional[np.ndarray]:
        """Returns the numbers of an element of a frame, such as ImagePositionPatient; None if it does not have so
        many."""
        return numbers_of(self._dataset_of(name, frame), name, length)

    def _stored(self, content: bytes, frame: int) -> np.ndarray:
        _silence_pydicom()  # another thread may have restored the filters of warnings since the header was read
        if self._parts is None:  # once for all frames: a walk along all fragments for each takes quadratic time
            self._parts = find_frames(content, self._pixel_span, self._layout, self.num_frames)
        return read_pixels(b"".join(content[part] for part in self._parts[frame]), self._layout)

    def _rescale(self, frame: int) -> Tuple[float, float]:
        """Returns slope and intercept of a frame."""
        slope = self._number("RescaleSlope", 1.0, frame)
        if slope == 0:
            raise ValueError("its RescaleSlope is 0, which makes all pixels alike")
        return slope, self._number("RescaleIntercept", 0.0, frame)

    def _read_frames(self) -> int:
        """Returns the number of frames."""
        count = self._number("NumberOfFrames", 1)
        if count != int(count) or not 0 < count <= _MAX_FRAMES:
            raise ValueError(f"its NumberOfFrames is {count:.10g}, and 1 to {_MAX_FRAMES:,} frames are read")
        groups = _items_of(self._header, "PerFrameFunctionalGroupsSequence")
        if groups and len(groups) != count:
            raise ValueError(f"it has {count:g} frames, and functional groups of {len(groups)}: it is damaged")
        return int(count)

    def _grey_function(self, content: bytes, frame: int, window: Window) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the function that maps rescaled values of a frame to grey from 0 to 255."""
        if not isinstance(window, str):
            centre, width = window
            # A typed window is LINEAR_EXACT for all files: the standard's LINEAR is half a unit beside it and means
            # whole numbers, so a window of width 1 on floats would become a threshold.
            return lambda value_HW: linear_exact(value_HW, centre, width)
        if window == PERCENTILE:
            bounds = None if self.num_frames == 1 else self._percentiles(content)
            return lambda value_HW: stretch(value_HW, bounds or percentile_range(value_HW))
        file_window = self._file_window(frame) if window == "auto" else None
        if file_window is not None:
            function, centre, width = file_window
            return lambda value_HW: FUNCTIONS[function](value_HW, centre, width)
        low, high = self._full_range()
        return lambda value_HW: scale_full(value_HW, low, high)

    def _full_range(self) -> Tuple[float, float]:
        """Returns the smallest and largest possible value of all frames, which may have slopes of their own."""
        if self._ends is None:
            rescales = {self._rescale(frame) for frame in range(self.num_frames)}
            # A negative slope exchanges the ends.
            ends = [bound * slope + intercept for slope, intercept in rescales for bound in self._layout.range]
            self._ends = min(ends), max(ends)
        return self._ends

    def _percentiles(self, content: bytes) -> Tuple[float, float]:
        """Returns the percentiles of the window `percentile`, of all frames, so that a tissue is as bright in each."""
        with self._lock:
            if self._bounds is None:
                step = 1 + self.num_frames * self._layout.rows * self._layout.columns // _PERCENTILE_VALUES
                while math.gcd(step, self._layout.columns) > 1:  # a divisor of a side would take few columns only
                    step += 1
                values = [self.values(content, frame).ravel()[::step] for frame in range(self.num_frames)]
                self._bounds = percentile_range(np.concatenate(values))
            return self._bounds

    def _file_window(self, frame: int) -> Optional[Tuple[str, float, float]]:
        """Returns function, centre and width of the first window of a frame; None if there is none."""
        centre, width = self._number("WindowCenter", None, frame), self._number("WindowWidth", None, frame)
        if centre is None or width is None:
            return None
        function = self._word("VOILUTFunction", tuple(FUNCTIONS), "LINEAR", frame)
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

    def _dataset_of(self, name: str, frame: int) -> Any:
        """Returns the `pydicom.Dataset` that has an element of a frame: its functional group, that of all frames, or
        the header."""
        group = _GROUPS.get(name, "")
        places = (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)) if group else ()
        for sequence, index in places:
            for groups in _items_of(self._header, sequence)[index : index + 1]:
                for item in _items_of(groups, group)[:1]:
                    if name in item:
                        return item
        return self._header

    def _word(self, name: str, known: Tuple[str, ...], missing: str = "of no kind", frame: int = 0) -> str:
        """Returns the first value of an element, which must be one of the `known` words; `missing` if there is none.
        The message of the error does not repeat the text in the file, which may be private."""
        word = _first_value(self._dataset_of(name, frame), name)
        if word is not None and word not in known:
            raise ValueError(f"its element {_shown(name)} holds a word that is not known")
        return missing if word is None else str(word)

    def _number(self, name: str, missing: Any, frame: int = 0) -> Any:
        """Returns the first number of an element with numbers as text; `missing` if there is none."""
        number = _first_value(self._dataset_of(name, frame), name)
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


class DicomReader:
    """An opened DICOM file with one frame, as `PlaneReader`. The constructor reads the header, `planes` the pixels."""

    def __init__(self, content: bytes) -> None:
        """Reads the header.

        Args:
            content: content of the file.

        Raises:
            ValueError: it has several frames; otherwise as `DicomFile`.
        """
        self._content, self._file = content, DicomFile(content, len(content))
        # The first frame is not taken instead: a CT of 300 slices would be trained on by its first, without a word.
        if self._file.num_frames != 1:
            raise ValueError(
                f"it has {self._file.num_frames} frames, and one is expected here: write each frame to a file of its "
                "own"
            )
        self.size = self._file.size
        """(width, height)."""
        self.own_channels = 3
        """See `PlaneReader`: grey and colour become three channels."""

    def planes(self, window: Window, channels: int = 1) -> List[np.ndarray]:
        """Decodes the image; see `DicomFile.planes`. A file is grey or in colour, whatever `channels` is."""
        return self._file.planes(self._content, 0, window)

    def labels(self) -> np.ndarray:
        """Returns the labels, (H, W); see `Volume.labels`."""
        return as_labels(self._file.values(self._content, 0))


def has_frames(opened: BinaryIO) -> bool:
    """Returns True if a file is DICOM and has several frames. A damaged one has none: reading it raises the error.

    Args:
        opened: the opened file, at its beginning.
    """
    head = opened.read(_HEAD_SEARCHED)
    if not is_dicom(head):
        return False
    rows = head.find(_ROWS)
    if rows < 0:
        head += opened.read(HEAD_READ)
    elif head.find(_NUMBER_OF_FRAMES, 0, rows) < 0:  # most files, without the work of parsing
        return False
    try:
        syntax, begin = read_syntax(head)
        tag = _TAGS["NumberOfFrames"]
        file = io.BytesIO(head[begin:])
        header = read_dataset(file, syntax == IMPLICIT, lambda reached, vr, length: reached > tag, [tag])
        return float(_first_value(header, "NumberOfFrames") or 1) > 1
    except (ValueError, TypeError):
        return False


def scale_full(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Maps values linearly, from 0 at `low` to 255 at `high`."""
    return ((value - low) * (WHITE / (high - low))).astype(np.float32)


def read_syntax(content: bytes) -> Tuple[str, int]:
    """Reads the file meta information (group 2). Returns the UID of the transfer syntax, and the offset of the data set
    behind it. `pydicom.dcmread` is not called: it would unpack a deflated data set, of any size, first."""
    file = io.BytesIO(content[HEAD_BYTES : HEAD_BYTES + MAX_HEADER_BYTES])
    meta = read_dataset(file, False, lambda tag, vr, length: tag >> 16 != 2, [_TRANSFER_SYNTAX])
    syntax, offset = _first_value(meta, "TransferSyntaxUID"), HEAD_BYTES + file.tell()
    if offset >= len(content) or not isinstance(syntax, str):
        raise ValueError("it ends before its data set, or does not say its transfer syntax: it is damaged")
    require_read(syntax)
    return syntax, offset


def _read_header(content: bytes, begin: int, is_implicit: bool, file_size: int) -> Tuple[Any, Tuple[int, int]]:
    """Returns a `pydicom.Dataset` with the elements in `_TAGS`, and the offset and the number of the pixel bytes; the
    number is -1 if the pixels are compressed fragments, which end with a delimiter."""
    head = content[begin : begin + MAX_HEADER_BYTES]
    if head.count(_ITEM) > _MAX_ITEMS:
        raise ValueError(f"its header has more than {_MAX_ITEMS:,} items")
    file = io.BytesIO(head)
    reached: Dict[str, int] = {}

    def is_at_pixels(tag: int, vr: Optional[str], length: int) -> bool:
        if tag >= _FIRST_PIXELS:
            reached.update(tag=tag, length=length, begin=begin + file.tell())
        return tag >= _FIRST_PIXELS

    header = read_dataset(file, is_implicit, is_at_pixels, [*_TAGS.values()])
    if not reached and file.tell() >= MAX_HEADER_BYTES <= len(content) - begin:
        raise ValueError(f"its header takes more than {MAX_HEADER_BYTES >> 20} MiB")
    if reached.get("tag") != _PIXELS:
        raise ValueError("it holds no pixels (PixelData), or is damaged")
    length, begin = reached["length"], reached["begin"]
    if length == 0xFFFFFFFF:
        return header, (begin, -1)
    if not length or begin + length > file_size:
        follow = max(0, file_size - begin)
        raise ValueError(f"it is cut off: its pixels take {length:,} bytes, and {follow:,} follow")
    return header, (begin, length)


def read_dataset(file: io.BytesIO, is_implicit: bool, stops_at: Callable[..., bool], tags: List[int]) -> Any:
    """Returns a `pydicom.Dataset` with the elements `tags`. pydicom skips all others, such as names and dates, and
    converts values only when they are accessed."""
    try:
        parse = importlib.import_module("pydicom.filereader").read_dataset
    except ImportError as error:
        raise ValueError(f"it is a DICOM file, and pydicom, which reads it, is not installed. {_INSTALL}") from error
    _silence_pydicom()
    try:
        return parse(file, is_implicit, True, stop_when=stops_at, specific_tags=tags)
    except Exception as error:  # pydicom lets through KeyError, struct.error, RecursionError ...
        # Without the cause, whose text may repeat private content of the file.
        raise ValueError(f"its header is damaged ({type(error).__name__})") from None


def _items_of(dataset: Any, name: str) -> Any:
    """Returns the items of a sequence, each a `pydicom.Dataset`; an empty list if there is no sequence."""
    try:
        sequence = dataset.get(name)
    except Exception:  # of pydicom, whose text may repeat private content of the file
        raise ValueError("its functional groups are damaged") from None
    kind = importlib.import_module("pydicom.sequence").Sequence
    return sequence if isinstance(sequence, kind) else []


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


def numbers_of(dataset: Any, name: str, count: int) -> Optional[np.ndarray]:
    """Returns the numbers of an element of a `pydicom.Dataset`; None if it does not have so many."""
    try:
        vector = np.array([float(value) for value in dataset.get(name) or ()])
    except Exception:  # of pydicom, whose text may repeat private content
        return None
    return vector if len(vector) == count and np.isfinite(vector).all() else None


def _silence_pydicom() -> None:
    """Switches off pydicom's warnings and log, which may repeat private content of a file in the terminal and in the
    run's log."""
    pattern = r"pydicom\b"
    if not any(entry[0] == "ignore" and getattr(entry[3], "pattern", "") == pattern for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=pattern)
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)


def _shown(name: str) -> str:
    return f"({_TAGS[name] >> 16:04x},{_TAGS[name] & 0xFFFF:04x})"
