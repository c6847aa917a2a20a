"""Problems that `data check` finds in folders and records of images."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading import opening
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.images import pixels
from mxtrain.vision.images.image_checks import wrong_format
from mxtrain.vision.images.make_record import make_record
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder


@pytest.fixture
def folder(write_images, tmp_path):
    """train/ and val/ with two classes each, every image another."""
    write_images("data/train", count=4)
    write_images("data/val", count=2, size=(61, 40))
    return tmp_path / "data"


def dataset_of(root):
    return ImageFolder(root=str(root), image_size=[16, 16])


def test_a_clean_folder_is_counted(folder, check):
    assert check(dataset_of(folder)) == []
    assert check.census.num_samples == {"train": 8, "val": 4}
    assert {split: count.tolist() for split, count in check.census.class_counts.items()} == {
        "train": [4, 4],
        "val": [2, 2],
    }
    (table,) = check.census.tables()
    assert table.header == ["class", "train", "val"] and table.rows[0] == ["blue", "4 (50.0%)", "2 (50.0%)"]


def test_every_damaged_image_is_named(folder, check, monkeypatch):
    monkeypatch.setattr(opening, "MAX_PIXELS", 100 * 100)
    first = folder / "train/blue/0.jpg"
    first.write_bytes(first.read_bytes()[:-300])
    for name in ("train/blue/1.jpg", "train/blue/2.jpg"):  # what cannot be read is not compared
        (folder / name).write_text("no image")
    Image.new("RGB", (200, 100)).save(folder / "train/red/0.jpg")
    Image.new("RGB", (60, 40), "red").save(folder / "train/red/1.jpg", format="PNG")
    shutil.copy(folder / "train/red/2.jpg", folder / "train/red/9.JPEG")
    shutil.copy(folder / "train/red/2.jpg", folder / "val/blue/9.jpg")
    (folder / "val/red/0.jpg").unlink()
    os.mkfifo(folder / "val/red/0.jpg")
    assert check(dataset_of(folder)) == [
        ("unreadable_file", "data/val/red/0.jpg", None),
        ("unreadable_image", "data/train/blue/0.jpg", None),
        ("unreadable_image", "data/train/blue/1.jpg", None),
        ("unreadable_image", "data/train/blue/2.jpg", None),
        ("image_too_large", "data/train/red/0.jpg", None),
        ("wrong_format", "data/train/red/1.jpg", None),
        ("duplicate", "data/train/red/9.JPEG", None),
        ("duplicate_across_splits", "data/val/blue/9.jpg", None),
    ]
    by_kind = {problem.kind: problem for problem in check.problems}
    assert "is PNG, and its name says JPEG" in by_kind["wrong_format"].fact
    assert by_kind["unreadable_image"].remedy == pixels.REPLACE
    assert "/val/blue/9.jpg' (val) has the same content as '" in by_kind["duplicate_across_splits"].fact


def zero_middle(path, begin=None, end=None):
    """Sets 512 bytes in the middle of the pixels of a JPEG, or of the record of one, to 0."""
    content = bytearray(path.read_bytes())
    middle = ((begin or 0) + (end or len(content))) // 2
    content[middle : middle + 512] = bytes(512)
    path.write_bytes(content)


def test_damage_that_the_decoder_hides_is_a_problem(folder, tmp_path, check):
    make_record(str(folder), str(tmp_path / "images"))
    zero_middle(folder / "train/red/1.jpg")
    assert check(dataset_of(folder)) == [("damaged_image", "data/train/red/1.jpg", None)]
    (problem,) = check.problems
    said = "/train/red/1.jpg' is damaged, and is read with wrong pixels (libjpeg: Corrupt JPEG data: "
    assert said in problem.fact and problem.remedy == "Look at it, and replace or remove it."
    records = ImageRecord(root=str(tmp_path), image_size=[16, 16])
    offset_N = records.open().train.encoded.offset_N.tolist()
    zero_middle(tmp_path / "images_train.rec", *offset_N[3:5])
    assert check(records) == [("damaged_image", "images_train.rec", 3)]


def test_damage_of_annotated_images_is_a_problem(write_images, tmp_path, check):
    write_images("data", classes=["images"], count=4)
    (tmp_path / "data/masks").mkdir()
    for number in range(4):
        Image.fromarray(np.eye(40, 60, dtype=np.uint8)).save(tmp_path / f"data/masks/{number}.png")
    zero_middle(tmp_path / "data/images/2.jpg")
    dataset = SegmentationFolder(root=str(tmp_path / "data"), image_size=[40, 60], classes=["a", "b"], val_fraction=0.3)
    assert check(dataset) == [("damaged_image", "data/images/2.jpg", None)]


@pytest.mark.slow
def test_warnings_of_threads_belong_to_their_images(folder):
    from mxtrain.vision.images.jpeg_warnings import MAX_PROCESSES, shared_warnings

    clean = (folder / "train/red/0.jpg").read_bytes()
    zero_middle(folder / "train/red/0.jpg")
    damaged = (folder / "train/red/0.jpg").read_bytes()
    warnings = shared_warnings()
    assert shared_warnings() is warnings
    with ThreadPoolExecutor(3 * MAX_PROCESSES) as pool:
        found = list(pool.map(warnings.warning, [clean, damaged, b"no image", clean[:300], damaged] * 8))
    assert [bool(one) for one in found] == [False, True, False, False, True] * 8
    processes = list(warnings._idle)
    assert 1 <= len(processes) <= MAX_PROCESSES
    del warnings
    assert all(process.returncode == 0 for process in processes)


def test_a_decoder_that_ends_is_a_problem_and_started_again(folder, check, monkeypatch):
    from mxtrain.vision.images import jpeg_warnings

    monkeypatch.setattr(
        jpeg_warnings, "module_command", lambda module: [sys.executable, "-S", "-c", "import os; os.abort()"]
    )
    warnings = jpeg_warnings.JpegWarnings()
    content = (folder / "train/red/0.jpg").read_bytes()
    assert warnings.warning(content) == warnings.warning(content) == "OpenCV's decoder ends abnormally"
    assert not warnings._idle
    for path in folder.rglob("*.jpg"):
        if path != folder / "train/red/0.jpg":
            Image.open(path).save(path.with_suffix(".png"))
            path.unlink()
    assert check(dataset_of(folder)) == [("damaged_image", "data/train/red/0.jpg", None)]
    (problem,) = check.problems
    assert problem.fact.endswith("0.jpg' may be damaged: OpenCV's decoder ends abnormally when it reads the file.")


def test_endings_that_mean_the_same_are_right(folder, check):
    for name, kind in (("a.jpeg", "JPEG"), ("b.JPG", "JPEG"), ("c.tif", "TIFF"), ("d.pgm", "PPM"), ("e.webp", "WEBP")):
        Image.fromarray(np.full((9, 9), ord(name[0]), np.uint8)).save(folder / "train/red" / name, format=kind)
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "train/red/f.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert check(dataset_of(folder)) == []


def test_dicom_is_known_by_its_content():
    content = bytes(128) + b"DICM"
    assert wrong_format(DataLocation("a.dcm"), content) is wrong_format(DataLocation("1.2.840"), content) is None
    problem = wrong_format(DataLocation("a.PNG"), content)
    assert problem.fact == "'a.PNG' is DICOM, and its name says PNG."


def test_possibly_damaged_images_are_not_measured(tmp_path, check):
    """Mean and deviation of grey in a window are, when a dataset is opened to train."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(8):
            Image.fromarray(np.full((9, 9), 8 * number + ord(name), np.uint8)).save(tmp_path / name / f"{number}.png")
    dataset = ImageFolder(root=str(tmp_path), image_size=[8, 8], channels=1, window=[100, 50])
    assert check(dataset) == []
    for number in range(8):
        (tmp_path / "a" / f"{number}.png").write_bytes(b"")
    assert sorted(check(dataset)) == [("unreadable_image", f"a/{number}.png", None) for number in range(8)]


