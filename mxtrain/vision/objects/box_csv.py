"""Boxes in CSV files: a row with image, class and four numbers for each box.

Legend: R rows of a file.
"""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    MISSING_COUNTERPART,
    NOT_A_NUMBER,
    SHORT_ROW,
    UNKNOWN_CLASS,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import FileId, as_posix, exists, list_first, read_text
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.text_rows import has_text, read_cells
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_numbers import parse_number
from mxtrain.types import Names, PathText
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.detection.box_faults import TOLERANCE, are_normalized, excess, refuse_all
from mxtrain.vision.detection.boxed_classes import ClassLookup, ClassNames, choose_class_names
from mxtrain.vision.detection.boxed_files import find_named
from mxtrain.vision.kinds import Boxes
from mxtrain.vision.objects.dataset import ObjectBoxes, ObjectFormat, size_of
from mxtrain.vision.objects.objects import AnnotatedImage, AnnotatedObject, AnnotationSet
from mxtrain.vision.objects.tool_format import find_split_files

log = logging.getLogger(__name__)

OPTION = "dataset=box_csv"
FORMATS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
}
"""Formats of boxes, as they are typed -> in words."""
_SIZED = "sized"
"""Format of columns whose names do not tell whether x and y are the left top corner or the centre."""
_IMAGE = ("image", "filename", "file_name", "file", "image_path", "path", "img", "image_name", "image_id", "imageid")
_CLASS = ("class", "label", "category", "name", "class_name", "label_name", "labelname", "label_names", "classname")
_NUMBERS: Dict[Tuple[str, str, str, str], str] = {
    ("xmin", "ymin", "xmax", "ymax"): "xyxy",
    ("x_min", "y_min", "x_max", "y_max"): "xyxy",
    ("x1", "y1", "x2", "y2"): "xyxy",
    ("left", "top", "right", "bottom"): "xyxy",
    ("x_center", "y_center", "width", "height"): "cxcywh",
    ("xcenter", "ycenter", "width", "height"): "cxcywh",
    ("center_x", "center_y", "width", "height"): "cxcywh",
    ("cx", "cy", "w", "h"): "cxcywh",
    ("xc", "yc", "w", "h"): "cxcywh",
    ("left", "top", "width", "height"): "xywh",
    ("xmin", "ymin", "width", "height"): "xywh",
    ("bbox_x", "bbox_y", "bbox_width", "bbox_height"): "xywh",
    ("x", "y", "width", "height"): _SIZED,
    ("x", "y", "w", "h"): _SIZED,
}
"""Names of four columns -> format of the boxes."""
_MAX_SIZES = 500
"""Number of images whose sizes are read to tell formats apart."""
_MAX_SHOWN = 3


class _Columns(NamedTuple):
    """Positions of the columns of a file."""

    image: int
    class_name: int
    numbers: Sequence[int]
    """Four positions, or one with a list of four numbers."""
    form: str
    """Format of the boxes by the names of columns; empty: unknown."""
    has_header: bool


class _Row(NamedTuple):
    """A row of a file."""

    line: int
    image: str
    class_name: str
    numbers: Optional[Tuple[float, float, float, float]]


@dataclass(frozen=True)
class _Table:
    """Rows of the file of a split, and the folder that images are relative to."""

    path: Path
    folder: Path
    rows: Sequence[_Row]
    form: str


