"""Printed commands can be pasted: they name the program that the user started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from mxtrain.cli.arguments import parse
from mxtrain.cli.commands import help_of
from mxtrain.cli.restored import one_run
from mxtrain.cluster.launch.outcome import print_cause
from mxtrain.errors import ConfigError
from mxtrain.terminal import program as started


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's bin folder that is not on PATH."""
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "tensorboard", "mxtrain"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "argv", ["/somewhere/mxtrain/__main__.py"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv(started.STARTED_BY, raising=False)
    return folder


def test_the_script_is_named_as_it_was_typed(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(started.STARTED_BY, "../my checkout/scripts/train")
    assert started.program() == "'../my checkout/scripts/train'"
    assert started.tensorboard() == "'../my checkout/scripts/tensorboard'"


def test_an_active_environment_needs_no_script(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(started.STARTED_BY, "scripts/train")
    monkeypatch.setenv("PATH", str(environment), prepend=os.pathsep)
    assert (started.program(), started.tensorboard()) == ("python -m mxtrain", "tensorboard")
    monkeypatch.setattr(sys, "argv", [str(environment / "mxtrain")])
    assert started.program() == "mxtrain"


def test_a_python_that_is_not_on_path_is_named_by_its_path(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (started.program(), started.tensorboard()) == (
        "env/bin/python -m mxtrain",
        "env/bin/python -m tensorboard.main",
    )
    monkeypatch.chdir(environment)
    assert started.program() == "./python -m mxtrain"
    (other := environment.parents[1] / "other").mkdir()
    monkeypatch.chdir(other)
    assert started.program() == f"{environment}/python -m mxtrain"
    monkeypatch.setattr(sys, "argv", [str(environment / "mxtrain")])
    assert started.program() == f"{environment}/mxtrain"


def test_a_program_that_embeds_python_has_no_path_of_it(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert started.program() == "python -m mxtrain"


def test_the_latest_runs_are_named_by_commands_that_work(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment.parents[1] / "outputs" / "a b" / "c" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(environment.parents[1])
    with pytest.raises(ConfigError, match="\n  env/bin/python -m mxtrain eval 'outputs/a b/c'$"):
        one_run(parse([], reads_checkpoint=True), "eval")


@pytest.mark.parametrize("word", ["~/run", "a=b c"])
def test_path_parsed_as_a_setting_is_reported(tmp_path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (folder := tmp_path / word.replace("~/", "")).mkdir()
    with pytest.raises(ConfigError, match="was taken for a setting") as caught:
        one_run(parse([word], reads_checkpoint=True), "eval")
    words = shlex.split(str(caught.value).rpartition("is written ")[2].rstrip("."))
    assert one_run(parse(words, reads_checkpoint=True), "eval") == str(folder)


HELP_OF_PREDICT = (("skip_unreadable=false", "Skip"), ("top_k=3", "Number"))


def test_help_separates_settings_from_descriptions() -> None:
    said = help_of("predict")
    columns = [re.search(rf"^  {setting} +({word})", said, re.M) for setting, word in HELP_OF_PREDICT]
    assert all(columns) and len({found.start(1) - found.start() for found in columns if found}) == 1


def test_help_and_causes_name_the_program(environment: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv(started.STARTED_BY, "scripts/train")
    text = "see `python -m mxtrain doctor`, or python -m mxtrain.vision.images.make_record"
    print_cause(text, 2)
    assert (
        capsys.readouterr().err
        == "error: see `scripts/train doctor`, or env/bin/python -m mxtrain.vision.images.make_record\n"
    )
    assert "usage: scripts/train eval" in help_of("eval") and "python -m mxtrain" not in help_of("eval")


def test_texts_stay_where_no_script_was_called(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "see `python -m mxtrain doctor`"
    assert started.with_program_name(text) == text
    monkeypatch.setenv(started.STARTED_BY, "scripts/train")
    assert started.with_program_name(text) == "see `scripts/train doctor`"
    monkeypatch.setenv("PATH", str(environment), prepend=os.pathsep)
    assert started.with_program_name(text) == text
