"""Lists and records of images with boxes: what is read is what GluonCV reads."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from boxed_files import IMAGES, NAMES, draw, list_label, write_list, write_records

from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.detection.boxes import Column, Flag
from mxtrain.vision.detection.image_list import ImageList
from mxtrain.vision.images.record_file import RecordFile


def opened(root, **options):
    return ImageList(root=str(root), image_size=[32, 32], **{"classes": NAMES, **options}).open()


def boxes_in(source):
    return [[(NAMES[int(row[4])], *row[:4].round(4).tolist()) for row in source.boxes(i)] for i in range(len(source))]


WANTED = [list(boxes) for _, boxes in IMAGES.values()]


def held_out(**options):
    return {"val_fraction": 0.2, **options}


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("header", [2, 4])
def test_records_have_their_boxes_in_pixels(tmp_path, normalized, header):
    root = write_records(tmp_path, names="abcde", normalized=normalized, header=header, indexed=header == 4)
    write_records(root, "val", "de", normalized=normalized, header=header)
    splits = opened(root)
    assert boxes_in(splits.train) == WANTED and boxes_in(splits.val) == WANTED[3:]
    assert splits.train.boxes(0)[:, Column.AREA] == pytest.approx([25 * 16, 40 * 30])
    image, box, _ = splits.train.fetch(np.arange(5), seed=0, epoch=0, train=False)
    assert image.shape == (5, 3, 32, 32) and box[1, 0, :4] == pytest.approx([0, 0, 32, 32])
    image, box, _ = splits.train.fetch(np.arange(5), seed=0, epoch=0, train=True)
    assert (box[2] == -1).all()


def test_lists_have_their_boxes_in_pixels(tmp_path):
    splits = opened(write_list(tmp_path, train="abc", val="de", test="a"), test_list=None)
    assert boxes_in(splits.train) == WANTED[:3] and boxes_in(splits.val) == WANTED[3:] and splits.test is None
    splits = opened(tmp_path, val_list=None, test_list=None, val_fraction=0.4)
    assert (len(splits.train), len(splits.val)) == (2, 1)
    (tmp_path / "below").mkdir()
    (tmp_path / "pictures").rename(tmp_path / "below/pictures")
    assert boxes_in(opened(tmp_path, images="below", test_list=None).train) == WANTED[:3]
    with pytest.raises(DataError, match=r"train.lst, line 1 names 'pictures/a 1.jpg', and there is no file .*\(3 such"):
        opened(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MXNet's own
def test_gluoncv_reads_the_same(tmp_path):
    from gluoncv.data import LstDetection, RecordFileDetection

    path = write_list(tmp_path / "list", train="abde") / "train.lst"
    path.write_text(path.read_text().replace("\n\n", "\n"))  # an empty line ends it with a bad_alloc
    write_records(tmp_path / "records", names="abde")
    listed = LstDetection(str(tmp_path / "list/train.lst"), root=str(tmp_path / "list"))
    for theirs, root in ((listed, "list"), (RecordFileDetection(str(tmp_path / "records/train.rec")), "records")):
        source = opened(tmp_path / root, val_fraction=0.25).train
        read = [(source.image(i), source.boxes(i)) for i in range(3)]
        for image_CHW, box_MD in read:
            both = map(theirs.__getitem__, range(4))
            same = [label for image, label in both if image.shape[:2] == image_CHW.shape[1:]]
            np.testing.assert_allclose(same[0][:, :5], box_MD[:, :5], atol=1e-3)


def test_coordinate_units_are_recognised_or_reported(tmp_path):
    root = write_records(tmp_path, normalized=False)
    assert len(opened(root, normalized=False, **held_out()).train.boxes(0)) == 2
    with pytest.raises(DataError, match="record 0 of .*: the box 5, 4, 30, 20 .* reaches 29 beyond 0 to 1"):
        opened(root, normalized=True, **held_out())
    root = write_records(tmp_path / "other")
    assert opened(root, normalized=False, **held_out()).train.boxes(0)[0, 2] == 0.5


def test_difficult_objects_and_classes(tmp_path):
    root = write_records(tmp_path, difficult=1)
    assert (opened(root, **held_out()).train.boxes(0)[:, Column.FLAGS] == Flag.DIFFICULT).all()
    assert opened(root, classes=[], **held_out()).class_names == ["0", "1"]
    (root / "classes.txt").write_text("a\nb\nc\n")
    assert opened(root, classes=[], **held_out()).class_names == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"record 0 of .* of the class 1: the class must be 0 to 0 \(2 such boxes"):
        opened(root, classes=["a"])


LINES = [
    ("0\t0\tpictures/a 1.jpg", "unreadable_row", "line 1: its label has 1 number, as of a single class"),
    ("0\t1\t5\t0\t0\t0\t1\t1\tpictures/a 1.jpg", "unreadable_row", "its label begins with 1 and 5"),
    ("0\t2\t4\t0\t0\t0\t1\tpictures/a 1.jpg", "unreadable_row", "its label begins with 2 and 4"),
    ("0\tnan\t5\tpictures/a 1.jpg", "unreadable_row", "its label begins with nan and 5"),
    ("0\t2\t5\t0\t0\t0\t1\tpictures/a 1.jpg", "unreadable_row", "6 numbers: a header of 2, and no whole objects of 5"),
    ("0\t2\t5\tx\t0\t0\t1\t1\tpictures/a 1.jpg", "unreadable_row", "its label holds 'x', which is no number"),
    ("0\t2\t5\t0\t0\t0\t1_0\t1\tpictures/a 1.jpg", "unreadable_row", "its label holds '1_0', which is no number"),
    ("0\t2\t5\t0\t0\t٠.5\t1\t1\tpictures/a 1.jpg", "unreadable_row", "its label holds '٠.5', which is no number"),
    ("0\t1e999\t5\t0\t0\t0\t1\t1\tpictures/a 1.jpg", "unreadable_row", "its label begins with inf and 5"),
    ("0\t2\tinf\t0\t0\t0\t1\t1\tpictures/a 1.jpg", "unreadable_row", "its label begins with 2 and inf"),
    ("0 2 5 0 0 0 1 1 pictures/a.jpg", "short_row", "line 1 has 1 columns, and must have a number, a label and a path"),
    ("0\t2\t5\tpictures/none.jpg", "missing_counterpart", "line 1 names 'pictures/none.jpg', and there is no file"),
    ("0\t2\t5\t0\tnan\t0\t1\t1\tpictures/a 1.jpg", "not_a_number", "line 1: the box nan, 0, 1, 1"),
    ("0\t2\t5\t0\t0.5\t0\t0.2\t1\tpictures/a 1.jpg", "inverted_box", "line 1: the box 0.5, 0, 0.2, 1"),
    ("0\t2\t5\t0\t0.5\t0\t1.2\t1\tpictures/a 1.jpg", "box_outside", "reaches 0.2 beyond 0 to 1"),
    ("0\t2\t5\t0.5\t0\t0\t1\t1\tpictures/a 1.jpg", "label_range", "of the class 0.5: the class must be 0 to 1"),
    ("0\t2\t5\t-1\t0\t0\t1\t1\tpictures/a 1.jpg", "label_range", "of the class -1: the class must be 0 to 1"),
]


@pytest.mark.parametrize("line, kind, said", LINES, ids=[said[:45] for *_, said in LINES])
def test_wrong_lines_are_refused_with_their_number(tmp_path, check, line, kind, said):
    root = write_list(tmp_path, train="abcde")
    rest = (root / "train.lst").read_text().splitlines()[1:]
    (root / "train.lst").write_text("\n".join([line, *rest]))
    with pytest.raises(DataError, match=re.escape(said)):
        opened(root)
    assert check(ImageList(root=str(root), classes=NAMES, val_fraction=0.25)) == [(kind, "train.lst", 1)]


def test_boxes_of_pixels_are_checked_against_their_image(tmp_path, check):
    root = write_list(tmp_path, train="abcde")
    rest = (root / "train.lst").read_text().splitlines()[2:]
    cells = ["0", "2", "5", "0", "10", "10", "70", "20", "pictures/a 1.jpg"]
    first = "\t".join(cells)
    others = ["\t".join(map(str, [0, *list_label(name, False), f"pictures/{name} 1.jpg"])) for name in "bcde"]
    (root / "train.lst").write_text("\n".join([first, *others]))
    splits = opened(root, val_fraction=0.2, split_seed=1)
    source = splits.train if "a 1" in splits.train.name(0) else splits.val
    with pytest.raises(LoaderError, match="a 1.jpg': the box 10, 10, 70, 20 .* of 'cat' reaches 10 pixels beyond"):
        source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    assert check(ImageList(root=str(root), classes=NAMES, val_fraction=0.2)) == [
        ("box_outside", "pictures/a 1.jpg", None)
    ]
    assert len(rest) > 2


def test_damaged_records_are_named(tmp_path, check):
    root = write_records(tmp_path)
    path = root / "train.rec"
    content = bytearray(path.read_bytes())
    content[8] = 255  # so many numbers has the label of the first record
    content[10] = 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="Record 0 of .*train.rec' .* too few for its label"):
        opened(root)
    assert check(ImageList(root=str(root), classes=NAMES, val_fraction=0.25)) == [("damaged_record", "train.rec", 0)]
    path.write_bytes(content[:-20])
    (root / "train.idx").unlink()
    with pytest.raises(DataError, match="truncated"):
        opened(root)


def test_a_label_may_hold_the_number_that_divides_records(tmp_path):
    """MXNet cuts a record where it holds the magic number."""
    from mxtrain.engine.backend import mx

    magic = np.array([0xCED7230A], np.uint32).view(np.float32)[0]
    numbers = np.array([3, 5, magic, 0, 0.1, 0.1, 0.5, 0.5], np.float32)
    writer = mx.recordio.MXRecordIO(str(tmp_path / "train.rec"), "w")
    image = draw(tmp_path / "a.jpg", (20, 20)).read_bytes()
    for _ in range(2):
        writer.write(struct.pack("<IfQQ", len(numbers), 0, 0, 0) + numbers.tobytes() + image)
    writer.close()
    records = RecordFile(tmp_path / "train.rec")
    assert len(records) == 2 and len((tmp_path / "train.rec").read_bytes()) > 2 * (56 + len(image)) + 16
    for index in range(2):
        assert records.read_numbers(index).astype(np.float32).tolist() == numbers.tolist()
        assert records.read_image(index) == image
    source = ImageList(root=str(tmp_path), image_size=[20, 20], val_fraction=0.5).open().train
    assert source.boxes(0)[0, :4] == pytest.approx([2, 2, 10, 10])


def test_missing_lists_are_named(tmp_path):
    with pytest.raises(DataError, match="holds no train.lst or train.rec"):
        opened(tmp_path)
    write_list(tmp_path, train="abc")
    with pytest.raises(DataError, match="dataset.val_list=tran.lst: there is no file.*Did you mean 'train.lst'"):
        opened(tmp_path, val_list="tran.lst")
    with pytest.raises(DataError, match="are the same file: training samples must not be measured"):
        opened(tmp_path, val_list="train.lst")
    (tmp_path / "val.lst").write_text((tmp_path / "train.lst").read_text())
    with pytest.raises(DataError, match=r"pictures/a 1.jpg' belongs to train and to val \(3 images\)"):
        opened(tmp_path)
    (tmp_path / "val.lst").write_text("\n")
    with pytest.raises(DataError, match="val.lst' names no image"):
        opened(tmp_path)


@pytest.mark.parametrize("split", ["train", "val"])
def test_shares_beside_pixels_are_refused(tmp_path, split):
    root = write_list(tmp_path / "list", train="abc", val="de")
    rows = [row.split("\t") for row in (root / f"{split}.lst").read_text().split("\n") if row]
    for row in rows[:1]:
        width, height = float(row[3]), float(row[4])
        row[5:-1] = [
            str(float(cell) * [1, width, height, width, height][number % 5]) for number, cell in enumerate(row[5:-1])
        ]
    (root / f"{split}.lst").write_text("".join("\t".join(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=".lst, line .* seems to be in shares of width and height, and others of the"):
        ImageList(root=str(root), image_size=[32, 32]).open()
    ImageList(root=str(root), image_size=[32, 32], normalized=False).open()
