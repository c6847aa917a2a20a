"""Annotations of CVAT: its XML, "CVAT for images 1.1". Its exports as COCO, VOC and YOLO have datasets of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

import numpy as np

from mxtrain.data.checking.problems import UNREADABLE_MASK, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.data.loading.opening import MAX_PIXELS
from mxtrain.data.loading.split_folders import parse_name
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_finite, parse_integer
from mxtrain.files.xml_events import MAX_DEPTH, DocumentTypeError, XmlError, XmlReader
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.objects.dataset import ObjectBoxes
from mxtrain.vision.objects.objects import Shape
from mxtrain.vision.objects.tool_format import (
    BadShape,
    ImageFinder,
    ToolData,
    ToolFormat,
    ToolImage,
    ToolShape,
    box,
    ellipse,
    find_split_files,
    join_groups,
    polygon,
    refuse_turned,
    runs_of,
)
from mxtrain.vision.pose.key_points import Visibility

OPTION = "dataset=cvat"
MAX_XML_BYTES = 1 << 30
_SHAPES = ("box", "polygon", "ellipse", "mask", "skeleton", "cuboid", "polyline", "points")


class CvatFormat(ToolFormat):
    """CVAT's XML of images: boxes, polygons, ellipses, masks, and skeletons, whose points are key points.

    Splits are the subsets of the images in the file (Train, Validation, Test), or files or folders as elsewhere.
    """

    root: PathText = "data/cvat"
    """The exported annotations.xml, or the folder that holds it."""
    images: str = ""
    """Folder of the images in the folder of the file; they are searched by name, also below it."""

    def read_tool(self, findings: Findings) -> ToolData:
        """Reads the files; see `ToolFormat.read_tool`."""
        problems: List[Problem] = []
        counts = {"polylines and points": 0}
        splits: Dict[str, List[ToolImage]] = {}
        classes: List[str] = []
        points: List[str] = []
        files = find_split_files(Path(self.root), (".xml",), OPTION)
        for split, (path, folder) in files.items():
            reader = _CvatReader(path)
            reader.read()
            finder = ImageFinder(folder / self.images)
            for image in reader.images:
                shapes = _shapes_of(image, path, problems, counts)
                if self.reads_outlines:
                    shapes = join_groups(shapes)
                found = finder.find(image.name)
                if found is None:
                    problems.append(finder.missing(DataLocation(str(path), image.line), image.name))
                    continue
                # The files of splits may be exports of tasks that are all of one subset.
                parsed = parse_name(image.subset) if len(files) == 1 else None
                part = parsed[1] if parsed is not None else split
                size = (image.width, image.height) if image.width > 0 and image.height > 0 else None
                splits.setdefault(part, []).append(ToolImage(*found, str(path), size, shapes, are_lines=True))
            # The training file comes first; labels that only the task of another split has follow.
            classes += [name for name in reader.classes if name not in classes]
            points += [name for name in reader.point_names if name not in points]
        refuse_all(findings, problems, "elements")
        findings.leave_out(OPTION, counts)
        if "train" not in splits:
            raise DataError(f"{OPTION}: '{self.root}' has no image of a training split.")
        return ToolData(splits, classes, points)


@dataclass
class _Shape:
    """An element of a shape."""

    line: int
    kind: str
    values: Mapping[str, str]
    parts: List[Tuple[int, Mapping[str, str]]] = field(default_factory=list)
    """Points of a skeleton."""


@dataclass
class _Image:
    """An element of an image."""

    line: int
    name: str
    subset: str
    width: float
    height: float
    shapes: List[_Shape] = field(default_factory=list)


class _CvatReader(XmlReader):
    """Reads the elements of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.images: List[_Image] = []
        self.classes: List[str] = []
        self.point_names: List[str] = []
        self._stack: List[str] = []
        self._label: Dict[str, str] = {}

    def read(self) -> None:
        """Reads the file.

        Raises:
            DataError: it is no XML of images.
        """
        try:
            self.parse(read_bytes(self._path, MAX_XML_BYTES))
        except DocumentTypeError as error:
            raise DataError(f"'{self._path}' {error.fact}.") from error
        except XmlError as error:
            raise DataError(f"'{self._path}' {error.fact}. Export it again.") from error

    def start(self, name: str, values: Dict[str, str]) -> None:
        line, depth = self.line, len(self._stack)
        if not depth and name != "annotations":
            raise DataError(f"'{self._path}' is no XML of CVAT: its root is <{name[:40]}>, not <annotations>.")
        if depth > MAX_DEPTH:
            raise DataError(f"'{self._path}', line {line}: more than {MAX_DEPTH} elements are in each other.")
        if depth == 1 and name == "track":
            raise DataError(
                f"'{self._path}', line {line}: this is the XML of a video. Export the task as CVAT for images 1.1."
            )
        if depth == 1 and name == "image":
            width, height = (parse_finite(values.get(side, "")) or 0.0 for side in ("width", "height"))
            self.images.append(_Image(line, values.get("name", ""), values.get("subset", ""), width, height))
        elif depth == 2 and self._stack[1] == "image" and name in _SHAPES:
            self.images[-1].shapes.append(_Shape(line, name, values))
        elif depth == 3 and self._stack[2] == "skeleton" and name == "points":
            self.images[-1].shapes[-1].parts.append((line, values))
        self._stack.append(name)
        self.text.clear()

    def end(self, name: str) -> None:
        self._stack.pop()
        if self._stack[-2:] == ["labels", "label"] and name in ("name", "parent"):
            self._label[name] = "".join(self.text).strip()
        elif name == "label" and self._stack[-1:] == ["labels"]:
            names = self.point_names if self._label.get("parent") else self.classes
            if self._label.get("name") and self._label["name"] not in names:
                names.append(self._label["name"])
            self._label = {}
        self.text.clear()


