"""RecordIO files of images, read by position from any thread.

MXNet's C++ iterator (mx.io.ImageRecordIter, 1.9.1) is not used: it reports index 0 for every record, cannot start in
the middle of an epoch, and a record that is no image ends the whole process with SIGFPE. Reading by position with
decoding threads is as fast.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import ClassVar, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DAMAGED_RECORD, LABEL_RANGE, STRICT, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import open_positioned, open_regular, read_text
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_integer
from mxtrain.vision.images.record_layout import (
    FIRST,
    FRAME,
    HEADER,
    LAST,
    MAGIC,
    MAX_RECORD,
    WHOLE,
    part_size,
    split_word,
)

_MAX_CLASSES = 1 << 20
"""Limit on the number of classes if it is not given: a damaged label must not lead to a network with a billion
outputs."""
_MIN_BOX_NUMBERS = 7
"""Number of numbers of a label with one box: two lengths, class, and four edges."""
_BOX_NUMBERS = 5
"""Fewest numbers of a box: class, and four edges."""
_NUM_RECOGNISED = 16
"""Number of records whose labels `data guess` reads."""


class RecordFile:
    """Records of a .rec file, as `EncodedImages`. The constructor reads only the index."""

    advice: ClassVar[str] = "Make it again: python -m mxtrain.vision.images.make_record."
    """Advice in messages about damaged files."""

    def __init__(self, path: Path, num_classes: int = 0, findings: Findings = STRICT) -> None:
        """Finds the records with the .idx file beside it, or by scanning the file if there is none.

        Args:
            path: path of the .rec file.
            num_classes: number of classes that labels are checked against; 0: not checked.
            findings: collects problems; if it continues after a problem, the records before the damage are used.

        Raises:
            DataError: the file or its index is damaged.
        """
        self.path = Path(path)
        self.num_classes, self._findings = num_classes, findings
        self._label_N: Optional[np.ndarray] = None
        self._file = open_positioned(self.path)
        self._size = self._file.size
        index_path = self.path.with_suffix(".idx")
        # lexists: a broken link to an index is an error, and no reason to scan the file.
        self.offset_N = self._read_index(index_path) if os.path.lexists(index_path) else self._walk()
        self._sorted_N = np.sort(self.offset_N)
        self._end_N = np.append(self._sorted_N, self._size)[1:]  # of the record that begins at `_sorted_N`
        if not len(self.offset_N):
            raise DataError(f"'{path}' holds no records. {self.advice}")

    def __len__(self) -> int:
        return len(self.offset_N)

    def location(self, index: int) -> DataLocation:
        """Returns the file and the record's number."""
        return DataLocation(str(self.path), record=index)

    def name(self, index: int) -> str:
        """Returns file and position of a record."""
        return f"Record {index} of '{self.path}' (byte {self.offset_N[index]})"

    def read(self, index: int) -> Tuple[bytes, int]:
        """Returns the encoded image and its label."""
        content = self._read_record(index)
        label, length = self._read_label(index, content)
        return content[length:], label

    def prefetch(self, index_N: np.ndarray) -> None:
        """Receives the records that will be read soon; see `SupportsPrefetch`."""
        begin_N = self.offset_N[index_N]
        end_N = self._end_N[np.searchsorted(self._sorted_N, begin_N)]
        self._file.prefetch(zip(begin_N.tolist(), (end_N - begin_N).tolist()))

    def read_numbers(self, index: int) -> np.ndarray:
        """Returns all numbers of a record's label, as detection uses them. Reads only this part of the record.

        Raises:
            LoaderError: the record is damaged.
        """
        position = int(self.offset_N[index])
        kind, length = self._read_frame(index, position)
        begin = self._read_bytes(index, position + FRAME.size, min(length, HEADER.size))
        end = self._image_begin(index, begin, length if kind == WHOLE else MAX_RECORD)
        is_in_first_part = end <= length  # otherwise the label contains the magic number, and the record is split there
        content = self._read_bytes(index, position + FRAME.size, end) if is_in_first_part else self._read_record(index)
        return _label_numbers(content, end)

    def read_image(self, index: int) -> bytes:
        """Returns the encoded image of a record, for any label.

        Raises:
            LoaderError: the record is damaged.
        """
        return self.read_image_and_numbers(index)[0]

    def read_image_and_numbers(self, index: int) -> Tuple[bytes, np.ndarray]:
        """Returns the encoded image of a record, and all numbers of its label.

        Raises:
            LoaderError: the record is damaged.
        """
        content = self._read_record(index)
        begin = self._image_begin(index, content, len(content))
        return content[begin:], _label_numbers(content, begin)

    def _image_begin(self, index: int, content: bytes, length: int) -> int:
        """Returns the position of the image in a record.

        Args:
            index: index of the record.
            content: at least the first bytes of the record.
            length: length of the whole record.

        Raises:
            LoaderError: the record is too short for its label.
        """
        self._require_header(index, content)
        end = HEADER.size + 4 * int(HEADER.unpack_from(content)[0])
        if end > length:
            fact = f"{self.name(index)} has {length} bytes, too few for its label."
            raise LoaderError(fact, "Make the file again.", DAMAGED_RECORD)
        return end

    def _require_header(self, index: int, content: bytes) -> None:
        if len(content) < HEADER.size:
            fact = f"{self.name(index)} has {len(content)} bytes, too few for a label."
            raise LoaderError(fact, "Make the file again.", DAMAGED_RECORD)

    def read_labels(self) -> np.ndarray:
        """Returns the labels of all records. Reads only their headers, and only once.

        If the findings continue after problems, a bad label becomes 0: it is reported when the record is read.

        Raises:
            DataError: a record is damaged, or its label is not one class index.
        """
        if self._label_N is None:
            self._label_N = self._find_labels()
        return self._label_N

    def _find_labels(self) -> np.ndarray:
        """Reads the label of each record; see `read_labels`."""
        label_N = np.zeros(len(self), np.int32)
        for index in range(len(self)):
            try:
                label_N[index] = self._find_label(index)
            except LoaderError as error:
                if not self._findings.keeps_going:
                    raise DataError(str(error)) from error
        return label_N

    def _find_label(self, index: int) -> int:
        """Returns the label of a record. Reads only its header.

        Raises:
            LoaderError: the record is damaged, or its label is not allowed.
        """
        position = int(self.offset_N[index])
        _, length = self._read_frame(index, position)
        content = self._read_bytes(index, position + FRAME.size, min(length, HEADER.size))
        return self._read_label(index, content)[0]

    def _read_index(self, index_path: Path) -> np.ndarray:
        """Reads the byte position of each record from the .idx file, (N,)."""
        try:
            pairs = [line.split("\t") for line in split_lines(read_text(index_path)) if line.strip()]
            offset_N = np.array([parse_integer(offset) for _, offset in pairs], np.int64)
        except (ValueError, TypeError) as error:  # lines with other columns, or no integers
            raise DataError(
                f"'{index_path}' is not an index of records (a number, a tab and a byte position on each line). Remove "
                "it to have it made up from the .rec file."
            ) from error
        if len(offset_N) and (offset_N.min() < 0 or len(np.unique(offset_N)) < len(offset_N)):
            wrong = f"byte {offset_N.min()}" if offset_N.min() < 0 else "a byte twice"
            raise DataError(f"'{index_path}' points to {wrong}. Remove it to have it made up from the .rec file.")
        is_behind_N = offset_N + FRAME.size > self._size
        if is_behind_N.any():
            fact = (
                f"'{self.path}' is truncated: its index '{index_path}' points to byte {offset_N.max()}, but the file "
                f"has {self._size}."
            )
            self._refuse_rest(int((~is_behind_N).sum()), fact, "Copy or make it again.")
        self._use_keys([key for (key, _), is_behind in zip(pairs, is_behind_N.tolist()) if not is_behind])
        return offset_N[~is_behind_N]

    def _use_keys(self, keys: Sequence[str]) -> None:
        """Receives the number of each record, as text of the .idx file."""

    def _refuse_rest(self, record: int, fact: str, remedy: str = "") -> None:
        self._findings.refuse(Problem(DAMAGED_RECORD, DataLocation(str(self.path), record=record), fact, remedy))

    def _walk(self) -> np.ndarray:
        """Finds the byte position of each record by reading the frames of the file one after the other, (N,)."""
        offsets: List[int] = []
        position = 0
        try:
            while position < self._size:
                kind, length = self._read_frame(len(offsets), position)
                if kind in (WHOLE, FIRST):
                    offsets.append(position)
                position += part_size(length)
        except LoaderError as error:
            self._refuse_rest(len(offsets), str(error))
            return np.asarray(offsets, np.int64)
        if position != self._size:
            fact = f"'{self.path}' is truncated: it has {self._size} bytes, its last record ends at {position}."
            self._refuse_rest(len(offsets), fact, "Copy or make it again.")
        return np.asarray(offsets, np.int64)

    def _read_record(self, index: int) -> bytes:
        """Reads a record, and joins its parts with the magic number at which it was split."""
        position = int(self.offset_N[index])
        parts: List[bytes] = []
        while True:
            kind, length = self._read_frame(index, position)
            parts.append(self._read_bytes(index, position + FRAME.size, length))
            if kind in (WHOLE, LAST):
                break
            position += part_size(length)
        self._require_end(index, position + part_size(length))
        return MAGIC.join(parts)

    def _require_end(self, index: int, end: int) -> None:
        """Rejects a record that does not end where the next one begins.

        Raises:
            LoaderError: the record reaches into the next one of the index, or nothing begins where it ends.
        """
        following = int(np.searchsorted(self._sorted_N, self.offset_N[index], side="right"))
        if following < len(self) and end == self._sorted_N[following]:
            return  # the usual case, without another read
        overlaps = following < len(self) and end > self._sorted_N[following]
        if overlaps or (end < self._size and self._file.read(4, end) != MAGIC):
            raise LoaderError(
                f"{self.name(index)} has a length that cannot be right: it ends at byte {end}, and the next record "
                f"begins elsewhere.",
                "Copy or make the file again.",
                DAMAGED_RECORD,
            )

    def _read_frame(self, index: int, position: int) -> Tuple[int, int]:
        """Returns the kind and the length of the part that begins at a byte position."""
        magic, word = FRAME.unpack(self._read_bytes(index, position, FRAME.size))
        if magic != MAGIC:
            raise LoaderError(
                f"Record {index} of '{self.path}' does not begin at byte {position}: the file is damaged, or is no "
                "RecordIO file, or its .idx belongs to another.",
                self.advice,
                DAMAGED_RECORD,
            )
        kind, length = split_word(word)
        self._require_inside(index, position + FRAME.size + length)
        return kind, length

    def _read_bytes(self, index: int, position: int, length: int) -> bytes:
        self._require_inside(index, position + length)  # before memory is allocated
        content = self._file.read(length, position)
        if len(content) < length:
            fact = f"'{self.path}' became shorter while it was read."
            raise LoaderError(fact, "Copy or make it again.", DAMAGED_RECORD)
        return content

    def _require_inside(self, index: int, end: int) -> None:
        if end > self._size:
            raise LoaderError(
                f"'{self.path}' is truncated: record {index} ends at byte {end}, the file at {self._size}.",
                "Copy or make it again.",
                DAMAGED_RECORD,
            )

    def _read_label(self, index: int, content: bytes) -> Tuple[int, int]:
        """Returns the class index, and the number of bytes before the image. `content` has at least the header."""
        self._require_header(index, content)
        flag, value, _, _ = HEADER.unpack_from(content)
        length = HEADER.size
        if flag > 1:
            fact = f"{self.name(index)} has {flag} labels; one class index is allowed."
            faces = f"dataset=face_record dataset.root={self.path.parent}"
            # insightface's header and identity records have two labels; boxes have at least seven.
            several = "For several classes an image type task=multi_label"
            remedy = f"{several}. insightface's files of faces have such records: type {faces}."
            if flag >= _MIN_BOX_NUMBERS:
                boxes = "For boxes in records type task=detection dataset=image_list"
                remedy = f"{boxes}; for insightface's faces {faces}. {several}."
            raise LoaderError(fact, remedy, LABEL_RANGE)
        if flag == 1:
            # A label array with one element, which follows the header.
            length += 4
            label = content[HEADER.size : length]
            if len(label) < 4:
                label = self._read_bytes(index, int(self.offset_N[index]) + FRAME.size + HEADER.size, 4)
            (value,) = struct.unpack("<f", label)
        if not 0 <= value < (self.num_classes or _MAX_CLASSES) or value != int(value):  # also true for NaN
            allowed = f"0 to {(self.num_classes or _MAX_CLASSES) - 1}"
            raise LoaderError(f"{self.name(index)} has the label {value:g}; allowed is {allowed}.", "", LABEL_RANGE)
        return int(value), length


