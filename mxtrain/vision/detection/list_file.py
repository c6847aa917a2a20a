"""Reads lists of images with boxes in the formats of MXNet's im2rec: .lst and .rec files.

The label of an image is a row of numbers: the length of the header (A, including itself), the length of an object (B),
the rest of the header, and the objects: class, left, top, right, bottom and further numbers, of which the first is 1
for difficult objects.

Legend: P images, R boxes, N numbers of a label.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    LABEL_RANGE,
    MISSING_COUNTERPART,
    SHORT_ROW,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
    problem_of,
)
from mxtrain.data.loading.dataset_files import FileId, as_posix, read_text
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_number
from mxtrain.vision.detection.box_faults import in_unit_square, refuse_all
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_files import BoxedSplit, find_named
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.record_file import RecordFile

log = logging.getLogger(__name__)

_MIN_HEADER, _MIN_OBJECT = 2, 5
"""Smallest lengths of the header and of an object."""
_DIFFICULT_COLUMN = 5
"""Column of an object with the flag for difficult objects."""


class BoxRecords:
    """Records of a .rec file that have boxes, as `EncodedImages`."""

    def __init__(self, records: RecordFile, number_P: Sequence[int]) -> None:
        self._records, self._number_P = records, list(number_P)

    def __len__(self) -> int:
        return len(self._number_P)

    def name(self, index: int) -> str:
        """Returns the name of an image in messages."""
        return self._records.name(self._number_P[index])

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""
        return self._records.location(self._number_P[index])

    def read(self, index: int) -> Tuple[bytes, int]:
        """Returns the encoded image; it has no single label."""
        return self._records.read_image(self._number_P[index]), -1


@dataclass(frozen=True)
class ListedBoxes:
    """Content of a list file.

    Attributes:
        path: path of the list.
        encoded: the images.
        ids: identities of their files; empty for records.
        image_R: index of the image of each box.
        object_R6: class, left, top, right, bottom, flags.
        place_R: source location of each box.
    """

    path: Path
    encoded: EncodedImages
    ids: Sequence[FileId]
    image_R: np.ndarray
    object_R6: np.ndarray
    position_R: Sequence[DataLocation]

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a box."""
        return self.position_R[index]

    def shown(self, index: int) -> str:
        """Returns a box as text, for messages."""
        edges = ", ".join(f"{edge:.6g}" for edge in self.object_R6[index, 1:5])
        return f"{edges} (left, top, right, bottom) of the class {self.object_R6[index, 0]:g}"

    def split(self, is_kept_R: np.ndarray, is_normalized: bool = False) -> Optional[BoxedSplit]:
        """Returns the split of all images and of some of the boxes; None without images.

        Args:
            is_kept_R: mask of these boxes.
            is_normalized: True if coordinates are relative to width and height.
        """
        kept_R6 = self.object_R6[is_kept_R]
        area_R = (kept_R6[:, 3:5] - kept_R6[:, 1:3]).prod(axis=1)
        row_RD = np.column_stack([kept_R6[:, 1:5], kept_R6[:, 0], kept_R6[:, 5], area_R])
        table = BoxTable.grouped(self.image_R[is_kept_R], row_RD, len(self.encoded), is_normalized=is_normalized)
        return BoxedSplit(self.encoded, self.ids, table) if len(self.encoded) else None

    def refuse_classes(self, num_classes: int, findings: Findings) -> np.ndarray:
        """Rejects boxes whose class is not a valid number. Returns a mask of the remaining boxes, (R,).

        Args:
            num_classes: number of classes; 0 = unknown.
            findings: collects the problems.
        """
        class_R = self.object_R6[:, 0]
        is_kept_R = (class_R >= 0) & (class_R == np.floor(class_R)) & (class_R < (num_classes or 1 << 20))
        allowed = f"0 to {num_classes - 1}" if num_classes else "a whole number from 0"
        problems = []
        for index in np.flatnonzero(~is_kept_R).tolist():
            fact = f"{self.location(index)}: the box {self.shown(index)}: the class must be {allowed}."
            remedy = "Give it the number of a class, or name all classes (dataset.classes, classes.txt)."
            problems.append(Problem(LABEL_RANGE, self.location(index), fact, remedy))
        refuse_all(findings, problems, "boxes")
        return is_kept_R

    def refuse_normalized(self, findings: Findings) -> np.ndarray:
        """Rejects boxes that seem to be normalized, in lists with boxes in pixels. Returns a mask of the remaining
        boxes, (R,)."""
        edge_R4 = self.object_R6[:, 1:5]
        is_normalized_R = in_unit_square(edge_R4) & (edge_R4 != np.floor(edge_R4)).any(axis=1)
        problems = []
        for index in np.flatnonzero(is_normalized_R).tolist():
            fact = (
                f"{self.location(index)}: the box {self.shown(index)} seems to be in shares of width and height, and "
                "others of the lists are in pixels."
            )
            remedy = "Write all in the same way, or type dataset.normalized=false if it is in pixels."
            problems.append(Problem(LABEL_RANGE, self.location(index), fact, remedy))
        refuse_all(findings, problems, "boxes")
        return ~is_normalized_R


