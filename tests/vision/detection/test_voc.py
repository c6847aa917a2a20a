"""PASCAL VOC's boxes: what is read, in all that its files may lack, and what is refused."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from boxed_files import IMAGES, NAMES, draw, voc_xml, write_voc
from pydantic import ValidationError

from mxtrain import guess_data
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.detection.boxes import Column, Flag
from mxtrain.vision.detection.voc import Voc
from mxtrain.vision.detection.voc_layout import read_names
from mxtrain.vision.images.class_lists import VOC_CLASSES


def opened(root, **options):
    return Voc(root=str(root), image_size=[32, 32], **{"classes": NAMES, **options}).open()


def whole(source):
    return source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)


def boxes_of(source, index):
    return [(NAMES[int(row[4])], *row[:4].tolist()) for row in source.boxes(index)]


def test_boxes_are_exact_edges_for_incomplete_files(tmp_path):
    splits = opened(write_voc(tmp_path / "VOC2007"))
    found = [boxes_of(source, index) for source in (splits.train, splits.val) for index in range(len(source))]
    assert found == [list(boxes) for _, boxes in IMAGES.values()]
    assert splits.test is None and splits.class_names == NAMES and list(splits.category_ids) == [0, 1]
    image, box, fitted = whole(splits.train)
    assert (
        image.shape == (3, 3, 32, 32)
        and box.shape == (3, 2, 7)
        and fitted[:, :2].tolist()
        == [
            [40, 60],
            [60, 40],
            [50, 50],
        ]
    )
    assert box[1, 0, :4].tolist() == [0, 0, 32, 32] and (box[2] == -1).all() and (box[1, 1] == -1).all()
    assert box[0, 0, Column.AREA] == 25 * 16  # of the image as it is
    # The image that entered has the rectangle where the box is.
    left, top, right, bottom = np.rint(box[0, 0, :4]).astype(int)
    assert image[0, 0, top + 1 : bottom - 1, left + 1 : right - 8].min() > 120 > image[0, 0, :, : left - 1].max()


def test_difficult_objects_are_marked(tmp_path):
    root = write_voc(tmp_path / "VOC2007")
    size, boxes = IMAGES["a"]
    (root / "Annotations/a.xml").write_text(voc_xml(boxes, size, [1, 0]))
    flags = opened(root).train.boxes(0)[:, Column.FLAGS]
    assert flags.tolist() == [Flag.DIFFICULT, 0]


@pytest.mark.parametrize("inner", ["", "VOC2012", "VOCdevkit/VOC2007", "mine"])
def test_the_folder_is_found(tmp_path, inner):
    write_voc(tmp_path / inner if inner else tmp_path, ending="png")
    splits = opened(tmp_path)
    assert (len(splits.train), len(splits.val)) == (3, 2)
    splits = opened(tmp_path, train_split="trainval", val_split=None, val_fraction=0.4, test_fraction=0.2)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [2, 2, 1]
    shutil.rmtree(next(tmp_path.rglob("ImageSets")))
    with pytest.raises(DataError, match="type dataset.train_split=null: all images that have an annotation"):
        opened(tmp_path)
    with pytest.raises(DataError, match="type dataset.val_split=null"):
        opened(tmp_path, train_split=None)
    next(tmp_path.rglob("a.xml")).rename(next(tmp_path.rglob("a.xml")).with_suffix(".XML"))
    splits = opened(tmp_path, train_split=None, val_split=None, val_fraction=0.2)
    assert (len(splits.train), len(splits.val)) == (4, 1)
    next(tmp_path.rglob("b.png")).unlink()
    with pytest.raises(DataError, match=r"b.xml' names 'b', of which there is no image .*remove these annotations"):
        opened(tmp_path, train_split=None, val_split=None)


def test_several_years_are_one_dataset(tmp_path):
    for year in ("VOC2007", "VOC2012"):
        write_voc(tmp_path / "VOCdevkit" / year)
    splits = opened(tmp_path, train_split=["2007/trainval", "VOC2012/train"], val_split="2012/val")
    assert (len(splits.train), len(splits.val)) == (8, 2)
    assert "VOC2007/JPEGImages/a.jpg" in splits.train.name(0) and "VOC2012" in splits.train.name(5)
    for wrong, said in (
        ("train", "dataset.train_split=train: several folders are there: VOC2007, VOC2012. Say which"),
        (None, "several folders are there: VOC2007, VOC2012. Name one with dataset.root"),
        ("2008/train", "there is no folder '2008'"),
        ("2007/trian", "Did you mean 'train'? There are: train, trainval, val."),
    ):
        with pytest.raises(DataError, match=re.escape(said)):
            opened(tmp_path, train_split=wrong, val_split="2012/val")
    with pytest.raises(DataError, match="belongs to train and to val.*dataset.train_split=train, or dataset.val_split"):
        opened(tmp_path, train_split="2007/trainval", val_split="2007/val")


def test_held_out_images_are_seeded_and_never_in_a_mosaic(tmp_path):
    root = write_voc(tmp_path / "VOC2007")
    options = {"train_split": "trainval", "val_split": None, "val_fraction": 0.4, "augment": {"mosaic": 1.0}}
    held = lambda seed: [opened(root, split_seed=seed, **options).val.name(i) for i in range(2)]  # noqa: E731
    assert held(0) == held(0) and any(held(seed) != held(0) for seed in range(1, 6))
    splits = opened(root, **options)
    for index in range(2):
        (root / "JPEGImages" / splits.val.name(index).strip("'").rpartition("/")[2]).write_bytes(b"")
    image, box, _ = splits.train.fetch(np.arange(3), seed=0, epoch=0, train=True)
    assert image.shape == (3, 3, 32, 32) and box.shape == (3, 8, 7)


def test_classes_are_chosen_and_found_in_any_case(tmp_path):
    root = write_voc(tmp_path / "VOC2007")
    with pytest.raises(DataError, match=r"a.xml, line 9: there is no class 'Dog'. Classes are cat, bird. Type"):
        opened(root, classes=["cat", "bird"])
    splits = opened(root, classes=["bird", "CAT"], other_classes="leave_out")
    assert splits.train.boxes(0)[:, 4].tolist() == [1] and len(splits.val.boxes(0)) == 0
    (root / "classes.txt").write_text("DOG\n\n cat \n")
    assert opened(root, classes=[]).class_names == ["DOG", "cat"]
    assert opened(root, classes=[]).train.boxes(0)[:, 4].tolist() == [1, 0]
    (root / "classes.txt").write_text("cat\ncat\n")
    with pytest.raises(DataError, match="names the class 'cat' twice"):
        opened(root, classes=[])
    (root / "classes.txt").unlink()
    assert opened(root, classes=[]).class_names == list(VOC_CLASSES) and len(VOC_CLASSES) == 20
    with pytest.raises(ValidationError, match="names one twice: 'a'"):
        Voc(classes=["a", "a"])


def spoil_box(root, **edges):
    path = root / "Annotations/a.xml"
    text = path.read_text()
    for edge, value in edges.items():
        element = "" if value is None else f"<{edge}>{value}</{edge}>"
        text = re.sub(f"<{edge}>[^<]*</{edge}>", element, text, count=1)
    path.write_text(text)


WRONG_BOXES = [
    ({"xmin": "nan"}, "not_a_number", "a.xml, line 4: the box xmin nan, ymin 5, xmax 30, ymax 20 holds a number"),
    ({"xmin": "1e999"}, "not_a_number", "holds a number that is not finite"),
    ({"xmin": "x"}, "not_a_number", "a.xml, line 4: the box of 'cat' has xmin 'x', ymin '5', xmax '30', ymax '20'."),
    ({"xmin": None}, "not_a_number", "the box of 'cat' has no xmin"),
    ({"xmin": "40"}, "inverted_box", "a.xml, line 4: the box xmin 40, ymin 5, xmax 30, ymax 20 ends before it begins"),
    ({"xmin": "-9"}, "box_outside", "reaches 10 pixels beyond its image of 60 x 40"),
    ({"xmax": "62"}, "box_outside", "reaches 2 pixels beyond its image of 60 x 40"),
]


@pytest.mark.parametrize("edges, kind, said", WRONG_BOXES, ids=[str(edges) for edges, _, _ in WRONG_BOXES])
def test_wrong_boxes_are_refused_with_their_line_or_mended(tmp_path, check, edges, kind, said):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/a.xml").write_text(voc_xml(IMAGES["a"][1], (60, 40)))
    spoil_box(root, **edges)
    with pytest.raises(DataError, match=re.escape(said)):
        opened(root)
    dataset = Voc(root=str(root), classes=NAMES, image_size=[32, 32])
    assert check(dataset) == [(kind, "VOC2007/Annotations/a.xml", 4)]
    if edges.get("xmin") not in ("x", None):
        row_MD = opened(root, wrong_boxes="mend").train.boxes(0)
        assert len(row_MD) == (2 if kind == "box_outside" else 1) and row_MD[:, :4].max() <= 60


def test_rounded_box_is_clipped_and_empty_box_omitted(tmp_path, check):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/a.xml").write_text(
        voc_xml([("cat", -1, 0, 61, 20), ("Dog", 5, 5, 5, 9), ("cat", 1.5, 2.25, 9, 9)], (60, 40))
    )
    assert opened(root).train.boxes(0)[:, :4].tolist() == [[0, 0, 60, 20], [1.5, 2.25, 9, 9]]
    assert check(Voc(root=str(root), classes=NAMES)) == [("empty_box", "VOC2007/Annotations/a.xml", 10)]


def test_boxes_of_images_of_unknown_size_are_checked_when_read(tmp_path, check):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/a.xml").write_text(voc_xml([("cat", 5, 5, 70, 20)]))
    splits = opened(root)
    said = "a.jpg': the box 5, 5, 70, 20 (left, top, right, bottom) of 'cat' reaches 10 pixels beyond its image"
    for train in (False, True):
        with pytest.raises(LoaderError, match=re.escape(said)):
            splits.train.fetch(np.arange(1), seed=0, epoch=0, train=train)
    assert check(Voc(root=str(root), classes=NAMES)) == [("box_outside", "VOC2007/JPEGImages/a.jpg", None)]
    assert whole(opened(root, wrong_boxes="mend").train)[1][0, 0, 2] == 32


@pytest.mark.parametrize(
    "line, name",
    [
        ("a", "a"),
        ("a  -1", "a"),
        ("a 1 1", "a"),
        ("b 1", "b 1"),
        ("b 1 -1", "b 1"),
        ("b 2\t0", "b 2"),
        ("b 3", "b"),
        ('"b 1"', "b 1"),
        ('"b 1.jpg" 1', "b 1"),
        ("a.jpg", "a"),
        ("c.d", "c.d"),
        ("c.d.JPG", "c.d"),
        ("e.jpg", "e.jpg"),
        ("sub/a", "sub/a"),
        ("JPEGImages\\sub\\a.png", "sub/a"),
        ("/JPEGImages/a.jpg /Annotations/a.xml", "a"),
        ("other/a 1", "a"),
        ("b new", "b new"),
        ("e\u0301", "\u00e9"),
        ("unknown.jpg", "unknown.jpg"),
    ],
)
def test_names_in_lists_of_voc(tmp_path, line, name):
    """A name may hold spaces, and have quotes around it, folders before it and an ending."""
    (tmp_path / "train.txt").write_text(line + "\r\n", encoding="utf-8")
    known = {"a", "b", "b 1", "b 2", "c.d", "e.jpg", "sub/a", "\u00e9"}
    assert list(read_names(tmp_path, "train", "dataset.train_split", known=known)) == [name]


@pytest.mark.parametrize("lists", [True, False])
def test_annotations_in_folders_below(tmp_path, lists):
    """CVAT exports frames of several videos in this way."""
    names = ["v1/0", "v1/1", "v2/0", "v2/1"]
    for number, name in enumerate(names):
        draw(tmp_path / "JPEGImages" / f"{name}.jpg", (60, 40))
        path = tmp_path / "Annotations" / f"{name}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(voc_xml([("cat", number, 0, 30, 20)], (60, 40)))
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("\n".join(names))
    options = {"train_split": "train" if lists else None, "val_split": None, "val_fraction": 0.25}
    splits = opened(tmp_path, **options)
    boxes = {}
    for source in (splits.train, splits.val):
        boxes.update({source.location(index).file: source.boxes(index)[0, 0] for index in range(len(source))})
    assert boxes == {str(tmp_path / f"JPEGImages/{name}.jpg"): number for number, name in enumerate(names)}


def test_another_annotation_of_the_same_name_does_not_count(tmp_path):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/old").mkdir()
    for path in list((root / "Annotations").glob("*.xml")):
        (root / "Annotations/old" / path.name).write_text(voc_xml([("cat", 0, 0, 3, 3)]))
    assert opened(root).train.boxes(0)[:, :4].tolist() == [[5, 4, 30, 20], [20, 10, 60, 40]]
    said = "old/a.xml' names 'old/a', of which there is no image"
    with pytest.raises(DataError, match=said):
        opened(root, train_split=None, val_split=None)
    for path in (root / "Annotations").glob("*.xml"):
        path.unlink()
    assert opened(root).train.boxes(0)[:, :4].tolist() == [[0, 0, 3, 3]]


WRONG_FILES = [
    ("Annotations/a.xml", "<annotation>\n  <object>\n", "a.xml' is no XML: no element found (line 3, column 1)"),
    ("Annotations/a.xml", "", "a.xml' is no XML: no element found"),
    ("Annotations/a.xml", "<a><b/></a>", "is no annotation: its root is <a>"),
    (
        "Annotations/a.xml",
        '<!DOCTYPE annotation [<!ENTITY x "xx">]><annotation>&x;</annotation>',
        "declares a document type on line 1",
    ),
    ("Annotations/a.xml", '<!DOCTYPE annotation SYSTEM "file:///etc/passwd"><annotation/>', "declares a document type"),
    (
        "Annotations/a.xml",
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE annotation><annotation/>',
        "declares a document type",
    ),
    ("Annotations/a.xml", "<annotation>" + "<x>" * 99 + "</x>" * 99 + "</annotation>", "more than 64 elements"),
    ("Annotations/a.xml", "<annotation><object><name/></object></annotation>", "line 1: the object there has no name"),
    ("Annotations/a.xml", None, "train.txt', line 1 names 'a', of which there is no annotation in"),
    ("JPEGImages/b.jpg", None, "train.txt', line 3 names 'b', of which there is no image in"),
    ("ImageSets/Main/train.txt", "\n", "train.txt' names no image"),
    ("ImageSets/Main/val.txt", None, "dataset.val_split=val: there is no file"),
]


@pytest.mark.parametrize("path, content, said", WRONG_FILES, ids=[said[:50] for _, _, said in WRONG_FILES])
def test_wrong_files_are_refused_before_training(tmp_path, path, content, said):
    root = write_voc(tmp_path / "VOC2007")
    if content is None:
        (root / path).unlink()
    else:
        (root / path).write_bytes(content.encode("utf-16" if "utf-16" in content else "utf-8"))
    with pytest.raises(DataError, match=re.escape(said)):
        opened(root)


def test_a_check_continues(tmp_path, check):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/a.xml").write_text("<annotation>")
    (root / "Annotations/b.xml").unlink()
    (root / "Annotations/c.xml").write_text(voc_xml([("bird", 1, 1, 2, 2)], (50, 49)))
    (root / "JPEGImages/d.jpg").write_bytes(b"none")
    (root / "ImageSets/Main/val.txt").write_text("d\ne\ne 1\n")
    shutil.copy(root / "JPEGImages/e.jpg", root / "JPEGImages/c.jpg")
    assert sorted(check(Voc(root=str(root), classes=NAMES))) == [
        ("duplicate_across_splits", "VOC2007/JPEGImages/e.jpg", None),
        ("listed_twice", "VOC2007/ImageSets/Main/val.txt", 3),
        ("missing_counterpart", "VOC2007/ImageSets/Main/train.txt", 3),
        ("nothing_to_learn", "VOC2007/JPEGImages/a.jpg", None),
        ("size_mismatch", "VOC2007/JPEGImages/c.jpg", None),
        ("unknown_class", "VOC2007/Annotations/c.xml", 4),
        ("unreadable_file", "VOC2007/Annotations/a.xml", 1),
        ("unreadable_image", "VOC2007/JPEGImages/d.jpg", None),
    ]
    assert {split: count.tolist() for split, count in check.census.class_counts.items()} == {
        "train": [0, 0],
        "val": [1, 0],
    }


def test_a_folder_without_layout_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no folder '.*none'. It must be VOCdevkit"):
        opened(tmp_path / "none")
    with pytest.raises(DataError, match="holds no JPEGImages/"):
        opened(tmp_path)
    draw(tmp_path / "JPEGImages/a.jpg", (9, 9))
    (tmp_path / "Annotations").mkdir()
    with pytest.raises(DataError, match="holds no annotations"):
        opened(tmp_path, train_split=None)


def object_xml(*parts):
    return "<annotation><object><name>cat</name>" + "".join(parts) + "</object></annotation>"


def box_xml(left, top, right, bottom):
    edges = zip(("xmin", "ymin", "xmax", "ymax"), (left, top, right, bottom))
    return "<bndbox>" + "".join(f"<{name}>{value}</{name}>" for name, value in edges) + "</bndbox>"


def with_annotation(tmp_path, content):
    root = write_voc(tmp_path / "VOC2007")
    (root / "Annotations/a.xml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.mark.parametrize(
    "said, is_difficult",
    [
        ("0", False),
        ("1", True),
        ("False", False),
        ("false", False),
        ("no", False),
        ("0.0", False),
        ("True", True),
        ("yes", True),
        ("Unspecified", False),
        ("", False),
        (" 0 ", False),
    ],
)
def test_spellings_of_difficult_are_accepted(tmp_path, said, is_difficult):
    root = with_annotation(tmp_path, object_xml(f"<difficult>{said}</difficult>", box_xml(6, 5, 30, 20)))
    assert opened(root).train.boxes(0)[:, Column.FLAGS].tolist() == [Flag.DIFFICULT * is_difficult]


def test_another_text_of_difficult_is_refused(tmp_path):
    root = with_annotation(tmp_path, object_xml("<difficult>perhaps</difficult>", box_xml(6, 5, 30, 20)))
    with pytest.raises(DataError, match="line 1: <difficult> of 'cat' is 'perhaps', which is neither yes nor no"):
        opened(root)


def test_boxes_that_are_all_difficult_are_reported(tmp_path, caplog):
    root = write_voc(tmp_path / "VOC2007")
    for name in "de":
        size, boxes = IMAGES[name]
        (root / f"Annotations/{name}.xml").write_text(voc_xml(boxes, size, [1] * len(boxes)))
    opened(root)
    assert "all 2 boxes of the class 'cat' in the split val are difficult, so nothing of it is measured" in caplog.text


def test_two_boxes_of_one_object_are_two_objects(tmp_path):
    root = with_annotation(tmp_path, object_xml(box_xml(6, 5, 30, 20), box_xml(1, 1, 10, 10)))
    assert boxes_of(opened(root).train, 0) == [("cat", 5, 4, 30, 20), ("cat", 0, 0, 10, 10)]


@pytest.mark.parametrize(
    "parts, said",
    [
        (("<name>Dog</name>", box_xml(6, 5, 30, 20)), "has two <name> in one <object>, 'cat' and 'Dog' (line 1)"),
        (
            (box_xml(6, 5, 30, 20).replace("<xmax>", "<xmin>7</xmin><xmax>"),),
            "has two <xmin> in one <bndbox>, '6' and '7'",
        ),
        (("<difficult>0</difficult><difficult>1</difficult>", box_xml(6, 5, 30, 20)), "has two <difficult> in one <ob"),
        ((box_xml("1_0", 5, 30, 20),), "has xmin '1_0'"),
        ((box_xml("\u0661\u0660", 5, 30, 20),), "has xmin '"),
    ],
)
def test_ambiguous_layouts_are_refused(tmp_path, parts, said):
    root = with_annotation(tmp_path, object_xml(*parts))
    with pytest.raises(DataError, match=re.escape(said)):
        opened(root)


def test_the_same_element_twice_with_the_same_text_is_read(tmp_path):
    root = with_annotation(tmp_path, object_xml("<name>cat</name>", box_xml(6, 5, 30, 20)))
    assert boxes_of(opened(root).train, 0) == [("cat", 5, 4, 30, 20)]


@pytest.mark.parametrize(
    "declared, codec",
    [
        ("GB2312", "gbk"),
        ("GBK", "gbk"),
        ("gb18030", "gb18030"),
        ("Big5", "big5"),
        ("Shift_JIS", "shift_jis"),
        ("EUC-JP", "euc_jp"),
        ("EUC-KR", "euc_kr"),
        ("windows-1252", "cp1252"),
        ("ISO-8859-1", "latin-1"),
        ("UTF-16", "utf-16"),
        ("utf-8", "utf-8"),
        ("utf8", "utf-8"),
        ("latin1", "latin-1"),
    ],
)
def test_declared_encodings(tmp_path, declared, codec):
    name = {
        "gbk": "\u732b\u9f98",
        "gb18030": "\u732b",
        "big5": "\u8c93",
        "shift_jis": "\u732b",
        "euc_jp": "\u732b",
        "euc_kr": "\uace0",
        "utf-16": "\u732b",
        "utf-8": "\u732b",
    }.get(codec, "\u00e9")
    text = f'<?xml version="1.0" encoding="{declared}"?>' + object_xml(box_xml(6, 5, 30, 20)).replace("cat", name)
    root = with_annotation(tmp_path, text.encode(codec))
    assert len(opened(root, classes=[name, "cat", "Dog"]).train.boxes(0)) == 1


@pytest.mark.parametrize("declared", ["zip", "rot13", "unicode_escape", "idna", "klingon", "utf-7"])
def test_other_encodings_are_refused(tmp_path, declared):
    root = with_annotation(tmp_path, f'<?xml version="1.0" encoding="{declared}"?>' + object_xml(box_xml(6, 5, 30, 20)))
    with pytest.raises(DataError, match=f"declares the encoding '{declared}', which is not read. Convert it to UTF-8"):
        opened(root)


def test_bytes_that_are_not_in_the_declared_encoding_are_refused(tmp_path):
    root = with_annotation(tmp_path, b'<?xml version="1.0" encoding="GBK"?>\n<annotation>\xff\xff</annotation>')
    with pytest.raises(DataError, match="declares the encoding GBK, of which the byte 0xff on line 2 is none"):
        opened(root)


def test_boxes_in_shares_of_their_images_are_refused(tmp_path):
    root = write_voc(tmp_path / "VOC2007")
    for path in (root / "Annotations").iterdir():
        path.write_text(voc_xml([("cat", -0.9, -0.8, 0.5, 0.6)]))
    with pytest.raises(DataError, match="a.xml, line 3: the boxes of this file and of all others seem to be shares"):
        opened(root)


def test_annotations_beside_images_in_the_current_folder_are_found(tmp_path, monkeypatch):
    for name in ("a1", "b1"):
        draw(tmp_path / f"{name}.png", (20, 10))
        (tmp_path / f"{name}.xml").write_text(voc_xml([("cat", 1, 1, 5, 5)], (20, 10)))
    monkeypatch.chdir(tmp_path)
    splits = opened(".", classes=["cat"], val_fraction=0.5)
    assert len(splits.train) == len(splits.val) == 1


def test_label_studio_has_images_beside_annotations(tmp_path):
    root = write_voc(tmp_path / "export")
    shutil.move(str(root / "JPEGImages"), str(root / "images"))
    shutil.rmtree(root / "ImageSets")
    splits = opened(root, train_split=None, val_split=None, val_fraction=0.4)
    assert (len(splits.train), len(splits.val)) == (3, 2)
    best = guess_data(root).best
    assert best.splits == {"train": 4, "val": 1} and "dataset.train_split=null" in best.overrides
    shutil.move(str(root / "Annotations"), str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="holds no JPEGImages/"):
        opened(root, train_split=None, val_split=None)


LABELMAP = "# label:color_rgb:parts:actions\nbackground:::\ndog:0,0,9::\ncat::head,tail:\n\nbird:::\n"


def test_classes_are_those_of_labelmap(tmp_path):
    """As CVAT and Datumaro write it."""
    root = write_voc(tmp_path / "export")
    (root / "labelmap.txt").write_text(LABELMAP)
    assert opened(root, classes=[]).class_names == ["dog", "cat", "bird"]
    assert guess_data(root).best.overrides[-1].startswith("dataset.root=")
    assert opened(root).class_names == NAMES
    (root / "classes.txt").write_text("cat\ndog\n")
    assert opened(root, classes=[]).class_names == ["cat", "dog"]
    (root / "classes.txt").unlink()
    (root / "labelmap.txt").write_text("cat:1,2,3\n")
    assert opened(root, classes=[]).class_names == list(VOC_CLASSES)


def test_images_without_an_annotation_are_refused_or_background_or_left_out(tmp_path, caplog):
    caplog.set_level("INFO")
    root = write_voc(tmp_path / "export")
    (root / "Annotations/a.xml").unlink()
    with pytest.raises(DataError, match="names 'a', of which there is no annotation.*without_annotation=background"):
        opened(root)
    train = opened(root, without_annotation="background").train
    assert len(train) == 3 and not len(train.boxes(0)) and boxes_of(train, 1) == list(IMAGES["b"][1])
    assert "dataset.train_split=train: 1 of 3 images have no annotation: background" in caplog.text
    train = opened(root, without_annotation="leave_out").train
    assert len(train) == 2 and boxes_of(train, 0) == list(IMAGES["b"][1])
    assert "images have no annotation: left out" in caplog.text
    next((root / "JPEGImages").glob("b.*")).unlink()
    with pytest.raises(DataError, match="names 'b', of which there is no image in '.*JPEGImages'"):
        opened(root, without_annotation="leave_out")
