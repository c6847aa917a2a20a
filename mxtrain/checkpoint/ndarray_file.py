"""MXNet's own list-of-arrays file (`.params`), written and read from numpy without MXNet.

Layout, all little-endian:

    u64 0x112, u64 0, u64 number of arrays
    per array: u32 0xF993FAC9, i32 storage type (0: dense), u32 ndim, i64 dim * ndim,
               i32 device type (1: cpu), i32 device id, i32 dtype flag, then the elements in C order
    u64 number of names; per name: u64 length, UTF-8 bytes

So a file opens with `mx.nd.load` and `net.load_parameters`, and what those wrote opens here.

Source: apache/mxnet 1.9.1, src/ndarray/ndarray.cc (NDArray::Save, NDArray::Load), include/mxnet/tuple.h,
3rdparty/mshadow/mshadow/base.h (TypeFlag).
"""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Union

from mxtrain.checkpoint.durable import Digest, HashedFile, PathLike, read_file
from mxtrain.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

LIST_MAGIC = 0x112
ARRAY_MAGIC = 0xF993FAC9
DENSE = 0
CPU = 1
MAX_DIMS = 32
"""What numpy can hold."""

FLAG_BY_DTYPE = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
DTYPE_BY_FLAG = {flag: dtype for dtype, flag in FLAG_BY_DTYPE.items()}


def write_ndarrays(path: PathLike, arrays: Mapping[str, np.ndarray]) -> Digest:
    """Write arrays by name, in the order of their names, and bring the file to the disk.

    The elements go from the arrays' own memory to the file; only what is not C-contiguous is copied first.

    Args:
        path: the file; an existing one is overwritten. Not atomic (see `HashedFile`).
        arrays: at least one dimension and one element each: MXNet reads neither scalars nor empty arrays. Numbers
            belong into the state of a checkpoint.

    Returns:
        Size and SHA-256 of what was written.

    Raises:
        CheckpointError: an array has a shape or dtype that the format does not hold.
        OSError: the file could not be written completely, e.g. because the disk is full.
    """
    names = sorted(arrays)
    for name in names:
        _check_storable(name, arrays[name])
    with HashedFile(path) as file:
        file.write(struct.pack("<QQQ", LIST_MAGIC, 0, len(names)))
        for name in names:
            array = _little_endian(arrays[name])
            flag = FLAG_BY_DTYPE[array.dtype.name]
            dims = array.shape
            file.write(struct.pack(f"<IiI{len(dims)}qiii", ARRAY_MAGIC, DENSE, len(dims), *dims, CPU, 0, flag))
            file.write(memoryview(array).cast("B"))
        file.write(struct.pack("<Q", len(names)))
        for name in names:
            encoded = name.encode("utf-8")
            file.write(struct.pack("<Q", len(encoded)) + encoded)
    assert file.digest is not None
    return file.digest


def read_ndarrays(path: PathLike) -> dict[str, np.ndarray]:
    """Read a file of named dense arrays; no length in it is trusted.

    Returns:
        Read-only arrays by name. They share one buffer, the file's content.

    Raises:
        CheckpointError: the file cannot be read or is not what `write_ndarrays` and `mx.nd.save` write.
    """
    return parse_ndarrays(read_file(path), source=Path(path).name)


def parse_ndarrays(data: Union[bytes, memoryview], *, source: str) -> dict[str, np.ndarray]:
    """As `read_ndarrays`, from memory.

    Args:
        data: the content of a file.
        source: what error messages call it.

    Raises:
        CheckpointError: see `read_ndarrays`.
    """
    reader = _Reader(memoryview(data), source)
    magic, reserved, count = reader.unpack("<QQQ", "the header")
    if magic != LIST_MAGIC or reserved != 0:
        raise reader.error(f"does not begin like an MXNet .params file (magic {magic:#x}, expected {LIST_MAGIC:#x})")
    arrays = []
    for index in range(count):  # ends at the end of the data, however large count claims to be
        arrays.append(_read_array(reader, f"array {index + 1} of {count}"))
    (num_names,) = reader.unpack("<Q", "the number of names")
    if num_names != count:
        raise reader.error(f"holds {count} arrays but {num_names} names")
    by_name: dict[str, np.ndarray] = {}
    for array in arrays:
        name = _read_name(reader)
        if name in by_name:
            raise reader.error(f"holds the name {name!r} twice")
        by_name[name] = array
    if reader.remaining:
        raise reader.error(f"goes on for {reader.remaining} bytes after its end")
    return by_name


