"""Content that a format cannot hold is refused with its number, or left out if `drop` allows it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import Picture, Thing, random_pictures, read_coco, write_coco
from boxed_files import draw, voc_xml
from conversions import convert

import mxtrain
from mxtrain.cli import main
from mxtrain.errors import ConfigError, DataError

NAMES = ["cat", "dog"]
BOX = (2.0, 3.0, 12.0, 13.0)
TRIANGLE = [(2.0, 3.0), (12.0, 3.0), (12.0, 13.0)]
OTHER = [(20.0, 3.0), (25.0, 3.0), (25.0, 13.0)]


def coco(root: Path, *things: Thing, **more: Any) -> Path:
    return write_coco(root, {"train": [Picture("a.jpg", (40, 30), list(things))]}, NAMES, **more)


def test_outlines_are_refused_by_formats_of_boxes_and_dropped_on_request(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX, [TRIANGLE]), Thing(1, BOX))
    for to in ("voc", "records"):
        with pytest.raises(DataError, match=rf"to={to} cannot hold 1 outlines of objects. Type drop=\[masks\]"):
            convert(source, tmp_path / to, to=to)
        assert not (tmp_path / to).exists() and not (tmp_path / f"{to}.unfinished").exists()
    result = convert(source, tmp_path / "voc", to="voc", drop="masks")
    assert result.num_objects == 2


def test_polygons_of_yolo_become_boxes_on_request(tmp_path) -> None:
    convert(coco(tmp_path / "source", Thing(0, BOX, [TRIANGLE])), tmp_path / "yolo", to="yolo")
    with pytest.raises(DataError, match="to=voc cannot hold 1 outlines"):
        convert(tmp_path / "yolo", tmp_path / "voc", to="voc")
    convert(tmp_path / "yolo", tmp_path / "voc", to="voc", drop="masks")
    assert "<xmin>3</xmin>" in (tmp_path / "voc/Annotations/a.xml").read_text()


def test_outlines_of_several_parts_are_refused_by_yolo_only(tmp_path) -> None:
    parts = Thing(0, (2.0, 3.0, 25.0, 13.0), [TRIANGLE, OTHER])
    source = coco(tmp_path / "source", parts, Thing(1, BOX, [TRIANGLE]))
    with pytest.raises(DataError, match="cannot hold 1 outlines of several parts"):
        convert(source, tmp_path / "yolo", to="yolo")
    convert(source, tmp_path / "yolo", to="yolo", drop=["masks"])
    assert {len(line.split()) for line in (tmp_path / "yolo/labels/train/a.txt").read_text().splitlines()} == {5}
    convert(source, tmp_path / "coco", to="coco")
    found, _ = read_coco(tmp_path / "coco")
    assert [len(thing.polygons) for thing in found["train"][0].things] == [2, 1]


def test_run_lengths_and_areas_are_kept_by_coco(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX), Thing(1, BOX, [TRIANGLE]))
    path = source / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    mask_hw = np.zeros((30, 40), np.uint8)
    mask_hw[4:9, 5:11] = 1
    flat = mask_hw.T.ravel()
    edges = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), len(flat)]
    runs = np.diff(edges).tolist()
    content["annotations"][0].update(segmentation={"size": [30, 40], "counts": runs}, area=30, iscrowd=1)
    content["annotations"][1]["area"] = 49.5
    path.write_text(json.dumps(content))
    convert(source, tmp_path / "coco", to="coco")
    first, second = json.loads((tmp_path / "coco/annotations/instances_train2017.json").read_text())["annotations"]
    assert first["segmentation"] == {"size": [30, 40], "counts": runs}
    assert (first["iscrowd"], first["area"], second["iscrowd"], second["area"]) == (1, 30, 0, 49.5)


def test_crowds_are_left_out_with_their_boxes(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX, crowd=True), Thing(1, BOX))
    with pytest.raises(DataError, match=r"1 crowd regions. Type drop=\[crowds\] .*: crowd regions are left out"):
        convert(source, tmp_path / "yolo", to="yolo")
    result = convert(source, tmp_path / "yolo", to="yolo", drop="crowds")
    assert result.num_objects == 1 and result.dropped == {"crowds": 1}
    assert "left out, as drop says: 1 crowds" in str(result)


def test_difficult_objects_keep_their_mark_in_records_and_lose_it_in_coco(tmp_path) -> None:
    root = tmp_path / "source"
    for number, name in enumerate("ab"):
        draw(root / "JPEGImages" / f"{name}.jpg", (40, 30), seed=number)
        (root / "Annotations").mkdir(exist_ok=True)
        text = voc_xml([("cat", 1, 2, 9, 8), ("dog", 0, 0, 40, 30)], (40, 30), [number, 1 - number])
        (root / "Annotations" / f"{name}.xml").write_text(text)
    convert(root, tmp_path / "records", to="records")
    convert(tmp_path / "records", tmp_path / "voc", to="voc")
    texts = [(tmp_path / f"voc/Annotations/train_{number:06d}.xml").read_text() for number in (0, 1)]
    assert ["<difficult>1" in text.split("</object>")[0] for text in texts] == [False, True]
    assert all("<xmin>2</xmin>" in text and "<ymin>3</ymin>" in text and "<xmax>9</xmax>" in text for text in texts)
    with pytest.raises(DataError, match=r"2 objects marked as difficult. Type drop=\[difficult\]"):
        convert(root, tmp_path / "coco", to="coco")
    assert convert(root, tmp_path / "coco", to="coco", drop="difficult").num_objects == 4


def test_the_same_object_twice_is_one_row_of_yolo_on_request(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX), Thing(0, BOX), Thing(1, BOX))
    with pytest.raises(DataError, match=r"twice in an image. Type drop=\[duplicates\] .*: one of them is kept"):
        convert(source, tmp_path / "yolo", to="yolo")
    convert(source, tmp_path / "yolo", to="yolo", drop="duplicates")
    assert len((tmp_path / "yolo/labels/train/a.txt").read_text().splitlines()) == 2


def test_yolo_holds_key_points_or_outlines(tmp_path) -> None:
    points = [(3.0, 4.0, 2), (5.0, 6.0, 1)]
    both = Thing(0, BOX, [TRIANGLE], points)
    source = coco(tmp_path / "source", both, point_names=["left eye", "right eye"])
    with pytest.raises(DataError, match=r"1 outlines of objects. Type drop=\[masks\]"):
        convert(source, tmp_path / "yolo", to="yolo")
    convert(source, tmp_path / "yolo", to="yolo", drop=["masks"])
    row = [float(cell) for cell in (tmp_path / "yolo/labels/train/a.txt").read_text().split()]
    np.testing.assert_allclose(row[5:], [3 / 40, 4 / 30, 2, 5 / 40, 6 / 30, 1], atol=1e-9)
    result = convert(source, tmp_path / "polygons", to="yolo", drop="key_points")
    assert result.overrides[0] == "task=instance_segmentation" and result.dropped == {}


def test_boxes_among_outlines_become_rectangles(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX, [TRIANGLE]), Thing(1, BOX))
    convert(source, tmp_path / "yolo", to="yolo")
    rows = [line.split() for line in (tmp_path / "yolo/labels/train/a.txt").read_text().splitlines()]
    assert [len(row) for row in rows] == [7, 9]
    np.testing.assert_allclose(np.array(rows[1][1:], float).reshape(-1, 2)[2], [12 / 40, 13 / 30], atol=1e-9)


def test_outlines_of_four_corners_are_not_oriented_boxes(tmp_path) -> None:
    diamond = [(7.0, 3.0), (12.0, 8.0), (7.0, 13.0), (2.0, 8.0)]
    source = coco(tmp_path / "source", Thing(0, BOX, [diamond]))
    convert(source, tmp_path / "yolo", to="yolo")
    convert(tmp_path / "yolo", tmp_path / "coco", to="coco")
    found, _ = read_coco(tmp_path / "coco")
    np.testing.assert_allclose(found["train"][0].things[0].polygons[0], [*diamond, diamond[0]], atol=1e-7)


def test_annotations_that_are_not_read_are_counted(tmp_path) -> None:
    draw(tmp_path / "source" / "a.png", (40, 20))
    line = '<polyline label="cat" points="1,1;2,2"/>'
    box = '<box label="cat" xtl="1.25" ytl="2" xbr="9" ybr="8" occluded="0"/>'
    labels = "<meta><task><labels><label><name>cat</name></label></labels></task></meta>"
    image = f'<image id="0" name="a.png" width="40" height="20">{box}{line}{line}</image>'
    (tmp_path / "source" / "annotations.xml").write_text(f"<annotations>{labels}{image}</annotations>")
    with pytest.raises(DataError, match=r"2 annotations that are not read \(2 polylines and points\)"):
        convert(tmp_path / "source", tmp_path / "voc", to="voc")
    result = convert(tmp_path / "source", tmp_path / "voc", to="voc", drop="unread")
    assert result.read_as == "dataset=cvat" and result.dropped == {"unread": 2}
    text = (tmp_path / "voc/Annotations/a.xml").read_text()
    assert "<xmin>2.25</xmin>" in text and "<ymin>3</ymin>" in text and "<ymax>8</ymax>" in text


def test_boxes_without_an_area_count_as_not_read(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, (5.0, 5.0, 5.0, 9.0)), Thing(1, BOX))
    with pytest.raises(DataError, match="1 boxes without width or height"):
        convert(source, tmp_path / "voc", to="voc")


def test_oriented_boxes_are_refused(tmp_path) -> None:
    draw(tmp_path / "source" / "images" / "a.png", (40, 20))
    (tmp_path / "source" / "labels").mkdir()
    (tmp_path / "source" / "labels" / "a.txt").write_text("0 .1 .1 .4 .2 .3 .5 .05 .4\n")
    (tmp_path / "source" / "classes.txt").write_text("cat\n")
    with pytest.raises(DataError, match="oriented boxes"):
        convert(tmp_path / "source", tmp_path / "coco", to="coco")


def test_a_box_outside_of_its_image_is_refused_or_cut_off(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, (30.0, 3.0, 44.0, 9.0)))
    with pytest.raises(DataError, match="reaches 4 pixels beyond its image of 40 x 30"):
        convert(source, tmp_path / "yolo", to="yolo")
    convert(source, tmp_path / "voc", "dataset.wrong_boxes=mend", to="voc")
    assert "<xmax>40</xmax>" in (tmp_path / "voc/Annotations/a.xml").read_text()


def test_rounded_boxes_are_cut_off_for_yolo_and_kept_by_coco(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, (30.0, 3.0, 40.5, 9.0)))
    convert(source, tmp_path / "yolo", to="yolo")
    row = [float(cell) for cell in (tmp_path / "yolo/labels/train/a.txt").read_text().split()]
    np.testing.assert_allclose(row, [0, 35 / 40, 6 / 30, 10 / 40, 6 / 30], atol=1e-9)
    convert(source, tmp_path / "coco", to="coco")
    assert read_coco(tmp_path / "coco")[0]["train"][0].things[0].edges[2] == 40.5


@pytest.mark.parametrize("left, right", [(-0.75, -0.25), (-0.75, 0.0), (40.0, 40.5)])
def test_boxes_of_which_nothing_remains_count_as_not_read(tmp_path, left, right) -> None:
    source = coco(tmp_path / "source", Thing(0, (left, 3.0, right, 9.0)), Thing(1, BOX))
    with pytest.raises(DataError, match="1 boxes outside of their images"):
        convert(source, tmp_path / "yolo", to="yolo")
    assert not (tmp_path / "yolo.unfinished").exists()
    result = convert(source, tmp_path / "yolo", to="yolo", drop="unread")
    assert (result.num_objects, result.dropped) == (1, {"unread": 1})
    assert convert(source, tmp_path / "coco", to="coco").num_objects == 2


def test_boxes_of_which_nothing_remains_are_noted_with_mend(tmp_path) -> None:
    source = coco(
        tmp_path / "source", Thing(0, (-9.0, 3.0, -4.0, 9.0)), Thing(0, (1.0, 31.0, 9.0, 39.0)), Thing(1, BOX)
    )
    result = convert(source, tmp_path / "coco", "dataset.wrong_boxes=mend", to="coco")
    assert result.num_objects == 1
    assert "2 boxes outside of their images are left out, as wrong_boxes=mend says" in result.notes


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"to": "yolov8"}, "to"),
        ({"to": "yolo", "drop": "mask"}, "drop=mask: there is no such content. Did you mean 'masks'"),
        ({"to": "yolo", "images": "move"}, "images"),
        ({"to": "records", "images": "link"}, "images=link: records contain the images"),
    ],
)
def test_wrong_settings_write_nothing(tmp_path, settings, message) -> None:
    source = write_coco(tmp_path / "source", random_pictures(1), NAMES)
    with pytest.raises(ConfigError, match=message):
        mxtrain.convert_data(source, tmp_path / "target", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["check", "dataset=digits", "to=yolo"], "to=... belongs to `data convert`"),
        (["check", "dataset=digits", "remove=all"], "remove=... belongs to `data cache`"),
        (["convert", "a", "b", "to=yolo", "ignore=duplicate"], "ignore=... belongs to `data check`"),
        (["convert", "a", "to=yolo"], "data convert takes two paths"),
        (
            ["convert", "a", "b"],
            "which format is to be written? Type to=FORMAT: coco, voc, yolo, records",
        ),
        (["convert", "a", "b", "form=yolo"], "'form=yolo' is no setting of the dataset"),
    ],
)
def test_settings_of_other_commands_are_refused(capsys, words, message) -> None:
    assert main(["data", *words]) == 2
    assert message in capsys.readouterr().err


def test_settings_of_other_groups_are_refused(tmp_path) -> None:
    source = write_coco(tmp_path / "source", random_pictures(1), NAMES)
    with pytest.raises(ConfigError, match="'model=lenet' is no setting of the dataset"):
        mxtrain.convert_data(source, tmp_path / "target", "model=lenet", to="yolo")


def test_classes_of_folders_keep_the_alphabet_only_on_request(tmp_path) -> None:
    for name in ("dog/a", "cat/b"):
        draw(tmp_path / "folder" / "train" / f"{name}.png", (9, 8), seed=len(name))
    convert(tmp_path / "folder", tmp_path / "records", to="records")
    names = tmp_path / "records" / "images_classes.txt"
    names.write_text("zebra\nant\n")
    with pytest.raises(DataError, match="the classes are zebra, ant, and folders only have the order of the alphabet"):
        convert(tmp_path / "records", tmp_path / "back", to="image_folder")
    convert(tmp_path / "records", tmp_path / "back", to="image_folder", drop="class_order")
    assert (tmp_path / "back/train/zebra/train_000000.png").read_bytes() == (
        tmp_path / "folder/train/cat/b.png"
    ).read_bytes()


def test_each_class_needs_an_image_in_each_split_of_folders(tmp_path) -> None:
    for name in ("train/cat/a", "train/dog/b", "val/cat/c", "val/dog/d"):
        draw(tmp_path / "folder" / f"{name}.png", (9, 8), seed=ord(name[-1]))
    convert(tmp_path / "folder", tmp_path / "records", to="records")
    names = tmp_path / "records" / "images_classes.txt"
    names.write_text("cat\ndog\nemu\n")
    with pytest.raises(DataError, match="the split train has no image of 'emu'"):
        convert(tmp_path / "records", tmp_path / "back", to="image_folder")


@pytest.mark.parametrize("names", [["c" * 255, "d"], ["c" * 256, "d"]])
def test_names_of_classes_are_no_longer_than_those_of_folders(tmp_path, names) -> None:
    for name in ("cat/a", "dog/b"):
        draw(tmp_path / "folder" / "train" / f"{name}.png", (9, 8), seed=ord(name[0]))
    convert(tmp_path / "folder", tmp_path / "records", to="records")
    (tmp_path / "records" / "images_classes.txt").write_text("".join(f"{name}\n" for name in names))
    if len(names[0]) == 255:
        assert convert(tmp_path / "records", tmp_path / "back", to="image_folder").class_names == names
    else:
        with pytest.raises(DataError, match="cannot be the name of a folder"):
            convert(tmp_path / "records", tmp_path / "back", to="image_folder")


def test_other_sizes_and_boxes_than_the_files_and_outlines_have_are_noted(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, (2.0, 3.0, 14.5, 13.0), [TRIANGLE]))
    path = source / "annotations" / "instances_train2017.json"
    path.write_text(path.read_text().replace('"width": 40', '"width": 41'))
    notes = convert(source, tmp_path / "yolo", to="yolo").notes
    assert any(note.startswith("1 images have another size than their annotation says") for note in notes)
    assert any("which differ from those of the source by up to 2.5 pixels" in note for note in notes)
    exact = coco(tmp_path / "exact", Thing(0, (2.0, 3.0, 12.0, 13.0), [TRIANGLE]))
    assert not any(
        "differ" in note or "another size" in note for note in convert(exact, tmp_path / "y", to="yolo").notes
    )


def test_categories_are_numbered_from_one_if_those_of_the_source_are_not_positive(tmp_path) -> None:
    source = coco(tmp_path / "source", Thing(0, BOX), Thing(1, BOX))
    path = source / "annotations" / "instances_train2017.json"
    for shift, expected in ((-1, [1, 2]), (4, [5, 6])):
        content = json.loads(path.read_text())
        for annotation in content["annotations"]:
            annotation["category_id"] += shift
        for category in content["categories"]:
            category["id"] += shift
        changed = tmp_path / f"changed{shift}"
        shutil.copytree(source, changed)
        (changed / "annotations" / path.name).write_text(json.dumps(content))
        convert(changed, tmp_path / f"coco{shift}", to="coco")
        written = json.loads((tmp_path / f"coco{shift}/annotations/instances_train2017.json").read_text())
        assert [category["id"] for category in written["categories"]] == expected
        assert [annotation["category_id"] for annotation in written["annotations"]] == expected


def test_the_decision_on_an_ambiguous_format_is_noted(tmp_path) -> None:
    """Nothing else says it: the result has another format."""
    draw(tmp_path / "source/a.png", (40, 20))
    draw(tmp_path / "source/b.png", (40, 20))
    (tmp_path / "source/train.csv").write_text("a.png,cat,22,12,18,8\nb.png,dog,1,1,30,15\n")
    level = logging.getLogger("mxtrain").level
    result = convert(tmp_path / "source", tmp_path / "coco", to="coco")
    said = "dataset=box_csv: the boxes are left, top, width, height: all are inside of their images only so"
    assert said in result.notes and f"  {said}\n" in str(result)
    assert logging.getLogger("mxtrain").level == level
