"""Label Studio's JSON exports as data of detection, segmentation, instance segmentation and pose estimation."""

from __future__ import annotations

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
from mxtrain.vision.kinds import Boxes, ClassMap, KeyPoints, Masks
from mxtrain.vision.objects.label_studio import LabelStudio

SIZE = {"original_width": 40, "original_height": 20, "image_rotation": 0}


def region(kind: str, label: Any = "cat", **value: Any) -> dict:
    labels = label if isinstance(label, list) else [label]
    outer = {name: value.pop(name) for name in ("id", "parentID", "image_rotation") if name in value}
    return {**SIZE, "value": {**value, f"{kind}labels": labels}, "type": f"{kind}labels", **outer}


def rle(mask: np.ndarray, sizes: tuple = (3, 4, 8, 16)) -> list:
    """Run lengths as Label Studio writes them: four channels a pixel, and runs of both kinds."""
    values = np.repeat(mask.ravel().astype(np.uint8) * 255, 4)
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in sizes)
    ends = [*(np.flatnonzero(np.diff(values.astype(int))) + 1).tolist(), len(values)]
    begin = 0
    for number, end in enumerate(ends):
        while begin < end:
            length = min(end - begin, 1 << sizes[-1])
            if number % 2:  # single values
                length = min(length, 1 << sizes[1])
                bits += f"001{length - 1:0{sizes[1]}b}" + "".join(
                    f"{value:08b}" for value in values[begin : begin + length]
                )
            else:
                bits += f"111{length - 1:0{sizes[3]}b}{values[begin]:08b}"
            begin += length
    bits += "0" * (-len(bits) % 8)
    return [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]


BOX = region("rectangle", x=25, y=10, width=50, height=50, rotation=0, id="one")
POLYGON = region("polygon", "dog", points=[[0, 0], [50, 0], [50, 100]])
ELLIPSE = region("ellipse", "dog", x=50, y=50, radiusX=25, radiusY=25, rotation=90)
MASK = np.zeros((20, 40), bool)
MASK[3:9, 5:30] = np.random.RandomState(0).rand(6, 25) > 0.4
BRUSH = region("brush", format="rle", rle=rle(MASK))


def task(number: int, name: str, *regions: Any, **more: Any) -> dict:
    annotation = {"id": number, "was_cancelled": False, "ground_truth": False, "result": list(regions)}
    return {"id": number, "data": {"image": f"/data/upload/1/0a1b2c3d-{name}.png"}, "annotations": [annotation], **more}


def write(root: Path, *tasks: Any, name: str = "export.json") -> Path:
    for number, image in enumerate("abcdef"):
        draw(root / "images" / f"{image}.png", (40, 20), seed=number)
    (root / name).write_text(json.dumps(list(tasks)))
    return root


def opened(root: Path, target: type = Boxes, findings: Any = None, **settings: Any) -> Any:
    dataset = LabelStudio(root=str(root), **{"image_size": [20, 40], "val_fraction": 0.34, **settings}).for_run(target)
    return dataset.examine(findings) if findings else dataset.open()


def by_name(*sources: Any) -> dict:
    return {source.name(index)[-6:-5]: (source, index) for source in sources for index in range(len(source))}


def test_percents_are_pixels_and_what_is_left_out_is_counted(tmp_path, caplog) -> None:
    cancelled = {"was_cancelled": True, "result": [BOX]}
    choice = {"type": "choices", "value": {"choices": ["blurred"]}}
    with caplog.at_level(logging.INFO):
        splits = opened(
            write(
                tmp_path,
                task(1, "a", BOX, choice, POLYGON),
                task(2, "b", ELLIPSE),
                task(3, "c"),
                task(4, "d", annotations=[cancelled]),
                task(5, "e", annotations=[]),
                task(6, "f", annotations=[cancelled, {"result": [BOX]}]),
            ),
            val_fraction=0.25,
        )
    boxes = {
        name: source.boxes(index)[:, :5].round(3).tolist()
        for name, (source, index) in by_name(splits.train, splits.val).items()
    }
    assert boxes == {
        "a": [[10, 2, 30, 12, 0], [0, 0, 20, 20, 1]],
        "b": [[15, 0, 25, 20, 1]],  # turned by a right angle
        "c": [],
        "f": [[10, 2, 30, 12, 0]],
    }
    assert "1 tasks without an annotation and 2 cancelled annotations are left out" in caplog.text


def test_outlines_are_masks(tmp_path) -> None:
    write(tmp_path, task(1, "a", POLYGON, BOX), task(2, "b", BRUSH, ELLIPSE), task(3, "c"))
    splits = opened(tmp_path, Masks)
    source, index = by_name(splits.train, splits.val)["b"]
    brush, ellipse = source.masks(index)
    assert (brush == MASK).all() and abs(int(ellipse.sum()) - np.pi * 5 * 10) < 8
    splits = opened(tmp_path, ClassMap)
    source, index = by_name(splits.train.source)["b"]
    assert (source.mask(index, (40, 20)) == np.where(ellipse, 2, brush)).all()


