"""Arguments of the Python API with a wrong type or value: a ConfigError names the argument, and nothing is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from run_directories import write_run

import mxtrain
from mxtrain.callback.spec import GivenCallback
from mxtrain.checkpoint.run_directory import lock_run_directory
from mxtrain.cluster.launch import new_process
from mxtrain.cluster.reported_cause import CAUSE_FILE, ReportedCause
from mxtrain.composing.objects import read_arguments
from mxtrain.config.override_text import written


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "outputs" / "a", checkpoints={5: 0.9, 8: 0.8, 10: 0.91})
    return tmp_path


def files_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: mxtrain.train(dir=""), "train: dir='': must be a path, and names no file. The current folder is '.'"),
        (lambda: mxtrain.train(dir="a\0b"), "train: dir='a\\x00b': must be a path, and names no file."),
        (lambda: mxtrain.train(config_dir="absent"), "config_dir=absent: there is no such folder."),
        (lambda: mxtrain.explain(5), "explain: key=5: it must be the name of a setting"),  # type: ignore[arg-type]
        (lambda: mxtrain.score(5), "score: experiment=5: it must be the name of a preset."),  # type: ignore[arg-type]
        (lambda: mxtrain.check_data(ignore=5), "check_data: ignore=5: give a kind"),  # type: ignore[arg-type]
        (lambda: mxtrain.check_data(ignore=[5]), "check_data: ignore=[5]: give a kind"),  # type: ignore[list-item]
        (lambda: mxtrain.doctor(timeout="soon"), "doctor: timeout='soon': it must be a positive number of"),  # type: ignore[arg-type]
        (lambda: mxtrain.doctor(timeout=-1), "doctor: timeout=-1: it must be a positive number of seconds."),
        (lambda: mxtrain.doctor(timeout=True), "doctor: timeout=True: it must be a positive number of seconds."),
        (lambda: mxtrain.tune("s", "optimizer.lr=choice(1,2)", report=5), "tune: report=5: it must be a function"),  # type: ignore[arg-type]
        (lambda: mxtrain.report("outputs", out=5), "report.out=5: should be a valid string"),
        (lambda: mxtrain.serve("outputs", token=5), "token must have at least 16 characters"),  # type: ignore[arg-type]
        (lambda: mxtrain.average(5), "average: 5 is a int: give the path of a run or a folder."),  # type: ignore[arg-type]
        (lambda: mxtrain.average(["outputs/a"]), "average: a list has two runs at least."),
        (lambda: mxtrain.soup("outputs/a"), "average: a list has two runs at least."),
        (
            lambda: mxtrain.average(["a", "b"], method="gredy"),
            "average: method='gredy': it may be 'greedy' or 'uniform'. Did you mean 'greedy'?",
        ),
        (lambda: mxtrain.diff(["outputs/a", "outputs"], "outputs/a"), "are 2 runs: give one."),
    ],
)
def test_wrong_arguments_are_named(here: Path, call: Callable[[], object], said: str) -> None:
    before = files_below(here)
    with pytest.raises(mxtrain.ConfigError) as raised:
        call()
    assert said in str(raised.value)
    assert files_below(here) == before


@pytest.mark.parametrize("function", ["clean", "runs", "report"])
def test_empty_list_of_runs_is_not_the_default_folder(here: Path, function: str) -> None:
    """`clean(failed_runs, delete=True)` must not delete from all runs because none has failed."""
    before = files_below(here)
    given = {"delete": True} if function == "clean" else {}
    with pytest.raises(mxtrain.ConfigError, match=f"^{function}: the list of runs is empty.$"):
        getattr(mxtrain, function)([], **given)
    assert files_below(here) == before
    assert mxtrain.clean().removable, "without an argument, the default folder is searched"


@pytest.mark.parametrize(
    "call",
    [
        lambda path, value: mxtrain.load(path, trust_code=value),
        lambda path, value: mxtrain.average([path, path], trust_code=value),
        lambda path, value: mxtrain.diff(path, path, trust_code=value),
        lambda path, value: mxtrain.reproduce(path, trust_code=value),
        lambda path, value: mxtrain.replay(path, trust_code=value),
        lambda path, value: mxtrain.tune("study", trust_code=value),
    ],
)
def test_text_does_not_trust_code(here: Path, call: Callable[[str, Any], object]) -> None:
    with pytest.raises(mxtrain.ConfigError, match="trust_code='false': it may be True or False"):
        call("outputs/a", "false")


@pytest.mark.parametrize("value", [True, 0, -1, "2", 2.0])
def test_counts_are_positive_integers(here: Path, value: Any) -> None:
    run = mxtrain.Run(here / "outputs" / "a")
    with pytest.raises(
        mxtrain.ConfigError, match=r"^evaluate: limit_batches=.*: it must be a positive integer, or None\.$"
    ):
        run.evaluate(limit_batches=value)
    with pytest.raises(
        mxtrain.ConfigError, match=r"^results: limit_batches=.*: it must be a positive integer, or None\.$"
    ):
        next(run.results(limit_batches=value))


def test_numbers_of_numpy_and_paths_are_settings(here: Path) -> None:
    settings = {"max_epochs": np.int64(3), "grad_clip": np.float32(0.5), "root": Path("a b"), "size": (8, np.int64(9))}
    words, objects = read_arguments({"trainer": settings}, mxtrain.train)
    assert not objects
    assert words == ["trainer.max_epochs=3", "trainer.grad_clip=0.5", 'trainer.root="a b"', "trainer.size=[8,9]"]
    assert [written(True), written(None), written(1e-3)] == ["true", "null", "0.001"]


@pytest.mark.parametrize("function", [lambda: None, lambda a, b: None, lambda *, row: None])
def test_functions_that_take_no_row_are_refused(function: Any) -> None:
    with pytest.raises(mxtrain.ConfigError, match="cannot be called with one argument, the row of metrics.jsonl"):
        GivenCallback.describe_object(function)


@pytest.mark.parametrize(
    "function", [print, lambda row: None, lambda *rows: None, lambda row, other=1: None, dict.copy]
)
def test_functions_of_a_row_are_callbacks(function: Any) -> None:
    assert GivenCallback.describe_object(function) == {}


def test_run_of_a_killed_process_is_killed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", state="running", exit_code=None)
    assert mxtrain.Run(tmp_path / "a").state == "killed"
    lock = lock_run_directory(tmp_path / "a")
    assert mxtrain.Run(tmp_path / "a").state == "running"
    lock.release()
    assert mxtrain.Run(tmp_path / "a").state == "killed"


@pytest.mark.slow
def test_process_that_is_killed_before_its_run_begins(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: Any, **options: Any) -> subprocess.Popen[bytes]:
        code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        return subprocess.Popen([sys.executable, "-c", code], **options)

    monkeypatch.setattr(new_process, "start_child", start)
    with pytest.raises(mxtrain.MxtrainError, match="^train: the process was ended by SIGKILL, before the run began.$"):
        mxtrain.train("model=mlp", dir="outputs/new", process="new")


def test_folders_of_causes_whose_process_was_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "mxtrain-cause-killed").mkdir()
    with ReportedCause() as outer:
        with ReportedCause() as inner:
            Path(inner.environment[CAUSE_FILE]).write_text('{"cause": "why", "step": 3}', "utf-8")
            assert len(files_below(tmp_path)) == 3
        assert (inner.cause, inner.step, outer.cause) == ("why", 3, "")
        assert Path(outer.environment[CAUSE_FILE]).parent.is_dir()
    assert files_below(tmp_path) == []


def test_deleted_current_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(
        mxtrain.ConfigError, match="^the current folder was deleted. Change to another one: cd FOLDER.$"
    ):
        mxtrain.compose("model=mlp")


def test_report_on_a_full_disk_is_a_data_error(here: Path) -> None:
    with pytest.raises(mxtrain.DataError, match="^'/dev/full' cannot be written: No space left on device. Free some"):
        mxtrain.report("outputs", out="/dev/full")
