"""Reads label files of YOLO: a row for each object, `class x y width height` in shares of the image, or `class x1 y1 x2
y2 ...` for polygons, or a box and key points.

Legend: K points of a polygon, J key points.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    EMPTY_BOX,
    LABEL_RANGE,
    LISTED_TWICE,
    NOT_A_NUMBER,
    UNREADABLE_ROW,
    DataLocation,
    Problem,
)
from mxtrain.files.text_lines import split_lines
from mxtrain.vision.detection.box_faults import NORMALIZED_TOLERANCE
from mxtrain.vision.objects.objects import AnnotatedObject
from mxtrain.vision.pose.key_points import Visibility

_NUMBERS = re.compile(r"[0-9.eE+\-\s]*", re.ASCII)
NUM_BOX = 5
"""Columns of a box: class, centre, width and height."""
NUM_OBB = 9
"""Columns of an oriented box: class and four corners, which a polygon of four corners also has."""
_CORRECT = "Correct or remove the row."


@dataclass(frozen=True)
class RowLayout:
    """Layout of the rows of a dataset.

    Attributes:
        num_classes: number of classes.
        kind: "boxes", "polygons" or "key_points".
        num_points: J; 0 without key points.
        point_size: numbers of a key point: 2, or 3 with its visibility.
    """

    num_classes: int
    kind: str
    num_points: int = 0
    point_size: int = 3

    @property
    def num_columns(self) -> int:
        """Returns the number of columns of a row with key points."""
        return NUM_BOX + self.num_points * self.point_size


class BadRow(ValueError):
    """A row is wrong.

    Args:
        kind: kind of problem.
        fact: the problem, as the end of a sentence.
        remedy: sentence that says what to do.
    """

    def __init__(self, kind: str, fact: str, remedy: str = _CORRECT) -> None:
        super().__init__(fact)
        self.kind, self.fact, self.remedy = kind, fact, remedy


def column_counts(text: str) -> List[int]:
    """Returns the number of columns of each row that is not blank."""
    return [count for count in map(len, map(str.split, split_lines(text))) if count]


def read_rows(text: str, path: str, layout: RowLayout) -> Tuple[List[AnnotatedObject], List[Problem], List[Problem]]:
    """Reads the rows of a label file.

    Args:
        text: content of the file.
        path: path of the file, for messages.
        layout: layout of the rows.

    Returns:
        The objects; problems that prevent training; and problems that do not: rows that occur twice.
    """
    objects: List[AnnotatedObject] = []
    problems: List[Problem] = []
    remarks: List[Problem] = []
    first_line: Dict[Tuple[str, ...], int] = {}
    for line, row in enumerate(split_lines(text), 1):
        cells = row.split()
        if not cells:
            continue
        location = DataLocation(path, line)
        earlier = first_line.setdefault(tuple(cells), line)
        if earlier != line:
            fact = f"{location} is the same as line {earlier}, and counts once."
            remarks.append(Problem(LISTED_TWICE, location, fact, "Remove one."))
            continue
        try:
            objects.append(_read_row(cells, line, layout))
        except BadRow as error:
            problems.append(Problem(error.kind, location, f"{location} {error.fact}.", error.remedy))
    return objects, problems, remarks


def _read_row(cells: Sequence[str], line: int, layout: RowLayout) -> AnnotatedObject:
    """Reads a row.

    Raises:
        BadRow: it is wrong.
    """
    numbers = _numbers(cells)
    class_index = _class_of(cells[0], numbers[0], layout.num_classes)
    values = numbers[1:]
    count = len(numbers)
    if layout.kind == "key_points":
        if count != layout.num_columns:
            raise BadRow(
                UNREADABLE_ROW,
                f"has {count} columns, and an object with {layout.num_points} key points of {layout.point_size} "
                f"numbers has {layout.num_columns}",
            )
        points = _read_points(values[4:], layout)
        return AnnotatedObject(line, class_index, _edges(values[:4], cells), None, points)
    if count == NUM_BOX:
        if layout.kind == "polygons":
            raise BadRow(UNREADABLE_ROW, "is a box, and others of the dataset are polygons")
        return AnnotatedObject(line, class_index, _edges(values, cells))
    if count == NUM_BOX + 1:
        raise BadRow(
            UNREADABLE_ROW,
            f"has a sixth column, {cells[5]}, as predictions have: a row is class, centre, width and height",
            "Remove the column, and make sure that the labels are no predictions.",
        )
    if count < 7 or count % 2 == 0:
        raise BadRow(
            UNREADABLE_ROW,
            f"has {count} columns: a box has {NUM_BOX}, and a polygon 1 + 2 for each of at least 3 points",
        )
    _require_shares(values, cells)
    point_K2 = values.reshape(-1, 2)
    left, top = point_K2.min(axis=0).tolist()
    right, bottom = point_K2.max(axis=0).tolist()
    return AnnotatedObject(line, class_index, (left, top, right, bottom), [point_K2])


def _numbers(cells: Sequence[str]) -> np.ndarray:
    """Converts cells to numbers.

    Raises:
        BadRow: one is no finite number.
    """
    if _NUMBERS.fullmatch("".join(cells)):
        try:
            numbers = np.array(cells, np.float64)
        except ValueError:
            pass
        else:
            if np.isfinite(numbers).all():
                return numbers
    wrong = next((cell for cell in cells if not _is_number(cell)), cells[0])
    raise BadRow(NOT_A_NUMBER, f"holds {wrong!r:.40}, which is no number")


def _is_number(cell: str) -> bool:
    try:
        return bool(_NUMBERS.fullmatch(cell)) and bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _class_of(cell: str, number: float, num_classes: int) -> int:
    """Returns the index of a class.

    Raises:
        BadRow: there is no such class.
    """
    if number != np.floor(number):
        raise BadRow(LABEL_RANGE, f"has the class {cell}, which is no whole number")
    if not 0 <= number < num_classes:
        raise BadRow(
            LABEL_RANGE,
            f"has the class {cell}, and there are {num_classes} names: classes are 0 to {num_classes - 1}",
            "Correct it, or name all classes.",
        )
    return int(number)


def _require_shares(values: np.ndarray, cells: Sequence[str]) -> None:
    """Checks that coordinates are shares of width and height.

    Raises:
        BadRow: one is not.
    """
    outside = np.flatnonzero((values < -NORMALIZED_TOLERANCE) | (values > 1 + NORMALIZED_TOLERANCE))
    if len(outside):
        raise BadRow(
            LABEL_RANGE,
            f"holds {cells[1 + int(outside[0])]}, and coordinates are shares of width and height, 0 to 1",
            "Divide pixels by the width and the height of the image.",
        )


def _edges(values: np.ndarray, cells: Sequence[str]) -> Tuple[float, float, float, float]:
    """Returns the edges of a box of centre, width and height.

    Raises:
        BadRow: a value is no share, or a side is negative.
    """
    _require_shares(values, cells)
    x, y, width, height = values.tolist()
    if width < 0 or height < 0:
        raise BadRow(EMPTY_BOX, f"has the width {cells[3]} and the height {cells[4]}, and neither can be negative")
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _read_points(values: np.ndarray, layout: RowLayout) -> Optional[np.ndarray]:
    """Returns key points (J, 3). Without a visibility, points at 0, 0 are unmarked.

    Raises:
        BadRow: a coordinate is no share, or a visibility is not 0, 1 or 2.
    """
    point_JP = values.reshape(layout.num_points, layout.point_size)
    if layout.point_size == 3:
        visible_J = point_JP[:, 2]
        wrong = np.flatnonzero(~np.isin(visible_J, list(map(int, Visibility))))
        if len(wrong):
            raise BadRow(
                LABEL_RANGE, f"has a key point of the visibility {visible_J[wrong[0]]:g}, which must be 0, 1 or 2"
            )
    else:
        visible_J = np.where((point_JP == 0).all(axis=1), Visibility.UNKNOWN, Visibility.VISIBLE)
    xy_J2 = point_JP[:, :2]
    marked_J2 = xy_J2[visible_J > 0]
    _require_shares(marked_J2.ravel(), ["", *(f"{number:g}" for number in marked_J2.ravel())])
    return np.column_stack([np.where(visible_J[:, None] > 0, xy_J2, 0), visible_J])
