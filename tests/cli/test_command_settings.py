"""Misspelled settings of a command are compared with its own settings first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest

from mxtrain.cli import main
from mxtrain.cli.settings import refuse_misspelled, refuse_misspelled_groups
from mxtrain.errors import ConfigError

WORDS = [
    ["reproduce", "run", "strct=true", "strict"],
    ["replay", "run", "outptu=a.json", "output"],
    ["score", "digits_lenet", "dri=a", "dir"],
    ["eval", "run", "spilt=test", "split"],
    ["predict", "run", "outptu=a", "output"],
    ["tune", "study", "n_trail=5", "n_trials"],
    ["average", "run", "sop=greedy", "soup"],
    ["push", "run", "trackr=wandb", "tracker"],
    ["export", "run", "formt=onnx", "format"],
    ["verify", "stps=3", "steps"],
    ["launch", "ot=a", "out"],
    ["lr_find", "stpes=20", "steps"],
    ["plan", "secnds=1", "seconds"],
    ["serve", "run", "prt=80", "port"],
    ["data", "check", "outptu=a", "output"],
    ["runs", "lmit=3", "limit"],
    ["diff", "one", "two", "replya=false", "replay"],
    ["report", "run", "ot=a.html", "out"],
    ["clean", "delte=true", "delete"],
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_the_nearest_setting_of_the_command_is_named(
    words: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    *typed, meant = words
    assert main(typed) == 2
    said = capfd.readouterr().err
    wrong = next(word for word in typed if "=" in word).partition("=")[0]
    assert said.startswith(f"error: {words[0]}: there is no setting '{wrong}'. Did you mean '{meant}'?"), said
    assert re.search(rf"`{words[0]}` takes .*{meant}", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "slim",
        "reproduce",
        "eval",
        "predict",
        "export",
        "replay",
        "tune",
        "score",
        "average soup=greedy",
    ],
)
@pytest.mark.parametrize("run", ["", "nowhere"])
def test_a_misspelled_group_is_named_before_the_run(
    command: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *run.split(), "modle=lenet", "+optimizr.lr=1"]) == 2
    first, second, groups = capfd.readouterr().err.splitlines()
    name = command.split()[0]
    assert first == f"error: {name}: there is no group 'modle'. Did you mean 'model'?"
    assert second.strip() == f"{name}: there is no group 'optimizr'. Did you mean 'optimizer.lr'?"
    assert "lr_scheduler" in groups and list(tmp_path.iterdir()) == []


def test_groups_settings_and_paths_are_no_misspelled_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "modle").mkdir(parents=True)
    Path("metrics=1").touch()
    known = ["model=lenet", "++trainer.seed=1", "hydra.run.dir=a", "modle=own"]
    refuse_misspelled_groups([*known, "metrics=1", "data=1", "a/modle=1", "~x"], "eval", ["conf"])
    refuse_misspelled_groups(["hydra.searchpath=[file:///conf]", "modles=own"], "eval")
    with pytest.raises(ConfigError, match="Did you mean 'metric'"):
        refuse_misspelled_groups(["metrics=2"], "eval")


def test_groups_and_paths_are_no_misspelled_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["modes", "optimize"]
    for word in ("model=mlp", "optimizer=sgd", "optimizr=sgd", "optimize.x=1", "+modez=1", "elsewhere=1"):
        refuse_misspelled(word, names, "eval")  # the nearest to optimizr is a group
    (tmp_path / "conf" / "modez").mkdir(parents=True)
    refuse_misspelled("modez=own", names, "eval", ["conf"])
    Path("modez=1").touch()
    refuse_misspelled("modez=1", names, "eval")
    with pytest.raises(Exception, match="Did you mean 'modes'"):
        refuse_misspelled("modez=2", names, "eval")
