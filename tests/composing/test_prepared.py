"""Configurations whose files were composed before: the same as those of Hydra, and none after a file has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List, Sequence

import pytest
from omegaconf import DictConfig, OmegaConf

from mxtrain.composing import prepared
from mxtrain.composing.composer import Composer
from mxtrain.composing.config_files import ConfigLoader
from mxtrain.errors import ConfigError

GROUPS = ("model=mlp", "logger=jsonl")
SETTINGS = (
    ("optimizer.lr=0.3", "hydra.run.dir='a/b ${c}'"),
    ("trainer.max_epochs=3", "optimizer.lr=0.3", "optimizer.lr=0.4"),
    ("+loss.own=1", "++model.dropout=0.5", "~trainer.seed", "dataset.augment={flip: true}"),
    ("trainer={max_epochs: 7}", "loss={_target_: own.Loss}"),
)


@pytest.fixture(autouse=True)
def prepares_nothing() -> Iterator[None]:
    yield
    prepared._prepared = None


@pytest.fixture
def composed_by_hydra(monkeypatch: pytest.MonkeyPatch) -> List[Sequence[str]]:
    """Overrides of all configurations that Hydra composes."""
    calls: List[Sequence[str]] = []
    load = ConfigLoader.load_configuration

    def noted(loader: ConfigLoader, name: str, overrides: List[str], *arguments: object) -> DictConfig:
        calls.append(tuple(overrides))
        return load(loader, name, overrides, *arguments)

    monkeypatch.setattr(ConfigLoader, "load_configuration", noted)
    return calls


def test_the_configuration_is_that_of_hydra(composed_by_hydra: List[Sequence[str]]) -> None:
    with Composer() as composer:
        expected = [composer.load(composer.parse([*GROUPS, *settings])) for settings in SETTINGS]
        composer.prepare([*GROUPS, "optimizer.lr=0.1", "hydra.run.dir=first"])
        composed_by_hydra.clear()
        found = [composer.load(composer.parse([*GROUPS, *settings])) for settings in SETTINGS]
    assert not composed_by_hydra
    assert [OmegaConf.to_yaml(config) for config in found] == [OmegaConf.to_yaml(config) for config in expected]
    for config in found:
        assert OmegaConf.is_struct(config) and OmegaConf.is_readonly(config.hydra) is False


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=lenet", "logger=jsonl"),
        ("logger=jsonl", "model=mlp"),
        (*GROUPS, "debug=fast"),
        (*GROUPS, "hydra.job.env_copy=[HOME]"),
        (*GROUPS, "hydra/job_logging=none"),
        (*GROUPS, "loss._target_=own.Loss"),
    ],
)
def test_other_options_are_composed_by_hydra(overrides: Sequence[str], composed_by_hydra: List[Sequence[str]]) -> None:
    with Composer() as composer:
        composer.prepare(GROUPS)
        composed_by_hydra.clear()
        composer.load(composer.parse(overrides))
    assert composed_by_hydra == [tuple(overrides)]


def test_a_wrong_setting_has_the_message_of_hydra() -> None:
    with Composer() as composer:
        with pytest.raises(ConfigError) as expected:
            composer.compose([*GROUPS, "optimizer.lrr=0.3", "trainer.max_epochs=3"])
        composer.prepare(GROUPS)
        with pytest.raises(ConfigError) as found:
            composer.compose([*GROUPS, "optimizer.lrr=0.3", "trainer.max_epochs=3"])
    assert str(found.value) == str(expected.value)


def test_changed_files_are_composed_by_hydra(tmp_path: Path, composed_by_hydra: List[Sequence[str]]) -> None:
    preset = tmp_path / "own" / "experiment" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\noptimizer:\n  lr: 0.5\n")
    overrides = ["experiment=mine", "trainer.max_epochs=3"]

    def rates() -> List[float]:
        composed_by_hydra.clear()
        with Composer([str(tmp_path / "own")]) as composer:
            return [composer.compose(overrides).config["optimizer"]["lr"] for _ in range(2)]

    with Composer([str(tmp_path / "own")]) as composer:
        composer.prepare(overrides)
    assert rates() == [0.5, 0.5] and not composed_by_hydra
    preset.write_text(preset.read_text().replace("0.5", "0.7"))
    os.utime(preset, ns=(0, 0))
    assert rates() == [0.7, 0.7] and len(composed_by_hydra) == 2
    with Composer([str(tmp_path / "own")]) as composer:
        composer.prepare(overrides)
        assert composer.compose(overrides).config["optimizer"]["lr"] == 0.7
    with Composer() as composer:  # a folder that the other composer has not
        composed_by_hydra.clear()
        composer.load(composer.parse(["trainer.max_epochs=3"]))
    assert len(composed_by_hydra) == 1


def test_variables_that_a_file_copies_are_those_of_each_run(
    tmp_path: Path, composed_by_hydra: List[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tmp_path / "experiment" / "mine.yaml"
    preset.parent.mkdir()
    preset.write_text("# @package _global_\nhydra:\n  job:\n    env_copy: [OWN]\n")
    with Composer([str(tmp_path)]) as composer:
        monkeypatch.setenv("OWN", "of the server")
        composer.prepare(["experiment=mine"])
        monkeypatch.setenv("OWN", "of the run")
        composed_by_hydra.clear()
        found = composer.load(composer.parse(["experiment=mine"]))
    assert found.hydra.job.env_set.OWN == "of the run" and len(composed_by_hydra) == 1


def test_only_yaml_files_and_new_folders_count(tmp_path: Path, composed_by_hydra: List[Sequence[str]]) -> None:
    """A working folder that is a folder of files as well has logs that change."""

    def is_composed_by_hydra() -> bool:
        composed_by_hydra.clear()
        with Composer([str(tmp_path)]) as composer:
            composer.load(composer.parse(GROUPS))
        return bool(composed_by_hydra)

    with Composer([str(tmp_path)]) as composer:
        composer.prepare(GROUPS)
    (tmp_path / "log.txt").write_text("changes")
    assert not is_composed_by_hydra()
    (tmp_path / "model").mkdir()
    assert is_composed_by_hydra()


def test_nothing_is_prepared_where_links_may_hide_a_changed_file(
    tmp_path: Path, composed_by_hydra: List[Sequence[str]]
) -> None:
    for name in ("linked", "own/experiment"):
        (tmp_path / name).mkdir(parents=True)
    with Composer([str(tmp_path / "own")]) as composer:
        for target, link in (("linked", "model"), ("nothing", "experiment/x.yaml")):
            path = tmp_path / "own" / link
            path.symlink_to(tmp_path / target)
            composer.prepare(GROUPS)
            composed_by_hydra.clear()
            composer.load(composer.parse(GROUPS))
            assert len(composed_by_hydra) == 1
            path.unlink()