class BoxCsvFormat(ObjectFormat):
    """CSV files of boxes, one for each split: `train.csv` with `val.csv` and `test.csv`, or one in each of `train/`,
    `valid/` and `test/`, or a single file. A row without a class and numbers is an image without boxes."""

    gives: ClassVar[Gives] = Gives(Images, Boxes)

    root: PathText = "data/box_csv"
    """Folder of the files, or the file of the training split."""
    images: str = ""
    """Folder in `root` that the paths of images are relative to."""
    columns: Optional[Names] = None
    """Names, or numbers from 0, of the columns of image, class and four numbers, in this order; null = recognised by
    their names, or by their content in files without a header."""
    box_format: Literal["auto", "xyxy", "xywh", "cxcywh"] = "auto"
    """The four numbers: xyxy = left, top, right, bottom; xywh = left, top, width, height; cxcywh = centre, width,
    height; auto = by the names of the columns, otherwise the only format in which all boxes are in their images."""
    relative: Union[Literal["auto"], bool] = "auto"
    """If true, numbers are shares of width and height, otherwise pixels; auto = shares if all are between 0 and 1."""
    classes: ClassNames = []
    """Names of the classes; empty = the lines of `root/classes.txt`, or else all names in the training file, sorted."""

    def read(self, findings: Findings) -> AnnotationSet:
        """Reads the files; see `ObjectFormat.read`."""
        tables = {
            split: self._table(path, folder, findings)
            for split, (path, folder) in find_split_files(Path(self.root), (".csv",), OPTION).items()
        }
        found = sorted({row.class_name for row in tables["train"].rows if row.class_name})
        root, folder = Path(self.root), tables["train"].path.parent
        names = choose_class_names(self.classes, root if root.is_dir() else folder)
        lookup = ClassLookup(names or choose_class_names((), folder, found))
        numbers_R4 = np.array([row.numbers for table in tables.values() for row in table.rows if row.numbers])
        is_relative = are_normalized(numbers_R4) if self.relative == "auto" else self.relative
        form = self._form(tables, is_relative)
        splits = {split: _images_of(table, lookup, form, findings) for split, table in tables.items()}
        return AnnotationSet(lookup.names, splits, bool(is_relative))

    def _table(self, path: Path, folder: Path, findings: Findings) -> _Table:
        """Reads the rows of a file.

        Raises:
            DataError: its columns are not recognised, or it has no rows.
        """
        with io.StringIO(read_text(path, findings), newline="") as stream:
            cells = [(line, row) for line, row in read_cells(path, stream, ".csv") if has_text(row)]
        if not cells:
            raise DataError(f"'{path}' has no rows.")
        columns = self._find_columns(path, cells[0][1])
        problems: List[Problem] = []
        rows = [_read_row(path, line, row, columns, problems) for line, row in cells[columns.has_header :]]
        refuse_all(findings, problems, "rows")
        return _Table(path, folder / self.images, [row for row in rows if row is not None], columns.form)

    def _find_columns(self, path: Path, first: Sequence[str]) -> _Columns:
        """Returns the columns, by the settings or by the first row.

        Raises:
            DataError: they are not recognised.
        """
        names = [cell.strip().lower() for cell in first]
        if self.columns is not None:
            return self._named_columns(path, first)
        image, class_name = (
            next((names.index(name) for name in known if name in names), -1) for known in (_IMAGE, _CLASS)
        )
        chosen = next((each for each in _NUMBERS if set(each) <= set(names)), None)
        if image >= 0 and class_name < 0 and "bbox" in names:
            return _Columns(image, -1, [names.index("bbox")], "", True)
        if image >= 0 and class_name >= 0 and (chosen or "bbox" in names):
            numbers = [names.index(name) for name in chosen] if chosen else [names.index("bbox")]
            return _Columns(image, class_name, numbers, _NUMBERS[chosen] if chosen else "", True)
        are_numbers = [cell == "" or parse_number(cell) is not None for cell in names]
        if len(names) == 6 and are_numbers[1:5] == [True] * 4:  # keras-retinanet: path,x1,y1,x2,y2,class
            return _Columns(0, 5, [1, 2, 3, 4], "", False)
        if len(names) == 6 and are_numbers[2:] == [True] * 4:
            return _Columns(0, 1, [2, 3, 4, 5], "", False)
        raise DataError(
            f"'{path}': which columns are image, class and the four numbers? The first row is "
            f"{list_first(list(first))}. Type dataset.columns=[IMAGE,CLASS,X,Y,X,Y] with their names, or with their "
            "numbers from 0 if there is no header."
        )

    def _named_columns(self, path: Path, first: Sequence[str]) -> _Columns:
        """Returns the columns of the setting `columns`.

        Raises:
            DataError: there is no such column, or they are not six.
        """
        assert self.columns is not None
        if len(self.columns) != 6:
            raise DataError(f"dataset.columns={self.columns}: name six: image, class, and four numbers.")
        names = [cell.strip() for cell in first]
        if all(re.fullmatch("[0-9]+", name) for name in self.columns):
            positions = [int(name) for name in self.columns]
            if max(positions) >= len(names):
                raise DataError(f"dataset.columns: '{path}' has {len(names)} columns, 0 to {len(names) - 1}.")
            cells = [names[position] for position in positions[2:]]
            is_row = all(cell == "" or parse_number(cell) is not None for cell in cells)
            return _Columns(positions[0], positions[1], positions[2:], "", not is_row)
        for name in self.columns:
            if name not in names:
                raise DataError(f"dataset.columns: '{path}' has no column '{name}'.{did_you_mean(name, names)}")
        positions = [names.index(name) for name in self.columns]
        return _Columns(positions[0], positions[1], positions[2:], "", True)

    def _form(self, tables: Dict[str, _Table], is_relative: bool) -> str:
        """Returns the format of the boxes.

        Raises:
            DataError: neither names nor numbers tell it.
        """
        if self.box_format != "auto":
            return self.box_format
        forms = {table.form for table in tables.values()}
        if len(forms) == 1 and forms <= set(FORMATS):
            return forms.pop()
        possible = ["xywh", "cxcywh"] if forms == {_SIZED} else list(FORMATS)
        fitting = [form for form in possible if _fits(tables, form, is_relative)]
        if len(fitting) == 1:
            log.info("%s: the boxes are %s: all are inside of their images only so", OPTION, FORMATS[fitting[0]])
            return fitting[0]
        listed = "; ".join(f"{form} = {words}" for form, words in FORMATS.items())
        fact = "fit their images as " + " and as ".join(fitting) if fitting else "fit their images in no format"
        raise DataError(
            f"{OPTION}: what are the four numbers in '{tables['train'].path}'? The boxes {fact}. Type "
            f"dataset.box_format=FORMAT: {listed}."
        )


