"""Writes safetensors files with NumPy alone.

    8 bytes: length of the header, little-endian | header: JSON, padded with spaces | the arrays, without gaps

Source: https://github.com/huggingface/safetensors, section Format. The package writes transposed arrays of NumPy in
their order in memory (0.8.0), so that they come back scrambled: here every array is written in C order, and the file is
read again and compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np

from mxtrain.errors import DataError
from mxtrain.files.durable import replace_file
from mxtrain.model.foreign.safetensors_file import DTYPES, METADATA, read_safetensors

NAMES = {np.dtype(dtype).name: name for name, dtype in DTYPES.items() if name != "BF16"}
"""Type in NumPy, which has no bfloat16 -> type in the file."""
ALIGNMENT, LENGTH_BYTES = 8, 8


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes arrays, reads them again, and compares every bit.

    Args:
        path: the file.
        arrays: by name.
        metadata: texts by name.

    Raises:
        DataError: an array has a type that the format has not, or the file does not hold the arrays that were written.
    """
    header: Dict[str, Any] = {METADATA: dict(metadata)}
    contents: List[bytes] = []
    position = 0
    # The order of the package: types with larger elements first, so that every array is aligned; then by name.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = np.asarray(arrays[name])
        if array.dtype.name not in NAMES:
            raise DataError(f"export: {name} has the type {array.dtype}, and safetensors has {', '.join(NAMES)}.")
        content = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + len(content)],
        }
        contents.append(content)
        position += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    replace_file(path, b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *contents]))
    require_written(path, arrays)


def require_written(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Compares a file with the arrays that were written to it. Raises: DataError: one of them differs."""
    found = read_safetensors(path)
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"))
        same = name in found and found[name].dtype == little.dtype and found[name].shape == array.shape
        # NaN differs from itself: bits are compared, which `tobytes` gives in C order.
        if not same or found[name].tobytes() != little.tobytes():
            raise DataError(f"export: {path} does not hold {name} as it was written. Is the disk damaged?")
    if set(found) != set(arrays):
        raise DataError(f"export: {path} holds other arrays than were written.")
