"""Annotations of Label Studio: its JSON export, and JSON_MIN. The exports as COCO, VOC and YOLO lose rotations and sort
or renumber classes; this is what the tool stores.

Coordinates are percents of the annotated image.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    UNREADABLE_MASK,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import FileId, as_posix, open_regular
from mxtrain.data.loading.opening import EXTENSIONS, MAX_PIXELS
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.objects.dataset import ObjectBoxes
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
    polygon,
    read_json,
    refuse_turned,
    runs_of,
)
from mxtrain.vision.pose.key_points import Visibility

OPTION = "dataset=label_studio"
_SHAPES = ("rectangle", "polygon", "brush", "keypoint", "ellipse")
_LABELS = tuple(f"{shape}labels" for shape in _SHAPES)
_UPLOADED = re.compile(r"[0-9a-f]{8}-(.+)")
"""Name of an uploaded file: Label Studio puts eight digits in front of it."""


class LabelStudioFormat(ToolFormat):
    """Label Studio's JSON and JSON_MIN: rectangles, polygons, ellipses, brush masks, and key points, which belong to
    the region that is their parent, or to the only one.

    Tasks without an annotation and cancelled annotations are left out and counted. An annotation without regions is
    background.
    """

    root: PathText = "data/label_studio"
    """The exported file, or the folder that holds it, or train.json, val.json and test.json."""
    images: str = ""
    """Folder of the images in the folder of the file; they are searched by name, also below it."""
    several: Literal["refuse", "first", "last", "ground_truth"] = "refuse"
    """Treatment of tasks with several annotations: refuse, or take the first, the last, or the one that is marked as
    ground truth."""

    def read_tool(self, findings: Findings) -> ToolData:
        """Reads the exports; see `ToolFormat.read_tool`."""
        counts = {"tasks without an annotation": 0, "cancelled annotations": 0}
        problems: List[Problem] = []
        splits = {}
        files = find_split_files(Path(self.root), (".json",), OPTION, _is_export)
        for split, (path, folder) in files.items():
            finder = ImageFinder(folder / self.images)
            reader = _TaskReader(path, finder, self.several, problems, counts)
            splits[split] = list(reader.read())
        refuse_all(findings, problems, "tasks")
        findings.leave_out(OPTION, counts)
        return ToolData(splits)


class _TaskReader:
    """Reads the tasks of a file."""

    def __init__(
        self, path: Path, finder: ImageFinder, several: str, problems: List[Problem], counts: Dict[str, int]
    ) -> None:
        self._path, self._finder, self._several = path, finder, several
        self._problems, self._counts = problems, counts

    def read(self) -> Iterator[ToolImage]:
        """Yields the annotated images.

        Raises:
            DataError: the file is no export.
        """
        tasks = read_json(self._path)
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise DataError(f"'{self._path}' is no JSON export of Label Studio, which is a list of tasks.")
        for number, task in enumerate(tasks):
            location = DataLocation(str(self._path), record=number)
            regions = self._regions(task, location)
            if regions is None:
                continue
            name, found = self._find(task)
            if found is None:
                self._problems.append(self._finder.missing(location, name))
                continue
            shapes, size = self._shapes(number, regions, location)
            yield ToolImage(*found, f"{self._path}", size, shapes)

    def _regions(self, task: Mapping[str, Any], location: DataLocation) -> Optional[Sequence[Any]]:
        """Returns the regions of a task's annotation; None if there is none to use."""
        if "annotations" not in task and "completions" not in task:  # JSON_MIN has the regions under names of controls
            lists = [value for value in task.values() if isinstance(value, list) and value]
            found = [each for value in lists for each in value if isinstance(each, dict) and "original_width" in each]
            if not found:
                self._counts["tasks without an annotation"] += 1
            return found or None
        annotations = task.get("annotations", task.get("completions")) or []
        usable = [each for each in annotations if isinstance(each, dict) and not each.get("was_cancelled")]
        self._counts["cancelled annotations"] += len(annotations) - len(usable)
        if not usable:
            self._counts["tasks without an annotation"] += not annotations
            return None
        if len(usable) > 1:
            if self._several == "refuse":
                fact = f"{location}: the task {task.get('id', '')} has {len(usable)} annotations."
                remedy = "Type dataset.several=first, last or ground_truth."
                self._problems.append(Problem(LISTED_TWICE, location, fact, remedy))
                return None
            if self._several == "ground_truth":
                usable = [each for each in usable if each.get("ground_truth")] or usable[:1]
        regions = usable[-1 if self._several == "last" else 0].get("result")
        return regions if isinstance(regions, list) else []

    def _find(self, task: Mapping[str, Any]) -> Tuple[str, Optional[Tuple[str, FileId]]]:
        """Returns the name of a task's image, and its file; None if there is none."""
        data = task.get("data", task)
        texts = [value for value in data.values() if isinstance(value, str)] if isinstance(data, dict) else []
        texts = [text for text in texts if unquote(text).lower().endswith(EXTENSIONS)] or texts[:1]
        upload = task.get("file_upload")
        names = [*(_path_of(text) for text in texts[:1]), *([upload] if isinstance(upload, str) else [])]
        for name in names:
            uploaded = _UPLOADED.fullmatch(name.rpartition("/")[2])
            for candidate in (name, *([uploaded[1]] if uploaded else [])):
                found = self._finder.find(candidate)
                if found is not None:
                    return name, found
        return (names or [""])[0], None

    def _shapes(
        self, number: int, regions: Sequence[Any], location: DataLocation
    ) -> Tuple[List[ToolShape], Optional[Tuple[float, float]]]:
        """Returns the shapes of regions, and the (width, height) of the annotated image."""
        shapes: List[ToolShape] = []
        size: Optional[Tuple[float, float]] = None
        for region in regions:
            try:
                shape, found = _read_region(number, region)
            except BadShape as error:
                fact = f"{location}: a region {error.fact}."
                kind = UNREADABLE_MASK if "mask" in error.fact else UNREADABLE_ROW
                self._problems.append(Problem(kind, location, fact, error.remedy))
                continue
            if shape is not None:
                shapes.append(shape)
                size = found
        return shapes, size