class _ListCollector:
    """Collects the boxes of the labels of a list, and their problems."""

    def __init__(self) -> None:
        self.problems: List[Problem] = []
        self._images: List[int] = []
        self._objects: List[np.ndarray] = []
        self._locations: List[DataLocation] = []
        self._stray: List[Tuple[DataLocation, float]] = []
        """Flags of objects that are neither 0 nor 1."""

    def warn_of_bad_flags(self, findings: Findings) -> None:
        """Warns once that flags other than 0 and 1 are ignored."""
        if not self._stray:
            return
        location, number = self._stray[0]
        fact = (
            f"{location}: the sixth number of an object is {number:g} ({len(self._stray):,} such objects), and only 1 "
            "= difficult and 0 are known: these are not taken for difficult."
        )
        problem = Problem(LABEL_RANGE, location, fact, "Write 0 or 1 if it is this flag.")
        findings.remark(problem)
        if not findings.keeps_going:
            log.warning("%s", problem.sentence)

    def add(self, image: int, label_N: np.ndarray, location: DataLocation) -> bool:
        """Adds the boxes of an image. Returns False, and adds a problem, if the label has no valid boxes.

        Args:
            image: index of the image.
            label_N: numbers of the label.
            location: source location of the label.
        """
        fault = _label_fault(label_N)
        if fault:
            remedy = "A label is 'A B ... class left top right bottom ...': see docs/data/detection-data.md."
            self.problems.append(Problem(UNREADABLE_ROW, location, f"{location}: {fault}.", remedy))
            return False
        header, width = int(label_N[0]), int(label_N[1])
        object_MB = label_N[header:].reshape(-1, width)
        flag_M = object_MB[:, _DIFFICULT_COLUMN] if width > _DIFFICULT_COLUMN else np.zeros(len(object_MB))
        is_difficult_M = flag_M == 1
        self._stray += [(location, float(number)) for number in flag_M[~np.isin(flag_M, (0, 1))].tolist()]
        self._objects.append(np.column_stack([object_MB[:, :_DIFFICULT_COLUMN], Flag.DIFFICULT * is_difficult_M]))
        self._images += [image] * len(object_MB)
        self._locations += [location] * len(object_MB)
        return True

    def listed(self, path: Path, encoded: EncodedImages, ids: Sequence[FileId]) -> ListedBoxes:
        """Returns the collected boxes; arguments as in `ListedBoxes`."""
        object_R6 = np.concatenate(self._objects) if self._objects else np.zeros((0, 6))
        return ListedBoxes(path, encoded, ids, np.array(self._images, np.int64), object_R6, self._locations)


def _label_fault(label_N: np.ndarray) -> str:
    """Returns the reason why a label does not contain boxes, as the end of a sentence; empty if it does."""
    if len(label_N) < _MIN_HEADER:
        return f"its label has {len(label_N)} number, as of a single class, and no boxes"
    header, width = label_N[:2]
    is_whole = all(np.isfinite(number) and number == np.floor(number) for number in (header, width))
    if not (is_whole and header >= _MIN_HEADER and width >= _MIN_OBJECT):
        return f"its label begins with {header:g} and {width:g}, and a header has at least 2 numbers and an object 5"
    if len(label_N) < header or (len(label_N) - header) % width:
        return f"its label has {len(label_N)} numbers: a header of {header:g}, and no whole objects of {width:g}"
    return ""


def read_records(path: Path, findings: Findings) -> ListedBoxes:
    """Returns the images of a .rec file and their boxes.

    Raises:
        DataError: the file is damaged.
    """
    records, collector = RecordFile(path, 0, findings), _ListCollector()
    indices: List[int] = []
    for record in range(len(records)):
        location = records.location(record)
        try:
            label_N = records.read_numbers(record)
        except LoaderError as error:
            collector.problems.append(problem_of(error, location))
            continue
        if collector.add(len(indices), label_N, location):
            indices.append(record)
    refuse_all(findings, collector.problems, "records")
    collector.warn_of_bad_flags(findings)
    return collector.listed(path, BoxRecords(records, indices), [])


def read_list(path: Path, folder: Path, findings: Findings) -> ListedBoxes:
    """Returns the images of a .lst file and their boxes.

    Args:
        path: path of the list.
        folder: folder that the paths of images are relative to.
        findings: collects the problems.

    Raises:
        DataError: the list cannot be read, or names no image.
    """
    collector = _ListCollector()
    files: List[Tuple[str, FileId]] = []
    rows = [
        (number, line.split("\t"))
        for number, line in enumerate(split_lines(read_text(path, findings)), 1)
        if line.strip()
    ]
    if not rows:
        raise DataError(f"'{path}' names no image.")
    for (number, row), file, identity in zip(rows, *find_named(folder, [as_posix(row[-1].strip()) for _, row in rows])):
        location = DataLocation(str(path), number)
        if len(row) < 3:
            fact = f"{location} has {len(row)} columns, and must have a number, a label and a path, with tabs between."
            collector.problems.append(Problem(SHORT_ROW, location, fact))
            continue
        cells = [parse_number(cell, allow_special=True) for cell in row[1:-1]]
        label = [cell for cell in cells if cell is not None]
        if len(label) < len(cells):
            fact = f"{location}: its label holds {row[1 + cells.index(None)]!r:.40}, which is no number."
            collector.problems.append(Problem(UNREADABLE_ROW, location, fact, "Columns have tabs between them."))
            continue
        label_N = np.array(label)
        if identity is None:
            fact = f"{location} names '{row[-1].strip()}', and there is no file '{file}'."
            remedy = "Add it, or say with dataset.images=FOLDER where paths begin."
            collector.problems.append(Problem(MISSING_COUNTERPART, location, fact, remedy))
        elif collector.add(len(files), label_N, location):
            files.append((file, identity))
    refuse_all(findings, collector.problems, "lines")
    collector.warn_of_bad_flags(findings)
    return collector.listed(path, ImageFiles([file for file, _ in files]), [identity for _, identity in files])
