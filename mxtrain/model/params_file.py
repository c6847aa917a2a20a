"""Reads MXNet's `.params` files without MXNet, checking every length against the file.

MXNet's own reader trusts the lengths in the file: a damaged one can ask for more memory than there is, or crash the
process. Layout, little-endian: magic (u64), reserved (u64), number of arrays (u64), arrays, number of names (u64),
names.

Source: MXNet 1.9.1, src/ndarray/ndarray.cc, NDArray::Load, LegacyLoad and LoadVariable.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Dict, List, Tuple, Union

import numpy as np

from mxtrain.errors import WeightsError

LIST_MAGIC = 0x112
ARRAY_MAGIC_V1, ARRAY_MAGIC_V2, ARRAY_MAGIC_V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE = 0
BFLOAT16 = 12
DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?", BFLOAT16: "<u2"}
MAX_DIMS = 32


class _Damaged(Exception):
    """What is wrong with the bytes."""


class _Reader:
    """A cursor over the file's bytes that never leaves them."""

    def __init__(self, content: bytes):
        self.content = memoryview(content)
        self.position = 0

    def take(self, size: int) -> memoryview:
        if size > len(self.content) - self.position:
            raise _Damaged(f"it ends at byte {len(self.content)} where {size} more are expected at {self.position}")
        start, self.position = self.position, self.position + size
        return self.content[start : self.position]

    def number(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]


def read_params(path: Union[str, Path]) -> Dict[str, np.ndarray]:
    """The arrays of a `.params` file by name, in the file's order.

    Args:
        path: a file written by `save_parameters`, `mx.nd.save`, `Module.save_params` or `export`.

    Returns:
        Arrays on the host; bfloat16 as float32, all others as they were saved. Names are as in the file.

    Raises:
        WeightsError: the file is missing, damaged, truncated, or no such file; the message says which.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"The weights file {path} cannot be read: {error.strerror}. Give the path of a .params file, "
            "e.g. model.weights=weights/resnet.params."
        ) from error
    try:
        arrays, names = _parse(_Reader(content))
    except _Damaged as damage:
        raise WeightsError(f"The weights file {path} is damaged or no MXNet .params file: {damage}.") from damage
    if not names:
        raise WeightsError(
            f"The weights file {path} holds {len(arrays)} arrays without names, so they cannot be told apart. "
            "Save it with network.save_parameters(path)."
        )
    return dict(zip(names, arrays))


def _parse(reader: _Reader) -> Tuple[List[np.ndarray], List[str]]:
    if len(reader.content) == 0:
        raise _Damaged("it is empty")
    start = bytes(reader.content[:4])
    if start == b"PK\x03\x04":
        raise _Damaged("it is a zip archive, as NumPy and PyTorch write them")
    if start[:1] == b"\x80":
        raise _Damaged("it is a pickle, which is never loaded because loading can run code")
    if reader.number("Q") != LIST_MAGIC:
        raise _Damaged(f"it does not begin with the number {LIST_MAGIC:#x}")
    reader.number("Q")
    arrays = [_array(reader) for _ in range(_count(reader))]
    names = [_name(reader) for _ in range(_count(reader))]
    if names and len(names) != len(arrays):
        raise _Damaged(f"it has {len(arrays)} arrays but {len(names)} names")
    if len(set(names)) != len(names):
        raise _Damaged("a name occurs twice")
    if reader.position != len(reader.content):
        raise _Damaged(f"{len(reader.content) - reader.position} bytes follow its end")
    return arrays, names


def _count(reader: _Reader) -> int:
    count = reader.number("Q")
    if count > len(reader.content):
        raise _Damaged(f"it claims to hold {count} entries")
    return count


def _name(reader: _Reader) -> str:
    try:
        return bytes(reader.take(reader.number("Q"))).decode()
    except UnicodeDecodeError as error:
        raise _Damaged("a name is not text") from error


def _array(reader: _Reader) -> np.ndarray:
    magic = reader.number("I")
    if magic in (ARRAY_MAGIC_V2, ARRAY_MAGIC_V3):
        if reader.number("i") != DENSE:
            raise _Damaged("it holds a sparse array, and weights must be dense")
        num_dims = reader.number("i")
        dim_code = "q"
    elif magic == ARRAY_MAGIC_V1:
        num_dims, dim_code = reader.number("i"), "q"
    else:
        num_dims, dim_code = magic, "I"  # before MXNet 0.12 an array began with its number of dimensions
    if not 0 <= num_dims <= MAX_DIMS:
        raise _Damaged(f"an array at byte {reader.position} claims {num_dims} dimensions")
    shape = tuple(reader.number(dim_code) for _ in range(num_dims))
    if min(shape, default=0) < 0:
        raise _Damaged(f"an array at byte {reader.position} has the shape {shape}")
    if num_dims == 0 and magic != ARRAY_MAGIC_V3:
        return np.zeros((0,), "<f4")  # an array that was never filled; nothing follows
    reader.number("i")  # device type and index: where it was saved from does not matter
    reader.number("i")
    type_flag = reader.number("i")
    if type_flag not in DTYPES:
        raise _Damaged(f"an array at byte {reader.position} has the unknown type {type_flag}")
    dtype = np.dtype(DTYPES[type_flag])
    size = dtype.itemsize
    for dim in shape:
        size *= dim  # Python integers do not overflow
    array = np.frombuffer(reader.take(size), dtype).reshape(shape)
    if type_flag == BFLOAT16:
        array = (array.astype("<u4") << 16).view("<f4")
    return array
