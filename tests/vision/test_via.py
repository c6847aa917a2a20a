"""VIA's JSON and CSV as data of detection, segmentation, instance segmentation and pose estimation."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import draw
from recognised import recognised

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.vision.kinds import Boxes, KeyPoints, Masks
from mxtrain.vision.objects.via import Via


def region(kind: str, label: Any = "cat", **values: Any) -> dict:
    return {"shape_attributes": {"name": kind, **values}, "region_attributes": {"kind": label}}


RECT = region("rect", x=10, y=2, width=20, height=10)
POLYGON = region("polygon", "dog", all_points_x=[1, 21, 21], all_points_y=[1, 1, 11])
CIRCLE = region("circle", "dog", cx=20, cy=10, r=5)
ELLIPSE = region("ellipse", cx=20, cy=10, rx=5, ry=10, theta=np.pi / 2)
LINE = region("polyline", all_points_x=[1, 2], all_points_y=[1, 2])


def images(**regions: Any) -> dict:
    return {
        f"{name}.png123": {"filename": f"{name}.png", "size": 123, "regions": each, "file_attributes": {}}
        for name, each in regions.items()
    }


def write(root: Path, content: Any, name: str = "via.json") -> Path:
    for number, each in enumerate("abc"):
        draw(root / f"{each}.png", (40, 20), seed=number)
    (root / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def write_csv(root: Path, hash_sign: str = "", **regions: Any) -> Path:
    write(root, "", "via.csv")
    with open(root / "via.csv", "w", newline="") as stream:
        rows = csv.writer(stream)
        head = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes"
        rows.writerow((hash_sign + head).split(","))
        for name, each in regions.items():
            for number, one in enumerate(each or [{"shape_attributes": {}, "region_attributes": {}}]):
                cells = [json.dumps(one["shape_attributes"]), json.dumps(one["region_attributes"])]
                rows.writerow([f"{name}.png", 123, "{}", len(each), number, *cells])
    return root


def opened(root: Path, target: type = Boxes, findings: Any = None, **settings: Any) -> Any:
    dataset = Via(root=str(root), **{"image_size": [20, 40], "val_fraction": 0.34, **settings}).for_run(target)
    return dataset.examine(findings) if findings else dataset.open()


def by_name(*sources: Any) -> dict:
    return {source.name(index)[-6:-5]: (source, index) for source in sources for index in range(len(source))}


def boxes_of(splits: Any) -> dict:
    return {
        name: source.boxes(index)[:, :5].round(3).tolist()
        for name, (source, index) in by_name(splits.train, splits.val).items()
    }


ALL = {"a": [RECT, POLYGON], "b": [CIRCLE, LINE, ELLIPSE], "c": []}
EXPECTED = {"a": [[10, 2, 30, 12, 0], [1, 1, 21, 11, 1]], "b": [[15, 5, 25, 15, 1], [10, 5, 30, 15, 0]], "c": []}


@pytest.mark.parametrize("form", ["json", "project", "first version", "csv", "csv of the first version"])
def test_all_files_of_via_are_read(form, tmp_path, caplog) -> None:
    if form.startswith("csv"):
        write_csv(tmp_path, "#" if "first" in form else "", **ALL)
    elif form == "project":
        write(tmp_path, {"_via_settings": {}, "_via_img_metadata": images(**ALL), "_via_attributes": {}})
    else:
        numbered = {
            name: dict(map(lambda pair: (str(pair[0]), pair[1]), enumerate(each))) for name, each in ALL.items()
        }
        write(tmp_path, images(**(numbered if form == "first version" else ALL)))
    with caplog.at_level(logging.INFO):
        splits = opened(tmp_path)
    assert list(splits.class_names) == ["cat", "dog"] and boxes_of(splits) == EXPECTED
    assert "1 lines are left out" in caplog.text and "1 of 3 images of train have no object: background" in caplog.text


def test_outlines_are_masks(tmp_path) -> None:
    splits = opened(write(tmp_path, images(**ALL)), Masks)
    source, index = by_name(splits.train, splits.val)["b"]
    circle, ellipse = source.masks(index)
    assert abs(int(circle.sum()) - np.pi * 25) < 4 and abs(int(ellipse.sum()) - np.pi * 50) < 8


def test_points_are_key_points_of_the_only_region(tmp_path) -> None:
    content = images(a=[RECT, region("point", "nose", cx=12, cy=5)], b=[region("point", "tail", cx=13, cy=6), RECT])
    splits = opened(write(tmp_path, content), KeyPoints, val_fraction=0.5)
    assert list(splits.class_names) == ["nose", "tail"]
    assert splits.train.source.objects.point_NJ3.tolist() == [[[12, 5, 2], [0, 0, 0]], [[0, 0, 0], [13, 6, 2]]]


def test_points_of_a_region_that_is_left_out_are_not_those_of_the_other(tmp_path) -> None:
    content = images(a=[RECT, region("point", "nose", cx=12, cy=5)], b=[RECT, region("point", "nose", cx=12, cy=5)])
    content["c"] = {"filename": "c.png", "regions": [RECT, POLYGON, region("point", "nose", cx=3, cy=2)]}
    with pytest.raises(DataError, match="the key point 'nose' belongs to 2 boxes"):
        opened(write(tmp_path, content), KeyPoints, classes=["cat"])
    content["c"]["regions"] = [POLYGON, region("point", "nose", cx=3, cy=2)]
    splits = opened(write(tmp_path, content), KeyPoints, classes=["cat"])
    assert len(splits.train) + len(splits.val) == 2


def test_the_attribute_of_the_class_is_the_only_one_or_asked_for(tmp_path) -> None:
    two = {**RECT, "region_attributes": {"kind": {"cat": True, "dog": False}, "age": "old"}}
    root = write(tmp_path, images(a=[two], b=[two]))
    with pytest.raises(DataError, match="have the attributes kind, age. Type dataset.attribute=NAME for the one that"):
        opened(root)
    assert list(opened(root, attribute="kind", val_fraction=0.5).class_names) == ["cat"]
    assert list(opened(root, attribute="age", val_fraction=0.5).class_names) == ["old"]
    with pytest.raises(
        DataError, match=r"no region of '.*' has the attribute 'kid'. Did you mean 'kind'\? There are: kind"
    ):
        opened(root, attribute="kid")
    none = {**RECT, "region_attributes": {}}
    assert list(opened(write(tmp_path, images(a=[none], b=[none])), val_fraction=0.5).class_names) == ["object"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (region("rect", x=1, y=1, width=5), "a region of 'a.png' has no number height"),
        (region("rect", x=1, y=1, width=-5, height=2), "ends before it begins"),
        (region("polygon", all_points_x=[1, 2], all_points_y=[1]), "without as many all_points_x as all_points_y"),
        (region("polygon", all_points_x=[1, 2], all_points_y=[1, 2]), "has a polygon of 2 points, fewer than 3"),
        (region("circle", cx=1, cy=1, r=0), "has an ellipse of the radii 0 and 0"),
        (region("cube"), "is of the kind 'cube', which is not read"),
        (region("rect", {"cat": True, "dog": True}, x=1, y=1, width=5, height=2), "has no kind, or several"),
        (region("rect", "", x=1, y=1, width=5, height=2), "has no kind, or several"),
    ],
)
def test_wrong_regions_are_refused(wrong, message, tmp_path) -> None:
    write(tmp_path, images(b=[RECT], a=[RECT, wrong]))
    with pytest.raises(DataError, match=f"record 1 of '.*via.json'.*{message}"):
        opened(tmp_path)
    findings = CollectedFindings()
    assert boxes_of(opened(tmp_path, findings=findings, val_fraction=0.5))["a"] == [[10, 2, 30, 12, 0]]
    assert sum(findings.counts.values()) == 1
    (tmp_path / "via.json").unlink()
    write_csv(tmp_path, b=[RECT], a=[RECT, wrong])
    with pytest.raises(DataError, match=f"via.csv, line 4.*{message}"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "content, name, message",
    [
        ({"a": 1}, "via.json", "is no JSON of VIA: each image has a filename and regions"),
        ({"a": {"filename": "a.png", "regions": 1}}, "via.json", "the regions of 'a.png' are no list"),
        ({"metadata": {}, "attribute": {}}, "via.json", "is of VIA 3. Draw or export the regions with VIA 2"),
        ("a,b\n1,2\n", "via.csv", "is no CSV of VIA: it has no columns filename, region_shape_attributes, region_att"),
        (
            "filename,region_shape_attributes,region_attributes\na.png,{,{}\n",
            "via.csv",
            r"line 2: the cell '\{' is not JSON",
        ),
        (
            "filename,region_shape_attributes,region_attributes\na.png\n",
            "via.csv",
            "line 2 has 1 columns, and the header 3",
        ),
        (images(x=[RECT]), "via.json", "record 0 of '.*' names 'x.png', and '.*' has no such file"),
    ],
)
def test_wrong_files_are_refused(content, name, message, tmp_path) -> None:
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path, content, name))


def test_the_form_is_recognised(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("data"), **ALL)
    typed = "task=instance_segmentation dataset=via dataset.root=data/via.csv"
    assert recognised(Via, "data", "via") == ("VIA's annotations with outlines", typed)
    assert opened(Path("data")).counts() == {"images": 3, "boxes": 4, "classes": 2}
