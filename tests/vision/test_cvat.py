"""CVAT's XML of images as data of detection, segmentation, instance segmentation and pose estimation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import draw
from recognised import recognised

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.kinds import Boxes, ClassMap, KeyPoints, Masks
from mxtrain.vision.objects.cvat import Cvat

BOX = (
    '<box label="dog" occluded="0" xtl="10.00" ytl="2.00" xbr="30.00" ybr="12.00" z_order="0">'
    '<attribute name="a">1</attribute></box>'
)
POLYGON = '<polygon label="cat" points="1.00,1.00;21.00,1.00;21.00,11.00" z_order="-1"></polygon>'
ELLIPSE = '<ellipse label="cat" cx="20" cy="10" rx="5" ry="10" rotation="90.0" z_order="0"/>'
MASK = '<mask label="dog" rle="1, 3, 2, 1, 1" left="4" top="5" width="4" height="2" z_order="2"></mask>'
SKELETON = (
    '<skeleton label="dog" z_order="0"><points label="nose" occluded="0" outside="0" points="12.00,5.00"/>'
    '<points label="tail" occluded="1" outside="0" points="20.00,8.00"/>'
    '<points label="ear" occluded="0" outside="1" points="0.00,0.00"/></skeleton>'
)
LABELS = (
    "<label><name>dog</name></label>"
    "<label><name>cat</name><attributes><attribute><name>x</name></attribute></attributes></label>"
)
POINTS = "".join(
    f"<label><name>{name}</name><type>points</type><parent>dog</parent></label>" for name in ("ear", "nose", "tail")
)


def xml(*images: str, labels: str = LABELS) -> str:
    rows = "\n".join(images)
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<meta><task><labels>{labels}</labels></task></meta>'
    return f"{head}\n{rows}\n</annotations>\n"


def image(name: str, *shapes: str, more: str = "") -> str:
    return f'<image id="0" name="{name}.png" width="40" height="20" {more}>\n' + "\n".join(shapes) + "</image>"


def write(root: Path, text: str, name: str = "annotations.xml") -> Path:
    for number, each in enumerate("abc"):
        draw(root / "images" / f"{each}.png", (40, 20), seed=number)
    (root / name).write_text(text)
    return root


def opened(root: Path, target: type = Boxes, findings: Any = None, **settings: Any) -> Any:
    dataset = Cvat(root=str(root), **{"image_size": [20, 40], "val_fraction": 0.34, **settings}).for_run(target)
    return dataset.examine(findings) if findings else dataset.open()


def by_name(*sources: Any) -> dict:
    return {source.name(index)[-6:-5]: (source, index) for source in sources for index in range(len(source))}


ALL = xml(image("a", BOX, POLYGON), image("b", ELLIPSE, MASK, '<polyline label="cat" points="1,1;2,2"/>'), image("c"))


def test_shapes_are_boxes_and_classes_are_in_the_order_of_the_task(tmp_path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        splits = opened(write(tmp_path, ALL))
    boxes = {
        name: source.boxes(index)[:, :5].round(3).tolist()
        for name, (source, index) in by_name(splits.train, splits.val).items()
    }
    assert list(splits.class_names) == ["dog", "cat"]
    assert boxes["a"] == [[1, 1, 21, 11, 1], [10, 2, 30, 12, 0]] and boxes["c"] == []
    assert boxes["b"] == [[10, 5, 30, 15, 1], [5, 5, 8, 7, 0]]
    assert "1 polylines and points are left out" in caplog.text


def test_outlines_are_masks_and_those_in_front_cover_others(tmp_path) -> None:
    splits = opened(write(tmp_path, ALL), Masks)
    source, index = by_name(splits.train, splits.val)["b"]
    ellipse, mask = source.masks(index)
    assert mask[5:7, 4:8].tolist() == [[0, 1, 1, 1], [0, 0, 1, 0]] and mask.sum() == 4
    assert abs(int(ellipse.sum()) - np.pi * 5 * 10) < 8
    splits = opened(tmp_path, ClassMap)
    source, index = by_name(splits.train.source)["a"]
    classes = source.mask(index, (40, 20))
    assert (classes[2:12, 10:30] == 1).all() and classes[1, 5] == 2  # the polygon is behind


def test_skeletons_have_a_box_around_their_points(tmp_path) -> None:
    splits = opened(
        write(tmp_path, xml(image("a", SKELETON), image("b", SKELETON), labels=LABELS + POINTS)),
        KeyPoints,
        val_fraction=0.5,
    )
    objects = splits.train.source.objects
    assert list(splits.class_names) == ["ear", "nose", "tail"] and objects.box_N4.tolist() == [[12, 5, 20, 8]] * 2
    assert objects.point_NJ3[0].tolist() == [[0, 0, 0], [12, 5, 2], [20, 8, 1]]
    assert splits.key_points.object_names == ["dog"]


def test_skeletons_of_classes_that_are_left_out_are_left_out(tmp_path) -> None:
    other = SKELETON.replace('label="dog"', 'label="cat"')
    write(tmp_path, xml(image("a", other, SKELETON), image("b", SKELETON, other), labels=LABELS + POINTS))
    splits = opened(tmp_path, KeyPoints, val_fraction=0.5, classes=["dog"])
    assert splits.train.source.objects.box_N4.tolist() == [[12, 5, 20, 8]] * 2


def test_images_that_are_annotated_twice_are_refused_for_masks_too(tmp_path) -> None:
    write(tmp_path, xml(image("a", POLYGON), image("b", POLYGON), image("a", ELLIPSE)))
    for target in (ClassMap, Masks, Boxes):
        with pytest.raises(DataError, match=r"a.png' is annotated twice in '.*annotations.xml'. Remove one of them."):
            opened(tmp_path, target)


def test_images_of_another_size_than_that_of_their_masks_are_said(tmp_path, caplog) -> None:
    write(tmp_path, xml(*(image(name, POLYGON).replace('"40"', '"80"') for name in "abc")))
    opened(tmp_path, ClassMap).train.source.mask(0, (40, 20))
    assert "a.png' has 40 x 20 pixels, but its annotation says 80 x 20." in caplog.text
    checked = opened(tmp_path, ClassMap, CollectedFindings()).train.source.checks().check(1)
    assert [problem.kind for problem in checked.problems] == ["size_mismatch"]


def test_files_of_splits_count_more_than_subsets(tmp_path) -> None:
    for split, name in (("train", "a"), ("val", "b")):
        draw(tmp_path / split / f"{name}.png", (40, 20))
        (tmp_path / split / "annotations.xml").write_text(xml(image(name, BOX, more='subset="Train"')))
    splits = Cvat(root=str(tmp_path)).read(CollectedFindings()).splits
    assert {split: len(images) for split, images in splits.items()} == {"train": 1, "val": 1}


def test_a_split_with_several_files_is_refused_and_one_without_is_said(tmp_path, caplog) -> None:
    for split, name in (("train", "a"), ("val", "b")):
        draw(tmp_path / split / f"{name}.png", (40, 20))
        (tmp_path / split / "annotations.xml").write_text(xml(image(name, BOX)))
    (tmp_path / "val" / "old.xml").write_text(xml(image("b", BOX)))
    with pytest.raises(DataError, match=r"val' holds annotations.xml, old.xml, and a split has one file"):
        opened(tmp_path)
    for name in ("annotations", "old"):
        (tmp_path / "val" / f"{name}.xml").unlink()
    assert "val" not in Cvat(root=str(tmp_path)).read(CollectedFindings()).splits
    assert "val' holds no *.xml, so the split val is left out" in caplog.text


def test_subsets_are_splits(tmp_path) -> None:
    subsets = zip("abc", ("Train", "Validation", "test"))
    splits = opened(write(tmp_path, xml(*(image(name, BOX, more=f'subset="{subset}"') for name, subset in subsets))))
    assert [list(by_name(part)) for part in (splits.train, splits.val, splits.test)] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            BOX.replace("z_order", 'rotation="30.0" z_order'),
            "the <box> is an oriented box, which no network of mxtrain",
        ),
        (BOX.replace("30.00", "x"), "the <box> has xbr='x', which is no number"),
        (BOX.replace('label="dog"', ""), "the <box> has no label"),
        (BOX.replace("30.00", "9.00"), "the <box> has a box that ends before it begins"),
        (POLYGON.replace("1.00;21", "1.00,3;21"), "the <polygon> has the point '1.00,1.00,3', which is not x,y"),
        ('<polygon label="cat" points="1,1;2,2"/>', "the <polygon> has a polygon of 2 points, fewer than 3"),
        ('<cuboid label="cat" xtl1="1"/>', "the <cuboid> is a cuboid, which is not read"),
        (MASK.replace("1, 3", "1, 4"), "the <mask> has a mask whose rle does not add up to 4 x 2 pixels"),
        (MASK.replace("1, 3", "-1, 5"), "the <mask> has a mask whose rle does not add up to 4 x 2 pixels"),
        (MASK.replace('left="4"', 'left="37"'), "the <mask> has a mask that reaches beyond its image"),
        (MASK.replace("1, 3, 2, 1, 1", "8"), "the <mask> has a mask without any pixel"),
        (SKELETON.replace('outside="0"', 'outside="1"'), "the <skeleton> has no point that is inside"),
        (SKELETON.replace("20.00,8.00", "12.00,8.00"), "the <skeleton> has points on one line or at one place"),
        (ELLIPSE.replace('rx="5"', 'rx="0"'), "the <ellipse> has an ellipse of the radii 0 and 10"),
        (BOX.replace("30.00", "45.00"), "reaches 5 pixels beyond its image of 40 x 20"),
        (BOX.replace("dog", "dig"), "there is no class 'dig' in the training split. Did you mean 'dog'"),
    ],
)
def test_wrong_elements_are_refused_with_their_line(wrong, message, tmp_path) -> None:
    write(tmp_path, xml(image("a", BOX, wrong), image("b", BOX)))
    with pytest.raises(DataError, match=f"annotations.xml, line 6: .*{message}"):
        opened(tmp_path)
    findings = CollectedFindings()
    opened(tmp_path, findings=findings, val_fraction=0.5)
    assert sum(findings.counts.values()) == 1


def test_a_sample_with_a_drawn_mask_reads_its_image_once(tmp_path, monkeypatch) -> None:
    source = opened(write(tmp_path, xml(image("a", BOX), image("b", BOX))), ClassMap, val_fraction=0.5).train
    read, indices = ImageFiles.read, []
    monkeypatch.setattr(ImageFiles, "read", lambda self, index: indices.append(index) or read(self, index))
    for train in (False, True):
        source.fetch(np.array([0]), seed=0, epoch=0, train=train)
    assert len(indices) == 2


def test_only_elements_below_the_root_are_images(tmp_path) -> None:
    text = xml(image("a", BOX), image("b", BOX))
    nested = text.replace("<meta>", f"<meta><preview>{image('missing', POLYGON)}</preview>")
    assert nested != text and len(opened(write(tmp_path, nested), val_fraction=0.5).train) == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("<annotations><image></annotations>", r"is no XML: mismatched tag \(line 1, column"),
        ("<annotation/>", "is no XML of CVAT: its root is <annotation>, not <annotations>"),
        ("<!DOCTYPE a><annotations/>", "declares a document type on line 1, which could name other files"),
        (
            '<annotations><track id="0"/></annotations>',
            "line 1: this is the XML of a video. Export the task as CVAT for im",
        ),
        ("<annotations>" + "<a>" * 70 + "</a>" * 70 + "</annotations>", "more than 64 elements are in each other"),
        ("", "is no XML: no element found"),
        (xml(image("x", BOX)), "line 4 names 'x.png', and '.*' has no such file. Add it, or say"),
        (xml(image("a", BOX, more='subset="val"')), "has no image of a training split"),
    ],
)
def test_wrong_files_are_refused(text, message, tmp_path) -> None:
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path, text))


def test_the_form_is_recognised(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), ALL)
    typed = "task=instance_segmentation dataset=cvat dataset.root=data/annotations.xml"
    assert recognised(Cvat, "data", "cvat") == ("CVAT's XML of images with outlines", typed)
    write(Path("data"), xml(image("a", SKELETON)))
    assert recognised(Cvat, "data", "cvat")[0] == "CVAT's XML of images with skeletons"


def test_outlines_of_a_group_are_one_instance_and_boxes_are_not_joined(tmp_path) -> None:
    parts = [
        f'<polygon label="{label}" points="{x},1;{x + 4},1;{x + 4},5" group_id="{group}"/>'
        for label, x, group in (("cat", 1, 3), ("cat", 11, 3), ("dog", 21, 3), ("cat", 31, 0), ("cat", 35, 0))
    ]
    boxes = [f'<box label="dog" group_id="3" xtl="{x}" ytl="8" xbr="{x + 3}" ybr="12"/>' for x in (1, 11)]
    splits = opened(write(tmp_path, xml(image("a", *parts, *boxes), image("b", MASK), image("c", BOX))), Masks)
    source, index = by_name(splits.train, splits.val)["a"]
    found = sorted(source.boxes(index)[:, [4, 0, 1, 2, 3]].round(2).tolist())
    dogs = [[0, 1, 8, 4, 12], [0, 11, 8, 14, 12], [0, 21, 1, 25, 5]]
    assert found == [*dogs, [1, 1, 1, 15, 5], [1, 31, 1, 35, 5], [1, 35, 1, 39, 5]]


def test_the_classes_are_those_of_all_files_in_the_order_of_the_training_file(tmp_path) -> None:
    for split, names in (("train", ("dog",)), ("val", ("bird", "cat", "dog"))):
        labels = "".join(f"<label><name>{name}</name></label>" for name in names)
        (tmp_path / split).mkdir()
        write(tmp_path / split, xml(image("a", BOX), image("b", BOX), labels=labels))
    assert list(opened(tmp_path).class_names) == ["dog", "bird", "cat"]
