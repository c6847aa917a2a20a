"""A run directory of somebody's with links where files are expected: what they lead to stays as it is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from mxtrain.callback.protocol import RunInfo
from mxtrain.checkpoint import lock_run_directory, refuse_links, write_ndarrays
from mxtrain.checkpoint.run_directory import NEVER_LINKS
from mxtrain.cli import main
from mxtrain.cli.predict import open_output
from mxtrain.cluster.launch.outcome import Outcome, append_outcome
from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
from mxtrain.cluster.launch.sweep import refuse_links_in_sweep
from mxtrain.cluster.process import LaunchSpec, LocalProcess
from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import append_to, create_file, open_file, replace_file, write_json_atomic
from mxtrain.logger.csv import CsvLogger
from mxtrain.logger.files import AppendedFile, LogFile, cut_file
from mxtrain.logger.jsonl import JsonlLogger
from mxtrain.task.confusion import confusion_artifacts
from mxtrain.workflows.eval_folder import write_artifacts

SECRET = b'{"step": 1}\nof mine\n'


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    yield path
    assert path.read_bytes() == SECRET and not path.is_symlink()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def write_report(folder: Path) -> None:
    write_artifacts(confusion_artifacts(np.arange(2), np.arange(2), ["a", "b"], "val"), folder)


def write_predictions(folder: Path) -> None:
    with open_output(str(folder / "out.csv")) as stream:
        stream.write("x")


# What is replaced as a whole: neither the file's own name nor that of what becomes it is followed.
REPLACED = {
    "metrics.json": lambda folder: write_json_atomic(folder / "metrics.json", {}),
    ".tmp-metrics.json": lambda folder: write_json_atomic(folder / "metrics.json", {}),
    "timeline.json": lambda folder: replace_file(folder / "timeline.json", b"{}"),
    "per_class.csv": write_report,
    ".tmp-per_class.csv": write_report,
    "confusion.csv": write_report,
    "confusion.png": write_report,
    ".tmp-confusion.png": write_report,
    "model.params": lambda folder: write_ndarrays(folder / "model.params", {"a": np.zeros(2, "float32")}),
    "out.csv": write_predictions,
    "out.csv.partial": write_predictions,
}


def test_settings_of_an_earlier_run_are_not_put_back_through_a_link(folder, victim):
    settings = folder / ".hydra" / "config.yaml"
    settings.parent.mkdir()
    settings.write_bytes(b"earlier")
    before = RunDirRollback(folder)
    settings.unlink()
    settings.symlink_to(victim)
    before.put_back_settings()
    assert settings.is_symlink() and victim.read_bytes() == SECRET


@pytest.mark.parametrize("name", REPLACED)
def test_a_link_is_replaced_and_not_followed(folder, victim, name):
    (folder / name).symlink_to(victim)
    REPLACED[name](folder)
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert stat.S_IMODE(next(folder.iterdir()).stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def start_logger(logger, folder):
    info = RunInfo(folder, {}, 0, None, 1, (1, 8, 8), None, ["accuracy"])
    logger.on_start(info)


APPENDED = {
    "metrics.jsonl": lambda folder: start_logger(JsonlLogger("metrics.jsonl"), folder),
    "metrics.csv": lambda folder: start_logger(CsvLogger("metrics.csv"), folder),
    "events": lambda folder: AppendedFile(folder / "events"),
    "cut": lambda folder: cut_file(folder / "cut", 0),
    "train.log": lambda folder: LogFile(folder / "train.log"),
    "jobs.jsonl": lambda folder: append_outcome(folder / "jobs.jsonl", Outcome(0, [], "", "finished", 0, "", 0, None)),
    "worker-1.log": lambda folder: LocalProcess(LaunchSpec("worker 1", ["true"], {}, folder / "worker-1.log")),
    "supervisor.log": lambda folder: append_to(folder / "supervisor.log"),
}


@pytest.mark.parametrize("name", APPENDED)
@pytest.mark.parametrize("kind", ["link", "pipe", "dangling"])
def test_special_files_are_not_written(folder, victim, name, kind):
    path, target = folder / name, victim if kind == "link" else folder / "made"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(target)
    with pytest.raises((OSError, RunDirectoryError), match="it is a link|it is no file|No such device"):
        APPENDED[name](folder)
    assert not (folder / "made").exists()


@pytest.mark.parametrize("name", NEVER_LINKS)
def test_run_directory_with_links_is_refused(folder, victim, name):
    target = victim if "." in name[1:] or name == ".lock" else victim.parent / "elsewhere"
    target.parent.joinpath("elsewhere").mkdir()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(target)
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunDirectoryError, match="is a link") as refused:
        lock_run_directory(folder)
    assert refused.value.exit_code == 2 and str(folder / name) in str(refused.value)
    assert sorted(folder.rglob("*")) == before and not list((victim.parent / "elsewhere").iterdir())


def test_a_run_directory_may_itself_be_a_link(folder, tmp_path):
    (tmp_path / "chosen").symlink_to(folder)
    lock_run_directory(tmp_path / "chosen").release()
    assert json.loads((folder / ".lock").read_text() or "{}") == {}
    refuse_links(tmp_path / "chosen", ("eval",))


@pytest.mark.parametrize("name", ["jobs.jsonl", "multirun.yaml", "0", "1/.hydra", "1/train.log"])
def test_a_sweep_with_links_is_not_begun(folder, victim, name):
    (folder / "1").mkdir()
    (victim.parent / "elsewhere").mkdir()
    (folder / name).symlink_to(victim if "." in name[1:] else victim.parent / "elsewhere")
    with pytest.raises(RunDirectoryError, match="is a link"):
        refuse_links_in_sweep(folder)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["hydra.run.dir={run}"], ["-m", "hydra.sweep.dir={run}", "model=mlp,lenet"]])
def test_training_in_a_folder_with_links_ends_with_2(folder, victim, capsys, arguments):
    for name in ("train.log", ".hydra", "jobs.jsonl"):
        (folder / name).symlink_to(victim if "." in name[1:] else victim.parent)
    before = sorted(folder.rglob("*"))
    assert main([argument.format(run=folder) for argument in arguments]) == 2
    assert "is a link" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before and not (victim.parent / "config.yaml").exists()


def test_new_file_replaces_only_files_and_links(folder, victim):
    (folder / "old").write_text("old")
    (folder / "linked").hardlink_to(victim) if hasattr(Path, "hardlink_to") else os.link(victim, folder / "linked")
    for name in ("old", "linked", "new"):
        os.close(create_file(folder / name))
        assert (folder / name).read_bytes() == b""
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError):
        create_file(folder / "pipe")
    with pytest.raises(OSError):
        create_file(folder)
    fd = open_file("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        os.write(fd, b"x")
    os.close(fd)
