from __future__ import annotations

import logging
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest

from mxtrain.data.loading.split_folders import find_splits, name_splits, parse_name
from mxtrain.errors import DataError


@pytest.mark.parametrize(
    "name, parsed",
    [
        ("train", ("", "train")),
        ("Train", ("", "train")),
        ("TRAINING", ("", "train")),
        ("training_set", ("", "train")),
        ("Training Set", ("", "train")),
        ("trainset", ("", "train")),
        ("train_images", ("", "train")),
        ("train2017", ("", "train")),
        ("val", ("", "val")),
        ("valid", ("", "val")),
        ("Validation", ("", "val")),
        ("validation-set", ("", "val")),
        ("dev", ("", "val")),
        ("Test", ("", "test")),
        ("testing", ("", "test")),
        ("test_set", ("", "test")),
        ("seg_train", ("seg", "train")),
        ("cats", None),
        ("trainer", None),
        ("2017", None),
        ("images", None),
        ("train_7", None),
        ("test_bench", None),
    ],
)
def test_parse_name(name: str, parsed: Optional[Tuple[str, str]]) -> None:
    assert parse_name(name) == parsed


@pytest.mark.parametrize(
    "names, splits",
    [
        (["train", "valid", "test"], {"train": "train", "val": "valid", "test": "test"}),
        (["Training", "Testing"], {"train": "Training", "test": "Testing"}),
        (["seg_pred", "seg_test", "seg_train"], {"train": "seg_train", "test": "seg_test"}),
        (["cat", "dog"], {}),
        (["val", "cat"], {}),
        (["test"], {}),
        (["bullet_train", "car"], {}),
        (["train", "bullet_train", "bullet_test"], {"train": "train"}),
    ],
)
def test_name_splits(names: List[str], splits: Dict[str, str]) -> None:
    assert name_splits(names, "dataset=x", "root") == splits


@pytest.mark.parametrize("names, missing", [(["val", "test"], "'train/'"), (["x_dev", "x_test"], "'x_train/'")])
def test_splits_without_a_training_split_are_refused(names: List[str], missing: str) -> None:
    with pytest.raises(DataError, match=f"holds .* but no folder of the training split. Add {missing}"):
        name_splits(names, "dataset=x", "root")


def test_two_names_of_one_split_are_refused() -> None:
    with pytest.raises(DataError, match="val/ and valid/, and each of these names means the split val"):
        name_splits(["train", "val", "valid"], "dataset=x", "root")


def test_find_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in ("seg_train/seg_train/cat", "seg_test/cat", "seg_test/seg_test", ".hidden"):
        (tmp_path / folder).mkdir(parents=True)
    with caplog.at_level(logging.INFO):
        found = find_splits(tmp_path, "dataset=x")
    assert found == {"train": tmp_path / "seg_train/seg_train", "test": tmp_path / "seg_test"}
    assert "seg_train/seg_train/ is the split train, seg_test/ is the split test" in caplog.text
