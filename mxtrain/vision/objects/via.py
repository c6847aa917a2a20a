"""Annotations of the VGG Image Annotator (VIA), version 1 and 2: its JSON, its project files, and its CSV."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxtrain.data.checking.problems import UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import list_first, read_text
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.text_rows import has_text, read_cells
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
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
    polygon,
    read_json,
)
from mxtrain.vision.pose.key_points import Visibility

OPTION = "dataset=via"
NO_ATTRIBUTE = "object"
"""Class of regions without any attribute."""
_CSV_COLUMNS = ("filename", "region_shape_attributes", "region_attributes")
_IMAGES = "_via_img_metadata"
"""Key of the images in a project file."""


class ViaFormat(ToolFormat):
    """VIA's JSON and CSV: rectangles, polygons, circles, ellipses, and points as key points of the only region of an
    image. All images are listed; those without regions are background."""

    root: PathText = "data/via"
    """The exported file, or the folder that holds it, or a file in each of train/ and val/."""
    images: str = ""
    """Folder of the images in the folder of the file; they are searched by name, also below it."""
    attribute: str = "auto"
    """Attribute of regions that is the class; auto = the only one."""

    def read_tool(self, findings: Findings) -> ToolData:
        """Reads the files; see `ToolFormat.read_tool`."""
        problems: List[Problem] = []
        counts = {"lines": 0}
        files = find_split_files(Path(self.root), (".json", ".csv"), OPTION)
        read = {split: _read_file(path, findings) for split, (path, _) in files.items()}
        attribute = self._choose_attribute(files["train"][0], read["train"])
        splits: Dict[str, List[ToolImage]] = {}
        for split, (path, folder) in files.items():
            finder = ImageFinder(folder / self.images)
            splits[split] = []
            for entry in read[split]:
                location = entry.location(path)
                shapes = _shapes_of(entry, attribute, path, problems, counts)
                found = finder.find(entry.name)
                if found is None:
                    problems.append(finder.missing(location, entry.name))
                else:
                    are_lines = location.line is not None
                    splits[split].append(ToolImage(*found, str(path), None, shapes, are_lines))
        refuse_all(findings, problems, "regions")
        findings.leave_out(OPTION, counts)
        return ToolData(splits)

    def _choose_attribute(self, path: Path, entries: Sequence[_Entry]) -> str:
        """Returns the attribute of regions that is the class; empty if regions have none.

        Raises:
            DataError: there are several, or none of the name that is set.
        """
        regions = [region for entry in entries for _, region in entry.regions if isinstance(region, dict)]
        attributes = [region.get("region_attributes") for region in regions]
        counts = Counter(name for each in attributes if isinstance(each, dict) for name in each)
        names = list(counts)
        if self.attribute != "auto":
            if self.attribute not in names:
                raise DataError(
                    f"dataset.attribute: no region of '{path}' has the attribute '{self.attribute}'."
                    f"{did_you_mean(self.attribute, names)} There are: {list_first(names)}."
                )
            return self.attribute
        if len(names) > 1:
            raise DataError(
                f"{OPTION}: regions of '{path}' have the attributes {list_first(names)}. Type dataset.attribute=NAME "
                "for the one that is the class."
            )
        return names[0] if names else ""


class _Entry(NamedTuple):
    """An image of a file."""

    name: str
    number: int
    """Index in the file, or the first line."""
    has_lines: bool
    regions: Sequence[Tuple[int, Any]]
    """Number and content of each region."""

    def location(self, path: Path) -> DataLocation:
        """Returns the source location."""
        return DataLocation(str(path), self.number) if self.has_lines else DataLocation(str(path), record=self.number)


def _read_file(path: Path, findings: Findings) -> List[_Entry]:
    """Reads a file.

    Raises:
        DataError: it is none of VIA.
    """
    return _read_csv(path, findings) if path.suffix.lower() == ".csv" else _read_json_file(path)


def _read_json_file(path: Path) -> List[_Entry]:
    """Reads a JSON file; see `_read_file`."""
    content = read_json(path)
    if isinstance(content, dict) and "metadata" in content and "attribute" in content:
        raise DataError(f"'{path}' is of VIA 3. Draw or export the regions with VIA 2, whose JSON and CSV are read.")
    images = content.get(_IMAGES, content) if isinstance(content, dict) else None
    if not isinstance(images, dict) or not all(
        isinstance(image, dict) and isinstance(image.get("filename"), str) and "regions" in image
        for image in images.values()
    ):
        raise DataError(f"'{path}' is no JSON of VIA: each image has a filename and regions.")
    entries = []
    for number, image in enumerate(images.values()):
        regions = image["regions"]
        regions = list(regions.values()) if isinstance(regions, dict) else regions  # VIA 1
        if not isinstance(regions, list):
            raise DataError(f"'{path}': the regions of '{image['filename']}' are no list.")
        entries.append(_Entry(image["filename"], number, False, [(number, region) for region in regions]))
    return entries


def _read_csv(path: Path, findings: Findings) -> List[_Entry]:
    """Reads a CSV file; see `_read_file`."""
    with io.StringIO(read_text(path, findings), newline="") as stream:
        rows = [(line, cells) for line, cells in read_cells(path, stream, ".csv") if has_text(cells)]
    header = [cell.strip().lstrip("#") for cell in rows[0][1]] if rows else []
    if not set(_CSV_COLUMNS) <= set(header):
        raise DataError(f"'{path}' is no CSV of VIA: it has no columns {', '.join(_CSV_COLUMNS)}.")
    name_column, *value_columns = (header.index(name) for name in _CSV_COLUMNS)
    found: Dict[str, List[Tuple[int, Any]]] = {}
    lines: Dict[str, int] = {}
    for line, cells in rows[1:]:
        if len(cells) < len(header):
            raise DataError(f"'{path}', line {line} has {len(cells)} columns, and the header {len(header)}.")
        name = cells[name_column]
        regions = found.setdefault(name, [])
        lines.setdefault(name, line)
        shape, attributes = (_parsed(path, line, cells[column]) for column in value_columns)
        if shape:
            regions.append((line, {"shape_attributes": shape, "region_attributes": attributes}))
    return [_Entry(name, lines[name], True, regions) for name, regions in found.items()]


def _parsed(path: Path, line: int, text: str) -> Any:
    """Parses the JSON in a cell.

    Raises:
        DataError: it is none.
    """
    try:
        return parse_json(text or "{}")
    except JsonTextError as error:
        raise DataError(f"'{path}', line {line}: the cell {text!r:.60} {error}.") from error


def _shapes_of(
    entry: _Entry, attribute: str, path: Path, problems: List[Problem], counts: Dict[str, int]
) -> List[ToolShape]:
    """Returns the shapes of an image; adds what is wrong to the problems."""
    shapes: List[ToolShape] = []
    for number, region in entry.regions:
        try:
            shape = _read_region(number, region, attribute)
        except BadShape as error:
            location = DataLocation(str(path), number) if entry.has_lines else entry.location(path)
            fact = f"{location}: a region of '{entry.name}' {error.fact}."
            problems.append(Problem(UNREADABLE_ROW, location, fact, error.remedy))
            continue
        if shape is None:
            counts["lines"] += 1
        else:
            shapes.append(shape)
    return shapes


def _read_region(number: int, region: Any, attribute: str) -> Optional[ToolShape]:
    """Returns the shape of a region; None for lines.

    Raises:
        BadShape: it is wrong, or has no class.
    """
    values = region.get("shape_attributes") if isinstance(region, dict) else None
    if not isinstance(values, dict):
        raise BadShape("has no shape_attributes")
    kind = values.get("name")
    if kind in ("polyline", "line"):
        return None
    label = _label_of(region.get("region_attributes"), attribute)
    if kind == "point":
        x, y = _numbers(values, "cx", "cy")
        return ToolShape(number, label, point=(x, y, int(Visibility.VISIBLE)))
    return ToolShape(number, label, _outline(kind, values))


def _outline(kind: Any, values: Mapping[str, Any]) -> Shape:
    """Returns the outline of a region of a kind.

    Raises:
        BadShape: it is wrong, or of an unknown kind.
    """
    if kind == "rect":
        x, y, width, height = _numbers(values, "x", "y", "width", "height")
        return box((x, y, x + width, y + height))
    if kind == "circle":
        x, y, radius = _numbers(values, "cx", "cy", "r")
        return ellipse(x, y, radius, radius)
    if kind == "ellipse":
        x, y, radius_x, radius_y = _numbers(values, "cx", "cy", "rx", "ry")
        return ellipse(x, y, radius_x, radius_y, *_numbers({"theta": 0, **values}, "theta"))
    if kind == "polygon":
        xs, ys = values.get("all_points_x"), values.get("all_points_y")
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise BadShape("is a polygon without as many all_points_x as all_points_y")
        return polygon(list(zip(xs, ys)))
    raise BadShape(f"is of the kind {kind!r:.40}, which is not read")


def _label_of(attributes: Any, attribute: str) -> str:
    """Returns the class of a region. A checkbox is a dict of which one value is true.

    Raises:
        BadShape: it has none, or several.
    """
    if not attribute:
        return NO_ATTRIBUTE
    value: Union[Any, str] = attributes.get(attribute) if isinstance(attributes, dict) else None
    if isinstance(value, dict):
        checked = [name for name, is_checked in value.items() if is_checked]
        value = checked[0] if len(checked) == 1 else ""
    if not isinstance(value, str) or not value.strip():
        raise BadShape(f"has no {attribute}, or several")
    return value.strip()


def _numbers(values: Mapping[str, Any], *names: str) -> List[float]:
    """Returns numbers by name.

    Raises:
        BadShape: one is missing.
    """
    numbers = [values.get(name) for name in names]
    for name, number in zip(names, numbers):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise BadShape(f"has no number {name}")
    return [float(number) for number in numbers]  # type: ignore[arg-type]  # checked above


class Via(ViaFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with VIA's annotations."""

    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found = [name for name in files.find(".json", ".csv") if "shape_attributes" in files.text(name)]
        if not found:
            return None
        text = files.text(found[0]).replace('""', '"')
        has_outlines = '"polygon"' in text
        task = "instance_segmentation" if has_outlines else "detection"
        form = f"VIA's annotations with {'outlines' if has_outlines else 'rectangles'}"
        root = files.typed() if len(found) > 1 or files.is_file else files.typed(found[0])
        return Recognised(form, {"root": root}, task, Certainty.SURE)