def _label_numbers(content: bytes, image_begin: int) -> np.ndarray:
    """Returns the numbers of a label from the bytes of its record up to the image, float64."""
    flag, value, _, _ = HEADER.unpack_from(content)
    return np.frombuffer(content[HEADER.size : image_begin], "<f4").astype(np.float64) if flag else np.array([value])


def first_labels(path: Path) -> List[np.ndarray]:
    """Returns the numbers of the labels of the first records; none if the file does not begin with a record."""
    labels: List[np.ndarray] = []
    try:
        with open_regular(path) as (file, _):
            position = 0
            while len(labels) < _NUM_RECOGNISED:
                file.seek(position)
                head = file.read(FRAME.size + HEADER.size)
                if len(head) < FRAME.size + HEADER.size or head[:4] != MAGIC:
                    break
                kind, length = split_word(FRAME.unpack_from(head)[1])
                content, num_labels = head[FRAME.size :], int.from_bytes(head[8:12], "little")
                if kind == WHOLE and HEADER.size + 4 * num_labels <= length:
                    labels.append(_label_numbers(content + file.read(4 * num_labels), HEADER.size + 4 * num_labels))
                position += part_size(length)
    except DataError:
        return []
    return labels


def may_be_vector(numbers: np.ndarray) -> bool:
    """Returns True if a label has 0 or 1 for each of several classes."""
    return len(numbers) > 1 and bool(((numbers == 0) | (numbers == 1)).all())


def may_be_indices(numbers: np.ndarray) -> bool:
    """Returns True if a label lists indices of classes."""
    is_index = (numbers >= 0) & (numbers == np.floor(numbers)) & np.isfinite(numbers)
    return bool(is_index.all()) and len(np.unique(numbers)) == len(numbers)


def hold_boxes(labels: Sequence[np.ndarray]) -> bool:
    """Returns True if some labels have boxes, or if all have the header of boxes alone, which begins with its
    length and that of a box."""
    several = [numbers for numbers in labels if len(numbers) > 1]
    is_header = all(numbers[0] == len(numbers) and numbers[1] >= _BOX_NUMBERS for numbers in several)
    is_classes = all(may_be_vector(numbers) or may_be_indices(numbers) for numbers in several)
    return bool(several) and (is_header or not is_classes)
