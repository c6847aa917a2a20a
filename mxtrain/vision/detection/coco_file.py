"""Reads the images, categories and boxes of a COCO annotation file (JSON) into flat arrays.

Annotations are decoded one at a time from a Latin-1 text, in which a byte is a character: a file of 480 MB takes 985 MB
of memory, and 2,896 MB with `json.load`. Polygons and key points are not kept; their position in the file is.

Legend: P images, R annotations.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    NOT_A_NUMBER,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import as_posix
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_flag, parse_number
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.detection.boxed_classes import first_twice
from mxtrain.vision.images.json_elements import Element, JsonFile

_PARTS = ("images", "annotations", "categories")
_FIRST_TEXT_ID = 1 << 62
"""Images with a text as id are numbered from here. Numeric ids are smaller."""


@dataclass(frozen=True)
class CocoContents:
    """Contents of an annotation file; images are in the order of their ids.

    Attributes:
        path: path of the file.
        image_id_P: id of each image.
        names: file names of the images, P.
        size_P2: width and height, NaN if unknown.
        record_P: index of each image in the list of the file.
        categories: names by id, in the order of ids.
        points: category id -> names of its key points, and the pairs (from 1) that are joined by a line; only
            categories with key points.
        image_R: index of the image of each annotation.
        category_R: id of the category of each annotation.
        edge_R4: left, top, right, bottom of each annotation.
        area_R: area of each annotation; NaN if the file has none.
        is_crowd_R: True for crowd regions.
        id_R: id of each annotation; -1 if it has none.
        record_R: index of each annotation in the list of the file.
        span_R2: begin and end of the text of each annotation in the file, in bytes; `annotations` reads it, with
            polygons and key points.
    """

    path: Path
    image_id_P: np.ndarray
    names: Sequence[str]
    size_P2: np.ndarray
    record_P: np.ndarray
    categories: Dict[int, str]
    points: Dict[int, Tuple[Any, Any]]
    image_R: np.ndarray
    category_R: np.ndarray
    edge_R4: np.ndarray
    area_R: np.ndarray
    is_crowd_R: np.ndarray
    id_R: np.ndarray
    record_R: np.ndarray
    span_R2: np.ndarray

    def annotation(self, number: int) -> Any:
        """Reads all fields of an annotation from the file."""
        return JsonFile(self.path).element(*self.span_R2[number].tolist())

    def annotations(self, indices: np.ndarray) -> Iterator[Any]:
        """Reads all fields of some annotations from the file."""
        return JsonFile(self.path).elements_at(self.span_R2[indices].tolist())

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an annotation."""
        return DataLocation(str(self.path), record=int(self.record_R[index]))

    def shown(self, index: int) -> str:
        """Returns the box of an annotation as text, for messages."""
        left, top, right, bottom = self.edge_R4[index]
        numbers = ", ".join(f"{number:.6g}" for number in (left, top, right - left, bottom - top))
        return f"[{numbers}] (x, y, width, height) of the annotation {self.id_R[index]}"


def read_coco(path: Path, findings: Findings) -> CocoContents:
    """Reads an annotation file in one pass. Of annotations, only numbers are kept.

    Args:
        path: path of the file.
        findings: collects the problems.

    Raises:
        DataError: the file cannot be read, is not JSON, or lacks one of its parts.
    """
    return _CocoReader(path).read(findings)


def read_image_ids(path: Path) -> Iterator[Tuple[Union[int, str], str]]:
    """Yields the id and the name of each image in a file; other content is skipped.

    Raises:
        DataError: the file cannot be read, or is not JSON.
    """
    for element in JsonFile(path).elements():
        image = element.value
        if element.key == "images" and isinstance(image, dict):
            image_id, name = image.get("id"), image.get("file_name")
            if isinstance(image_id, (int, str)) and isinstance(name, str):
                yield image_id, as_posix(name)


def _image_side(value: object) -> float:
    """Returns the width or height of an image; NaN (unknown) if it is missing, 0 or -1, as some converters write."""
    if isinstance(value, str):
        value = parse_number(value)
    return float(value) if isinstance(value, (int, float)) and 0 < value < np.inf else np.nan


def _refuse_reserved_id(image_id: object) -> None:
    """Rejects an image id in the range of numbers that represent text ids.

    Raises:
        OverflowError: the id is in that range.
    """
    if isinstance(image_id, int) and not -_FIRST_TEXT_ID < image_id < _FIRST_TEXT_ID:
        raise OverflowError


