"""Files that list some settings of a class: the others have the defaults of the class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from mxtrain.composing.composer import Composed, Composer
from mxtrain.config.groups import Description, describe
from mxtrain.errors import ConfigError
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.images.settings import Augment

OWN_CODE = """
from mxtrain.types import Positive
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.images.settings import Augment


class OwnDigits(Digits):
    augment: Augment = Augment(crop_padding=2, flip=True)
    repeats: Positive = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's options; their classes are in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_digits.py").write_text(OWN_CODE)
    (tmp_path / "own/dataset").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own"
    sys.modules.pop("own_digits", None)


def compose(folder: Path, *overrides: str) -> Composed:
    with Composer([str(folder)]) as composer:
        return composer.compose(overrides)


def described(composed: Composed) -> Description:
    return describe(composed.config, composed.where)


@pytest.mark.slow
def test_settings_of_a_users_class_need_not_be_listed_and_a_nested_one_changes_the_default(folder: Path) -> None:
    (folder / "dataset/short.yaml").write_text("_target_: own_digits.OwnDigits\n")
    composed = compose(folder, "dataset=short")
    assert composed.config["dataset"] == {"_target_": "own_digits.OwnDigits"}
    assert "own_digits" not in sys.modules, "it may import MXNet, before which the environment must be set"
    changes = ("dataset.augment.crop_padding=1", "dataset.batch_size=8", "dataset.repeats=2")
    description = described(compose(folder, "dataset=short", *changes))
    dataset = description.dataset
    assert description.config["dataset"] == {"_target_": "own_digits.OwnDigits", **dataset.model_dump()}
    assert dataset.augment == Augment(crop_padding=1, flip=True)
    assert (dataset.batch_size, dataset.repeats, dataset.prefetch) == (8, 2, Digits().prefetch)
    with pytest.raises(ConfigError, match="there is no 'dataset.repeat'"):
        compose(folder, "dataset=short", "dataset.repeat=2")


def test_settings_of_a_users_class_may_all_be_listed(folder: Path) -> None:
    listed = {**Digits(batch_size=8).model_dump(mode="json"), "repeats": 5}
    (folder / "dataset/long.yaml").write_text(yaml.safe_dump({"_target_": "own_digits.OwnDigits", **listed}))
    dataset = described(compose(folder, "dataset=long", "dataset.augment.flip=true")).dataset
    assert dataset.augment == Digits().augment.model_copy(update={"flip": True})
    assert (dataset.batch_size, dataset.repeats) == (8, 5)


@pytest.mark.slow
def test_file_based_on_a_bundled_option_keeps_its_changes(folder: Path) -> None:
    (folder / "dataset/small.yaml").write_text("defaults:\n  - mnist\n\nbatch_size: 8\naugment:\n  flip: true\n")
    composed = compose(folder, "dataset=small")
    shown = composed.config["dataset"]
    assert shown["root"].endswith("/mnist") and shown["batch_size"] == 8 and shown["eval_batch_size"] == 256
    assert (shown["augment"]["flip"], shown["augment"]["crop_padding"]) == (True, 2)
    assert composed.where("dataset.augment.flip").endswith("own/dataset/small.yaml:6")
    assert composed.where("dataset.eval_batch_size").endswith("conf/dataset/mnist.yaml")


@pytest.mark.slow
def test_misspelling_in_a_user_file_is_reported_with_its_line(folder: Path) -> None:
    (folder / "dataset/wrong.yaml").write_text("_target_: mxtrain.vision.classification.digits.Digits\nbtach_size: 3\n")
    composed = compose(folder, "dataset=wrong")
    with pytest.raises(ConfigError, match=r"no 'dataset.btach_size'. Did you mean 'dataset.batch_size'.*wrong.yaml:2"):
        described(composed)


def test_a_preset_changes_a_setting_that_no_file_lists(folder: Path) -> None:
    (folder / "experiment").mkdir()
    (folder / "experiment/mine.yaml").write_text("# @package _global_\ndataset:\n  augment:\n    cutout: 4\n")
    augment = compose(folder, "experiment=mine").config["dataset"]["augment"]
    assert augment == {**Digits().augment.model_dump(), "cutout": 4}
