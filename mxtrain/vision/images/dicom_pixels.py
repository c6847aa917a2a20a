"""Decodes the pixels of DICOM files: uncompressed, RLE, JPEG and JPEG 2000; other formats with decoders of pydicom.

Files are untrusted. The caller has limited Rows and Columns, and a compressed stream with another size is rejected
before it is decoded, so memory use is bounded.

Legend: C channels, H height, W width, N pixels in any order.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import struct
from dataclasses import dataclass, replace
from typing import Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.opening import open_image

IMPLICIT, _EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
_RLE = "1.2.840.10008.1.2.5"
_BASELINE, _EXTENDED = "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51"
_JPEG2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
_NAMES: Dict[str, str] = {
    IMPLICIT: "Implicit VR Little Endian",
    _EXPLICIT: "Explicit VR Little Endian",
    "1.2.840.10008.1.2.1.99": "Deflated Explicit VR Little Endian",
    "1.2.840.10008.1.2.2": "Explicit VR Big Endian",
    _RLE: "RLE Lossless",
    _BASELINE: "JPEG Baseline",
    _EXTENDED: "JPEG Extended",
    "1.2.840.10008.1.2.4.57": "JPEG Lossless (process 14)",
    "1.2.840.10008.1.2.4.70": "JPEG Lossless (first-order prediction)",
    "1.2.840.10008.1.2.4.80": "JPEG-LS Lossless",
    "1.2.840.10008.1.2.4.81": "JPEG-LS Near-Lossless",
    _JPEG2000[0]: "JPEG 2000 Lossless",
    _JPEG2000[1]: "JPEG 2000",
    "1.2.840.10008.1.2.4.100": "MPEG2",
    "1.2.840.10008.1.2.4.102": "MPEG-4",
    "1.2.840.10008.1.2.4.201": "High-Throughput JPEG 2000 Lossless",
    "1.2.840.10008.1.2.4.202": "High-Throughput JPEG 2000 Lossless RPCL",
    "1.2.840.10008.1.2.4.203": "High-Throughput JPEG 2000",
}
# Decoded by pydicom with one of `_PLUGINS`.
_BY_PLUGIN = (
    _EXTENDED,
    "1.2.840.10008.1.2.4.57",
    "1.2.840.10008.1.2.4.70",
    "1.2.840.10008.1.2.4.80",
    "1.2.840.10008.1.2.4.81",
)
# The deflated syntax is left out: it unpacks a thousandfold before Rows and Columns are known.
_READ = (IMPLICIT, _EXPLICIT, _RLE, _BASELINE, *_JPEG2000, *_BY_PLUGIN)
_PLUGINS = ("libjpeg", "gdcm")
_ITEM, _DELIMITER = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0"
_J2K_START = b"\xff\x4f\xff\x51"


@dataclass(frozen=True)
class PixelLayout:
    """Layout of an image's pixels in its file.

    Attributes:
        rows, columns: size of the image, at least 1.
        samples: number of samples per pixel: 1 for grey, 3 for colour.
        allocated: number of bits per sample in the file.
        stored: number of significant bits of a sample.
        high: position of the highest significant bit, from 0.
        is_signed: True if samples are in two's complement.
        is_planar: True if red, green and blue are separate planes, False if they are interleaved.
        photometric: DICOM's photometric interpretation.
        syntax: UID of the transfer syntax.
    """

    rows: int
    columns: int
    samples: int
    allocated: int
    stored: int
    high: int
    is_signed: bool
    is_planar: bool
    photometric: str
    syntax: str

    @property
    def range(self) -> Tuple[int, int]:
        """Returns the smallest and the largest possible value of a sample."""
        half = 1 << (self.stored - 1)
        return (-half, half - 1) if self.is_signed else (0, 2 * half - 1)


def require_read(syntax: str) -> None:
    """Raises a `ValueError` if a transfer syntax is not supported, even with all decoders installed."""
    if syntax not in _READ:
        # The text is untrusted: do not print it unless it looks like a UID.
        named = _named(syntax) if re.fullmatch(r"[0-9.]{1,64}", syntax) else "no UID"
        raise ValueError(f"its transfer syntax is {named}, which is not read: convert it, e.g. gdcmconv --raw OLD NEW")


def _named(syntax: str) -> str:
    return f"{_NAMES[syntax]} ({syntax})" if syntax in _NAMES else syntax


def require_frames(span: Tuple[int, int], layout: PixelLayout, num_frames: int, file_size: int) -> None:
    """Checks that a file has room for its frames; arguments as in `find_frames`.

    Args:
        file_size: size of the file in bytes.

    Raises:
        ValueError: it is cut off or damaged.
    """
    (begin, length) = span
    is_uncompressed = layout.syntax in (IMPLICIT, _EXPLICIT)
    if is_uncompressed != (length >= 0):
        raise ValueError(f"its transfer syntax is {_named(layout.syntax)}, and its pixels lie otherwise: it is damaged")
    if is_uncompressed:
        _require_bytes(length, layout, num_frames)
    elif 8 * num_frames > file_size - begin:
        raise ValueError(f"it is cut off: {file_size - begin:,} bytes cannot hold {num_frames:,} frames")


def find_frames(content: bytes, span: Tuple[int, int], layout: PixelLayout, num_frames: int) -> List[Sequence[slice]]:
    """Returns the parts of the file in which the pixels of each frame lie.

    Args:
        content: content of the file.
        span: offset and number of bytes of the pixels; the number is -1 if they are compressed and delimited.
        layout: layout of the pixels.
        num_frames: number of frames in the file.

    Raises:
        ValueError: the file is cut off or damaged.
    """
    require_frames(span, layout, num_frames, len(content))
    begin, length = span
    if length < 0:
        return _find_fragments(content, begin, num_frames)
    num_bytes = _require_bytes(length, layout, num_frames)
    return [[slice(first, first + num_bytes)] for first in range(begin, begin + num_frames * num_bytes, num_bytes)]


def read_pixels(data: bytes, layout: PixelLayout) -> np.ndarray:
    """Decodes the pixels of a frame.

    Args:
        data: bytes of the frame, the parts of `find_frames` after each other.
        layout: layout of the pixels.

    Returns:
        Stored integer values (H, W), or red, green and blue (H, W, 3).

    Raises:
        ValueError: the pixels are damaged, or no decoder for them is installed.
    """
    syntax = layout.syntax
    if syntax in (IMPLICIT, _EXPLICIT):
        return _interpret(_decode_with_pydicom(data, layout), layout)
    if syntax == _RLE:
        _require_rle_size(data, layout)
        encapsulated = importlib.import_module("pydicom.encaps").encapsulate([data])
        return _interpret(_decode_with_pydicom(encapsulated, layout), layout)
    # Pillow decodes this and JPEG of 8 bits: pydicom 2 (Python 3.9) and 3 return different colours for one file.
    if syntax in _JPEG2000:
        return _decode_jpeg2000(data, layout)
    precision = _require_jpeg_size(data, layout)
    if syntax in (_BASELINE, _EXTENDED) and precision == 8:
        return _decode_jpeg(data, layout)
    return _decode_by_plugin(data, layout)


def _require_bytes(length: int, layout: PixelLayout, num_frames: int) -> int:
    """Returns the number of bytes of an uncompressed frame, and checks that all of them are there."""
    is_subsampled = layout.photometric == "YBR_FULL_422"  # two luminance samples share one blue and one red difference
    num_bytes = layout.rows * layout.columns * (2 if is_subsampled else layout.samples) * layout.allocated // 8
    if length < num_bytes * num_frames or is_subsampled and layout.columns % 2:
        frames = f"{num_frames:,} frames of " if num_frames > 1 else ""
        raise ValueError(
            f"it is cut off: {frames}{layout.rows} rows of {layout.columns} pixels take {num_bytes * num_frames:,} "
            f"bytes, not {length:,}"
        )
    return num_bytes


def _interpret(sample: np.ndarray, layout: PixelLayout) -> np.ndarray:
    """Extracts the significant bits with their sign, and converts YBR_FULL to RGB."""
    if layout.photometric.startswith("YBR_FULL"):
        return _ybr_to_rgb(sample)
    if layout.samples == 3 and layout.photometric != "RGB":
        raise ValueError(f"its pixels are {layout.photometric}, which only JPEG 2000 has: it is damaged")
    if layout.stored == layout.allocated and not layout.is_signed:
        return sample
    # Unsigned samples of 32 bits exceed int32.
    value: np.ndarray = sample.astype(np.int64 if layout.allocated == 32 else np.int32)
    value = (value >> (layout.high + 1 - layout.stored)) & ((1 << layout.stored) - 1)
    if layout.is_signed:  # sign extension of a two's complement with `stored` bits
        sign = 1 << (layout.stored - 1)
        value = (value ^ sign) - sign
    return value


def _ybr_to_rgb(ybr_HWC: np.ndarray) -> np.ndarray:
    """Converts YBR_FULL to RGB, uint8. Source: DICOM PS3.3, C.7.6.3.1.2."""
    y_HW = ybr_HWC[..., 0].astype(np.float32)
    blue_HW, red_HW = (ybr_HWC[..., channel].astype(np.float32) - 128 for channel in (1, 2))
    rgb = (y_HW + 1.402 * red_HW, y_HW - 0.344136 * blue_HW - 0.714136 * red_HW, y_HW + 1.772 * blue_HW)
    return np.clip(np.rint(np.stack(rgb, -1)), 0, 255).astype(np.uint8)


def _find_fragments(content: bytes, begin: int, num_frames: int) -> List[Sequence[slice]]:
    """Returns the fragments of each frame; arguments as in `find_frames`.

    Args:
        begin: offset of the first item, the offset table.

    Raises:
        ValueError: the fragments do not end, or cannot be divided among frames.
    """
    offset, starts = begin, []
    fragments: List[slice] = []
    while content[offset : offset + 4] == _ITEM:
        length = int.from_bytes(content[offset + 4 : offset + 8], "little")
        if offset + 8 + length > len(content):
            break
        starts.append(offset)
        fragments.append(slice(offset + 8, offset + 8 + length))
        offset += 8 + length
    if content[offset : offset + 4] != _DELIMITER or len(fragments) < 2:
        raise ValueError("it is cut off: its compressed pixels do not end")
    table = content[fragments.pop(0)]
    del starts[0]
    if num_frames == 1:
        return [fragments]
    if len(fragments) == num_frames:
        return [[fragment] for fragment in fragments]
    # Offsets from the first fragment to the first one of each frame. Source: DICOM PS3.5, A.4.
    firsts = [starts[0] + first for (first,) in struct.iter_unpack("<I", table[: len(table) // 4 * 4])]
    number_of = {start: number for number, start in enumerate(starts)}
    is_valid = len(firsts) == num_frames and firsts[0] == starts[0] and sorted(set(firsts)) == firsts
    if not is_valid or not all(first in number_of for first in firsts):
        raise ValueError(
            f"its {num_frames:,} frames lie in {len(fragments):,} fragments, and no valid offset table says which are "
            "a frame: it is damaged, or convert it, e.g. gdcmconv --raw OLD NEW"
        )
    bounds = [*(number_of[first] for first in firsts), len(fragments)]
    return [fragments[first:end] for first, end in zip(bounds, bounds[1:])]


def _require_rle_size(frame: bytes, layout: PixelLayout) -> None:
    """Checks the size of an RLE stream, since pydicom unpacks all of it. RLE takes at most two bytes for each byte, and
    an offset table of 64."""
    num_bytes = layout.rows * layout.columns * layout.samples * layout.allocated // 8
    if len(frame) > 2 * num_bytes + 128:
        raise ValueError(f"its RLE stream has {len(frame):,} bytes for {num_bytes:,} of pixels: it is damaged")


def _require_jpeg_size(frame: bytes, layout: PixelLayout) -> int:
    """Checks the size in the header of a JPEG stream, and returns its bits per sample.

    Raises:
        ValueError: the stream has no size, or another one than the file.
    """
    offset = 2
    while frame[:2] == b"\xff\xd8" and offset + 9 < len(frame) and frame[offset] == 0xFF:
        marker, length = frame[offset + 1], int.from_bytes(frame[offset + 2 : offset + 4], "big")
        if marker == 0xFF:  # a fill byte
            offset += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) or marker == 0xF7:
            precision, height, width, samples = struct.unpack_from(">BHHB", frame, offset + 4)
            _require_size((width, height, samples), layout)
            return int(precision)
        offset += 2 + length
    raise ValueError("its JPEG stream is damaged")


def _require_size(decoded: Tuple[int, int, int], layout: PixelLayout) -> None:
    if decoded != (layout.columns, layout.rows, layout.samples):
        width, height, samples = decoded
        raise ValueError(
            f"it says that it has {layout.columns} x {layout.rows} pixels of {layout.samples} samples, and its "
            f"compressed image has {width} x {height} of {samples}: it is damaged"
        )


def _decode_jpeg(frame: bytes, layout: PixelLayout) -> np.ndarray:
    image = open_image(frame, ["JPEG"])
    if layout.photometric == "RGB" and "adobe_transform" not in image.info:
        # Without Adobe's marker the decoder assumes YCbCr and would convert RGB samples. Asked for YCbCr, it returns
        # the samples unchanged, which are the RGB values.
        image.draft("YCbCr", image.size)
        return np.asarray(image)
    return np.asarray(image if image.mode == "L" else image.convert("RGB"))


def _decode_jpeg2000(frame: bytes, layout: PixelLayout) -> np.ndarray:
    if frame[:4] != _J2K_START or len(frame) < 43:
        raise ValueError("its pixels are no JPEG 2000 stream: it is damaged")
    right, bottom, left, top = struct.unpack_from(">4I", frame, 8)
    (samples,) = struct.unpack_from(">H", frame, 40)
    _require_size((right - left, bottom - top, samples), layout)
    precision, is_signed = (frame[42] & 0x7F) + 1, frame[42] >= 128
    # Pillow keeps 8 bits of a colour: deeper ones would be cut without a word.
    if precision > (16 if samples == 1 else 8):
        raise ValueError(f"its JPEG 2000 stream has {precision} bits, and at most 16 in grey and 8 in colour are read")
    sample = np.asarray(open_image(frame, ["JPEG2000"]))
    if samples == 3:  # Pillow has already converted YBR_ICT and YBR_RCT to RGB
        return _ybr_to_rgb(sample) if layout.photometric.startswith("YBR_FULL") else sample
    # Pillow scales values up to 8 or 16 bits, and shifts signed values so that they are not negative.
    value = sample.astype(np.int64) >> ((8 if precision <= 8 else 16) - precision)
    return _interpret_decoded(value - (1 << (precision - 1)) if is_signed else value, layout)


def _interpret_decoded(value_HW: np.ndarray, layout: PixelLayout) -> np.ndarray:
    """Interprets the integers that a decoder returned, whose significant bits are always the lowest ones."""
    return _interpret(value_HW, replace(layout, high=layout.stored - 1))


def _decode_by_plugin(frame: bytes, layout: PixelLayout) -> np.ndarray:
    """Decodes a frame with the decoders that are installed for pydicom."""
    if not any(importlib.util.find_spec(name) for name in _PLUGINS):
        raise ValueError(
            f"its transfer syntax is {_named(layout.syntax)}, for which no decoder is installed: pip install "
            "pylibjpeg pylibjpeg-libjpeg, or convert it, e.g. gdcmconv --raw OLD NEW"
        )
    # Versions of pydicom differ in how they convert these colours.
    if layout.photometric.startswith("YBR"):
        raise ValueError(f"its {_named(layout.syntax)} has the colours {layout.photometric}: convert it to RGB")
    value = _decode_with_pydicom(importlib.import_module("pydicom.encaps").encapsulate([frame]), layout)
    return value if layout.samples == 3 else _interpret_decoded(value.astype(np.int64), layout)


def _decode_with_pydicom(data: bytes, layout: PixelLayout) -> np.ndarray:
    """Returns the samples (H, W) or (H, W, C) of `data`, the value of PixelData, with their colours as they are stored:
    `_interpret` converts them and extracts their bits, since versions 2 and 3 of pydicom do it differently."""
    dataset = importlib.import_module("pydicom.dataset")
    instance = dataset.Dataset()
    instance.Rows, instance.Columns, instance.SamplesPerPixel = layout.rows, layout.columns, layout.samples
    instance.BitsAllocated, instance.BitsStored, instance.HighBit = layout.allocated, layout.stored, layout.high
    instance.PixelRepresentation, instance.PhotometricInterpretation = int(layout.is_signed), layout.photometric
    instance.PlanarConfiguration = int(layout.is_planar and layout.photometric != "YBR_FULL_422")
    instance.file_meta = dataset.FileMetaDataset()
    instance.file_meta.TransferSyntaxUID = layout.syntax
    instance.is_little_endian, instance.is_implicit_VR = True, False
    instance.PixelData = data
    instance["PixelData"].is_undefined_length = layout.syntax not in (IMPLICIT, _EXPLICIT)
    if hasattr(instance, "pixel_array_options"):  # since version 3
        instance.pixel_array_options(raw=True, correct_unused_bits=False)
    try:
        value: np.ndarray = instance.pixel_array
    except Exception as error:  # pydicom passes on any exception of a decoder
        raise ValueError(
            f"its {_named(layout.syntax)} stream is damaged, or the installed decoder does not read it "
            f"({type(error).__name__})"
        ) from None
    return value
