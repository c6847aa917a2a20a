"""Reads MXNet's list-of-arrays files (`.params`) without MXNet, and checks every length against the content.

MXNet's reader trusts the lengths in the file: a damaged file can exhaust the memory or crash the process. Layout,
little-endian:

    u64 0x112, u64 0, u64 number of arrays
    per array: u32 magic, i32 storage type (0: dense), u32 ndim, i64 dim * ndim,
               i32 device type, i32 device id, i32 dtype flag, then the elements in C order
    u64 number of names; per name: u64 length, UTF-8 bytes

Source: apache/mxnet 1.9.1, src/ndarray/ndarray.cc, NDArray::Save, Load, LegacyLoad and LoadVariable;
3rdparty/mshadow/mshadow/base.h, TypeFlag.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, List, Tuple, Union

if TYPE_CHECKING:
    import numpy as np

LIST_MAGIC = 0x112
ARRAY_MAGIC_V1, ARRAY_MAGIC_V2, ARRAY_MAGIC_V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE = 0
BFLOAT16 = 12
DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?", BFLOAT16: "<u2"}
MAX_DIMS = 32
MAX_BYTES = (1 << 63) - 1


class Damaged(Exception):
    """The content is damaged. The message is a clause such as "it is empty"."""


class _Reader:
    """A cursor over the bytes of a file that raises `Damaged` instead of reading past the end."""

    def __init__(self, content: Union[bytes, memoryview]):
        self.content = memoryview(content)
        self.position = 0

    def take(self, size: int) -> memoryview:
        if size > len(self.content) - self.position:
            raise Damaged(f"it ends at byte {len(self.content)} where {size} more are expected at {self.position}")
        start, self.position = self.position, self.position + size
        return self.content[start : self.position]

    def number(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]


def parse_arrays(content: Union[bytes, memoryview]) -> Tuple[List[np.ndarray], List[str]]:
    """Parses the arrays of a file and their names.

    Args:
        content: the content of the file. Arrays are read-only views of it, unless they are unaligned or bfloat16.

    Returns:
        The arrays, bfloat16 converted to float32, and their names. There are no names if a list was saved.

    Raises:
        Damaged: the content is not a .params file, or is truncated.
    """
    reader = _Reader(content)
    if len(reader.content) == 0:
        raise Damaged("it is empty")
    start = bytes(reader.content[:4])
    if start == b"PK\x03\x04":
        raise Damaged("it is a zip archive, as NumPy and PyTorch write them")
    if start[:1] == b"\x80":
        raise Damaged("it is a pickle, which is never loaded because loading can run code")
    if reader.number("Q") != LIST_MAGIC:
        raise Damaged(f"it does not begin with the number {LIST_MAGIC:#x}")
    if reader.number("Q") != 0:
        raise Damaged("its reserved field is not 0")
    arrays = [_array(reader) for _ in range(_count(reader))]
    names = [_name(reader) for _ in range(_count(reader))]
    if names and len(names) != len(arrays):
        raise Damaged(f"it has {len(arrays)} arrays but {len(names)} names")
    if len(set(names)) != len(names):
        raise Damaged("a name occurs twice")
    if reader.position != len(reader.content):
        raise Damaged(f"{len(reader.content) - reader.position} bytes follow its end")
    return arrays, names


def _count(reader: _Reader) -> int:
    count = reader.number("Q")
    # Each entry takes more than a byte, so a larger count is damage, and no list of that length is made.
    if count > len(reader.content):
        raise Damaged(f"it claims to hold {count} entries")
    return count


def _name(reader: _Reader) -> str:
    try:
        return bytes(reader.take(reader.number("Q"))).decode()
    except UnicodeDecodeError as error:
        raise Damaged("a name is not text") from error


def _array(reader: _Reader) -> np.ndarray:
    import numpy as np

    magic = reader.number("I")
    if magic in (ARRAY_MAGIC_V2, ARRAY_MAGIC_V3):
        if reader.number("i") != DENSE:
            raise Damaged("it holds a sparse array, and weights must be dense")
        num_dims = reader.number("i")
        dim_code = "q"
    elif magic == ARRAY_MAGIC_V1:
        num_dims, dim_code = reader.number("i"), "q"
    else:
        num_dims, dim_code = magic, "I"  # before MXNet 0.12 an array began with its number of dimensions
    if not 0 <= num_dims <= MAX_DIMS:
        raise Damaged(f"an array at byte {reader.position} claims {num_dims} dimensions")
    shape = tuple(reader.number(dim_code) for _ in range(num_dims))
    if min(shape, default=0) < 0:
        raise Damaged(f"an array at byte {reader.position} has the shape {shape}")
    # Before V3, MXNet had no scalars: no dimensions meant an uninitialised array, which has no further fields.
    if num_dims == 0 and magic != ARRAY_MAGIC_V3:
        return np.zeros((0,), "<f4")
    reader.number("i")  # device type and index of the saved array do not matter
    reader.number("i")
    type_flag = reader.number("i")
    if type_flag not in DTYPES:
        raise Damaged(f"an array at byte {reader.position} has the unknown type {type_flag}")
    dtype = np.dtype(DTYPES[type_flag])
    size = dtype.itemsize * math.prod(shape)  # Python integers do not overflow
    if dtype.itemsize * math.prod(max(dim, 1) for dim in shape) > MAX_BYTES:
        raise Damaged(f"an array at byte {reader.position} has the impossible shape {shape}")
    array = np.frombuffer(reader.take(size), dtype).reshape(shape)
    if type_flag == BFLOAT16:
        array = (array.astype("<u4") << 16).view("<f4")  # bfloat16 is the upper half of float32
    if not array.flags.aligned:
        array = array.copy()  # int8 arrays before it have shifted its address; C code may need alignment
    array.flags.writeable = False
    return array
