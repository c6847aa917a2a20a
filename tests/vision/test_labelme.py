"""labelme's JSON files as data of detection, segmentation, instance segmentation and pose estimation."""

from __future__ import annotations

import base64
import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import draw
from PIL import Image
from recognised import recognised

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.loading.dataset_files import walk
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.kinds import Boxes, ClassMap, KeyPoints, Masks
from mxtrain.vision.objects import tool_format
from mxtrain.vision.objects.labelme import Labelme

SIZE = (40, 20)


def shape(label: str, kind: str, *points: Any, **more: Any) -> dict:
    return {"label": label, "points": [list(point) for point in points], "group_id": None, "shape_type": kind, **more}


def png(mask: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


RECTANGLE = shape("cat", "rectangle", (30, 12), (10, 2))
POLYGON = shape("dog", "polygon", (1, 1), (21, 1), (21, 11))
MASK = shape("cat", "mask", (4, 2), (9, 6), mask=png(np.tri(5, 6) > 0))
CIRCLE = shape("dog", "circle", (20, 10), (20, 15))


def write(root: Path, name: str, *shapes: Any, image: str = "", **more: Any) -> Path:
    draw(root / f"{name}.png", SIZE, seed=ord(name[-1]))
    content = {"version": "5.5.0", "flags": {}, "shapes": list(shapes), "imagePath": image or f"{Path(name).name}.png"}
    content.update({"imageData": "bm90IGFuIGltYWdl", "imageHeight": 20, "imageWidth": 40, **more})
    (root / f"{name}.json").write_text(json.dumps(content))
    return root


def opened(root: Path, target: type = Boxes, findings: Any = None, **settings: Any) -> Any:
    dataset = Labelme(root=str(root), **{"image_size": [20, 40], "val_fraction": 0.34, **settings}).for_run(target)
    return dataset.examine(findings) if findings else dataset.open()


def by_name(*sources: Any) -> dict:
    return {source.name(index)[-6:-5]: (source, index) for source in sources for index in range(len(source))}


def folder(root: Path) -> Path:
    write(root, "a", RECTANGLE, POLYGON)
    write(root, "b", MASK, CIRCLE, shape("dog", "line", (1, 1), (5, 5)))
    return write(root, "c")


def test_shapes_are_boxes(tmp_path, caplog) -> None:
    folder(tmp_path)
    draw(tmp_path / "alone.png", SIZE)
    with caplog.at_level(logging.INFO):
        splits = opened(tmp_path)
    assert list(splits.class_names) == ["cat", "dog"]
    boxes = {
        name: source.boxes(index)[:, :5].round(3).tolist()
        for name, (source, index) in by_name(splits.train, splits.val).items()
    }
    assert boxes["a"] == [[10, 2, 30, 12, 0], [1, 1, 21, 11, 1]] and boxes["c"] == []
    assert boxes["b"][0] == [4, 2, 9, 7, 0] and boxes["b"][1] == [15, 5, 25, 15, 1]
    assert "1 images without a JSON file and 1 lines and line strips are left out" in caplog.text
    assert "1 of 3 images of train have no object: background" in caplog.text


def test_shapes_are_masks(tmp_path) -> None:
    splits = opened(folder(tmp_path), Masks)
    sources = by_name(splits.train, splits.val)
    box, triangle = sources["a"][0].masks(sources["a"][1])
    assert box.sum() == 200 and box[2:12, 10:30].all() and abs(int(triangle.sum()) - 100) <= 10
    mask, circle = sources["b"][0].masks(sources["b"][1])
    assert (mask[2:7, 4:10] == np.tri(5, 6)).all() and mask.sum() == np.tri(5, 6).sum()
    assert abs(int(circle.sum()) - 78.5) < 4 and circle[10, 20]


def test_the_background_is_no_class_of_objects_and_stays_the_background_of_chosen_classes(tmp_path) -> None:
    hole = shape("_background_", "polygon", (2, 2), (8, 2), (8, 8), (2, 8))
    for name in "ab":
        write(tmp_path, name, shape("cat", "rectangle", (0, 0), (20, 10)), POLYGON, hole)
    for target in (Boxes, Masks):
        splits = opened(tmp_path, target, val_fraction=0.5)
        assert list(splits.class_names) == ["cat", "dog"] and len(splits.train.boxes(0)) == 2
    splits = opened(tmp_path, ClassMap, val_fraction=0.5, classes=["cat"])
    assert list(splits.class_names) == ["_background_", "cat"]
    assert splits.train.source.mask(0, SIZE)[4, [1, 4, 10, 30]].tolist() == [1, 0, 1, 0]


def test_outlines_of_a_group_are_one_object(tmp_path) -> None:
    parts = [shape("dog", "polygon", *((x + left, y) for x, y in ((0, 0), (4, 0), (4, 4), (0, 4)))) for left in (1, 9)]
    grouped = [{**part, "group_id": 1} for part in parts]
    write(tmp_path, "a", *grouped, {**MASK, "group_id": 1}, {**parts[0], "group_id": 2}, *parts)
    write(tmp_path, "b", {**MASK, "label": "dog", "group_id": 3}, *({**part, "group_id": 3} for part in parts))
    splits = opened(tmp_path, Masks, val_fraction=0.5)
    boxes = {
        name: source.boxes(index)[:, :5].tolist() for name, (source, index) in by_name(splits.train, splits.val).items()
    }
    single = [1, 0, 5, 4, 1]
    assert boxes["a"] == [[1, 0, 13, 4, 1], [4, 2, 9, 7, 0], single, single, [9, 0, 13, 4, 1]]
    assert boxes["b"] == [[1, 0, 13, 7, 1]]


def test_files_with_a_wrong_path_are_found_in_one_listing_of_their_folder(tmp_path, monkeypatch) -> None:
    for name in "abc":
        write(tmp_path, name, RECTANGLE, image=f"C:\\Users\\me\\{name}.png")
    listed = []
    monkeypatch.setattr(tool_format, "walk", lambda *each: listed.append(each) or walk(*each))
    assert len(opened(tmp_path).train) == 2 and len(listed) == 1


def test_masks_of_classes_know_labelmes_special_labels(tmp_path) -> None:
    ignored, background = (
        shape("__ignore__", "rectangle", (0, 0), (5, 20)),
        shape("_background_", "rectangle", (20, 0), (25, 20)),
    )
    write(tmp_path, "a", RECTANGLE, ignored, background)
    write(tmp_path, "b", POLYGON)
    splits = opened(tmp_path, ClassMap, val_fraction=0.5)
    assert list(splits.class_names) == ["_background_", "cat", "dog"]
    source, index = by_name(splits.train.source)["a"]
    mask = source.mask(index, SIZE)
    assert (mask[:, :5] == -1).all() and (mask[:, 20:25] == 0).all()
    assert (mask[2:12, 10:20] == 1).all() and (mask[2:12, 25:30] == 1).all() and (mask[13:, 5:] == 0).all()


def test_a_class_of_the_name_of_the_background_is_refused(tmp_path) -> None:
    write(tmp_path, "a", {**RECTANGLE, "label": "background"}, POLYGON)
    write(tmp_path, "b", POLYGON)
    with pytest.raises(DataError, match="a class is called 'background', which is the name of pixels of no object"):
        opened(tmp_path, ClassMap)


def test_points_belong_to_the_rectangle_of_their_group(tmp_path) -> None:
    one = [shape("nose", "point", (12, 5), group_id=1), shape("tail", "point", (20, 8), group_id=1)]
    write(tmp_path, "a", {**RECTANGLE, "group_id": 1}, shape("cat", "rectangle", (0, 0), (9, 9), group_id=2), *one)
    write(tmp_path, "b", RECTANGLE, shape("tail", "point", (11, 4)))  # the only object
    splits = opened(tmp_path, KeyPoints, image_size=[16, 16], val_fraction=0.5)
    objects = by_name(splits.train.source, splits.val.source)["a"][0].objects
    assert list(splits.class_names) == ["nose", "tail"] and len(objects.point_NJ3) == 2
    assert objects.point_NJ3.tolist() == [[[12, 5, 2], [20, 8, 2]], [[0, 0, 0], [11, 4, 2]]]
    assert objects.box_N4.tolist() == [[10, 2, 30, 12]] * 2
    write(tmp_path, "c", RECTANGLE, shape("nose", "point", (11, 4)), shape("nose", "point", (11, 5)))
    with pytest.raises(DataError, match="record 2 of '.*c.json': the object has two key points 'nose'. Remove one."):
        opened(tmp_path, KeyPoints)
    write(tmp_path, "c", RECTANGLE, RECTANGLE, shape("nose", "point", (11, 4)))
    with pytest.raises(
        DataError, match="record 2 of '.*c.json': the key point 'nose' belongs to 2 boxes. Give a box and"
    ):
        opened(tmp_path, KeyPoints)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (shape("cat", "oriented_rectangle", (0, 0), (5, 1), (4, 6), (0, 5)), "is an oriented box, which no network"),
        (shape("cat", "polygon", (0, 0), (5, 1)), "has a polygon of 2 points, fewer than 3"),
        (
            shape("cat", "polygon", (0, 0), (5, float("nan")), (1, 1)),
            "has a polygon whose points are no finite numbers",
        ),
        (shape("cat", "rectangle", (0, 0)), "is a rectangle, and has not 2 points of two finite numbers"),
        (shape("cat", "cuboid", (0, 0)), "is of the kind 'cuboid', which is not read"),
        (shape("", "polygon", (0, 0)), "has no label"),
        (shape("cat", "mask", (0, 0), (1, 1), mask="??"), "has a mask that is no PNG in base64"),
        (shape("cat", "mask", (38, 2), (43, 6), mask=png(np.ones((5, 6)))), "has a mask that reaches beyond its image"),
        (shape("cat", "mask", (0, 0), (5, 4), mask=png(np.zeros((5, 6)))), "has a mask without any pixel"),
        (shape("cat", "mask", (-2, 2), (3, 6), mask=png(np.ones((5, 6)))), "has a mask that reaches beyond its image"),
        (shape("cat", "mask", (2, -2), (7, 2), mask=png(np.ones((5, 6)))), "has a mask that reaches beyond its image"),
        (shape("cat", "circle", (5, 5), (5, 5)), "has an ellipse of the radii 0 and 0, which must be above 0"),
        (shape("cat", "rectangle", (30, 5), (45, 9)), "reaches 5 pixels beyond its image of 40 x 20"),
    ],
)
def test_wrong_shapes_are_refused_with_their_record(wrong, message, tmp_path) -> None:
    write(tmp_path, "a", RECTANGLE, wrong)
    write(tmp_path, "b", POLYGON)
    with pytest.raises(DataError, match=rf"record 1 of '.*a.json'.* {message}"):
        opened(tmp_path)
    findings = CollectedFindings()
    splits = opened(tmp_path, findings=findings, val_fraction=0.5)
    assert sum(findings.counts.values()) == 1
    source, index = by_name(splits.train, splits.val)["a"]
    assert source.boxes(index)[:, :4].tolist() == [[10, 2, 30, 12]]