def _path_of(text: str) -> str:
    """Returns the path of an image in a URL, or in a path of Label Studio such as `/data/local-files/?d=a/b.jpg`."""
    parts = urlsplit(as_posix(text))
    local = re.search(r"(?:^|&)d=([^&]+)", parts.query)
    return unquote(local[1] if local else parts.path or text)


def _read_region(number: int, region: Any) -> Tuple[Optional[ToolShape], Tuple[float, float]]:
    """Returns the shape of a region, and the (width, height) of its image; None for results of other kinds, such as
    classes of the whole image.

    Raises:
        BadShape: it is wrong or turned.
    """
    if not isinstance(region, dict):
        raise BadShape("is no object")
    value = region.get("value", region)  # JSON_MIN has no value
    kind = next((name for name in _LABELS if name in value), "") if isinstance(value, dict) else ""
    if not kind:
        if region.get("type") in (*_SHAPES, *_LABELS, "labels"):
            raise BadShape("has no label")
        return None, (0, 0)
    labels = value[kind]
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str):
        raise BadShape(f"has the labels {labels!r:.60}, and must have one")
    sides = region.get("original_width"), region.get("original_height")
    if not all(isinstance(side, (int, float)) and side > 0 for side in sides):
        raise BadShape("has no original_width and original_height")
    width, height = (float(side) for side in sides)  # type: ignore[arg-type]  # numbers
    if region.get("image_rotation"):
        raise BadShape(f"is of an image that was turned by {region['image_rotation']} degrees", "Turn it back.")
    label, group = labels[0], region.get("parentID") if kind == "keypointlabels" else region.get("id")
    if kind == "brushlabels":
        return ToolShape(number, label, _decode_brush(value, int(width), int(height)), group=group), (width, height)
    scale_x, scale_y = width / 100, height / 100
    if kind == "polygonlabels":
        (point_K2,) = polygon(value.get("points"))  # type: ignore[misc]  # polygons
        return ToolShape(number, label, [point_K2 * (scale_x, scale_y)], group=group), (width, height)
    x, y = _numbers(value, "x", "y")
    if kind == "keypointlabels":
        point = (x * scale_x, y * scale_y, int(Visibility.VISIBLE))
        return ToolShape(number, label, point=point, group=group), (width, height)
    angle = float(value.get("rotation") or 0)
    if kind == "ellipselabels":
        radius_x, radius_y = _numbers(value, "radiusX", "radiusY")
        outline = ellipse(x * scale_x, y * scale_y, radius_x * scale_x, radius_y * scale_y, math.radians(angle))
        return ToolShape(number, label, outline, group=group), (width, height)
    refuse_turned(angle)
    box_width, box_height = _numbers(value, "width", "height")
    edges = (x * scale_x, y * scale_y, (x + box_width) * scale_x, (y + box_height) * scale_y)
    return ToolShape(number, label, box(edges), group=group), (width, height)