def _fits(tables: Dict[str, _Table], form: str, is_relative: bool) -> bool:
    """Returns True if all boxes of some images are inside of these in a format."""
    sizes: Dict[str, Tuple[float, float]] = {}
    edges, limits = [], []
    for table in tables.values():
        for row in table.rows:
            if row.numbers is None:
                continue
            path = str(table.folder / as_posix(row.image))
            if not is_relative and path not in sizes:
                if len(sizes) >= _MAX_SIZES:
                    continue
                sizes[path] = size_of(path) if exists(path) else (np.nan, np.nan)
            edges.append(as_edges(row.numbers, form))
            limits.append((1.0, 1.0) if is_relative else sizes[path])
    edge_R4, limit_R2 = np.array(edges).reshape(-1, 4), np.array(limits).reshape(-1, 2)
    tolerance = TOLERANCE / 100 if is_relative else TOLERANCE
    has_area = (edge_R4[:, 2:] > edge_R4[:, :2]).all()
    return bool(has_area and (excess(edge_R4, limit_R2) <= tolerance).all())


def as_edges(numbers: Sequence[float], form: str) -> Tuple[float, float, float, float]:
    """Returns left, top, right, bottom of four numbers in a format of `FORMATS`."""
    first, second, third, fourth = numbers
    if form == "xyxy":
        return first, second, third, fourth
    if form == "xywh":
        return first, second, first + third, second + fourth
    return first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2