def test_key_points_belong_to_their_parent(tmp_path) -> None:
    nose, tail = (
        region("keypoint", name, x=30 + 10 * at, y=20, width=1, parentID="one")
        for at, name in enumerate(("nose", "tail"))
    )
    other = region("rectangle", x=0, y=0, width=10, height=10, id="two")
    write(tmp_path, task(1, "a", BOX, other, nose, tail), task(2, "b", BOX, {**nose, "parentID": None}))
    splits = opened(tmp_path, KeyPoints, val_fraction=0.5)
    objects = splits.train.source.objects
    assert list(splits.class_names) == ["nose", "tail"] and objects.box_N4.tolist() == [[10, 2, 30, 12]] * 2
    assert objects.point_NJ3.tolist() == [[[12, 4, 2], [16, 4, 2]], [[12, 4, 2], [0, 0, 0]]]


def test_json_min_and_names_of_images_are_read(tmp_path) -> None:
    minimal = {**SIZE, **BOX["value"]}
    write(
        tmp_path,
        {"image": "/data/local-files/?d=images%2Fa.png", "id": 1, "label": [minimal], "annotator": 1},
        {"image": "https://bucket.org/x/b.png?sign=1", "id": 2, "label": [minimal]},
        {"image": "c.png", "id": 3},
    )
    splits = opened(tmp_path, val_fraction=0.5)
    assert sorted(by_name(splits.train, splits.val)) == ["a", "b"]
    assert splits.train.boxes(0)[:, :5].tolist() == [[10, 2, 30, 12, 0]]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            {**BOX, "value": {**BOX["value"], "rotation": 30}},
            "a region is an oriented box, which no network of mxtrain",
        ),
        ({**BOX, "image_rotation": 90}, "a region is of an image that was turned by 90 degrees. Turn it back."),
        ({**BOX, "original_width": None}, "a region has no original_width and original_height"),
        (region("rectangle", ["cat", "dog"], x=1, y=1, width=5, height=5), "has the labels .* and must have one"),
        ({"type": "rectangle", "value": {"x": 1}}, "a region has no label"),
        (region("rectangle", x=1, y="2", width=5, height=5), "a region has no number y"),
        (region("rectangle", x=1, y=1, width=float("inf"), height=5), "a region has no number width"),
        (region("polygon", points=[[1, 1], [2, 2]]), "a region has a polygon of 2 points, fewer than 3"),
        (
            region("brush", format="rle", rle=rle(MASK)[:-40]),
            "a region has a mask whose rle does not decode to 40 x 20",
        ),
        (region("brush", format="rle", rle=rle(MASK[:-1])), "a region has a mask whose rle does not decode to 40 x 20"),
        (
            region("brush", format="rle", rle=rle(MASK)[:4] + rle(np.ones((90, 90), bool))[4:]),
            "does not decode to 40 x 20",
        ),
        (region("brush", format="rle", rle="text"), "a region has a mask that is not of the format rle"),
        (region("brush", format="rle", rle=["x"]), "a region has a mask whose rle is no list of bytes"),
        (region("brush", format="rle", rle=rle(MASK & False)), "a region has a mask without any pixel"),
        (region("rectangle", x=80, y=1, width=25, height=5), "reaches 2 pixels beyond its image of 40 x 20"),
    ],
)
def test_wrong_regions_are_refused_with_their_record(wrong, message, tmp_path) -> None:
    write(tmp_path, task(1, "a", BOX), task(2, "b", wrong), task(3, "c", BOX))
    with pytest.raises(DataError, match=f"record 1 of '.*export.json'.*{message}"):
        opened(tmp_path)
    findings = CollectedFindings()
    opened(tmp_path, findings=findings)
    assert sum(findings.counts.values()) == 1


def test_several_annotations_are_asked_for(tmp_path) -> None:
    truth = {"ground_truth": True, "result": [{**BOX, "value": {**BOX["value"], "x": 40}}]}
    last = {"result": [{**BOX, "value": {**BOX["value"], "x": 50}}]}
    write(tmp_path, task(7, "a", annotations=[{"result": [BOX]}, truth, last]), task(8, "b", BOX))
    with pytest.raises(
        DataError, match="record 0 .*: the task 7 has 3 annotations. Type dataset.several=first, last or"
    ):
        opened(tmp_path)
    for several, left in (("first", 10), ("ground_truth", 16), ("last", 20)):
        splits = opened(tmp_path, several=several, val_fraction=0.5)
        source, index = by_name(splits.train, splits.val)["a"]
        assert source.boxes(index)[0, 0] == left


def test_files_that_are_no_exports_are_refused_and_the_form_is_guessed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), task(1, "a", BOX), task(2, "b", POLYGON))
    typed = "task=instance_segmentation dataset=label_studio dataset.root=data/export.json"
    assert recognised(LabelStudio, "data", "label_studio") == ("Label Studio's JSON with outlines", typed)
    write(Path("data"), task(1, "x", BOX))
    with pytest.raises(
        DataError, match="record 0 of '.*' names '/data/upload/1/0a1b2c3d-x.png', and 'data' has no such"
    ):
        opened(Path("data"))
    (Path("data") / "export.json").write_text("[1]")
    with pytest.raises(DataError, match="export.json' is no JSON export of Label Studio, which is a list of tasks."):
        opened(Path("data"))
    for name in ("export.json", "notes.json"):
        (Path("data") / name).write_text("{}")
    with pytest.raises(DataError, match="'data' holds no train.json. Name the file with dataset.root=FILE."):
        opened(Path("data"))