def canonical_sha256(params: Mapping[str, np.ndarray]) -> str:
    """The hash of weights, whatever made them: the parameters in the order of their names, as little-endian float32.

    Only the numbers enter, neither names nor shapes, so the hash is the same before and after a rename.
    """
    import numpy as np

    hash_ = hashlib.sha256()
    for name in sorted(params):
        array = np.ascontiguousarray(params[name], dtype="<f4")
        hash_.update(memoryview(array.reshape(-1)).cast("B"))
    return hash_.hexdigest()


class _Reader:
    """A position in bytes that nothing can move past the end."""

    def __init__(self, data: memoryview, source: str) -> None:
        self.data = data
        self.source = source
        self.offset = 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.offset

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.source} {problem}")

    def take(self, size: int, what: str) -> memoryview:
        if size > self.remaining:
            raise self.error(f"ends early: {what} needs {size} bytes at byte {self.offset}, {self.remaining} are left")
        start = self.offset
        self.offset += size
        return self.data[start : self.offset]

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))


def _read_array(reader: _Reader, what: str) -> np.ndarray:
    import numpy as np

    magic, storage, ndim = reader.unpack("<IiI", what)
    if magic != ARRAY_MAGIC:
        raise reader.error(f"has {what} in another format ({magic:#x}); load and save it once with MXNet 1.9.1")
    if storage != DENSE:
        raise reader.error(f"has {what} with sparse storage; only dense arrays are read")
    if not 1 <= ndim <= MAX_DIMS:
        raise reader.error(f"has {what} with {ndim} dimensions; 1 to {MAX_DIMS} are possible")
    dims = reader.unpack(f"<{ndim}q", what)
    _, _, flag = reader.unpack("<iii", what)
    if min(dims) < 1:
        raise reader.error(f"has {what} with shape {dims}")
    if flag not in DTYPE_BY_FLAG:
        raise reader.error(f"has {what} with dtype flag {flag}; known are {', '.join(sorted(FLAG_BY_DTYPE))}")
    dtype = np.dtype(DTYPE_BY_FLAG[flag]).newbyteorder("<")
    elements = reader.take(math.prod(dims) * dtype.itemsize, what)
    array = np.frombuffer(elements, dtype=dtype).reshape(dims)
    # An odd number of uint8 elements leaves what follows unaligned, which C code may not expect.
    return array if array.flags.aligned else _read_only_copy(array)


def _read_name(reader: _Reader) -> str:
    (length,) = reader.unpack("<Q", "the length of a name")
    encoded = bytes(reader.take(length, "a name"))
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"holds a name that is not UTF-8: {encoded[:40]!r}") from error


def _read_only_copy(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _check_storable(name: str, array: np.ndarray) -> None:
    if array.dtype.name not in FLAG_BY_DTYPE:
        allowed = ", ".join(sorted(FLAG_BY_DTYPE))
        raise CheckpointError(f"the array {name!r} has dtype {array.dtype}; a .params file holds {allowed}")
    if not 1 <= array.ndim <= MAX_DIMS or array.size == 0:
        raise CheckpointError(
            f"the array {name!r} has shape {array.shape}; a .params file holds neither scalars nor empty arrays: "
            "reshape it to (1,), or put the number into the state"
        )


def _little_endian(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
