"""Verification sets: files of pairs of images, of which each says whether both show one identity.

insightface's `.bin` files (lfw.bin, cfp_fp.bin, agedb_30.bin) are pickles. They are not unpickled: `read_pickle` reads
their instructions one by one, and knows only those that build lists of bytes and booleans.

Legend: P pairs; the images of pair p are 2 * p and 2 * p + 1.
"""

from __future__ import annotations

import pickletools
import struct
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import LABEL_RANGE, STRICT, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.data.table.columns import location_of, stream_rows
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_boolean
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.metric_learning.verification import pair_label

COLUMNS = ("first", "second", "same")
"""Columns of a table of pairs."""
_MARK = object()
_LENGTHS = {b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"U": "<B", b"T": "<i"}
"""Instruction -> form of the length that follows it. The first three push bytes of Python 3, the others strings of
Python 2, which are bytes as well."""
_BOOLEANS = {b"\x88": True, b"\x89": False}
_SKIPPED = {b"\x80": 1, b"\x95": 8}
"""Instruction without effect -> length of its argument: the version, and the length of a frame."""
_STORES = {b"q": "<B", b"r": "<I"}
_LOADS = {b"h": "<B", b"j": "<I"}
_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
"""Name of each instruction, for messages."""


class NotAllowed(ValueError):
    """A pickle holds something else than lists of bytes and booleans, or is damaged."""


def read_pickle(content: bytes) -> Any:
    """Returns the lists, tuples, bytes and booleans of a pickle, without running anything in it.

    Raises:
        NotAllowed: it has another instruction, or ends too early.
    """
    return _Instructions(content).run()


class _Instructions:
    """Instructions of a pickle, with the stack and the memo that they work on."""

    def __init__(self, content: bytes):
        self._content, self._position = memoryview(content), 0
        self._stack: List[Any] = []
        self._memo: Dict[int, Any] = {}

    def run(self) -> Any:
        while (code := self._take(1)) != b".":
            self._do(code)
        found = self._pop()
        if self._stack:
            raise NotAllowed("its instructions are in a wrong order")
        return found

    def _take(self, length: int) -> bytes:
        """Returns the next bytes."""
        end = self._position + length
        if length < 0 or end > len(self._content):
            raise NotAllowed("it ends too early")
        taken = bytes(self._content[self._position : end])
        self._position = end
        return taken

    def _number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise NotAllowed("its instructions are in a wrong order")
        return self._stack.pop()

    def _pop_to_mark(self) -> List[Any]:
        values = []
        while self._stack and self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        if not self._stack:
            raise NotAllowed("its instructions are in a wrong order")
        self._stack.pop()
        return values[::-1]

    def _extend(self, values: Sequence[Any]) -> None:
        """Appends values to the list on top of the stack."""
        found = self._pop()
        if not isinstance(found, list):
            raise NotAllowed("its instructions are in a wrong order")
        found.extend(values)
        self._stack.append(found)

    def _do(self, code: bytes) -> None:
        """Follows one instruction."""
        if code in _LENGTHS:
            self._stack.append(self._take(self._number(_LENGTHS[code])))
        elif code in _BOOLEANS:
            self._stack.append(_BOOLEANS[code])
        elif code in _SKIPPED:
            self._take(_SKIPPED[code])
        elif code == b"(":
            self._stack.append(_MARK)
        elif code == b"]":
            self._stack.append([])
        elif code == b"a":
            self._extend([self._pop()])
        elif code == b"e":
            self._extend(self._pop_to_mark())
        elif code in (b"l", b"t"):
            values = self._pop_to_mark()
            self._stack.append(values if code == b"l" else tuple(values))
        elif code == b"\x86":
            second, first = self._pop(), self._pop()
            self._stack.append((first, second))
        elif code in _STORES or code == b"\x94":
            key = self._number(_STORES[code]) if code in _STORES else len(self._memo)
            value = self._pop()
            self._stack.append(value)
            self._memo[key] = value
        elif code in _LOADS:
            key = self._number(_LOADS[code])
            if key not in self._memo:
                raise NotAllowed("its instructions are in a wrong order")
            self._stack.append(self._memo[key])
        else:
            raise NotAllowed(f"it has the instruction {_NAMES.get(code, code.hex())}")


class PairImages:
    """Images of a verification set in memory, as `EncodedImages`.

    Args:
        path: the file, for messages.
        images: encoded images, two for each pair.
        label_N: label of each, see `pair_label`.
    """

    def __init__(self, path: str, images: Sequence[bytes], label_N: np.ndarray):
        self._path, self._images, self.label_N = path, images, label_N

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """Returns file and number of an image."""
        return f"Image {index} of '{self._path}'"

    def location(self, index: int) -> DataLocation:
        """Returns the file and the number of the image."""
        return DataLocation(self._path, record=index)

    def read_labels(self) -> np.ndarray:
        """Returns the label of each image."""
        return self.label_N

    def read(self, index: int) -> Tuple[bytes, int]:
        """Returns the encoded image and its label."""
        return self._images[index], int(self.label_N[index])


def labels_of(is_same_P: Sequence[bool]) -> np.ndarray:
    """Returns the labels of the images of pairs, (2 * P,)."""
    labels = [pair_label(pair, is_same) for pair, is_same in enumerate(is_same_P)]
    return np.repeat(np.array(labels, np.int32), 2)


def read_bin(path: str) -> PairImages:
    """Opens a verification set of insightface.

    Raises:
        DataError: it is not a pickle of (encoded images, booleans).
    """
    content = read_bytes(path)

    def refuse(reason: str) -> DataError:
        return DataError(
            f"'{path}' is not a verification set: {reason}. It must be a pickle of two lists, of the bytes of images "
            "and of one boolean for each two images, and nothing else is read from a pickle."
        )

    try:
        found = read_pickle(content)
    except NotAllowed as error:
        raise refuse(str(error)) from None
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(isinstance(part, list) for part in found):
        raise refuse("it does not hold two lists")
    images, is_same_P = found
    for number, image in enumerate(images):
        if type(image) is not bytes:
            raise refuse(f"image {number} is not bytes")
    for number, is_same in enumerate(is_same_P):
        if type(is_same) is not bool:
            raise refuse(f"pair {number} has no boolean")
    if len(images) != 2 * len(is_same_P) or not images:
        raise refuse(f"it has {len(images)} images and {len(is_same_P)} booleans")
    return PairImages(path, images, labels_of(is_same_P))


def read_table(path: str, root: str = "", findings: Findings = STRICT) -> ImageFiles:
    """Opens a table of pairs with the columns first, second and same.

    Args:
        path: CSV, TSV, JSONL or Parquet file.
        root: folder of relative paths in it; empty: the folder of the table.
        findings: collects rows that are no pairs.

    Raises:
        DataError: the file cannot be read, or has no pairs.
    """
    folder = Path(root) if root else Path(path).parent
    paths: List[Path] = []
    flags: List[bool] = []
    for line, (first, second, same) in stream_rows(path, COLUMNS, header=True, findings=findings):
        is_same = parse_boolean(same)
        if is_same is None:
            location = location_of(path, line)
            fact = f"{location}: same={same} is no truth value; allowed are 0 and 1, false and true."
            findings.refuse(Problem(LABEL_RANGE, location, fact))
            continue
        paths += [folder / first, folder / second]
        flags.append(is_same)
    if not paths:
        raise DataError(f"'{path}' has no pairs: each row is two files and same=0 or 1.")
    return ImageFiles(paths, labels_of(flags))
