"""The composed configuration: the files of settings, implied options, and misspelled settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mxtrain.composing.composer import Composer
from mxtrain.errors import ConfigError

PRESET = "# @package _global_\nmodel:\n  _target_: own_network.Network\n"


def test_the_file_of_a_setting_that_no_file_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that names the class, which may be a preset; without a class, the folder of the group."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(PRESET)
    with Composer(["own"]) as composer:
        composed = composer.compose(["experiment=mine"])
        assert composed.where("model.width") == "own/experiment/mine.yaml"
        assert composed.where("metric.width").endswith("conf/metric/")


def test_the_file_of_a_setting_is_not_the_command_line_and_not_that_of_another_group() -> None:
    groups = ("dataset", "trainer", "runtime", "kvstore", "cluster")  # of equal length
    with Composer() as composer:
        composed = composer.compose(["trainer.seed=3"])
        assert composed.where("trainer.seed").endswith("conf/trainer/default.yaml")
        assert [group for group in groups if f"conf/{group}/" not in composed.where(f"{group}.width")] == []


def test_classes_of_hydra_may_be_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with Composer() as composer:
        composer.compose([])
        assert str(tmp_path) not in sys.path
        composer.compose(["hydra.launcher._target_=own_launcher.Launcher"])
        assert str(tmp_path) in sys.path


@pytest.mark.slow
def test_a_misspelled_nested_setting_lists_those_beside_it() -> None:
    with Composer() as composer, pytest.raises(ConfigError) as error:
        composer.compose(["dataset.augment.zzz=true"])
    assert "there is no 'dataset.augment.zzz'. dataset.augment takes: transforms, crop_padding, flip," in str(
        error.value
    )


def test_a_group_that_is_needed_cannot_be_deleted() -> None:
    with Composer() as composer, pytest.raises(ConfigError, match="~model: this group is needed. model can be: actor"):
        composer.compose(["~model"])


def test_only_models_with_a_setting_name_are_imported() -> None:
    with Composer() as composer:
        named = list(composer.named_models())
    assert len(named) > 3 and all("name" in kind.model_fields for kind in named)


@pytest.mark.slow
def test_the_name_of_a_network_and_a_task_imply_the_model() -> None:
    with Composer() as composer:
        composed = composer.compose(["model.name=any_name", "task=segmentation"])
    assert composed.config["model"]["_target_"].endswith(".GluonCVSegmentation")
