"""Reads safetensors files into NumPy without another package, and checks every length against the content.

Layout, little-endian:

    u64 number of bytes of the header
    header: a JSON object, name -> {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__" with texts
    elements of all arrays in C order; offsets count from here, leave no gap and do not overlap

The package `safetensors` is not used: its reader for NumPy needs ml_dtypes for bfloat16, and its messages name no file.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Tuple, Union

from mxtrain.errors import WeightsError
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    import numpy as np

SAFETENSORS = ".safetensors"
"""End of the names of such files."""
INDEX = ".safetensors.index.json"
"""End of the names of files that list the arrays of several safetensors files."""
METADATA = "__metadata__"
FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
"""Names of files in an index."""
MAX_HEADER_BYTES = 100_000_000
"""Largest header, as in the package safetensors."""
MAX_DIMS = 32
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
"""Type in the file -> type of the elements as read; bfloat16 is then converted."""


class DamagedTensors(Exception):
    """The content is damaged or no safetensors file. The message is a clause such as "it is empty"."""


def is_safetensors(path: Union[str, Path]) -> bool:
    """Returns True for the name of a safetensors file, or of the index of several."""
    return str(path).endswith((SAFETENSORS, INDEX))


def read_safetensors(path: Union[str, Path]) -> Dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file, or of all files in the index of several, sorted by position.

    Args:
        path: a file `*.safetensors`, or an index `*.safetensors.index.json` beside its files.

    Returns:
        Arrays on the host, read-only; bfloat16 as float32, all others as they were saved.

    Raises:
        WeightsError: a file is missing or damaged; the message says which.
    """
    path = Path(path)
    if not path.name.endswith(INDEX):
        return _read_one(path)
    files = read_index(path)
    arrays: Dict[str, np.ndarray] = {}
    for shard in sorted(set(files.values())):
        arrays.update(_read_one(path.with_name(shard)))
    missing = [name for name in files if name not in arrays]
    if missing:
        raise WeightsError(
            f"The weights file {path} lists '{missing[0]}' in {files[missing[0]]}, which does not have it. Download "
            "all files once more."
        )
    return arrays


def read_index(path: Path) -> Dict[str, str]:
    """Returns array -> name of its file, of an index of several files.

    Raises:
        WeightsError: it is missing or damaged, or names a file of another folder.
    """
    reason = "it has no weight_map"
    try:
        files = parse_json(_content(path))["weight_map"]
        others = [name for name in files.values() if not re.fullmatch(FILE_NAME, name)]
        if others:
            reason = f"it names the file {others[0]!r}, which is not beside it"
        elif files:
            return dict(files)
    except JsonTextError as error:
        reason = f"it {error}"
    except (KeyError, TypeError, AttributeError):
        pass
    raise WeightsError(f"The weights file {path} is no index of safetensors files: {reason}.")


def _read_one(path: Path) -> Dict[str, np.ndarray]:
    try:
        return parse_safetensors(_content(path))
    except DamagedTensors as damage:
        raise WeightsError(f"The weights file {path} is damaged or no safetensors file: {damage}.") from damage


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise WeightsError(
            f"The weights file {path} cannot be read: {error.strerror}. Give the path of a .safetensors file, "
            "e.g. model.weights=weights/model.safetensors."
        ) from error


def parse_safetensors(content: Union[bytes, memoryview]) -> Dict[str, np.ndarray]:
    """Parses the arrays of a file.

    Args:
        content: the content of the file. Arrays are read-only views of it, unless they are unaligned or bfloat16.

    Raises:
        DamagedTensors: the content is not a safetensors file, or is damaged.
    """
    import numpy as np

    header, data, spans = _checked(memoryview(content))
    arrays = {}
    for begin, end, name in spans:
        entry = header[name]
        array = np.frombuffer(data[begin:end], np.dtype(DTYPES[entry["dtype"]])).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")  # bfloat16 is the upper half of float32
        if not array.flags.aligned:
            array = array.copy()  # the header may have any length; C code may need alignment
        array.flags.writeable = False
        arrays[name] = array
    return arrays


def check_safetensors(path: Path) -> None:
    """Checks that a file is whole; its arrays are not read.

    Raises:
        DamagedTensors: see `parse_safetensors`.
        OSError: it cannot be opened.
    """
    with open_regular(path) as (file, size):
        _checked(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""))


Span = Tuple[int, int, str]
"""Begin and end of an array in the data, and its name."""


def _checked(content: memoryview) -> Tuple[Dict[str, Any], memoryview, List[Span]]:
    header, data = _header(content)
    spans = sorted((*_span(name, entry, len(data)), name) for name, entry in header.items())
    _check_coverage(spans, len(data))
    return header, data, spans


def _header(content: memoryview) -> Tuple[Dict[str, Any], memoryview]:
    if len(content) == 0:
        raise DamagedTensors("it is empty")
    if bytes(content[:2]) == b"PK":
        raise DamagedTensors("it is a zip archive, as NumPy and PyTorch write them")
    if bytes(content[:1]) == b"\x80" and bytes(content[2:3]) in (b"c", b"}", b"\x8a"):
        raise DamagedTensors("it is a pickle, which is never loaded because loading can run code")
    if bytes(content[:7]) == b"version":
        raise DamagedTensors("it is a pointer of Git LFS instead of the file: type git lfs pull")
    if len(content) < 8:
        raise DamagedTensors(f"it has {len(content)} bytes")
    (size,) = struct.unpack("<Q", content[:8])
    if size > MAX_HEADER_BYTES or size > len(content) - 8:
        raise DamagedTensors(f"its header claims {size} bytes, and {len(content) - 8} follow")
    try:
        header = parse_json(bytes(content[8 : 8 + size]))
    except JsonTextError as error:
        raise DamagedTensors(f"its header {error}") from error
    if not isinstance(header, dict):
        raise DamagedTensors("its header is no object")
    header.pop(METADATA, None)
    return header, content[8 + size :]


def _span(name: str, entry: Any, size: int) -> Tuple[int, int]:
    """Returns begin and end of an array in the data, checked against its shape and type."""
    import numpy as np

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise DamagedTensors(f"the entry of '{name}' has no type, shape or offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DamagedTensors(f"'{name}' has the type {dtype}; those that are read are {', '.join(DTYPES)}")
    if not _whole_numbers(shape) or len(shape) > MAX_DIMS:
        raise DamagedTensors(f"'{name}' has the shape {shape}")
    if not _whole_numbers(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise DamagedTensors(f"'{name}' lies at {offsets}, but the data have {size} bytes")
    begin, end = offsets
    needed = np.dtype(DTYPES[dtype]).itemsize * math.prod(shape)  # Python integers do not overflow
    if needed != end - begin:
        raise DamagedTensors(f"'{name}' needs {needed} bytes for its shape {shape}, and has {end - begin}")
    if math.prod(max(dim, 1) for dim in shape) > 1 << 60:
        raise DamagedTensors(f"'{name}' has the impossible shape {shape}")
    return begin, end


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_coverage(spans: List[Span], size: int) -> None:
    position, before = 0, ""
    for begin, end, name in spans:
        if begin < position:
            raise DamagedTensors(f"'{name}' begins at {begin}, within '{before}', which ends at {position}")
        if begin > position:
            raise DamagedTensors(f"bytes {position} to {begin} of the data belong to no array")
        position, before = end, name
    if position != size:
        raise DamagedTensors(f"{size - position} bytes follow the last array")
