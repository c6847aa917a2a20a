"""Base class of detection formats that list boxes line by line, such as tables of boxes.

Legend: R boxes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import ClassVar, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    MISSING_COUNTERPART,
    STRICT,
    UNKNOWN_CLASS,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import FileId, as_posix, exists
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_numbers import parse_number
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all, refuse_wrong_boxes
from mxtrain.vision.detection.boxed_classes import ClassLookup, ClassNames, choose_class_names
from mxtrain.vision.detection.boxed_files import BoxedFiles, find_named
from mxtrain.vision.detection.list_file import ListedBoxes
from mxtrain.vision.images.files import ImageFiles


class BoxLine(NamedTuple):
    """One box of a file, or an image without one."""

    line: int
    """Line of the file, from 1."""
    image: str
    """Path of the image in `root`."""
    class_name: str = ""
    """Name of the class; empty: the image has no box."""
    edges: Sequence[Union[str, float]] = ()
    """Left, top, right and bottom in pixels, as numbers or as text."""


class BoxLines(BoxedFiles):
    """Base class of formats with one file for each split: `root/train.ENDING`, and val and test beside it if there are
    any. Subclasses define `read`, and the class attributes `option` and `ending`."""

    ending: ClassVar[str] = ""
    """Ending of the files, e.g. ".csv"."""

    root: PathText = "data"
    """Folder of the files."""
    classes: ClassNames = []
    """Names of the classes; empty = the lines of `root/classes.txt`, or else all names in the training file, sorted."""

    def read(self, path: Path) -> Iterable[BoxLine]:
        """Reads the boxes of a split. Images, classes and coordinates are checked by the caller.

        Raises:
            KeyError, IndexError, ValueError: a line is not of the format. The message then names the file.
        """
        raise NotImplementedError

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = self.require_root(f"It must hold train{self.ending}.")
        lines: Dict[str, Sequence[BoxLine]] = {}
        for split in ("train", "val", "test"):
            path = root / f"{split}{self.ending}"
            if split == "train" or exists(path):
                lines[split] = (
                    call_or_report(findings, DataLocation(str(path)), functools.partial(self._lines, path)) or ()
                )
        found = sorted({line.class_name for line in lines["train"] if line.class_name})
        lookup = ClassLookup(choose_class_names(self.classes, root, found))
        splits = {}
        for split, found_lines in lines.items():
            listed = self._listed(root, root / f"{split}{self.ending}", found_lines, lookup, findings)
            size_R2 = np.full((len(listed.image_R), 2), np.nan)
            is_kept_R = refuse_wrong_boxes(listed.object_R6[:, 1:5], size_R2, listed, findings, self.mends)
            splits[split] = listed.split(is_kept_R)
        return self.make_splits(splits, lookup.names, range(len(lookup.names)), findings)

    def _lines(self, path: Path) -> Sequence[BoxLine]:
        """Reads a file.

        Raises:
            DataError: it does not exist, or is not of the format.
        """
        if not exists(path):
            raise DataError(f"{self.option}: there is no file '{path}'.")
        try:
            return list(self.read(path))
        except (KeyError, IndexError, ValueError) as error:
            raise DataError(f"'{path}' cannot be read: {type(error).__name__}: {error}.") from error

    def _listed(
        self, root: Path, path: Path, lines: Sequence[BoxLine], lookup: ClassLookup, findings: Findings
    ) -> ListedBoxes:
        """Returns the images that exist, and the boxes on them with a known class and four numbers."""
        names = list(dict.fromkeys(as_posix(line.image) for line in lines))
        images = {name: (file, identity) for name, file, identity in zip(names, *find_named(root, names))}
        index_of: Dict[str, int] = {}
        kept: List[Tuple[str, FileId]] = []
        numbers: List[int] = []
        objects: List[List[float]] = []
        locations: List[DataLocation] = []
        problems: List[Problem] = []
        for line in lines:
            location, name = DataLocation(str(path), line.line), as_posix(line.image)
            file, identity = images[name]
            if identity is None:
                fact = f"{location} names '{line.image}', and there is no file '{file}'."
                problems.append(Problem(MISSING_COUNTERPART, location, fact, "Add it, or remove the line."))
                continue
            if name not in index_of:
                index_of[name] = len(kept)
                kept.append((file, identity))
            if not line.class_name:
                continue
            number = lookup.find(line.class_name)
            edges = [parse_number(str(edge), allow_special=True) for edge in line.edges]
            if number is None:
                near = did_you_mean(line.class_name, lookup.names)
                fact = f"{location}: there is no class '{line.class_name:.60}'."
                remedy = f"{near} Classes are {', '.join(lookup.names[:20])}.".strip()
                problems.append(Problem(UNKNOWN_CLASS, location, fact, remedy))
            elif len(edges) != 4 or any(edge is None for edge in edges):
                fact = f"{location}: {list(line.edges)!r:.80} are not four numbers: left, top, right, bottom."
                problems.append(Problem(UNREADABLE_ROW, location, fact))
            else:
                numbers.append(index_of[name])
                objects.append([number, *(edge for edge in edges if edge is not None), 0])
                locations.append(location)
        refuse_all(findings, problems, "lines")
        encoded = ImageFiles([file for file, _ in kept])
        object_R6 = np.array(objects, np.float64).reshape(-1, 6)
        return ListedBoxes(path, encoded, [each for _, each in kept], np.array(numbers, np.int64), object_R6, locations)