class _CocoReader:
    """Collects the contents of an annotation file, and its problems."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: List[Problem] = []
        self._read_parts: Set[str] = set()
        self._images: Dict[int, Tuple[str, float, float, int]] = {}
        self._number_of: Dict[Union[int, str], int] = {}
        """Image id in the file -> its number in this reader."""
        self._text_ids: Dict[str, int] = {}
        """Text id of an image that an annotation names -> its index. Annotations may precede the images in the file, so
        the numbers of images are not known yet."""
        self._categories: Dict[int, str] = {}
        self._points: Dict[int, Tuple[Any, Any]] = {}
        # An array takes 8 bytes for each number; a list of Python's integers takes several times as much.
        self._integers = array("q")
        """For each annotation: image, category, 1 for a crowd region, id, record, begin, end."""
        self._floats = array("d")
        """For each annotation: x, y, width, height, area."""

    def read(self, findings: Findings) -> CocoContents:
        add = {"images": self._add_image, "annotations": self._add_annotation, "categories": self._add_category}
        for element in JsonFile(self._path).elements():
            if element.key not in add:
                continue
            self._read_parts.add(element.key)
            if element.record >= 0:
                add[element.key](element)
            elif element.value != []:
                raise DataError(f"'{self._path}': {element.key} must be a list, e.g. [{{...}}].")
        missing = [part for part in _PARTS if part not in self._read_parts]
        if missing:
            raise DataError(
                f"'{self._path}' has no {' and no '.join(missing)}: it is not one of COCO's annotations of objects, "
                "such as instances_train2017.json."
            )
        if not self._images or not self._categories:
            refuse_all(findings, self._problems, "problems")
            raise DataError(f"'{self._path}' names no {'categories' if self._images else 'images'}.")
        self._drop_unused_twins()
        twice = first_twice(list(self._categories.values()))
        if twice is not None:
            raise DataError(f"'{self._path}' has two categories of the name '{twice}'. Name one otherwise.")
        contents = self._contents()
        refuse_all(findings, self._problems, "problems")
        return contents

    def _drop_unused_twins(self) -> None:
        """Removes categories without annotations that have the same name as another one: Roboflow lists the name of a
        project as a category, and it can also be the name of its only class."""
        count_of = Counter(self._categories.values())
        used = set(self._integers[1::7]) if len(count_of) < len(self._categories) else set()
        for number, name in list(self._categories.items()):
            if count_of[name] > 1 and number not in used:
                count_of[name] -= 1
                del self._categories[number]
                self._points.pop(number, None)

    def _refuse(self, kind: str, element: Element, fact: str, remedy: str) -> None:
        location = DataLocation(str(self._path), record=element.record)
        self._problems.append(Problem(kind, location, f"{element.key}: {location} {fact}.", remedy))

    def _add_image(self, element: Element) -> None:
        image = element.value
        try:
            image_id, name = image["id"], image["file_name"]
            if type(image_id) not in (int, str) or not isinstance(name, str) or not name:
                raise TypeError
            _refuse_reserved_id(image_id)
            size = [_image_side(image.get(side)) for side in ("width", "height")]
        except (KeyError, TypeError, AttributeError, OverflowError):
            fact = "has no id that is a whole number below 2^62 or a text, or no file_name"
            self._refuse(UNREADABLE_ROW, element, fact, "Give it both.")
            return
        if image_id in self._number_of:
            self._refuse(LISTED_TWICE, element, f"has the id {image_id}, which another has, too", "Give it its own.")
            return
        # Images with text ids follow those with numeric ids, in the order of the file.
        number = image_id if type(image_id) is int else _FIRST_TEXT_ID + len(self._number_of)
        self._number_of[image_id] = number
        self._images[number] = (as_posix(name), size[0], size[1], element.record)

    def _add_category(self, element: Element) -> None:
        category = element.value
        try:
            number, name = category["id"], category["name"]
            if type(number) is not int or not isinstance(name, str) or number in self._categories:
                raise TypeError
        except (KeyError, TypeError):
            self._refuse(UNREADABLE_ROW, element, "has no whole id of its own, or no name", "Give it both.")
            return
        self._categories[number] = name
        if category.get("keypoints"):
            self._points[number] = (category["keypoints"], category.get("skeleton"))

    def _add_annotation(self, element: Element) -> None:
        annotation = element.value
        try:
            x, y, width, height = annotation["bbox"]
            area, name = annotation.get("area"), annotation.get("id")
            floats = array("d", (x, y, width, height, np.nan if area is None else area))
            is_crowd = parse_flag(annotation.get("iscrowd"))
            if is_crowd is None:
                fact = f"has iscrowd {annotation['iscrowd']!r:.40}, which is neither 0 nor 1"
                self._refuse(NOT_A_NUMBER, element, fact, "Write 0 or 1.")
                return
            integers = array(
                "q",
                (
                    self._image_of(annotation["image_id"]),
                    annotation["category_id"],
                    is_crowd,
                    name if type(name) is int else -1,
                    element.record,
                    element.begin,
                    element.end,
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            fact = "has no bbox of four numbers, no image_id, or no category_id that is a whole number"
            self._refuse(NOT_A_NUMBER, element, fact, "Correct or remove it.")
            return
        self._floats.extend(floats)
        self._integers.extend(integers)

    def _image_of(self, image_id: object) -> int:
        """Returns the number of the image of an annotation. For a text id, it is a negative placeholder until all
        images are known, see `_resolve_text_ids`."""
        if not isinstance(image_id, str):
            _refuse_reserved_id(image_id)
            return image_id  # type: ignore[return-value]  # the array rejects values that are no integers
        return -1 - _FIRST_TEXT_ID - self._text_ids.setdefault(image_id, len(self._text_ids))

    def _resolve_text_ids(self, image_id_R: np.ndarray) -> np.ndarray:
        """Replaces the placeholders of text ids by the numbers of images; an unknown image gets a number that no image
        has."""
        if not self._text_ids:
            return image_id_R
        number_of_text = np.array([self._number_of.get(text, -1) for text in self._text_ids], np.int64)
        is_text_R = image_id_R < -_FIRST_TEXT_ID
        text_R = np.where(is_text_R, -1 - _FIRST_TEXT_ID - image_id_R, 0)
        return np.where(is_text_R, number_of_text[text_R], image_id_R)

    def _contents(self) -> CocoContents:
        ids = sorted(self._images)
        image_id_P = np.array(ids, np.int64)
        images = [self._images[number] for number in ids]
        integer_R7, float_R5 = np.zeros((0, 7), np.int64), np.zeros((0, 5))
        if self._integers:  # `frombuffer` rejects empty arrays
            integer_R7 = np.frombuffer(self._integers, np.int64).reshape(-1, 7)
            float_R5 = np.frombuffer(self._floats).reshape(-1, 5)
        image_id_R = self._resolve_text_ids(integer_R7[:, 0])
        position_R = np.searchsorted(image_id_P, image_id_R).clip(max=len(ids) - 1)
        is_known_R = image_id_P[position_R] == image_id_R
        texts = list(self._text_ids)
        for number, record in integer_R7[~is_known_R][:, [0, 4]].tolist():
            location = DataLocation(str(self._path), record=record)
            image = number if number >= -_FIRST_TEXT_ID else repr(texts[-1 - _FIRST_TEXT_ID - number])
            fact = f"annotations: {location} is of the image {image}, which the file does not contain."
            self._problems.append(Problem(MISSING_COUNTERPART, location, fact, "Add the image, or remove it."))
        integer_R7, float_R5 = integer_R7[is_known_R], float_R5[is_known_R]
        # Boxes may still hold inf and NaN, which are refused later, with their places.
        with np.errstate(invalid="ignore"):
            edge_R4 = np.concatenate([float_R5[:, :2], float_R5[:, :2] + float_R5[:, 2:4]], axis=1)
        area_R = np.where(np.isfinite(float_R5[:, 4]), float_R5[:, 4], np.nan)
        return CocoContents(
            self._path,
            image_id_P,
            [name for name, *_ in images],
            np.array([(width, height) for _, width, height, _ in images]),
            np.array([record for *_, record in images]),
            dict(sorted(self._categories.items())),
            self._points,
            position_R[is_known_R],
            integer_R7[:, 1],
            edge_R4,
            area_R,
            integer_R7[:, 2] != 0,
            integer_R7[:, 3],
            integer_R7[:, 4],
            integer_R7[:, 5:],
        )
