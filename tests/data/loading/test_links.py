"""Links in folders of data: each real folder is visited once, each real file counts once."""

import os
from contextlib import contextmanager

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from mxtrain.data.loading.dataset_files import walk
from mxtrain.errors import DataError
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.images.files import list_images
from mxtrain.vision.images.make_record import make_record

pytestmark = pytest.mark.usefixtures("own_cache")


def paths_of(splits):
    """Returns the paths of all samples of a split folder, by split."""
    return {
        name: [source.source.encoded.paths[index] for index in source.index_N]
        for name, source in (("train", splits.train), ("val", splits.val))
    }


@pytest.mark.timeout(30)
@pytest.mark.parametrize("target", [".", "..", "../..", "../blue"])
def test_link_to_a_parent_or_sibling_adds_no_images(write_images, target):
    root = write_images()
    plain = paths_of(ImageFolder(root=str(root), val_fraction=0.25).open())
    (root / "red" / "loop").symlink_to(target)
    (root / "red" / "again").symlink_to(target)
    (root / "blue" / "deep").mkdir()
    (root / "blue" / "deep" / "up").symlink_to("../..")
    found = paths_of(ImageFolder(root=str(root), val_fraction=0.25).open())
    assert found == plain
    real = [os.path.realpath(path) for name in found for path in found[name]]
    assert len(real) == len(set(real)) == 16


def test_a_file_with_two_names_in_a_class_counts_once(write_images):
    root = write_images()
    (root / "red" / "link.jpg").symlink_to("0.jpg")
    os.link(root / "red" / "1.jpg", root / "red" / "hard.jpg")
    splits = ImageFolder(root=str(root), val_fraction=0.25).open()
    assert len(splits.train) + len(splits.val) == 16
    assert not any("link.jpg" in path for found in paths_of(splits).values() for path in found)


def test_links_to_other_folders_are_followed(write_images, tmp_path):
    root, store = write_images(), write_images("store", classes=["more"], count=3)
    (root / "red" / "more").symlink_to(store / "more")
    (root / "red" / "0.jpg").unlink()
    (root / "red" / "0.jpg").symlink_to(store / "more" / "0.jpg")
    splits = ImageFolder(root=str(root), val_fraction=0.25).open()
    assert len(splits.train) + len(splits.val) == 8 + 7 + 3


def test_a_file_in_two_classes_or_splits_is_refused(write_images, tmp_path):
    root = write_images()
    os.link(root / "red" / "0.jpg", root / "blue" / "same.jpg")
    with pytest.raises(DataError, match=r"red/0.jpg' and '.*blue/same.jpg' are the same file, by a link"):
        ImageFolder(root=str(root)).open()
    write_images("both/train")
    (tmp_path / "both" / "val").symlink_to("train")
    with pytest.raises(DataError, match=r"val/blue/0.jpg' and '.*train/blue/0.jpg' are the same file"):
        ImageFolder(root=str(tmp_path / "both")).open()


class Unnumbered:
    """An entry of a folder that is mounted by sshfs, which lists the same number for all."""

    def __init__(self, entry):
        self._entry = entry

    def __getattr__(self, name):
        return getattr(self._entry, name)

    def inode(self):
        return 0xFFFFFFFF


def test_equal_inode_numbers_lose_no_image(write_images, monkeypatch):
    root, scandir = write_images(), os.scandir

    @contextmanager
    def unnumbered(folder):
        with scandir(folder) as entries:
            yield [Unnumbered(entry) for entry in entries]

    (root / "red" / "link.jpg").symlink_to("0.jpg")
    monkeypatch.setattr(os, "scandir", unnumbered)
    assert len(list_images(root)) == 16
    splits = ImageFolder(root=str(root), val_fraction=0.25).open()
    assert len(splits.train) + len(splits.val) == 16


@pytest.mark.timeout(30)
def test_predict_finds_each_image_once(write_images, tmp_path):
    root = write_images()
    for name in ("a", "b"):
        (root / name).symlink_to(".")
    assert len(list_images(root)) == 16
    (tmp_path / "top").symlink_to(root)
    assert len(list_images(tmp_path / "top")) == 16


@pytest.mark.timeout(30)
def test_folders_of_texts(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.txt", "deep/b.txt"):
        (tmp_path / name).write_text("one two\n\nthree four\n\nfive six\n\nseven eight\n")
    (tmp_path / "deep" / "loop").symlink_to("..")
    (tmp_path / "deep" / "c.txt").symlink_to("../a.txt")
    splits = MaskedText(train=str(tmp_path), val_fraction=0.25).open()
    assert [len(splits.train), sum(map(len, splits.train.documents)) + sum(map(len, splits.val.documents))] == [2, 8]


def test_walking_is_in_order_for_any_order_of_the_disk(tmp_path):
    names = [f"{number}.txt" for number in np.random.RandomState(0).permutation(30)]
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / ".hidden.txt").write_text("")
    found = [path.name for path, _ in walk(tmp_path, (".txt",))]
    assert found == sorted(names)


def test_a_file_that_is_trained_on_is_not_measured(write_images, tmp_path):
    make_record(str(write_images()), str(tmp_path / "a"))
    for ending in ("rec", "idx"):
        (tmp_path / f"a_val.{ending}").unlink()
        (tmp_path / f"a_val.{ending}").symlink_to(f"a_train.{ending}")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one two\n\nthree four\n")
    table = tmp_path / "a.csv"
    table.write_text("sentence,label\n" + "one,a\ntwo,b\n" * 9)
    for dataset in (
        ImageRecord(root=str(tmp_path), prefix="a"),
        Text(train=str(table), val=str(table)),
        MaskedText(train=str(tmp_path / "texts"), val=[str(tmp_path / "texts" / "a.txt")]),
    ):
        with pytest.raises(DataError, match=r"\(train\) and '.*' \(val\) are the same file"):
            dataset.open()


def test_a_text_that_is_named_twice_counts_once(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n\nthree four\n\nfive six\n\nseven eight\n")
    once, twice = (
        MaskedText(train=given, val_fraction=0.25).open()
        for given in (str(tmp_path), [str(tmp_path), str(tmp_path / "a.txt")])
    )
    assert once.train.documents == twice.train.documents