def _shapes_of(image: _Image, path: Path, problems: List[Problem], counts: Dict[str, int]) -> List[ToolShape]:
    """Returns the shapes of an image, those in front last; adds what is wrong to the problems."""
    shapes: List[Tuple[int, ToolShape]] = []
    for number, each in enumerate(image.shapes):
        if each.kind in ("polyline", "points"):
            counts["polylines and points"] += 1
            continue
        try:
            found = _read_shape(each, image, number)
        except BadShape as error:
            location = DataLocation(str(path), each.line)
            fact = f"{location}: the <{each.kind}> {error.fact}."
            problems.append(Problem(UNREADABLE_MASK, location, fact, error.remedy))
            continue
        order = parse_integer(each.values.get("z_order", "0")) or 0
        shapes += [(order, shape) for shape in found]
    return [shape for _, shape in sorted(shapes, key=lambda pair: pair[0])]


def _read_shape(each: _Shape, image: _Image, number: int) -> List[ToolShape]:
    """Returns the shape of an element; of a skeleton the box around its points, and these.

    Raises:
        BadShape: it is wrong, or of a kind that is not read.
    """
    label = each.values.get("label", "")
    if not label:
        raise BadShape("has no label")
    if each.kind == "cuboid":
        raise BadShape("is a cuboid, which is not read", "Draw a box or a polygon, or remove it.")
    if each.kind == "skeleton":
        return _read_skeleton(each, label, number)
    angle = _number(each.values, "rotation", 0.0)
    if each.kind == "box":
        refuse_turned(angle)
        shape: Shape = box([_number(each.values, edge) for edge in ("xtl", "ytl", "xbr", "ybr")])
    elif each.kind == "polygon":
        shape = polygon(_points(each.values))
    elif each.kind == "ellipse":
        x, y, radius_x, radius_y = (_number(each.values, name) for name in ("cx", "cy", "rx", "ry"))
        shape = ellipse(x, y, radius_x, radius_y, math.radians(angle))
    else:
        shape = _read_mask(each.values, image)
    number_of_group = parse_integer(each.values.get("group_id", "0"))
    # Boxes are not joined: a group can also be one of several objects, such as the persons of a team.
    group = ("group_id", number_of_group) if number_of_group and each.kind != "box" else None
    return [ToolShape(each.line, label, shape, group=group)]


