"""Annotations of labelme: a JSON file beside each image.

Pixels come from the image file, turned as EXIF says, and never from `imageData`: labelme stores JPEGs of quality 95 of
TIFF and turned files there. Coordinates are those of the turned image.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    UNREADABLE_FILE,
    UNREADABLE_MASK,
    DataLocation,
    Findings,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import exists, suggest_existing, walk
from mxtrain.data.loading.opening import MAX_PIXELS, open_image
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.images.files import find_images
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
    join_groups,
    oriented,
    polygon,
    read_json,
    runs_of,
)
from mxtrain.vision.pose.key_points import Visibility

OPTION = "dataset=labelme"


class LabelmeFormat(ToolFormat):
    """labelme's JSON files: rectangles, polygons, circles, masks, and points as key points, which belong to the
    rectangle of the same group.

    Splits are the folders `train/`, `val/` and `test/`, if there are any. Images without a JSON file are ignored.
    """

    background_names: ClassVar[Sequence[str]] = ("_background_",)
    ignored_names: ClassVar[Sequence[str]] = ("__ignore__",)

    root: PathText = "data/labelme"
    """Folder of the JSON files; images are where these say, or beside them."""

    def read_tool(self, findings: Findings) -> ToolData:
        """Reads the JSON files; see `ToolFormat.read_tool`."""
        root = Path(self.root)
        if not root.is_dir():
            raise DataError(
                f"{OPTION}: there is no folder '{root}'.{suggest_existing(root)} It must hold labelme's JSON files. "
                "Name yours with dataset.root=FOLDER."
            )
        folders = find_splits(root, OPTION) or {"train": root}
        problems: List[Problem] = []
        splits: Dict[str, List[ToolImage]] = {}
        counts = {"images without a JSON file": 0, "lines and line strips": 0}
        for split, folder in folders.items():
            files = [path for path, _ in walk(folder, (".json",), findings=findings)]
            if not files:
                raise DataError(f"{OPTION}: '{folder}' holds no JSON files.")
            finder_of = {folder: ImageFinder(folder) for folder in dict.fromkeys(path.parent for path in files)}
            images = [_read_image(path, finder_of[path.parent], problems, counts, findings) for path in files]
            splits[split] = [image for image in images if image is not None]
            if self.reads_outlines:
                splits[split] = [replace(image, shapes=join_groups(image.shapes)) for image in splits[split]]
            annotated = {image.identity for image in splits[split]}
            counts["images without a JSON file"] += sum(
                file_id not in annotated for _, file_id in find_images(folder, findings=findings)
            )
        refuse_all(findings, problems, "shapes")
        findings.leave_out(OPTION, counts)
        return ToolData(splits)


def _read_image(
    path: Path, finder: ImageFinder, problems: List[Problem], counts: Dict[str, int], findings: Findings
) -> Optional[ToolImage]:
    """Returns the image of a JSON file with its shapes; None if one of both cannot be used.

    Args:
        path: the JSON file.
        finder: finds images in the folder of the file.
        problems: receives what is wrong with shapes.
        counts: receives the number of lines, which are left out.
        findings: collects files that cannot be read.
    """
    content: Any = call_or_report(findings, DataLocation(str(path)), lambda: read_json(path), UNREADABLE_FILE)
    if content is None:
        return None
    shapes = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(shapes, list) or not isinstance(content.get("imagePath"), str):
        fact = f"'{path}' has no shapes and imagePath: it is no file of labelme."
        problems.append(Problem(UNREADABLE_FILE, DataLocation(str(path)), fact, "Remove it."))
        return None
    image = finder.find(content["imagePath"]) or _beside(path, finder)
    if image is None:
        problems.append(finder.missing(DataLocation(str(path)), content["imagePath"], "imagePath"))
        return None
    size = content.get("imageWidth"), content.get("imageHeight")
    has_size = all(isinstance(side, (int, float)) and side > 0 for side in size)
    read = []
    for number, shape in enumerate(shapes):
        try:
            found = _read_shape(number, shape, size if has_size else None)
        except BadShape as error:
            location = DataLocation(str(path), record=number)
            problems.append(Problem(UNREADABLE_MASK, location, f"shapes: {location} {error.fact}.", error.remedy))
            continue
        if found is None:
            counts["lines and line strips"] += 1
        else:
            read.append(found)
    file, identity = image
    return ToolImage(file, identity, str(path), size if has_size else None, read)


def _beside(path: Path, finder: ImageFinder) -> Any:
    """Returns the image with the name of a JSON file."""
    names = [f"{path.stem}{ending}" for ending in (".jpg", ".jpeg", ".png", ".JPG", ".bmp", ".tif", ".tiff")]
    return next((finder.find(name) for name in names if exists(path.parent / name)), None)


def _read_shape(number: int, shape: Any, size: Any) -> Optional[ToolShape]:
    """Returns a shape; None for lines, which have no area.

    Raises:
        BadShape: it is wrong, or an oriented box.
    """
    if not isinstance(shape, dict) or not isinstance(shape.get("label"), str) or not shape["label"]:
        raise BadShape("has no label")
    label, kind = shape["label"], shape.get("shape_type") or "polygon"
    points: Any = shape.get("points")
    group = shape.get("group_id")
    group = group if isinstance(group, (int, str)) else None
    if kind in ("line", "linestrip"):
        return None
    if kind == "oriented_rectangle":
        raise oriented()
    if kind == "polygon":
        return ToolShape(number, label, polygon(points), group=group)
    values = _points(points, {"rectangle": 2, "circle": 2, "mask": 2, "point": 1}.get(kind, 0), kind)
    if kind == "point":
        return ToolShape(number, label, point=(*values[0], Visibility.VISIBLE), group=group)
    (first_x, first_y), (second_x, second_y) = values
    if kind == "rectangle":
        edges = (min(first_x, second_x), min(first_y, second_y), max(first_x, second_x), max(first_y, second_y))
        return ToolShape(number, label, box(edges), group=group)
    if kind == "circle":
        radius = math.hypot(second_x - first_x, second_y - first_y)
        return ToolShape(number, label, ellipse(first_x, first_y, radius, radius), group=group)
    return ToolShape(number, label, _read_mask(shape.get("mask"), (int(first_x), int(first_y)), size), group=group)


def _points(points: Any, count: int, kind: str) -> List[Tuple[float, float]]:
    """Returns the points of a shape of a kind.

    Raises:
        BadShape: the kind is unknown, or they are not `count` points.
    """
    if not count:
        raise BadShape(f"is of the kind {kind!r:.40}, which is not read")
    try:
        values = [(float(x), float(y)) for x, y in points]
    except (TypeError, ValueError):
        values = []
    if len(values) != count or not np.isfinite(values).all():
        raise BadShape(f"is a {kind}, and has not {count} points of two finite numbers")
    return values


def _read_mask(text: Any, begin: Tuple[int, int], size: Any) -> Runs:
    """Returns the mask of a shape: a PNG in base64, whose left top pixel is that of its first point.

    Raises:
        BadShape: it is no such mask, or reaches beyond the image.
    """
    if size is None:
        raise BadShape("is a mask, and the file has no imageWidth and imageHeight")
    width, height = map(int, size)
    if width * height > MAX_PIXELS:
        sides = " x ".join(f"{side:g}" for side in size)
        raise BadShape(f"is a mask in an image of {sides} pixels by its file, and at most {MAX_PIXELS:,} are read")
    try:
        inside_hw = np.asarray(open_image(base64.b64decode(text, validate=True))) > 0
    except (TypeError, ValueError, OSError, SyntaxError, binascii.Error) as error:
        raise BadShape("has a mask that is no PNG in base64") from error
    left, top = begin
    if (
        inside_hw.ndim != 2
        or left < 0
        or top < 0
        or left + inside_hw.shape[1] > width
        or top + inside_hw.shape[0] > height
    ):
        raise BadShape("has a mask that reaches beyond its image")
    whole_hw = np.zeros((height, width), np.uint8)
    whole_hw[top : top + inside_hw.shape[0], left : left + inside_hw.shape[1]] = inside_hw
    return runs_of(whole_hw)


class Labelme(LabelmeFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with labelme's JSON files."""

    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = files.find(".json")[:200]
        heads = [name for name in names if '"shapes"' in files.text(name) and '"imagePath"' in _ends(files, name)]
        if not heads:
            return None
        kinds = {kind for name in heads for kind in _KINDS if f'"shape_type": "{kind}"' in files.text(name)}
        task, form = "detection", "labelme's JSON with rectangles"
        if "point" in kinds and "rectangle" in kinds:
            task, form = "pose_estimation", "labelme's JSON with rectangles and key points"
        elif kinds & {"polygon", "mask"}:
            task, form = "instance_segmentation", "labelme's JSON with outlines"
        return Recognised(form, {"root": files.typed()}, task, Certainty.SURE)


_KINDS = ("rectangle", "polygon", "circle", "mask", "point")


def _ends(files: FileTree, name: str) -> str:
    """Returns the text in which a file's imagePath is: it follows the shapes, so all of a file without imageData."""
    content = files.json(name)
    return '"imagePath"' if isinstance(content, dict) and "imagePath" in content else ""
