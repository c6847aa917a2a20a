"""Run directories of strangers: each damage is answered with a sentence, without a hang and without a traceback."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from mxtrain.api.run import Run
from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.run_records import MAX_STATUS_BYTES
from mxtrain.archive.status import read_status, read_status_object
from mxtrain.checkpoint import CheckpointStore
from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
from mxtrain.composing.restored import restore
from mxtrain.errors import EXIT_BAD_INPUT, MxtrainError, RunDirectoryError
from mxtrain.training.resume import find_checkpoint, find_finished, read_end


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


DAMAGES = {
    "no runtime": (lambda config: config.pop("runtime"), "the group 'runtime' is missing"),
    "no task": (lambda config: config.pop("task"), "the group 'task' is missing"),
    "a number as metric": (lambda config: config.update(metric=5), "metric=5: a group of named options is needed"),
    "a number as trainer": (lambda config: config.update(trainer=5), "trainer"),
    "a list as dataset": (lambda config: config.update(dataset=[1]), "dataset"),
    "50 levels": (lambda config: config["trainer"].update(x=nested(50)), "nested deeper than 30 levels"),
    "400 levels": (lambda config: config["trainer"].update(x=nested(400)), "nested deeper than 100 levels"),
    "a control character": (lambda config: config["trainer"].update({"\n": 1}), "holds a control character"),
    "a number beyond int64": (lambda config: config["trainer"].update(x=2**63), "beyond the range of 64-bit integers"),
    "a number of 400 digits": (lambda config: config["trainer"].update(x=10**400), "beyond the range of 64-bit"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_damaged_description_is_rejected(damage: str, description: Dict[str, Any], write_run: Callable) -> None:
    change, said = DAMAGES[damage]
    change(description)
    run_dir = write_run(description)
    with pytest.raises(MxtrainError) as caught:
        restore(run_dir)
    assert said in str(caught.value) and caught.value.exit_code == EXIT_BAD_INPUT


CONTENTS = {
    "deep": b"[" * 1_000_000,
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "a list": b"[1]",
    "a number": b"1e400",
    "digits": b'{"exit_code": ' + b"9" * 400 + b"}",
}


@pytest.mark.parametrize("content", sorted(CONTENTS))
def test_damaged_status_does_not_end_a_run(content: str, tmp_path: Path, description: Dict[str, Any]) -> None:
    (tmp_path / STATUS_FILE).write_bytes(CONTENTS[content])
    assert read_end(tmp_path, "finished", 1, "") is None
    assert find_finished(tmp_path, description) is None
    assert read_status_object(tmp_path) == {} and Run(tmp_path).status == {}


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_pipe, link_to_zeros])
def test_status_without_end_is_not_read(make: Callable, tmp_path: Path, description: Dict[str, Any]) -> None:
    make(tmp_path / STATUS_FILE)
    assert read_end(tmp_path, "finished", 1, "") is None
    assert find_finished(tmp_path, description) is None
    assert read_status_object(tmp_path) == {}


def test_status_is_read_as_it_is_and_by_type(tmp_path: Path) -> None:
    assert read_status_object(tmp_path) == {} and read_status(tmp_path) is None
    content = {"state": "finished", "step": "3", "best": {"metric": "val/loss", "value": 0.5}}
    (tmp_path / STATUS_FILE).write_text(json.dumps(content))
    assert read_status_object(tmp_path) == content
    status = read_status(tmp_path)
    assert status is not None and (status.state, status.step, status.best) == ("finished", 0, 0.5)
    (tmp_path / STATUS_FILE).write_text(json.dumps({**content, "cause": " " * MAX_STATUS_BYTES}))
    assert read_status_object(tmp_path) == {}


@pytest.mark.parametrize("make, kind", [(make_pipe, "a named pipe"), (link_to_zeros, "a device")])
def test_settings_without_end_are_rejected(make: Callable, kind: str, tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    make(tmp_path / ".hydra" / "config.yaml")
    with pytest.raises(RunDirectoryError, match=f"config.yaml cannot be read: it is {kind}, and only regular files"):
        RunDirRollback(tmp_path)


@pytest.mark.parametrize("damage", sorted(set(DAMAGES) - {"no runtime"}))  # which may change in a continued run
def test_damaged_run_is_not_continued(damage: str, description: Dict[str, Any], write_run: Callable) -> None:
    wanted = copy.deepcopy(description)
    DAMAGES[damage][0](description)
    store = CheckpointStore(write_run(description) / "checkpoints", keep_last=1, keep_top=0, report=print)
    with pytest.raises(MxtrainError) as caught:
        find_checkpoint("auto", store, wanted)
    assert caught.value.exit_code == EXIT_BAD_INPUT