def test_problems_of_folders_do_not_hide_problems_of_images(folder, check):
    (folder / "train/green").mkdir()
    (folder / "val/pink").mkdir()
    os.link(folder / "train/red/0.jpg", folder / "train/blue/7.jpg")
    os.link(folder / "train/red/1.jpg", folder / "train/red/8.jpg")
    (folder / "val/blue/0.jpg").write_bytes(b"")
    assert check(dataset_of(folder)) == [
        ("empty_class", "data/train/green", None),
        ("listed_twice", "data/train/red/8.jpg", None),
        ("listed_twice", "data/train/red/0.jpg", None),
        ("unknown_class", "data/val/pink", None),
        ("empty_class", "data/val/green", None),
        ("unreadable_image", "data/val/blue/0.jpg", None),
    ]


def test_a_folder_that_cannot_be_opened_is_the_one_problem(tmp_path, check):
    assert check(dataset_of(tmp_path / "none")) == [("cannot_open", "none", None)]
    assert "there is no folder" in check.problems[0].fact and check.census.num_samples == {}


@pytest.mark.parametrize("has_index", [True, False])
def test_records(folder, tmp_path, check, has_index):
    make_record(str(folder), str(tmp_path / "images"))
    if not has_index:
        (tmp_path / "images_train.idx").unlink()
    dataset = ImageRecord(root=str(tmp_path), image_size=[16, 16])
    assert check(dataset) == [] and check.census.num_samples == {"train": 8, "val": 4}
    path = tmp_path / "images_train.rec"
    content = bytearray(path.read_bytes())
    offsets = dataset.open().train.encoded.offset_N.tolist()
    content[offsets[1] + 12 : offsets[1] + 16] = struct.pack("<f", 5)
    content[offsets[3] + 40 : offsets[3] + 60] = bytes(20)
    path.write_bytes(content[: offsets[6] + 30])
    found = check(dataset)
    assert [one for one in found if one[2] is not None and one[2] < 6] == [
        ("label_range", "images_train.rec", 1),
        ("unreadable_image", "images_train.rec", 3),
    ]
    assert [one for one in found if one[0] == "damaged_record"] == (
        [("damaged_record", "images_train.rec", 7), ("damaged_record", "images_train.rec", 6)]
        if has_index
        else [("damaged_record", "images_train.rec", 6)]
    )
    assert len(found) == (4 if has_index else 3)