def _read_skeleton(each: _Shape, label: str, number: int) -> List[ToolShape]:
    """Returns the box around the marked points of a skeleton, and the points."""
    points = []
    for line, values in each.parts:
        if values.get("outside") == "1":
            continue
        ((x, y),) = _points(values)[:1] or [(math.nan, math.nan)]
        if not math.isfinite(x + y):
            raise BadShape("has a point without two numbers")
        hidden = values.get("occluded") == "1"
        point = (x, y, int(Visibility.HIDDEN if hidden else Visibility.VISIBLE))
        points.append(ToolShape(line, values.get("label", ""), point=point, group=number))
    if not points:
        raise BadShape("has no point that is inside")
    xs, ys = ([shape.point[axis] for shape in points if shape.point] for axis in (0, 1))
    edges = (min(xs), min(ys), max(xs), max(ys))
    if edges[0] == edges[2] or edges[1] == edges[3]:
        raise BadShape("has points on one line or at one place, so that no box is around them")
    return [ToolShape(each.line, label, box(edges), group=number), *points]


def _number(values: Mapping[str, str], name: str, default: Optional[float] = None) -> float:
    """Returns the number of an attribute.

    Raises:
        BadShape: it is missing, or no finite number.
    """
    if default is not None and not values.get(name):
        return default
    number = parse_finite(values.get(name, ""))
    if number is None:
        raise BadShape(f"has {name}={values.get(name, '')!r:.40}, which is no number")
    return number


def _points(values: Mapping[str, str]) -> List[Tuple[float, ...]]:
    """Returns the points of an attribute `points`, "x,y;x,y".

    Raises:
        BadShape: they are none.
    """
    points: List[Tuple[float, ...]] = []
    for text in values.get("points", "").split(";"):
        pair = [parse_finite(part) for part in text.split(",")]
        if len(pair) != 2 or pair[0] is None or pair[1] is None:
            raise BadShape(f"has the point {text!r:.40}, which is not x,y")
        points.append((pair[0], pair[1]))
    return points


def _read_mask(values: Mapping[str, str], image: _Image) -> Runs:
    """Returns a mask: run lengths, row by row, of a part of the image, beginning with background.

    Raises:
        BadShape: they do not fill the part, or it reaches beyond the image.
    """
    left, top, width, height = (int(_number(values, name)) for name in ("left", "top", "width", "height"))
    is_inside = left >= 0 and top >= 0 and left + width <= image.width and top + height <= image.height
    if width <= 0 or height <= 0 or not is_inside:
        raise BadShape("has a mask that reaches beyond its image")
    if image.width * image.height > MAX_PIXELS:
        raise BadShape(f"has a mask of more than {MAX_PIXELS:,} pixels")
    runs: List[Any] = [parse_integer(part, 0, width * height) for part in values.get("rle", "").split(",")]
    if None in runs or sum(runs) != width * height:
        raise BadShape(f"has a mask whose rle does not add up to {width} x {height} pixels")
    inside = np.repeat(np.arange(len(runs)) % 2, runs).reshape(height, width)
    whole_hw = np.zeros((int(image.height), int(image.width)), np.uint8)
    whole_hw[top : top + height, left : left + width] = inside
    return runs_of(whole_hw)


class Cvat(CvatFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with CVAT's XML."""

    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found = [name for name in files.find(".xml") if "<annotations" in files.text(name)[:1000]]
        found = [name for name in found if "<image " in files.text(name) or "<meta>" in files.text(name)]
        if not found:
            return None
        text = files.text(found[0])
        task, form = "detection", "CVAT's XML of images with boxes"
        if "<skeleton " in text:
            task, form = "pose_estimation", "CVAT's XML of images with skeletons"
        elif "<polygon " in text or "<mask " in text:
            task, form = "instance_segmentation", "CVAT's XML of images with outlines"
        root = files.typed() if len(found) > 1 or files.is_file else files.typed(found[0])
        return Recognised(form, {"root": root}, task, Certainty.SURE)
