"""COCO's boxes: what is read is what COCO's own tool reads, and what is wrong is said with its place."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tracemalloc

import numpy as np
import pytest
from boxed_files import IMAGES, coco_json, draw, write_coco
from PIL import Image

from mxtrain.data.checking.problems import STRICT
from mxtrain.errors import DataError
from mxtrain.vision.detection.boxes import Column, Flag
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.coco_file import read_coco
from mxtrain.vision.images.json_elements import JsonFile

CLASSES = ["Dog", "cat"]
"""In the order of their ids."""


def opened(root, **options):
    return Coco(root=str(root), image_size=[32, 32], **options).open()


def change(path, how):
    """Changes what a file of JSON says."""
    parts = json.loads(path.read_text())
    how(parts)
    path.write_text(json.dumps(parts))


@pytest.fixture
def root(tmp_path):
    return write_coco(tmp_path / "coco")


def train_file(root):
    return root / "annotations/instances_train2017.json"


def test_rows_equal_pycocotools(root):
    from pycocotools.coco import COCO

    splits = opened(root)
    assert splits.class_names == CLASSES and splits.category_ids == [3, 17]
    for split, source in (("train", splits.train), ("val", splits.val)):
        with contextlib.redirect_stdout(io.StringIO()):
            coco = COCO(str(root / f"annotations/instances_{split}2017.json"))
        ids = sorted(coco.getImgIds())
        assert len(source) == len(ids)
        for index, image in enumerate(ids):
            assert coco.imgs[image]["file_name"] in source.name(index)
            wanted = [
                [
                    x,
                    y,
                    x + width,
                    y + height,
                    splits.category_ids.index(one["category_id"]),
                    2 * one["iscrowd"],
                    one["area"],
                ]
                for one in coco.loadAnns(coco.getAnnIds([image]))
                for x, y, width, height in [one["bbox"]]
            ]
            assert sorted(source.boxes(index).tolist()) == sorted(wanted)
    assert splits.train.boxes(1)[0, Column.FLAGS] == Flag.CROWD and len(splits.train.boxes(2)) == 0


def test_other_fields_of_the_file_can_be_read_later(root):
    contents = read_coco(train_file(root), STRICT)
    for number in range(len(contents.id_R)):
        one = contents.annotation(number)
        assert one["id"] == contents.id_R[number] and len(one["segmentation"][0]) == 8 and one["keypoints"][2] == 2


def test_image_folders_are_configurable(tmp_path):
    root = tmp_path / "mine"
    parts = coco_json("abcde")
    for image in parts["images"]:
        name = image["file_name"][0]
        image["file_name"] = f"x/été {name}.png"
        draw(root / "pictures/x" / f"été {name}.png", *IMAGES[name], seed=ord(name))
        del image["width"]
    for one in parts["annotations"]:
        del one["iscrowd"], one["area"], one["segmentation"], one["id"]
    parts["categories"][0]["name"] = "猫"
    # As UTF-8, and as escapes; with spaces between all and a byte order mark.
    for ascii_only in (False, True):
        text = json.dumps(parts, ensure_ascii=ascii_only, indent=3)
        (root / "all.json").write_text(text, encoding="utf-8" if ascii_only else "utf-8-sig")
        options = {"train_annotations": "all.json", "val_annotations": None, "val_fraction": 0.4}
        splits = opened(root, train_images="pictures", **options)
        assert (len(splits.train), len(splits.val)) == (3, 2) and splits.class_names == ["Dog", "猫"]
        areas = np.concatenate([splits.train.boxes(index)[:, Column.AREA] for index in range(3)])
        assert len(areas) and (areas == areas.astype(int)).all()
    with pytest.raises(DataError, match=r"all.json' names 'x/été a.png', and there is no file.*\(5 of 5 images are"):
        opened(root, train_images="elsewhere", **options)


def test_classes_are_chosen_among_categories(root):
    splits = opened(root, classes=["CAT"])
    assert splits.class_names == ["CAT"] and list(splits.category_ids) == [17] and len(splits.train) == 3
    assert splits.train.boxes(0)[:, 4].tolist() == [0] and len(splits.val.boxes(0)) == 0
    with pytest.raises(DataError, match="has no category 'Dogs'. Did you mean 'Dog'. It has: Dog, cat"):
        opened(root, classes=["cat", "Dogs"])


def test_splits_may_have_different_category_ids(root, check):
    path = root / "annotations/instances_val2017.json"
    path.write_text(json.dumps(coco_json("de", ids={"cat": 1, "Dog": 2})))
    splits = opened(root)
    assert splits.val.boxes(0)[:, 4].tolist() == [0] and splits.val.boxes(1)[:, 4].tolist() == [1, 1]
    assert list(splits.category_ids) == [3, 17]
    change(path, lambda parts: parts["categories"][0].update(name="bird"))
    with pytest.raises(DataError, match=r"the category 1, 'bird', which the training split does not have \(2 such"):
        opened(root)
    assert {kind for kind, *_ in check(Coco(root=str(root)))} == {"unknown_class"}


def annotation(**changes):
    def apply(parts):
        parts["annotations"][1].update(changes)
        parts["annotations"][1] = {key: value for key, value in parts["annotations"][1].items() if value is not ...}

    return apply


WRONG = [
    (annotation(bbox=[1, 2, float("nan"), 4]), "not_a_number", 1, "record 1 of '{path}': the box [1, 2, nan, 4] (x, y"),
    (annotation(bbox=[1, 2, 3]), "not_a_number", 1, "annotations: record 1 of '{path}' has no bbox of four numbers"),
    (annotation(bbox=["1", 2, 3, 4]), "not_a_number", 1, "has no bbox of four numbers"),
    (annotation(bbox=None), "not_a_number", 1, "has no bbox of four numbers"),
    (annotation(bbox=...), "not_a_number", 1, "has no bbox of four numbers"),
    (annotation(image_id="7"), "missing_counterpart", 1, "is of the image '7', which the file does not contain"),
    (annotation(image_id=1.5), "not_a_number", 1, "no image_id, or no category_id that is a whole number"),
    (annotation(iscrowd="maybe"), "not_a_number", 1, "has iscrowd 'maybe', which is neither 0 nor 1"),
    (annotation(bbox=[9, 9, -3, 4]), "inverted_box", 1, "the box [9, 9, -3, 4] (x, y, width, height) of"),
    (annotation(bbox=[55, 5, 9, 9]), "box_outside", 1, "reaches 4 pixels beyond its image of 60 x 40"),
    (annotation(category_id=5), "unknown_class", 1, "has the category 5 which the training split does not have"),
    (annotation(image_id=5), "missing_counterpart", 1, "'{path}' is of the image 5, which the file does not contain"),
    (lambda parts: parts["images"][1].pop("file_name"), "unreadable_row", 1, "images: record 1 of"),
    (lambda parts: parts["images"][1].update(id=779), "listed_twice", 2, "images: record 2 of '{path}' has the id 779"),
    (lambda parts: parts["categories"][1].update(id=17), "unreadable_row", 1, "categories: record 1 of"),
]


@pytest.mark.parametrize("spoil, kind, record, said", WRONG, ids=[said[:45] for *_, said in WRONG])
def test_wrong_records_are_refused_with_their_place(root, check, spoil, kind, record, said):
    path = train_file(root)
    change(path, spoil)
    with pytest.raises(DataError, match=re.escape(said.replace("{path}", str(path)))):
        opened(root)
    assert (kind, "coco/annotations/instances_train2017.json", record) in check(Coco(root=str(root)))


def test_an_empty_box_is_left_out_as_two_of_coco_are(root, check):
    change(train_file(root), annotation(bbox=[9, 9, 3, 0]))
    assert sum(len(opened(root).train.boxes(index)) for index in range(3)) == 2
    found = [one for one in check(Coco(root=str(root))) if one[0] != "nothing_to_learn"]  # a crowd region in val
    assert found == [("empty_box", "coco/annotations/instances_train2017.json", 1)]


def test_wrong_boxes_can_be_mended(root):
    change(train_file(root), annotation(bbox=[55, 5, 9, 9]))
    assert [55, 5, 60, 14] in opened(root, wrong_boxes="mend").train.boxes(0)[:, :4].tolist()
    change(train_file(root), annotation(bbox=[9, 9, -3, 4]))
    assert len(opened(root, wrong_boxes="mend").train.boxes(0)) == 1


BROKEN = [
    ('{"images": [{"id": 1},\n {"id": 2,}]}', "Expecting property name enclosed in double quotes (line 2, column"),
    ('{"images": [1 2]}', "is no JSON: Expecting ',' (line 1, column 15)"),
    ('{"images": [1, 2]', "is no JSON: Expecting ',' (line 1, column 18)"),
    ('{"images": [', "is no JSON: Expecting value (line 1, column 13)"),
    ('{"images": []} x', "is no JSON: Extra data"),
    ('{"images" []}', "is no JSON: Expecting ':'"),
    ("", "is no JSON: Expecting '{' (line 1, column 1)"),
    ("[1]", "is a list, and must be an object, as {"),
    ("{1: 2}", "is no JSON: Expecting property name"),
    ("{}", "has no images and no annotations and no categories: it is not one of COCO's"),
    ('{"images": {}, "annotations": [], "categories": []}', "images must be a list"),
    ('{"images": [], "annotations": [], "categories": []}', "names no images"),
    ('{"images": [' + "[" * 100_000, "nested too deeply"),
    ('{"images": [' + "1" * 5000 + "]}", "11111111, which is beyond the range of 64-bit integers"),
    ('{"images": [{"id": 1, "file_name": "a", "width": 1e400}]}', "holds the number 1e400, which is beyond"),
    ('{"images": [{"id": 9223372036854775808}]}', "beyond the range of 64-bit integers"),
    ('{"images": [], "images": []}', 'has the key "images" twice'),
    ('{"images": [{"id": 1, "id": 2}]}', 'holds the key "id" twice'),
    ('{"images": [' + "[" * 200 + "]" * 200 + "]}", "is nested deeper than 100 levels"),
    ('{"images": [{"file_name": "\udcff"}]}', "is not UTF-8: it holds the byte 0xff"),
]


@pytest.mark.parametrize("text, said", BROKEN, ids=[said[:40] for _, said in BROKEN])
def test_broken_files_are_refused_with_line_and_column(root, text, said):
    train_file(root).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=re.escape(said)):
        opened(root)


def test_missing_files_are_named(root):
    with pytest.raises(DataError, match="no file.*instances_train2014.json'. Did you mean 'instances_train2017"):
        opened(root, train_annotations="annotations/instances_train2014.json")
    (root / "all.json").write_text("{}")
    with pytest.raises(DataError, match="no file.*labels/all.json'. Did you mean 'all.json'\\? '.*' has: all.json"):
        opened(root, train_annotations="labels/all.json")
    with pytest.raises(DataError, match="no file.*labels/val.json'.*type dataset.val_annotations=null to hold out"):
        opened(root, val_annotations="labels/val.json")
    (root / "train2017/a.jpg").unlink()
    with pytest.raises(DataError, match=r"names 'a.jpg', and there is no file.*1 of 3 images are missing"):
        opened(root)


def test_duplicate_images_are_refused(root, check):
    (root / "val2017/d.jpg").unlink()
    (root / "val2017/d.jpg").symlink_to(root / "train2017/a.jpg")
    with pytest.raises(DataError, match="belongs to train and to val: .*dataset.val_annotations=null"):
        opened(root)
    change(train_file(root), lambda parts: parts["images"].append({**parts["images"][0], "id": 1}))
    with pytest.raises(DataError, match="occurs twice, with different boxes each time"):
        opened(root, val_annotations=None)
    assert {kind for kind, *_ in check(Coco(root=str(root), val_annotations=None, val_fraction=0.4))} == {
        "duplicate_across_splits",
        "listed_twice",
    }


@pytest.mark.slow
def test_elements_are_read_with_about_as_much_memory_as_the_file_has(tmp_path):
    path = tmp_path / "large.json"
    one = {"id": 1, "segmentation": [[round(number * 1.37, 2) for number in range(200)]], "bbox": [1, 2, 3, 4]}
    text = json.dumps(one)
    path.write_text('{"annotations": [' + ", ".join([text] * 2000) + '], "other": {"deep": [1, 2]}, "empty": []}')
    size = path.stat().st_size
    tracemalloc.start()
    try:
        elements = []
        for element in JsonFile(path).elements():
            if element.record in (-1, 0, 1999):
                elements.append(element)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(element.key, element.record) for element in elements] == [
        ("annotations", 0),
        ("annotations", 1999),
        ("other", -1),
        ("empty", -1),
    ]
    assert elements[0].value == one and elements[2].value == {"deep": [1, 2]} and size > 2_000_000
    assert peak < 2.3 * size


def test_images_have_the_ids_of_the_annotations_that_are_there(root, tmp_path):
    dataset = Coco(root=str(root))
    wanted = {name: 100 + 7 * ord(name) for name in "abcde"}
    inside = {str(root / f"{'train' if name in 'abc' else 'val'}2017/{name}.jpg"): wanted[name] for name in wanted}
    elsewhere = [str(tmp_path / "a.jpg"), str(tmp_path / "x.jpg"), "e.jpg"]
    found = dataset.sample_ids([*inside, *elsewhere])
    assert found == {**inside, str(tmp_path / "a.jpg"): wanted["a"], "e.jpg": wanted["e"]}
    (tmp_path / "link").symlink_to(root)
    assert dataset.sample_ids([str(tmp_path / "link/val2017/d.jpg")]) == {str(tmp_path / "link/val2017/d.jpg"): 800}

    def add_another_a(parts):
        parts["images"] += [{"id": 9, "file_name": "a.jpg"}, {"id": 1.5, "file_name": "x.jpg"}, "x"]

    change(root / "annotations/instances_val2017.json", add_another_a)
    mine = str(root / "train2017/a.jpg")
    assert dataset.sample_ids([mine, *elsewhere]) == {mine: wanted["a"], "e.jpg": wanted["e"]}, "two are called a.jpg"
    train_file(root).unlink()
    (root / "annotations/instances_val2017.json").write_text("{")
    with pytest.raises(DataError, match="instances_val2017.json"):
        dataset.sample_ids(elsewhere)
    (root / "annotations/instances_val2017.json").unlink()
    assert dataset.sample_ids(elsewhere) == {}


@pytest.mark.parametrize("size", [-1, 0, None, "unknown"])
def test_sizes_that_are_not_known(root, size):
    def forget(parts):
        for image in parts["images"]:
            image.update(width=size, height=size)

    wanted = [opened(root).train.boxes(index) for index in range(3)]
    change(train_file(root), forget)
    for index, rows in enumerate(wanted):
        assert np.array_equal(opened(root).train.boxes(index), rows)


def test_image_ids_may_be_texts(root):
    wanted = [opened(root).train.boxes(index).tolist() for index in range(3)]

    def rename(parts):
        for number, image in enumerate(parts["images"]):
            for one in parts["annotations"]:
                if one["image_id"] == image["id"]:
                    one["image_id"] = f"img-{number}"
            image["id"] = f"img-{number}"
        parts["images"], parts["annotations"] = parts["images"][::-1], parts["annotations"][::-1]

    change(train_file(root), rename)
    splits = opened(root)
    found = [splits.train.boxes(index).tolist() for index in range(3)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))
    place = str(root / "train2017/a.jpg")
    assert str(Coco(root=str(root)).sample_ids([place])[place]).startswith("img-")


def corners(parts):
    for one in parts["annotations"]:
        left, top, width, height = one["bbox"]
        one["bbox"] = [left, top, left + width, top + height]


def test_boxes_of_corners_are_refused_or_read(root):
    def many(parts):
        parts["annotations"] *= 2
        for number, one in enumerate(parts["annotations"]):
            parts["annotations"][number] = {**one, "id": number, "iscrowd": 0}

    change(train_file(root), many)
    wanted = [opened(root).train.boxes(index)[:, :4] for index in range(3)]
    change(train_file(root), corners)
    for options in ({}, {"wrong_boxes": "mend"}):
        with pytest.raises(DataError, match="seem to be .left, top, right, bottom.*Type dataset.box_format=xyxy"):
            opened(root, **options)
    change(root / "annotations/instances_val2017.json", corners)
    found = opened(root, box_format="xyxy").train
    assert all(np.array_equal(found.boxes(index)[:, :4], rows) for index, rows in enumerate(wanted))
    change(train_file(root), lambda parts: [one.pop("area") for one in parts["annotations"]])
    found = opened(root, box_format="xyxy").train
    for index, rows in enumerate(wanted):  # an area that the file does not say is that of the box
        assert np.allclose(found.boxes(index)[:, Column.AREA], (rows[:, 2:4] - rows[:, :2]).prod(axis=1))
    with pytest.raises(DataError, match="beyond its image"):
        opened(root, box_format="xywh")


def test_crowds_alone_are_refused_or_read_as_objects(root, check, caplog):
    def crowd(parts):
        for one in parts["annotations"]:
            one["iscrowd"] = 1

    change(train_file(root), crowd)
    with pytest.raises(DataError, match=r"are crowd regions .*nothing of it is learned.*type dataset.crowds=objects"):
        opened(root)
    assert "nothing_to_learn" in {kind for kind, *_ in check(Coco(root=str(root)))}
    assert sum(len(opened(root, crowds="objects").train.boxes(index)) for index in range(3)) == 3

    change(train_file(root), lambda parts: parts["annotations"][0].update(iscrowd="false"))
    caplog.clear()
    opened(root)
    assert "in the split train are crowd regions" in caplog.text or "in the split val are crowd" in caplog.text


@pytest.mark.parametrize("image_id", [-(2**62) - 5, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("other_id", [1, "a"])
def test_image_ids_beyond_2_to_the_62_are_refused(root, image_id, other_id):
    def add(parts):
        parts["images"].append({**parts["images"][0], "id": other_id, "file_name": "other.jpg"})
        parts["annotations"][0]["image_id"] = image_id

    change(train_file(root), add)
    with pytest.raises(DataError, match="annotations: record 0 .* has no bbox of four numbers, no image_id"):
        read_coco(train_file(root), STRICT)

    def move(parts):
        parts["images"][-1]["id"] = image_id
        parts["annotations"][0]["image_id"] = parts["annotations"][1]["image_id"]

    change(train_file(root), move)
    with pytest.raises(DataError, match="images: record 3 .* has no id that is a whole number below 2.62 or a text"):
        read_coco(train_file(root), STRICT)


def test_boxes_in_shares_of_their_images_are_refused(root):
    def share(parts):
        for one in parts["annotations"]:
            one["bbox"] = [0.25, 0.5, 0.125, 0.5]

    change(root / "annotations/instances_train2017.json", share)
    with pytest.raises(DataError, match="train2017.json': the boxes seem to be shares of width and height"):
        opened(root)


@pytest.mark.parametrize("how", ["resized", "turned", "right"])
def test_image_size_different_from_its_annotation_is_warned_about(root, check, caplog, how):
    size, boxes = IMAGES["a"]
    options = {}
    if how == "turned":
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = 6
    draw(root / "train2017/a.jpg", (size[0] // 2, size[1] // 2) if how == "resized" else size, boxes, **options)
    source = opened(root, wrong_boxes="mend").train
    for _ in range(2):
        source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    seen = {"resized": "30 x 20", "turned": "40 x 60"}.get(how)
    said = f"a.jpg' has {seen} pixels, but its annotation says 60 x 40"
    assert caplog.text.count("but its annotation says") == caplog.text.count(said) == (0 if how == "right" else 1)
    kinds = [kind for kind, *_ in check(Coco(root=str(root), wrong_boxes="mend"))]
    assert ("size_mismatch" in kinds) == (how != "right")


def test_an_unused_category_of_the_same_name_is_left_out(root):
    """Roboflow exports a project named like its class in this way."""

    def twin(parts):
        parts["categories"].insert(0, {"id": 0, "name": "cat", "supercategory": "none"})

    for split in ("train2017", "val2017"):
        change(root / f"annotations/instances_{split}.json", twin)
    splits = opened(root)
    assert splits.class_names == CLASSES and splits.category_ids == [3, 17]


def test_categories_with_texts_as_ids_are_refused_as_such(root):
    def spell(parts):
        for one in parts["categories"]:
            one["id"] = str(one["id"])

    change(root / "annotations/instances_train2017.json", spell)
    with pytest.raises(DataError, match="categories: record 0 of .* has no whole id of its own"):
        opened(root)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_boxes_is_reported(root, caplog, split):
    change(root / f"annotations/instances_{split}2017.json", lambda parts: parts.update(annotations=[]))
    said = f"no image of the split {split} has a box, so nothing is {'learned' if split == 'train' else 'measured'}"
    if split == "train":
        with pytest.raises(DataError, match=said):
            opened(root)
    else:
        assert len(opened(root).val) == 2 and said in caplog.text