def test_records_without_class_names_are_read_past_a_label_that_is_none(folder, tmp_path, check):
    make_record(str(folder), str(tmp_path / "images"))
    (tmp_path / "images_classes.txt").unlink()
    path = tmp_path / "images_train.rec"
    dataset = ImageRecord(root=str(tmp_path), image_size=[16, 16])
    offsets = dataset.open().train.encoded.offset_N.tolist()
    content = bytearray(path.read_bytes())
    for record, label in ((0, float("nan")), (2, 0.5)):
        content[offsets[record] + 12 : offsets[record] + 16] = struct.pack("<f", label)
    path.write_bytes(content)
    assert check(dataset) == [("label_range", "images_train.rec", 0), ("label_range", "images_train.rec", 2)]


def test_labels_of_records_from_1_are_reported(folder, tmp_path, check, caplog):
    make_record(str(folder), str(tmp_path / "images"))
    names = tmp_path / "images_classes.txt"
    content = names.read_text()
    names.unlink()
    path, dataset = tmp_path / "images_train.rec", ImageRecord(root=str(tmp_path), image_size=[16, 16])
    opened = dataset.open()
    assert "classes count from 0" not in caplog.text
    records, bytes_ = opened.train.encoded, bytearray(path.read_bytes())
    for offset, label in zip(records.offset_N.tolist(), records.read_labels().tolist()):
        bytes_[offset + 12 : offset + 16] = struct.pack("<f", label + 1)
    path.write_bytes(bytes_)
    dataset.open()
    assert "the smallest label is 1, and classes count from 0: class 0 has no image. Write the records" in caplog.text
    assert ("label_range", "images_train.rec", None) in check(dataset)
    names.write_text(f"none\n{content}")
    assert check(dataset) == []