def _numbers(value: Mapping[str, Any], *names: str) -> List[float]:
    """Returns numbers of a value by name.

    Raises:
        BadShape: one is missing or no finite number.
    """
    numbers = [value.get(name) for name in names]
    for name, number in zip(names, numbers):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise BadShape(f"has no number {name}")
    return [float(number) for number in numbers]  # type: ignore[arg-type]  # checked above


def _decode_brush(value: Mapping[str, Any], width: int, height: int) -> Runs:
    """Returns the mask of a brush: run lengths in bits of the four channels of each pixel, of which the last is opaque
    in the mask. Source: label-studio-converter, brush.py.

    Raises:
        BadShape: they are no such run lengths.
    """
    codes = value.get("rle")
    if value.get("format") != "rle" or not isinstance(codes, list):
        raise BadShape("has a mask that is not of the format rle")
    if width * height > MAX_PIXELS:
        raise BadShape(f"has a mask of {width} x {height} pixels, and at most {MAX_PIXELS:,} are read")
    try:
        bits = np.unpackbits(np.array(codes, np.int64).astype(np.uint8))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadShape("has a mask whose rle is no list of bytes") from error
    channel_N = np.zeros(width * height * 4, np.uint8)
    if not _decode_bits(bits, channel_N):
        raise BadShape(f"has a mask whose rle does not decode to {width} x {height} pixels")
    return runs_of(channel_N[3::4].reshape(height, width) > 0)


def _decode_bits(bits: np.ndarray, values: np.ndarray) -> bool:
    """Decodes run lengths into `values`; returns False if they do not fill it exactly."""
    weights = 1 << np.arange(63, -1, -1, dtype=np.int64)
    position = 0

    def take(count: int) -> int:
        nonlocal position
        part = bits[position : position + count]
        position += count
        return int(part @ weights[-count:]) if len(part) == count else -1

    if take(32) != len(values):
        return False
    word_bits = take(5) + 1
    length_bits = [take(4) + 1 for _ in range(4)]
    index = 0
    while index < len(values):
        is_run = take(1)
        choice = take(2)
        end = index + 1 + take(length_bits[choice])
        if is_run < 0 or choice < 0 or end <= index or end > len(values) or word_bits > 8:
            return False
        if is_run:
            value = take(word_bits)
            if value < 0:
                return False
            values[index:end] = value
        else:
            count = (end - index) * word_bits
            part = bits[position : position + count]
            if len(part) < count:
                return False
            position += count
            values[index:end] = part.reshape(-1, word_bits) @ weights[-word_bits:]
        index = end
    return True


def _is_export(path: Path) -> bool:
    """Returns True for files that begin as a list."""
    try:
        with open_regular(path) as (file, _):
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except DataError:
        return False


class LabelStudio(LabelStudioFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with Label Studio's annotations."""

    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found = [
            name
            for name in files.find(".json")
            if files.text(name).lstrip().startswith("[") and '"original_width"' in files.text(name)
        ]
        if not found:
            return None
        text = files.text(found[0])
        task, form = "detection", "Label Studio's JSON with rectangles"
        if '"keypointlabels"' in text and '"rectanglelabels"' in text:
            task, form = "pose_estimation", "Label Studio's JSON with rectangles and key points"
        elif '"polygonlabels"' in text or '"brushlabels"' in text:
            task, form = "instance_segmentation", "Label Studio's JSON with outlines"
        root = files.typed() if len(found) > 1 or files.is_file else files.typed(found[0])
        return Recognised(form, {"root": root}, task, Certainty.SURE)