def _read_row(
    path: Path, line: int, cells: Sequence[str], columns: _Columns, problems: List[Problem]
) -> Optional[_Row]:
    """Returns a row; None if it is wrong, which is added to the problems."""
    location = DataLocation(str(path), line)
    last = max(columns.image, columns.class_name, *columns.numbers)
    if len(cells) <= last:
        fact = f"{location} has {len(cells)} columns, and needs {last + 1}."
        problems.append(Problem(SHORT_ROW, location, fact, "Complete or remove it."))
        return None
    image = cells[columns.image].strip()
    class_name = cells[columns.class_name].strip() if columns.class_name >= 0 else "object"
    texts = [cells[index].strip() for index in columns.numbers]
    if len(texts) == 1:
        texts = [part.strip() for part in texts[0].strip("[]() ").split(",")] if texts[0] else []
    if not any(texts) and (not class_name or columns.class_name < 0):
        return _Row(line, image, "", None)
    numbers = [parse_number(text, allow_special=True) for text in texts]
    values = tuple(number for number in numbers if number is not None)
    if len(values) != 4 or len(texts) != 4:
        fact = f"{location}: {', '.join(texts)!r:.60} are not four numbers."
        problems.append(Problem(NOT_A_NUMBER, location, fact, "Correct or remove the row."))
        return None
    if not class_name:
        fact = f"{location}: the box has no class."
        problems.append(Problem(UNKNOWN_CLASS, location, fact, "Name its class, or leave out its numbers, too."))
        return None
    return _Row(line, image, class_name, values)


def _images_of(table: _Table, lookup: ClassLookup, form: str, findings: Findings) -> List[AnnotatedImage]:
    """Returns the images of a file that exist, with their boxes of known classes."""
    names = list(dict.fromkeys(as_posix(row.image) for row in table.rows))
    files: Dict[str, Tuple[str, Optional[FileId]]] = {
        name: (file, identity) for name, file, identity in zip(names, *find_named(table.folder, names))
    }
    objects: Dict[str, List[AnnotatedObject]] = {name: [] for name in names if files[name][1] is not None}
    missing: List[Problem] = []
    unknown: List[Problem] = []
    for row in table.rows:
        location, name = DataLocation(str(table.path), row.line), as_posix(row.image)
        if name not in objects:
            fact = f"{location} names '{row.image}', and there is no file '{files[name][0]}'."
            missing.append(Problem(MISSING_COUNTERPART, location, fact, "Add it, or say with dataset.images=FOLDER."))
        elif row.numbers is not None:
            number = lookup.find(row.class_name)
            if number is None:
                near = did_you_mean(row.class_name, lookup.names)
                fact = f"{location}: there is no class '{row.class_name:.60}'."
                unknown.append(
                    Problem(UNKNOWN_CLASS, location, fact, f"{near} Classes are {list_first(lookup.names)}.".strip())
                )
            else:
                objects[name].append(AnnotatedObject(row.line, number, as_edges(row.numbers, form)))
    refuse_all(findings, missing, "rows")
    refuse_all(findings, unknown, "rows")
    images = []
    for name, found in objects.items():
        file, identity = files[name]
        assert identity is not None
        images.append(AnnotatedImage(file, identity, str(table.path), objects=found, are_lines=True))
    return images


class BoxCsv(BoxCsvFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with boxes in CSV files."""

    gives: ClassVar[Gives] = BoxCsvFormat.gives
    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(".csv") if _has_boxes([cell.lower() for cell in files.columns(name)])]
        if not tables or not (files.images or files.is_file):
            return None
        root = files.typed() if len(tables) > 1 or files.is_file else files.typed(tables[0])
        return Recognised("a CSV table of boxes", {"root": root}, "detection", Certainty.SURE)


def _has_boxes(names: Sequence[str]) -> bool:
    """Returns True if the columns of a table, or the cells of a first row, are those of boxes."""
    if set(names) & set(_IMAGE) and ("bbox" in names or any(set(each) <= set(names) for each in _NUMBERS)):
        return True
    return len(names) == 6 and names[0].endswith((".jpg", ".jpeg", ".png")) and parse_number(names[2]) is not None
