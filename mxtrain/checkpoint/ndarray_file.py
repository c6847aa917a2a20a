"""MXNet's own list-of-arrays file (`.params`), written and read from numpy without MXNet.

So a file opens with `mx.nd.load` and `net.load_parameters`, and what those wrote opens here.
`mxtrain.files.params_format` says what it looks like.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Union

from mxtrain.checkpoint.pieces import HostArray, pieces_of
from mxtrain.checkpoint.verified import read_file
from mxtrain.errors import CheckpointError, DamagedCheckpoint
from mxtrain.files.durable import Digest, HashedFile, PathLike
from mxtrain.files.params_format import ARRAY_MAGIC_V2, DENSE, LIST_MAGIC, MAX_DIMS, Damaged, parse_arrays

if TYPE_CHECKING:
    import numpy as np

CPU = 1
FLAG_BY_DTYPE = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}


def write_ndarrays(path: PathLike, arrays: Mapping[str, HostArray]) -> Digest:
    """Writes named arrays in the order of their names, and syncs the file to the disk.

    The elements are written from the arrays' own memory; only arrays that are not C-contiguous are copied first.

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
    with HashedFile(path) as file:
        write_into(file, arrays)
    assert file.digest is not None
    return file.digest


def write_into(file: HashedFile, arrays: Mapping[str, HostArray]) -> None:
    """Writes all that `write_ndarrays` writes into an open file; raises what it raises."""
    names = sorted(arrays)
    for name in names:
        _check_storable(name, arrays[name])
    file.write(struct.pack("<QQQ", LIST_MAGIC, 0, len(names)))
    for name in names:
        flag = FLAG_BY_DTYPE[arrays[name].dtype.name]
        dims = arrays[name].shape
        file.write(struct.pack(f"<IiI{len(dims)}qiii", ARRAY_MAGIC_V2, DENSE, len(dims), *dims, CPU, 0, flag))
        for piece in pieces_of(arrays[name]):
            file.write(_little_endian(piece).data.cast("B"))
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        encoded = name.encode("utf-8")
        file.write(struct.pack("<Q", len(encoded)) + encoded)


def read_ndarrays(path: PathLike) -> dict[str, np.ndarray]:
    """Reads a file of named dense arrays; no length in it is trusted.

    Returns:
        Read-only arrays by name. They share one buffer, the file's content.

    Raises:
        CheckpointError: the file cannot be read or is not what `write_ndarrays` and `mx.nd.save` write.
    """
    return parse_ndarrays(read_file(path), source=Path(path).name)


def parse_ndarrays(data: Union[bytes, memoryview], *, source: str) -> dict[str, np.ndarray]:
    """Reads arrays as `read_ndarrays` does, from memory.

    Args:
        data: the content of a file.
        source: what error messages call it.

    Raises:
        CheckpointError: see `read_ndarrays`.
    """
    try:
        arrays, names = parse_arrays(data)
    except Damaged as damage:
        raise DamagedCheckpoint(f"{source} is damaged or no MXNet .params file: {damage}") from damage
    if len(names) != len(arrays):
        raise DamagedCheckpoint(f"{source} holds {len(arrays)} arrays but {len(names)} names")
    return dict(zip(names, arrays))


def canonical_sha256(params: Mapping[str, HostArray]) -> str:
    """Returns the hash of weights, whatever made them: the parameters in the order of their names, as little-endian
    float32.

    Only the numbers enter, neither names nor shapes, so the hash is the same before and after a rename.
    """
    import numpy as np

    hash_ = hashlib.sha256()
    for name in sorted(params):
        for piece in pieces_of(params[name]):
            hash_.update(np.ascontiguousarray(piece, dtype="<f4").reshape(-1).data.cast("B"))
    return hash_.hexdigest()


def _check_storable(name: str, array: HostArray) -> None:
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
