"""YOLO's label files as data of detection, segmentation, instance segmentation and pose estimation."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
import pytest
from boxed_files import draw
from PIL import Image
from recognised import recognised

from mxtrain.cli import main
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import ConfigError, DataError
from mxtrain.types.kinds import TargetKind
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.instance_segmentation.mask_rows import decode_mask
from mxtrain.vision.kinds import Boxes, ClassMap, KeyPoints, Masks
from mxtrain.vision.objects.dataset import size_of
from mxtrain.vision.objects.yolo import Yolo
from mxtrain.vision.objects.yolo_files import label_of, read_data
from mxtrain.vision.pose.key_points import PERSON_NAMES, PERSON_SIGMAS

SIZE = (40, 20)
LABELS = {
    "a": "0 0.5 0.5 0.25 0.5\n1 0.25 0.25 0.1 0.1\n",
    "b": "1 .5 .5 1 1",
    "c": "",
    "d": None,
    "e": "0 0.5 0.5 0.2 0.2\n",
}
YAML = "path: ../data\ntrain: images/train\nval: images/val\ntest:\nnames:\n  0: cat\n  1: no\n"
POLYGONS = {"a": "0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n1 0.3 0.2 0.9 0.2 0.9 0.9\n", "b": "", "e": "1 0 0 1 0 1 1\n"}
POINTS = {
    "a": "0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.4 1 0 0 0\n",
    "b": "",
    "e": "0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.4 1 0.5 0.6 2\n",
}
POSE_YAML = YAML + "kpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n"


def write(root: Path, labels: Optional[Dict[str, Optional[str]]] = None, yaml: str = YAML, val: str = "e") -> Path:
    """The layout of Ultralytics, with images of 40 x 20 pixels."""
    for number, (name, text) in enumerate((LABELS if labels is None else labels).items()):
        part = "val" if name in val else "train"
        draw(root / "images" / part / f"{name}.png", SIZE, seed=number)
        if text is not None:
            path = root / "labels" / part / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (root / "data.yaml").write_text(yaml)
    return root


def opened(root: Path, target: type = Boxes, findings: Any = None, **settings: Any) -> Any:
    dataset = Yolo(root=str(root), **{"image_size": [32, 32], **settings}).for_run(target)
    return dataset.examine(findings) if findings else dataset.open()


def boxes_of(source: Any) -> list:
    return [np.round(source.boxes(index)[:, :5], 4).tolist() for index in range(len(source))]


def test_boxes_are_shares_of_the_image_and_images_without_are_background(tmp_path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        splits = opened(write(tmp_path / "data"))
    assert list(splits.class_names) == ["cat", "no"] and splits.test is None  # `no` is a name, and not false
    assert boxes_of(splits.train) == [[[15, 5, 25, 15, 0], [8, 4, 12, 6, 1]], [[0, 0, 40, 20, 1]], [], []]
    assert boxes_of(splits.val) == [[[16, 8, 24, 12, 0]]]
    said = "of 4 images of the split train, 1 have no label file and 1 no objects in theirs: background"
    assert said in caplog.text and "split val" not in caplog.text


@pytest.mark.parametrize(
    "yaml",
    [
        "train: ../images/train\nval: ../images/val\nnc: 2\nnames: ['cat', 'no']\n",  # Roboflow
        "train: images/train\nval: images/val\nnames: [cat, no]\n",
        "path: nowhere\ntrain: [images/train, images/train/a.png]\nval: [images/val]\nnames: [cat, no]\n",
        "path: ./\ntrain: train.txt\nvalidation: val.txt\nnc: 2\n",
    ],
)
def test_paths_of_both_tools_are_found(yaml, tmp_path) -> None:
    root = write(tmp_path / "data", yaml=yaml)
    (root / "train.txt").write_text(
        "./images/train/a.png\n\nimages/train/b.png\n/images/train/c.png\n".replace(
            "/images/train/c", f"{root}/images/train/c"
        )
    )
    (root / "val.txt").write_text("images\\val\\e.png")
    splits = opened(root)
    assert boxes_of(splits.val) == [[[16, 8, 24, 12, 0]]] and len(splits.train) == (3 if "txt" in yaml else 4)
    assert list(splits.class_names) == (["0", "1"] if "names" not in yaml else ["cat", "no"])


def test_only_the_last_folder_images_becomes_labels_and_labels_may_be_beside(tmp_path) -> None:
    root = write(tmp_path / "images" / "data")
    assert len(boxes_of(opened(root).train)[0]) == 2
    beside = tmp_path / "beside"
    for name in "ab":
        draw(beside / f"{name}.jpg", SIZE)
        (beside / f"{name}.txt").write_text("0 0.5 0.5 0.25 0.5")
    (beside / "classes.txt").write_text("cat\n")
    splits = opened(beside, val_fraction=0.5)
    assert boxes_of(splits.train) == boxes_of(splits.val) == [[[15, 5, 25, 15, 0]]]


def test_images_may_be_at_the_beginning_of_a_relative_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(write(tmp_path, yaml="train: images/train\nval: images/val\nnames: [cat, no]\n"))
    assert boxes_of(opened(Path(".")).val) == [[[16, 8, 24, 12, 0]]]
    assert label_of("images/a/images/b.png") == "images/a/labels/b.txt" and label_of("/images/b.png") == "/labels/b.txt"


def test_boxes_beside_rows_with_key_points_are_not_misread(tmp_path) -> None:
    yaml = YAML + "kpt_shape: [4, 3]\n"
    row = "0 0.5 0.5 0.5 0.5" + " 0.4 0.4 0" * 4
    splits = opened(write(tmp_path, {"a": row, "e": row}, yaml))
    assert boxes_of(splits.train) == [[[10, 5, 30, 15, 0]]]
    with pytest.raises(
        DataError, match="line 2 of .*a.txt' has 5 columns, and an object with 4 key points|has 5 columns"
    ):
        opened(write(tmp_path, {"a": f"{row}\n0 0.2 0.2 0.1 0.1", "e": row}, yaml))
    assert boxes_of(opened(write(tmp_path, {"a": LABELS["e"], "e": LABELS["e"]}, yaml)).train) == [[[16, 8, 24, 12, 0]]]


def test_darknet_files_as_cvat_writes_them(tmp_path) -> None:
    (tmp_path / "obj_train_data").mkdir()
    for name in "ab":
        draw(tmp_path / "obj_train_data" / f"{name}.jpg", SIZE)
        (tmp_path / "obj_train_data" / f"{name}.txt").write_text("1 0.5 0.5 0.25 0.5")
    (tmp_path / "obj.data").write_text(
        "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n"
    )
    (tmp_path / "obj.names").write_text("cat\ndog\n")
    (tmp_path / "train.txt").write_text("data/obj_train_data/a.jpg\ndata/obj_train_data/b.jpg\n")
    splits = opened(tmp_path, val_fraction=0.5)
    assert list(splits.class_names) == ["cat", "dog"] and boxes_of(splits.train) == [[[15, 5, 25, 15, 1]]]


@pytest.mark.parametrize(
    "files, found",
    [
        ({"cfg/data/obj.names": "first", "cfg/obj.names": "second", "data/obj.names": "third"}, "first"),
        ({"cfg/obj.names": "second", "data/obj.names": "third"}, "second"),
        ({"data/obj.names": "third"}, "third"),
    ],
)
def test_paths_of_darknet_are_found_as_written_then_without_their_folder_then_beside(files, found, tmp_path) -> None:
    for path, name in {"cfg/obj.data": "train = data/train.txt\nnames = data/obj.names\n", **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(name)
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data/train.txt").write_text("")
    assert read_data(tmp_path, "cfg/obj.data").names == [found]


def test_a_folder_is_no_file_of_names(tmp_path) -> None:
    (tmp_path / "obj.data").write_text("train = train.txt\nnames = data/\n")
    with pytest.raises(DataError, match="obj.data' names 'data/', and there is no file"):
        read_data(tmp_path, "obj.data")


def test_classes_choose_some_and_splits_can_be_left_out(tmp_path) -> None:
    splits = opened(write(tmp_path / "data"), classes=["no"], val=None, val_fraction=0.25)
    assert list(splits.class_names) == ["no"] and (len(splits.train), len(splits.val)) == (3, 1)
    assert {row[4] for rows in boxes_of(splits.train) + boxes_of(splits.val) for row in rows} == {0}
    with pytest.raises(DataError, match=r"has no class 'now'. Did you mean 'no'\? It has: cat, no."):
        opened(tmp_path / "data", classes=["now"])


@pytest.mark.parametrize(
    "row, message",
    [
        ("2 .5 .5 .1 .1", "has the class 2, and there are 2 names: classes are 0 to 1. Correct it, or name all"),
        ("-1 .5 .5 .1 .1", "has the class -1, and there are 2 names"),
        ("0.5 .5 .5 .1 .1", "has the class 0.5, which is no whole number"),
        ("0 1.03 .5 .1 .1", "holds 1.03, and coordinates are shares of width and height, 0 to 1. Divide pixels"),
        ("0 .5 .5 .1 -0.021", "holds -0.021, and coordinates are shares"),
        ("0 .5 .5 .1 -0.01", "has the width .1 and the height -0.01, and neither can be negative"),
        ("0 .5 .5 .1 .1 .9", "has a sixth column, .9, as predictions have"),
        ("0 .5 .5 .1", "has 4 columns: a box has 5, and a polygon 1 \\+ 2 for each of at least 3 points"),
        ("0 .5 .5 .1 .1 .1 .1 .1", "has 8 columns: a box has 5"),
        ("cat .5 .5 .1 .1", "holds 'cat', which is no number"),
        ("0 .5 .5 .1 nan", "holds 'nan', which is no number"),
        ("0 .5 .5 .1 1_0", "holds '1_0', which is no number"),
        ("0 .5 .5 .1 1e999", "holds '1e999', which is no number"),
        (
            "0 .97 .5 .12 .1",
            r"the box 0.91, 0.45, 1.03, 0.55 \(left, top, right, bottom\) of 'cat' reaches 0.03 beyond",
        ),
    ],
)
def test_wrong_rows_are_refused_with_their_line(row, message, tmp_path) -> None:
    root = write(tmp_path / "data", {"a": f"0 .5 .5 .1 .1\n\n{row}\n", "b": f"{row}\n", "e": ""})
    with pytest.raises(DataError, match=r"labels/train/a.txt, line 3.* \(2 such (rows|boxes)\)") as caught:
        opened(root)
    assert re.search(message.partition(". ")[0], str(caught.value))
    findings = CollectedFindings()
    splits = opened(root, findings=findings)
    assert boxes_of(splits.train)[0] == [[18, 9, 22, 11, 0]]  # the row before it is kept
    assert [problem.location.line for each in findings.shown.values() for problem in each][:2] == [3, 1]


def test_rows_within_the_tolerance_are_clipped_and_duplicates_count_once(tmp_path) -> None:
    findings = CollectedFindings()
    splits = opened(
        write(tmp_path / "data", {"a": "0 1.02 .5 .2 .5\n0 .5 .5 1.02 1\n0 .5 .5 1.02 1\n", "e": "", "b": ""}),
        findings=findings,
        wrong_boxes="mend",
    )
    assert boxes_of(splits.train)[0] == [[36.8, 5, 40, 15, 0], [0, 0, 40, 20, 0]]
    assert findings.counts["listed_twice"] == 1 and "line 3 is the same as line 2" in str(findings.shown)


def test_oriented_boxes_are_refused_unless_they_are_said_to_be_polygons(tmp_path) -> None:
    row = "0 .1 .1 .5 .1 .5 .5 .1 .5\n"
    root = write(tmp_path / "data", {"a": row, "b": row, "e": row})
    with pytest.raises(DataError, match="each row of .* has a class and eight numbers. If they are oriented"):
        opened(root, Masks)
    assert boxes_of(opened(root, rows="polygons").val) == [[[4, 2, 20, 10, 0]]]


def test_polygons_are_instance_masks(tmp_path) -> None:
    splits = opened(write(tmp_path / "data", POLYGONS), Masks)
    first, second = splits.train.masks(0)
    assert first.shape == (20, 40) and first[2:10, 4:20].all() and first.sum() == 8 * 16
    image, rows, meta = splits.train.fetch(np.array([0]), seed=0, epoch=0, train=False)
    assert rows[0, :2, Column.AREA].tolist() == [128, second.sum()] and rows[0, :2, Column.CLASS].tolist() == [0, 1]
    assert (decode_mask(meta[0, -1][1], (20, 40)) == second).all()
    assert boxes_of(opened(tmp_path / "data").val) == [[[0, 0, 40, 20, 1]]]  # boxes around them for detection


def test_masks_of_classes_are_drawn_in_the_order_of_the_file(tmp_path) -> None:
    splits = opened(write(tmp_path / "data", POLYGONS), ClassMap, image_size=[20, 40])
    assert list(splits.class_names) == ["background", "cat", "no"]
    mask = splits.train.mask(0, SIZE)
    instances = opened(tmp_path / "data", Masks).train.masks(0)
    expected = np.where(instances[1], 2, np.where(instances[0], 1, 0))
    assert (mask == expected).all() and set(np.unique(mask)) == {0, 1, 2}
    assert (splits.train.mask(1, SIZE) == 0).all() and (
        splits.train.fetch(np.array([0]), seed=0, epoch=0, train=False)[1][0] == expected
    ).all()


@pytest.mark.parametrize("target, task", [(Masks, "instance_segmentation"), (ClassMap, "segmentation")])
def test_boxes_are_no_masks(target, task, tmp_path) -> None:
    with pytest.raises(DataError, match=f"the annotations are boxes, and task={task} learns .* Type task=detection."):
        opened(write(tmp_path / "data"), target)
    mixed = {"a": POLYGONS["a"] + "0 .5 .5 .1 .1\n", "e": "", "b": ""}
    with pytest.raises(DataError, match="a.txt, line 3 is a box, and others of the dataset are polygons"):
        opened(write(tmp_path / "mixed", mixed, YAML.replace("../data", "../mixed")), target)
    assert len(boxes_of(opened(tmp_path / "mixed").train)[0]) == 3


def test_key_points_are_pixels_and_pairs_are_those_of_the_description(tmp_path) -> None:
    splits = opened(write(tmp_path / "data", POINTS, POSE_YAML), KeyPoints, image_size=[16, 16])
    assert list(splits.class_names) == ["point 0", "point 1", "point 2"]
    assert len(splits.train) == len(splits.val) == 1 and splits.key_points.flip_pairs == [(0, 1)]
    assert splits.train.objects.box_N4.tolist() == [[10, 5, 30, 15]] and splits.train.objects.area_N.tolist() == [200]
    assert np.allclose(splits.train.objects.point_NJ3, [[[16, 8, 2], [24, 8, 1], [0, 0, 0]]])
    assert splits.key_points.object_names == ["cat"]
    assert boxes_of(opened(tmp_path / "data").train)[0] == [[10, 5, 30, 15, 0]]


def test_sizes_are_read_from_the_beginning_of_jpegs(tmp_path, monkeypatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    for name, more in (("a.jpg", {}), ("long.jpg", {"icc_profile": bytes(1 << 17)}), ("a.png", {})):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif, **more)
    assert [size_of(str(tmp_path / name)) for name in ("a.jpg", "long.jpg", "a.png")] == [(200, 300)] * 3
    assert np.isnan(size_of(str(tmp_path / "none.jpg"))).all()
    monkeypatch.setattr(ImageFiles, "read", None)
    assert size_of(str(tmp_path / "a.jpg")) == (200, 300) and np.isnan(size_of(str(tmp_path / "long.jpg"))).all()


def test_seventeen_key_points_with_cocos_pairs_are_those_of_persons(tmp_path) -> None:
    flips = "[0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]"
    row = "0 .5 .5 .5 .5 " + " ".join([".4 .4"] * 17)
    yaml = f"{YAML}kpt_shape: [17, 2]\nflip_idx: {flips}\n"
    splits = opened(write(tmp_path / "data", {"a": row, "e": row}, yaml), KeyPoints)
    row = "0 .5 .5 .5 .5 0 0 " + " ".join([".4 .4"] * 16)  # 0, 0 is unmarked
    (tmp_path / "data" / "labels" / "train" / "a.txt").write_text(row)
    points = opened(tmp_path / "data", KeyPoints).train.objects.point_NJ3[0]
    assert points[0].tolist() == [0, 0, 0] and points[1].tolist() == [16, 8, 2]
    assert tuple(splits.class_names) == PERSON_NAMES and tuple(splits.key_points.sigmas) == PERSON_SIGMAS


@pytest.mark.parametrize(
    "labels, yaml, message",
    [
        ({"a": "0 .5 .5 .5 .5 .4 .4 3 0 0 0 0 0 0"}, POSE_YAML, "a.txt, line 1 has a key point of the visibility 3"),
        ({"a": "0 .5 .5 .5 .5 .4 1.4 2 0 0 0 0 0 0"}, POSE_YAML, "a.txt, line 1 holds 1.4, and coordinates are shares"),
        ({"a": "0 .5 .5 .5 .5 .4 .4"}, POSE_YAML, "has 7 columns, and an object with 3 key points of 3 numbers has 14"),
        (POINTS, POSE_YAML.replace("[1, 0, 2]", "[1, 2, 0]"), r"flip_idx \[1, 2, 0\] is no order in which key points"),
        (POINTS, POSE_YAML.replace("[1, 0, 2]", "[1, 0]"), "flip_idx must have 3 numbers from 0 to 2"),
        (POINTS, POSE_YAML.replace("[3, 3]", "[3, 4]"), r"kpt_shape must be \[number of key points, 2 or 3\]"),
        (POINTS, YAML, r"data.yaml' has no kpt_shape, e.g. kpt_shape: \[17, 3\]"),
        (
            {"a": POINTS["a"] + POINTS["a"].replace("0", "1", 1), "e": ""},
            POSE_YAML,
            r"cat, no have key points, .*Type dataset.classes=\[cat\]",
        ),
    ],
)
def test_wrong_key_points_are_refused(labels, yaml, message, tmp_path) -> None:
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path / "data", {"b": "", "e": "", **labels}, yaml), KeyPoints)


@pytest.mark.parametrize(
    "yaml, message",
    [
        ("names: [a", "is no YAML: while parsing"),
        ("- a\ntrain: b", "is no YAML: while parsing"),
        ("names: [a, b]", "has no train. Add e.g. train: images/train."),
        ("train: images/train\nnames:", "has no names of classes. Add e.g. names"),
        ("train: images/train\nnames: {1: a, 2: b}", "names must have the numbers 0 to 1; it has 1, 2."),
        ("train: images/train\nnc: 3\nnames: [a, b]", "nc is 3, and there are 2 names"),
        ("train: images/train\nnames: [a, a]", "names the class 'a' twice"),
        ("train: images/trein\nnames: [a, b]", "train is 'images/trein', and there is no '.*data/images/trein', "),
        ("train: images/train\nval: vall\nnames: [a, b]", "val is 'vall', .* Or type dataset.val=null."),
        (
            "train: images/train\nval: images/train\nnames: [a, b]",
            "belongs to train and to val.*dataset.val=null",
        ),
    ],
)
def test_wrong_descriptions_are_refused(yaml, message, tmp_path) -> None:
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path / "data", yaml=yaml))


def test_missing_labels_and_folders_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="there is no folder '.*data'. It must hold a data.yaml"):
        opened(tmp_path / "data")
    root = write(tmp_path / "data", {"a": None, "e": ""})
    with pytest.raises(
        DataError, match="none of the 1 images of the split train has a label file. That of .*/labels/train/a.txt"
    ):
        opened(root)
    (root / "data.yaml").rename(root / "one.yaml")
    (root / "two.yaml").write_text(YAML)
    with pytest.raises(DataError, match="has one.yaml, two.yaml. Type dataset.data=NAME"):
        opened(root)
    with pytest.raises(DataError, match=r"dataset.data=three.yaml: there is no file"):
        opened(root, data="three.yaml")


def test_labels_without_an_image_are_warned_of_and_a_test_split_without_labels_is_left_out(tmp_path, caplog) -> None:
    root = write(tmp_path / "data", yaml=YAML.replace("test:", "test: images/test"))
    draw(root / "images" / "test" / "t.png", SIZE)
    (root / "labels" / "train" / "gone.txt").write_text("0 .5 .5 .1 .1")
    (root / "labels" / "train" / "classes.txt").write_text("cat\nno\n")
    assert opened(root).test is None
    assert "labels/train/gone.txt' is the label file of no image." in caplog.text and "classes.txt" not in caplog.text
    (root / "labels" / "test").mkdir()
    (root / "labels" / "test" / "t.txt").write_text("")
    assert len(opened(root).test) == 1


def test_key_points_and_boxes_beyond_the_image_are_mended_on_request(tmp_path) -> None:
    row = "0 .9 .5 .22 .5 1.015 .5 2 .9 .5 2 .85 .5 2\n"
    root = write(tmp_path / "data", {"a": row, "b": "", "e": row}, POSE_YAML)
    for number, part in enumerate(("train/a", "val/e")):
        draw(root / "images" / f"{part}.png", (400, 20), seed=number)
    with pytest.raises(DataError, match="a.txt, line 1: the key point at 406, 10 is outside its image. Correct it, or"):
        opened(root, KeyPoints)
    objects = opened(root, KeyPoints, wrong_boxes="mend").train.objects
    assert objects.point_NJ3[0, :, 2].tolist() == [0, 2, 2] and np.allclose(objects.box_N4, [[316, 5, 400, 15]])


def test_settings_of_boxes_are_refused_for_other_targets(tmp_path) -> None:
    root = write(tmp_path / "data", POLYGONS)
    augment = {"flip": False}
    splits = Yolo(root=str(root), augment=augment).for_run(ClassMap)
    assert splits.augment.flip is False and splits.augment.scale == [0.5, 2.0]
    with pytest.raises(
        ConfigError, match="dataset.augment.mosaic is for boxes, and the targets of this task are others"
    ):
        Yolo(root=str(root), augment={"mosaic": 0.5}).for_run(ClassMap)
    listed = Yolo(root=str(root), augment={"transforms": ["flip"]}).for_run(ClassMap)
    assert [type(each).__name__ for each in listed.augment.transforms] == ["Flip"] and listed.augment.scale == [1, 1]
    assert isinstance(Yolo(root=str(root)).for_run(TargetKind), Yolo)


@pytest.mark.parametrize(
    "labels, yaml, form, task",
    [
        (LABELS, YAML, "boxes", "detection"),
        (POLYGONS, YAML, "polygons", "instance_segmentation"),
        (POINTS, POSE_YAML, "key points", "pose_estimation"),
    ],
)
def test_the_form_is_recognised(labels, yaml, form, task, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), labels, yaml)
    typed = f"task={task} dataset=yolo dataset.root=data"
    assert recognised(Yolo, "data", "yolo") == (f"YOLO's label files with {form}", typed)
    (Path("data") / "data.yaml").unlink()
    if form == "boxes":
        assert recognised(Yolo, "data", "yolo")[1] == f"{typed} dataset.classes=[NAME,...]"
    elif form == "key points":
        (Path("data") / "data.yaml").write_text(yaml)
        assert opened(Path("data"), KeyPoints).counts() == {"objects": 2, "key points": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, labels, yaml",
    [
        ("instance_segmentation", POLYGONS, YAML),
        ("segmentation", POLYGONS, YAML),
        ("pose_estimation", POINTS, POSE_YAML),
    ],
)
def test_other_tasks_than_detection_train_evaluate_and_predict(task, labels, yaml, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), labels, yaml)
    size = ["dataset.image_size=64", "dataset.batch_size=2", "dataset.eval_batch_size=2", "trainer.max_epochs=1"]
    assert main([f"task={task}", "dataset=yolo", "dataset.root=data", "hydra.run.dir=run", *size]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    assert main(["predict", "run", "data/images/val/e.png"]) == 0
