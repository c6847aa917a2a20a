"""PNG, TIFF and PGM files of any depth, written byte by byte: Pillow and OpenCV have no part in it."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_PNG_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels_HWC: np.ndarray) -> bytes:
    """Returns a PNG of uint8 or uint16 pixels with 1 (grey), 2 (grey, alpha), 3 or 4 channels."""
    height, width, channels = pixels_HWC.shape
    rows = pixels_HWC.astype(pixels_HWC.dtype.newbyteorder(">")).reshape(height, -1)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">2I5B", width, height, 8 * pixels_HWC.itemsize, _PNG_COLOUR[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def tiff(pixels_HWC: np.ndarray, orientation: int = 1, is_white_zero: bool = False) -> bytes:
    """Returns an uncompressed TIFF of unsigned, signed or floating pixels with 1 or 3 channels."""
    height, width, channels = pixels_HWC.shape
    data = pixels_HWC.astype(pixels_HWC.dtype.newbyteorder("<")).tobytes()
    bits, kind = 8 * pixels_HWC.itemsize, {"u": 1, "i": 2, "f": 3}[pixels_HWC.dtype.kind]
    num_tags = 11
    lists = 8 + 2 + 12 * num_tags + 4
    begin = lists + 4 * channels
    several = channels > 1
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, lists if several else bits),
        (259, 3, 1, 1),
        (262, 3, 1, 2 if several else 1 - is_white_zero),
        (273, 4, 1, begin),
        (274, 3, 1, orientation),
        (277, 3, 1, channels),
        (278, 4, 1, height),
        (279, 4, 1, len(data)),
        (339, 3, channels, lists + 2 * channels if several else kind),
    ]
    table = b"".join(struct.pack("<2H2I", *tag) for tag in tags)
    both = struct.pack(f"<{channels}H", *[bits] * channels) + struct.pack(f"<{channels}H", *[kind] * channels)
    return struct.pack("<2sHIH", b"II", 42, 8, num_tags) + table + bytes(4) + both + data


def pnm(pixels_HWC: np.ndarray, maximum: int) -> bytes:
    """Returns a PNM of uint16 pixels with 1 or 3 channels."""
    height, width, channels = pixels_HWC.shape
    kind = {1: 5, 3: 6}[channels]
    return f"P{kind}\n{width} {height}\n{maximum}\n".encode() + pixels_HWC.astype(">u2").tobytes()
