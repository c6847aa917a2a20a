"""Datasets without a split hold out the same share of each class."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.loading.sampling import class_labels
from mxtrain.data.loading.splitting import count_held_out, refuse_empty, split_groups, split_indices
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import DataError
from mxtrain.text.classification.text import Text
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.classification.mnist import Mnist
from mxtrain.vision.classification.synthetic import Synthetic
from mxtrain.vision.images.make_record import main

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


@pytest.mark.parametrize(
    "count, fractions, room, held, said",
    [
        (3, (0.1, 0.0), 2, (1, 0), "dataset.val_fraction=0.1 of 3 samples is less than one: 1 is held out"),
        (6, (0.15, 0.05), 5, (1, 1), "dataset.test_fraction=0.05 of 6 samples is less than one: 1 is held out"),
        (2, (0.1, 0.1), 1, (1, 0), "dataset.test_fraction=0.1 of 2 samples: none can be held out, so there is no test"),
        (1, (0.1, 0.0), 0, (0, 0), ""),
        (3, (0.9, 0.0), 2, (2, 0), ""),
        (100, (0.15, 0.05), 98, (15, 5), ""),
        (0, (0.1, 0.0), -1, (0, 0), ""),
    ],
)
def test_a_share_of_a_few_samples_is_one_sample_at_least(
    caplog: pytest.LogCaptureFixture,
    count: int,
    fractions: Tuple[float, float],
    room: int,
    held: Tuple[int, int],
    said: str,
) -> None:
    with caplog.at_level(logging.INFO):
        assert count_held_out(count, *fractions, room) == held
    assert (said in caplog.text) if said else not caplog.text


@pytest.mark.parametrize(
    "sizes, fractions, counts",
    [
        ([5] * 10, (0.1, 0.2), (35, 5, 10)),
        ([5] * 10, (0.04, 0.0), (45, 5, 0)),  # none would be nearer, which is not allowed
        ([5] * 10, (0.17, 0.0), (40, 10, 0)),  # 8.5 samples: 10 are nearer than 5
        ([5] * 10, (0.14, 0.0), (45, 5, 0)),  # 7 samples: 5 are nearer than 10
        ([5] * 10, (0.15, 0.0), (45, 5, 0)),  # as near
        ([4, 4, 4], (0.9, 0.9), (4, 4, 4)),
        ([4, 4], (0.9, 0.0), (4, 4, 0)),
        ([4, 4], (0.0, 0.5), (4, 0, 4)),
    ],
)
def test_groups_are_held_out_as_a_whole(
    sizes: List[int], fractions: Tuple[float, float], counts: Tuple[int, int, int]
) -> None:
    group_N = np.random.default_rng(0).permutation(np.repeat(10 + np.arange(len(sizes)), sizes))
    parts = split_groups(group_N, *fractions, seed=3)
    assert tuple(map(len, parts)) == counts
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(group_N)))
    assert sum(len(set(group_N[part])) for part in parts) == len(sizes)
    assert all((np.diff(part) > 0).all() for part in parts)
    if len(sizes) == 10:
        others = [set(group_N[split_groups(group_N, *fractions, seed=seed)[1]]) for seed in range(6)]
        assert any(other != others[0] for other in others)


def test_every_class_is_trained_on() -> None:
    train, val, test = split_indices(np.array([0, 1, 1, 2]), 0.1, 0.1, 0)
    assert train.tolist() in ([0, 1, 3], [0, 2, 3]) and len(val) == 1 and not len(test)


@pytest.mark.parametrize(
    "num_train, num_val, fraction, said",
    [
        (
            3,
            0,
            0.1,
            "At least one of each class is trained on, so none can be held out. Add samples, or give validation",
        ),
        (3, 0, 0.0, "dataset.val_fraction=0.0. Type dataset.val_fraction=0.2, or give validation data of their own"),
        (0, 3, 0.9, "leaves no training samples: 3 samples, dataset.val_fraction=0.9. Type a smaller"),
    ],
)
def test_empty_split_is_refused_with_a_remedy(num_train: int, num_val: int, fraction: float, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        refuse_empty("x.csv", num_train, num_val, fraction)
