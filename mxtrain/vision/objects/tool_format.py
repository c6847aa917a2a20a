"""Base class of formats of annotation tools, which name the image, the class and the shape of each object.

Legend: K points of a polygon, J key points.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    UNKNOWN_CLASS,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import (
    FileId,
    as_posix,
    exists,
    files_in,
    id_of,
    list_first,
    normalize_name,
    read_bytes,
    suggest_existing,
    walk,
)
from mxtrain.data.loading.split_folders import find_splits, parse_name
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.detection.boxed_classes import ClassNames
from mxtrain.vision.images.files import EXTENSIONS
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.instance_segmentation.outlines import Polygons
from mxtrain.vision.objects.dataset import ObjectFormat, ObjectMasks
from mxtrain.vision.objects.objects import (
    IGNORED_CLASS,
    AnnotatedImage,
    AnnotatedObject,
    AnnotationSet,
    NumberedSource,
    PointNames,
    Shape,
    corners,
    extent,
)
from mxtrain.vision.pose.key_points import Visibility

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 1 << 30
_NUM_CORNERS = 72
"""Corners of the polygon of a circle or an ellipse: its area is 0.1 % too small."""
_MAX_ANGLE = 0.01
"""Degrees up to which a box counts as not turned: tools write rounded angles."""
ORIENTED = "is an oriented box, which no network of mxtrain predicts"
_TURN_IT = "Draw a box or a polygon instead, or remove it."


class BadShape(ValueError):
    """A shape is wrong, or of a kind that is not read.

    Args:
        fact: the problem, as the end of a sentence.
        remedy: sentence that says what to do.
    """

    def __init__(self, fact: str, remedy: str = "Correct or remove it.") -> None:
        super().__init__(fact)
        self.fact, self.remedy = fact, remedy


def oriented() -> BadShape:
    """Returns the error of an oriented box."""
    return BadShape(ORIENTED, _TURN_IT)


def refuse_turned(angle: float) -> None:
    """Refuses a box that is turned.

    Args:
        angle: degrees.

    Raises:
        BadShape: the angle is not 0.
    """
    if abs(angle) > _MAX_ANGLE:
        raise oriented()


class ToolShape(NamedTuple):
    """A shape that a tool wrote, in pixels."""

    number: int
    """Index of the shape in its list, or line."""
    label: str
    shape: Optional[Shape] = None
    """Polygons, or a mask; a box is a polygon. None: a key point."""
    point: Optional[Tuple[float, float, int]] = None
    """x, y and visibility of a key point, whose name is the label."""
    group: Hashable = None
    """Shapes of an object have the same; None: the shape belongs to no group."""
    is_difficult: bool = False


@dataclass(frozen=True)
class ToolImage(NumberedSource):
    """An image that a tool annotated.

    Attributes:
        path: image file.
        identity: device and inode of the file.
        source: file of the annotation.
        size: (width, height) according to the tool; None if unknown.
        shapes: its shapes; those in front come last.
        are_lines: True if numbers of shapes are lines.
    """

    path: str
    identity: FileId
    source: str
    size: Optional[Tuple[float, float]]
    shapes: Sequence[ToolShape]
    are_lines: bool = False


@dataclass(frozen=True)
class ToolData:
    """Annotations read from the files of a tool.

    Attributes:
        splits: images of each split.
        class_names: names of the classes in their order; empty: all labels of the training split, sorted.
        point_names: names of the key points in their order; empty: all labels of points, in the order of the file.
        skeleton: pairs of key points that are joined by a line, by name.
    """

    splits: Mapping[str, Sequence[ToolImage]]
    class_names: Sequence[str] = ()
    point_names: Sequence[str] = ()
    skeleton: Sequence[Tuple[str, str]] = ()


class ToolFormat(ObjectFormat):
    """Base class of formats of annotation tools. Subclasses define `read_tool`."""

    background_names: ClassVar[Sequence[str]] = ()
    """Labels that mean the background."""
    ignored_names: ClassVar[Sequence[str]] = ()
    """Labels of regions that a segmentation ignores."""

    classes: ClassNames = []
    """Names of the classes to train on, in this order; empty = all. Objects of other classes are left out."""

    def read_tool(self, findings: Findings) -> ToolData:
        """Reads the files.

        Args:
            findings: collects the problems.

        Raises:
            DataError: the files do not exist, or cannot be read.
        """
        raise NotImplementedError

    def read(self, findings: Findings) -> AnnotationSet:
        """Reads the annotations of all splits; see `ObjectFormat.read`."""
        data = self.read_tool(findings)
        train = [shape for image in data.splits.get("train", ()) for shape in image.shapes]
        special = {*self.background_names, *self.ignored_names}
        found = [shape.label for shape in train if shape.shape is not None and shape.label not in self.ignored_names]
        names = list(data.class_names) or sorted(set(found))
        for name in self.classes:
            if name not in names:
                raise DataError(
                    f"dataset.classes: there is no class '{name}' in the annotations.{did_you_mean(name, names)} There "
                    f"are: {list_first(names)}."
                )
        draws = isinstance(self, ObjectMasks)
        left_out = self.ignored_names if draws else special
        chosen = list(self.classes) or [name for name in names if name not in left_out]
        if draws:
            chosen += [name for name in self.background_names if name in names and name not in chosen]
        if not chosen:
            raise DataError(f"{self.option}: the annotations have no object, so nothing can be learned.")
        labels = [shape.label for shape in train if shape.point is not None]
        point_names = list(data.point_names) or list(dict.fromkeys(labels))
        builder = _Builder(chosen, names, point_names, special, findings, self.reads_points)
        splits = {split: [builder.build(image) for image in images] for split, images in data.splits.items()}
        builder.refuse()
        for split, images in splits.items():
            _refuse_same_images(images, findings)
            empty = sum(not image.objects for image in images)
            if empty:
                log.info("%s: %d of %d images of %s have no object: background", self.option, empty, len(images), split)
        points = None
        if point_names:
            index = {name: number for number, name in enumerate(point_names)}
            skeleton = [(index[first], index[last]) for first, last in data.skeleton]
            points = PointNames(point_names, skeleton)
        background = next((chosen.index(name) for name in self.background_names if name in chosen), None)
        return AnnotationSet(chosen, splits, False, points, background)


class _Builder:
    """Converts shapes to objects, and collects what is wrong with them."""

    def __init__(
        self,
        chosen: Sequence[str],
        names: Sequence[str],
        point_names: Sequence[str],
        special: Any,
        findings: Findings,
        needs_points: bool,
    ) -> None:
        """Stores the names.

        Args:
            chosen: classes to learn.
            names: all classes.
            point_names: names of the key points.
            special: labels that mean the background or ignored regions.
            findings: collects the problems.
            needs_points: True if the task learns key points.
        """
        self._index = {name: number for number, name in enumerate(chosen)}
        self._names, self._special, self._findings = set(names), special, findings
        self._points = {name: number for number, name in enumerate(point_names)}
        self._needs_points = needs_points
        self._problems: List[Problem] = []

    def build(self, image: ToolImage) -> AnnotatedImage:
        """Returns an image with its objects of the classes to learn."""
        objects: List[AnnotatedObject] = []
        groups: Dict[Hashable, List[Optional[int]]] = {}
        for shape in image.shapes:
            if shape.shape is None:
                continue
            index = self._index.get(shape.label)
            if index is None and shape.label in self._special:
                index = IGNORED_CLASS
            if index is None:
                self._refuse_unknown(image, shape)
                groups.setdefault(shape.group, []).append(None)
                continue
            groups.setdefault(shape.group, []).append(len(objects))
            edges = extent(shape.shape)
            objects.append(AnnotatedObject(shape.number, index, edges, shape.shape, None, shape.is_difficult))
        if self._needs_points:
            self._add_points(image, objects, groups)
        return AnnotatedImage(image.path, image.identity, image.source, image.size, objects, image.are_lines)

    def _refuse_unknown(self, image: ToolImage, shape: ToolShape) -> None:
        """Reports a class that the training split does not have; classes that were not chosen are left out."""
        if shape.label not in self._names:
            location = image.location(shape.number)
            fact = f"{location}: there is no class '{shape.label:.60}' in the training split."
            remedy = f"{did_you_mean(shape.label, self._names)} Classes are {list_first(sorted(self._names))}.".strip()
            self._problems.append(Problem(UNKNOWN_CLASS, location, fact, remedy))

    def _add_points(
        self, image: ToolImage, objects: List[AnnotatedObject], groups: Mapping[Hashable, Sequence[Optional[int]]]
    ) -> None:
        """Adds the key points of an image to its objects: those of the same group, or the only object. Key points of
        objects that are left out (None) are left out, too."""
        every = [index for group in groups.values() for index in group]
        for shape in image.shapes:
            if shape.point is None:
                continue
            candidates = groups.get(shape.group, []) if shape.group is not None else every
            if len(candidates) == 1 and candidates[0] is None:
                continue
            location = image.location(shape.number)
            number = self._points.get(shape.label)
            if len(candidates) != 1 or number is None:
                fact = f"{location}: the key point '{shape.label:.60}' belongs to {len(candidates)} boxes."
                remedy = "Give a box and its key points a group of their own."
                if number is None:
                    fact = f"{location}: there is no key point '{shape.label:.60}' in the training split."
                    remedy = f"Key points are {list_first(list(self._points))}."
                self._problems.append(Problem(UNREADABLE_ROW, location, fact, remedy))
                continue
            (index,) = candidates
            assert index is not None
            points = objects[index].points
            point_J3 = np.zeros((len(self._points), 3)) if points is None else points
            if point_J3[number, 2] != Visibility.UNKNOWN:
                fact = f"{location}: the object has two key points '{shape.label:.60}'."
                self._problems.append(Problem(LISTED_TWICE, location, fact, "Remove one."))
                continue
            point_J3[number] = shape.point
            objects[index] = objects[index]._replace(points=point_J3)

    def refuse(self) -> None:
        """Reports the problems."""
        refuse_all(self._findings, self._problems, "shapes")


def _refuse_same_images(images: Sequence[AnnotatedImage], findings: Findings) -> None:
    """Rejects an image with two annotations: where masks are drawn, a part of it could be held out for validation."""
    seen: Dict[FileId, AnnotatedImage] = {}
    for image in images:
        earlier = seen.setdefault(image.identity, image)
        if earlier is not image:
            fact = f"'{image.path}' is annotated in '{earlier.source}' and in '{image.source}'."
            if earlier.source == image.source:
                fact = f"'{image.path}' is annotated twice in '{image.source}'."
            findings.refuse(Problem(LISTED_TWICE, DataLocation(image.source), fact, "Remove one of them."))


def polygon(points: Any, what: str = "polygon") -> Shape:
    """Returns the shape of a list of points [x, y].

    Raises:
        BadShape: they are not at least three finite points.
    """
    try:
        point_K2 = np.array(points, np.float64).reshape(-1, 2)
    except (TypeError, ValueError):
        point_K2 = np.full((3, 2), np.nan)
    if not np.isfinite(point_K2).all():
        raise BadShape(f"has a {what} whose points are no finite numbers")
    if len(point_K2) < 3:
        raise BadShape(f"has a {what} of {len(point_K2)} points, fewer than 3")
    return [point_K2]


def box(edges: Sequence[Any]) -> Shape:
    """Returns the polygon of left, top, right, bottom.

    Raises:
        BadShape: they are not four finite numbers.
    """
    try:
        values = [float(edge) for edge in edges]
    except (TypeError, ValueError):
        values = [np.nan]
    if len(values) != 4 or not np.isfinite(values).all() or any(isinstance(edge, (bool, str)) for edge in edges):
        raise BadShape(f"has a box that is no four numbers: {list(edges)!r:.60}")
    if values[2] < values[0] or values[3] < values[1]:
        raise BadShape("has a box that ends before it begins")
    return corners(values)


def ellipse(x: float, y: float, radius_x: float, radius_y: float, angle: float = 0.0) -> Shape:
    """Returns the polygon of an ellipse.

    Args:
        x, y: centre.
        radius_x, radius_y: half axes.
        angle: clockwise rotation in radians.

    Raises:
        BadShape: a number is not finite, or a radius not above 0.
    """
    numbers = (x, y, radius_x, radius_y, angle)
    if any(isinstance(number, (bool, str)) or not isinstance(number, (int, float)) for number in numbers):
        raise BadShape("has an ellipse whose numbers are none")
    if not np.isfinite(numbers).all() or radius_x <= 0 or radius_y <= 0:
        raise BadShape(f"has an ellipse of the radii {radius_x:g} and {radius_y:g}, which must be above 0")
    turn_K = np.arange(_NUM_CORNERS) * 2 * np.pi / _NUM_CORNERS
    along_K, across_K = radius_x * np.cos(turn_K), radius_y * np.sin(turn_K)
    x_K = x + along_K * np.cos(angle) - across_K * np.sin(angle)
    y_K = y + along_K * np.sin(angle) + across_K * np.cos(angle)
    return [np.column_stack([x_K, y_K])]


def runs_of(mask_hw: np.ndarray) -> Runs:
    """Returns a mask as run lengths.

    Raises:
        BadShape: it has no pixel.
    """
    if not mask_hw.any():
        raise BadShape("has a mask without any pixel")
    flat = (mask_hw.T.ravel() != 0).astype(np.int8)
    change = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], change, [len(flat)]]))
    return Runs(np.concatenate([[0], lengths]) if flat[0] else lengths, mask_hw.shape)  # type: ignore[arg-type]


class ImageFinder:
    """Finds the files of images by the names that a tool wrote: by their path in a folder, otherwise by the name of the
    file if only one in the folder and below has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.cached_property
    def _named(self) -> Dict[str, List[Tuple[str, FileId]]]:
        named: Dict[str, List[Tuple[str, FileId]]] = {}
        for file, file_id in walk(self.folder, EXTENSIONS) if self.folder.is_dir() else ():
            named.setdefault(normalize_name(file.name), []).append((str(file), file_id))
        return named

    def find(self, name: str) -> Optional[Tuple[str, FileId]]:
        """Returns path and identity of an image; None if there is no such file, or several."""
        name = as_posix(name)
        path = self.folder / name.lstrip("/")
        if name and exists(path) and not path.is_dir():
            return str(path), id_of(path)
        found = self._of_name(name)
        return found[0] if len(found) == 1 else None

    def _of_name(self, name: str) -> List[Tuple[str, FileId]]:
        return self._named.get(normalize_name(as_posix(name).rpartition("/")[2]), [])

    def missing(self, location: DataLocation, name: str, setting: str = "dataset.images=FOLDER") -> Problem:
        """Returns the problem of an annotated image that is not found.

        Args:
            location: source location of the annotation.
            name: name of the image.
            setting: what says where images are.
        """
        count = len(self._of_name(name))
        fact = f"{location} names '{name:.200}', and '{self.folder}' has no such file."
        remedy = f"Add it, or say with {setting} where images are."
        if count > 1:
            fact = f"{location} names '{name:.200}', and folders below '{self.folder}' have {count} files of that name."
            remedy = f"Write the folder in front of the name, or say with {setting} where images are."
        return Problem(MISSING_COUNTERPART, location, fact, remedy)


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        DataError: it cannot be read, or is no JSON.
    """
    try:
        return parse_json(read_bytes(path, MAX_JSON_BYTES), allow_nan=True)
    except JsonTextError as error:
        raise DataError(f"'{path}' {error}. Copy or write it again.") from error


def find_split_files(
    root: Path, endings: Tuple[str, ...], option: str, matches: Callable[[Path], bool] = lambda path: True
) -> Dict[str, Tuple[Path, Path]]:
    """Returns split -> its annotation file, and the folder that images are relative to: `root/train.ENDING` and others,
    a file in each of `root/train/`, `root/val/` and `root/test/`, a single file in `root`, or `root` itself.

    Args:
        root: folder or file.
        endings: endings of names, in lower case.
        option: option of the dataset, for messages.
        matches: returns True for files of the format, where a folder has several.

    Raises:
        DataError: there is no file of a training split.
    """
    if not exists(root):
        raise DataError(
            f"{option}: there is no folder '{root}'.{suggest_existing(root)} Name yours with dataset.root=FOLDER, or "
            "dataset.root=FILE."
        )
    if not root.is_dir():
        return {"train": (root, root.parent)}

    def files_of(folder: Path) -> List[str]:
        found = [name for name in files_in(folder) if name.lower().endswith(endings)]
        # A file alone is read, so that the message says what is wrong with it.
        return found if len(found) == 1 else [name for name in found if matches(folder / name)]

    names = files_of(root)
    named = {parsed[1]: name for name in names if (parsed := parse_name(name.partition(".")[0])) is not None}
    if len(names) == 1:
        named = {"train": names[0]}
    if "train" in named:
        return {split: (root / name, root) for split, name in named.items()}
    found: Dict[str, Tuple[Path, Path]] = {}
    for split, folder in find_splits(root, option).items():
        inside = files_of(folder)
        if len(inside) > 1:
            raise DataError(
                f"{option}: '{folder}' holds {list_first(inside)}, and a split has one file. Move the others elsewhere."
            )
        if inside:
            found[split] = (folder / inside[0], folder)
        else:
            log.warning("%s: '%s' holds no *%s, so the split %s is left out", option, folder, endings[0], split)
    if "train" not in found:
        listed = f" There are: {list_first(names)}." if names else ""
        raise DataError(f"{option}: '{root}' holds no train{endings[0]}.{listed} Name the file with dataset.root=FILE.")
    return found


def join_groups(shapes: Sequence[ToolShape]) -> List[ToolShape]:
    """Joins the outlines of the same label and group to one object, as labelme's own labelme2coco.py and CVAT's export
    to COCO do: an object that another one divides has several outlines."""
    joined: Dict[Any, ToolShape] = {}
    for shape in shapes:
        key = object() if shape.group is None or shape.shape is None else (shape.label, shape.group)
        first = joined.setdefault(key, shape)
        if first is not shape:
            assert first.shape is not None and shape.shape is not None
            joined[key] = first._replace(shape=_union(first.shape, shape.shape))
    return list(joined.values())


def _union(first: Shape, second: Shape) -> Shape:
    """Returns two outlines as one."""
    mask = next((shape for shape in (first, second) if isinstance(shape, Runs)), None)
    if mask is None:
        return [*first, *second]  # type: ignore[misc]  # both are polygons
    outlines = [shape if isinstance(shape, Runs) else Polygons(shape) for shape in (first, second)]
    return runs_of(np.logical_or(*(outline.in_image(mask.size) > 0 for outline in outlines)))