def test_wrong_files_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="there is no folder '.*none'. It must hold labelme's JSON files"):
        opened(tmp_path / "none")
    folder(tmp_path)
    with pytest.raises(DataError, match=r"there is no class 'cot' in the annotations. Did you mean 'cat'\?"):
        opened(tmp_path, classes=["cot"])
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(DataError, match=r"c.json' is not JSON: .*line 1, column 2"):
        opened(tmp_path)
    (tmp_path / "c.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="c.json' has no shapes and imagePath: it is no file of labelme"):
        opened(tmp_path)
    write(tmp_path, "c", RECTANGLE, image="a.png")
    with pytest.raises(DataError, match="a.png' is annotated in '.*a.json' and in '.*c.json'"):
        opened(tmp_path)
    (tmp_path / "b.png").unlink()
    with pytest.raises(
        DataError, match="'.*b.json' names 'b.png', and '.*' has no such file. Add it, or say with imagePath"
    ):
        opened(tmp_path)


def test_images_are_found_by_path_or_name_and_turned_as_exif_says(tmp_path) -> None:
    write(tmp_path, "a", RECTANGLE, image="..\\elsewhere\\a.png")
    write(tmp_path, "b", POLYGON, image="renamed.png")  # beside the file, by its name
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((40, 20, 3), np.uint8)).save(tmp_path / "a.png", exif=exif)
    splits = opened(tmp_path, val_fraction=0.5)
    source, index = by_name(splits.train, splits.val)["a"]
    assert source.open(index).size == SIZE and source.boxes(index)[0, :4].tolist() == [10, 2, 30, 12]


