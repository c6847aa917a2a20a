"""Where a dataset has no split of its own, each class is held out in the same share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
from PIL import Image

from mxtrain.dataset.base import BaseDataset
from mxtrain.dataset.digits import Digits
from mxtrain.dataset.image_folder import ImageFolder
from mxtrain.dataset.image_record import ImageRecord
from mxtrain.dataset.loading.sampling import class_labels
from mxtrain.dataset.make_record import main
from mxtrain.dataset.mnist import Mnist
from mxtrain.dataset.synthetic import Synthetic
from mxtrain.dataset.text import Text

pytestmark = pytest.mark.usefixtures("own_cache")

SIZES = {"common": 80, "rare": 20}
FRACTIONS = {"val_fraction": 0.2, "test_fraction": 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in SIZES.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(size):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def table(folder: Path) -> Text:
    pytest.importorskip("tokenizers")
    lines = [f"{name} {number}\t{name}" for name, size in SIZES.items() for number in range(size)]
    (folder.parent / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return Text(train=str(folder.parent / "train.tsv"), **FRACTIONS)


MADE: Dict[str, Callable[[Path], BaseDataset]] = {
    "image_folder": lambda folder: ImageFolder(root=str(folder), **FRACTIONS),
    "text": table,
}


@pytest.mark.parametrize("name", MADE)
def test_files_are_held_out_class_by_class(folder: Path, name: str) -> None:
    splits = MADE[name](folder).open()
    assert splits.class_names == list(SIZES) and splits.test is not None
    counts = [np.bincount(class_labels(part)).tolist() for part in (splits.train, splits.val, splits.test)]
    assert counts == [[56, 14], [16, 4], [8, 2]]


def test_records_are_held_out_class_by_class_when_they_are_made_and_when_they_are_read(folder: Path) -> None:
    root = folder.parent / "records"
    root.mkdir()
    main([str(folder), str(root / "all"), "--val-fraction", "0.2", "--test-fraction", "0.1"])
    splits = ImageRecord(root=str(root), prefix="all").open()
    assert splits.test is not None
    counts = [np.bincount(class_labels(part)).tolist() for part in (splits.train, splits.val, splits.test)]
    assert counts == [[56, 14], [16, 4], [8, 2]]
    for part in ("val", "test"):
        (root / f"all_{part}.rec").unlink()
    splits = ImageRecord(root=str(root), prefix="all", val_fraction=0.5).open()
    assert [np.bincount(class_labels(part)).tolist() for part in (splits.train, splits.val)] == [[28, 7]] * 2


@pytest.mark.parametrize("dataset", [Digits(), Digits(val_fraction=0.3), Synthetic(num_samples=1000)], ids=str)
def test_arrays_are_held_out_class_by_class(dataset: Any) -> None:
    splits = dataset.open()
    parts = [class_labels(part) for part in (splits.train, splits.val, splits.test)]
    size_K = np.bincount(np.concatenate(parts))
    for labels, share in ((parts[1], dataset.val_fraction), (parts[2], dataset.test_fraction)):
        assert (np.abs(np.bincount(labels) - share * size_K) < 1).all()


def test_published_files_are_held_out_class_by_class(write_idx: Any) -> None:
    splits = Mnist(root=str(write_idx(count=100)), verify_checksum=False, val_fraction=0.3).open()
    assert [np.bincount(class_labels(part)).tolist() for part in (splits.train, splits.val)] == [[7] * 10, [3] * 10]
