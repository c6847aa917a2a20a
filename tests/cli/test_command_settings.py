"""Misspelled settings of a command are compared with its own settings first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest

from mxtrain.cli import main
from mxtrain.cli.settings import refuse_misspelled

WORDS = [
    ["reproduce", "run", "strct=true", "strict"], ["replay", "run", "outptu=a.json", "output"],
    ["score", "digits_lenet", "dri=a", "dir"], ["eval", "run", "spilt=test", "split"],
    ["predict", "run", "outptu=a", "output"], ["tune", "study", "n_trail=5", "n_trials"],
    ["average", "run", "sop=greedy", "soup"], ["push", "run", "trackr=wandb", "tracker"],
    ["export", "run", "formt=onnx", "format"], ["verify", "stps=3", "steps"], ["lr_find", "stpes=20", "steps"],
    ["serve", "run", "prt=80", "port"], ["data", "check", "outptu=a", "output"], ["runs", "lmit=3", "limit"],
    ["diff", "one", "two", "replya=false", "replay"], ["report", "run", "ot=a.html", "out"],
    ["clean", "delte=true", "delete"],
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_the_nearest_setting_of_the_command_is_named(
    words: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    *typed, meant = words
    assert main(typed) == 2
    said = capfd.readouterr().err
    wrong = next(word for word in typed if "=" in word).partition("=")[0]
    assert said.startswith(f"error: {words[0]}: there is no setting '{wrong}'. Did you mean '{meant}'?"), said
    assert re.search(rf"`{words[0]}` takes .*{meant}", said)
    assert list(tmp_path.iterdir()) == []


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