def test_a_mask_of_another_size_than_the_image_is_refused(tmp_path) -> None:
    write(tmp_path, "a", MASK, imageWidth=50)
    write(tmp_path, "b", MASK, imageWidth=50)
    splits = opened(tmp_path, Masks, val_fraction=0.5)
    with pytest.raises(LoaderError, match="record 0 of .*: the mask has 50 x 20 pixels, and its image 40 x 20."):
        splits.train.masks(0)
    with pytest.raises(DataError, match="the mask has 50 x 20 pixels, and its image 40 x 20."):
        opened(tmp_path, ClassMap, val_fraction=0.5)


def test_a_mask_may_begin_at_the_first_pixel(tmp_path) -> None:
    mask = shape("cat", "mask", (0, 0), (5, 4), mask=png(np.ones((5, 6))))
    for name in "ab":
        write(tmp_path, name, mask)
    (read,) = opened(tmp_path, Masks, val_fraction=0.5).train.masks(0)
    assert read[:5, :6].all() and read.sum() == 30


def test_images_that_two_folders_have_are_not_guessed(tmp_path) -> None:
    folder(tmp_path)
    for name in ("one", "two"):
        draw(tmp_path / name / "x.png", SIZE)
    write(tmp_path, "c", image="nowhere/x.png")
    (tmp_path / "c.png").unlink()
    with pytest.raises(
        DataError, match="'.*c.json' names 'nowhere/x.png', and folders below '.*' have 2 files of that"
    ):
        opened(tmp_path)
    (tmp_path / "two" / "x.png").unlink()
    assert len(opened(tmp_path).train) + len(opened(tmp_path).val) == 3


def test_splits_are_folders_and_the_form_is_guessed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), "train/a", RECTANGLE, {**POLYGON, "label": "cat"})
    write(Path("data"), "val/b", RECTANGLE)
    typed = "task=instance_segmentation dataset=labelme dataset.root=data"
    assert recognised(Labelme, "data", "labelme") == ("labelme's JSON with outlines", typed)
    splits = opened(Path("data"))
    assert splits.counts() == {"images": 2, "boxes": 3, "classes": 1} and len(splits.val) == 1
    write(Path("data"), "val/c", {**POLYGON, "label": "wolf"})
    with pytest.raises(
        DataError, match="record 0 of '.*c.json': there is no class 'wolf' in the training split. Classes a"
    ):
        opened(Path("data"))
