"""Conversions among all pairs of formats, compared with values that no reader of mxtrain has seen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from annotated import Pictures, random_pictures, read_coco, values, write_coco
from boxed_files import draw
from conversions import convert

from mxtrain.errors import DataError

NAMES = ["zebra", "ant eater"]
POINTS = ["nose", "left ear", "right ear"]
OBJECTS = ("coco", "voc", "yolo", "records")


def assert_same(found: Pictures, expected: Pictures, tolerance: float, ordered: bool = True) -> None:
    one, other = values(found), values(expected)
    keys = (sorted(one), sorted(other))
    assert keys[0] == keys[1] if ordered else len(keys[0]) == len(keys[1])
    for first, second in zip(*keys):
        assert len(one[first]) == len(other[second])
        for row, wanted in zip(one[first], other[second]):
            np.testing.assert_allclose(row, wanted, rtol=0, atol=tolerance)


def converted(source: Path, target: Path, to: str) -> Any:
    result = convert(source, target, to=to)
    assert not list(target.parent.glob("*.unfinished")) and not list(target.rglob(".*"))
    return result


@pytest.mark.parametrize("first, second", list(itertools.product(OBJECTS, OBJECTS)))
def test_boxes_survive_each_pair_of_formats(tmp_path, first, second) -> None:
    pictures = random_pictures(OBJECTS.index(first) * 4 + OBJECTS.index(second))
    source = write_coco(tmp_path / "source", pictures, NAMES)
    converted(source, tmp_path / "first", first)
    converted(tmp_path / "first", tmp_path / "second", second)
    result = converted(tmp_path / "second", tmp_path / "last", "coco")
    found, names = read_coco(tmp_path / "last")
    assert names == NAMES == list(result.class_names) and result.num_images == {"train": 5, "val": 3}
    assert_same(found, pictures, 1e-4, ordered="records" not in (first, second))


@pytest.mark.parametrize("to", OBJECTS)
def test_whole_pixels_are_exact_after_a_round_trip(tmp_path, to) -> None:
    pictures = random_pictures(5, whole=True, counts=(12, 5, 4))
    converted(write_coco(tmp_path / "source", pictures, NAMES), tmp_path / "there", to)
    converted(tmp_path / "there", tmp_path / "back", "coco")
    found, _ = read_coco(tmp_path / "back")
    assert set(found) == {"train", "val", "test"}
    assert_same(found, pictures, 0.0, ordered=to != "records")


def test_polygons_of_yolo_are_those_of_coco(tmp_path) -> None:
    pictures = random_pictures(7, polygons=True)
    converted(write_coco(tmp_path / "source", pictures, NAMES), tmp_path / "yolo", "yolo")
    converted(tmp_path / "yolo", tmp_path / "back", "coco")
    found, _ = read_coco(tmp_path / "back")
    assert_same(found, pictures, 1e-6)


def test_key_points_of_yolo_are_those_of_coco(tmp_path) -> None:
    pictures = random_pictures(8, points=3)
    source = write_coco(tmp_path / "source", pictures, NAMES, POINTS)
    converted(source, tmp_path / "yolo", "yolo")
    text = (tmp_path / "yolo" / "data.yaml").read_text()
    assert "kpt_shape: [3, 3]" in text and "flip_idx: [0, 2, 1]" in text
    converted(tmp_path / "yolo", tmp_path / "back", "coco")
    found, _ = read_coco(tmp_path / "back")
    assert_same(found, pictures, 1e-6)


def test_classes_of_images_in_folders_and_records(tmp_path) -> None:
    for number, name in enumerate(("train/cat/a", "train/dog/a", "train/dog/b", "val/cat/c", "val/dog/d")):
        draw(tmp_path / "folder" / f"{name}.png", (9, 8), seed=number)
    records = converted(tmp_path / "folder", tmp_path / "records", "records")
    assert (tmp_path / "records" / "images_classes.txt").read_text() == "cat\ndog\n"
    assert records.overrides[:2] == ["task=classification", "dataset=image_record"]
    converted(tmp_path / "records", tmp_path / "back", "image_folder")
    contents: List[Dict[str, bytes]] = []
    for root in (tmp_path / "folder", tmp_path / "back"):
        files = [path for path in root.rglob("*.*") if path.is_file()]
        contents.append({f"{path.parent.relative_to(root)} {path.read_bytes()!r}": b"" for path in files})
    assert contents[0] == contents[1]


def test_objects_have_no_class_of_an_image(tmp_path) -> None:
    source = write_coco(tmp_path / "source", random_pictures(1), NAMES)
    with pytest.raises(DataError, match="objects with boxes, which can be written to: coco, voc, yolo, records"):
        converted(source, tmp_path / "folder", "image_folder")
