"""Reads the files of a conversion again with the datasets that train on them, and compares everything with the source.

Legend: K points of a polygon, J key points.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

import numpy as np

from mxtrain.errors import DataError
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import Content, ConvertedObject, LeftOut
from mxtrain.vision.conversion.form import Form
from mxtrain.vision.conversion.reading import Wanted, read_content
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.objects.objects import corners

_ALLOWED = 1e-6
"""Allowed difference of a coordinate, as a share of the longer side of the image: 32-bit floats have 24 bits."""


@dataclass
class Comparison:
    """Result of a comparison.

    Attributes:
        num_images: number of images of each split.
        num_objects: number of objects.
        largest: largest difference of a coordinate in pixels.
    """

    num_images: Dict[str, int]
    num_objects: int = 0
    largest: float = 0.0


def compare(form: Form, folder: Path, progress: WorkProgress) -> Comparison:
    """Compares the written files with the source.

    Args:
        form: the format that was written.
        folder: the files.
        progress: receives the progress.

    Raises:
        DataError: something differs.
    """
    job = form.job
    progress.begin("comparing", job.content.num_images)
    written = read_content(
        form.dataset(folder), f"to={form.name}", LeftOut(), Wanted(job.writes_outlines, job.writes_points)
    )
    _require_same("classes", form.expected_names(), list(written.class_names), form)
    counts = {split: len(images.encoded) for split, images in job.content.splits.items()}
    _require_same("images", counts, {split: len(images.encoded) for split, images in written.splits.items()}, form)
    result = Comparison(counts)
    for split in written.splits:
        _compare_split(form, folder, split, written, result, progress)
    return result


def _compare_split(
    form: Form, folder: Path, split: str, written: Content, result: Comparison, progress: WorkProgress
) -> None:
    images, source = written.splits[split], form.job.content.splits[split]
    encoded: Any = images.encoded
    index_of: Dict[str, int] = {}
    if isinstance(encoded, ImageFiles):
        index_of = {os.path.relpath(path, folder): index for index, path in enumerate(encoded.paths)}
    for index in range(len(source.encoded)):
        name = source.encoded.name(index)
        number = index_of.get(form.image(split, index), -1) if index_of else index
        if number < 0:
            raise _differs(form, f"{name} is not found as '{form.image(split, index)}'")
        _compare_files(form, split, index, encoded, number)
        if source.label(index) >= 0:
            _require_same(f"the class of {name}", form.expected_label(split, index), images.label(number), form)
        else:
            size = form.job.size(split, index)
            expected, found = form.job.objects(split, index), images.objects(number, size)
            _require_same(f"objects of {name}", len(expected), len(found), form)
            result.num_objects += len(expected)
            for first, second in zip(expected, found):
                difference = _difference(form, name, first, second)
                if not difference <= _ALLOWED * max(size):
                    raise _differs(form, f"coordinates of an object of {name} differ by {difference:.3g} pixels")
                result.largest = max(result.largest, difference)
        progress.advance(1)


def _compare_files(form: Form, split: str, index: int, encoded: Any, number: int) -> None:
    """Compares an image: files by their size, records by their content."""
    path, source = form.job.path(split, index), form.job.content.splits[split].encoded
    if path is not None and isinstance(encoded, ImageFiles):
        is_same = os.stat(path).st_size == os.stat(encoded.paths[number]).st_size
    else:
        is_same = source.read(index)[0] == encoded.read(number)[0]
    if not is_same:
        raise _differs(form, f"{encoded.name(number)} has other content than {source.name(index)}")


def _difference(form: Form, name: str, first: ConvertedObject, second: ConvertedObject) -> float:
    """Returns the largest difference of a coordinate of two objects.

    Raises:
        DataError: they differ in something else.
    """
    _require_same(f"a class in {name}", first.class_index, second.class_index, form)
    _require_same(f"marks of an object of {name}", first.flags, second.flags, form)
    differences = [np.abs(np.subtract(first.edges, second.edges)).max()]
    if form.job.writes_outlines:
        differences.append(_outline_difference(form, name, first, second))
    if (first.points is None) != (second.points is None):
        raise _differs(form, f"key points of an object of {name} are there only once")
    if first.points is not None and second.points is not None:
        _require_same(f"marks of key points of {name}", first.points[:, 2].tolist(), second.points[:, 2].tolist(), form)
        differences.append(np.abs(first.points[:, :2] - second.points[:, :2]).max())
    return float(max(differences))


def _outline_difference(form: Form, name: str, first: ConvertedObject, second: ConvertedObject) -> float:
    shapes = [corners(each.edges) if each.shape is None else each.shape for each in (first, second)]
    if any(isinstance(shape, Runs) for shape in shapes):
        lengths = [shape.lengths.tolist() if isinstance(shape, Runs) else [] for shape in shapes]
        _require_same(f"a mask of {name}", lengths[0], lengths[1], form)
        return 0.0
    parts = [[_unclosed(np.asarray(point_K2)) for point_K2 in shape] for shape in shapes]  # type: ignore[union-attr]
    counts = [[len(part) for part in each] for each in parts]
    _require_same(f"corners of an outline of {name}", counts[0], counts[1], form)
    return max(float(np.abs(one - other).max()) for one, other in zip(*parts))


def _unclosed(point_K2: np.ndarray) -> np.ndarray:
    """Returns a polygon without the last corner if it is the first one again."""
    return point_K2[:-1] if len(point_K2) > 3 and np.array_equal(point_K2[0], point_K2[-1]) else point_K2


def _require_same(what: str, expected: Any, found: Any, form: Form) -> None:
    if expected != found:
        raise _differs(form, f"{what}: {expected!r:.100} became {found!r:.100}")


def _differs(form: Form, fact: str) -> DataError:
    return DataError(
        f"to={form.name}: the written files, read again, differ from the source: {fact}. Nothing was put in place. "
        "Please report this."
    )
