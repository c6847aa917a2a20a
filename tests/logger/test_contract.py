"""Contract of all loggers."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class
from omegaconf import OmegaConf

from mxtrain.callback.protocol import Callback
from mxtrain.errors import RunDirectoryError
from mxtrain.logger.spec import Logger

CONF = Path(__file__).resolve().parents[2] / "conf"
TRACKERS = ("mlflow", "wandb")
"""test_trackers.py has what holds for these."""
KINDS = sorted({path.stem for path in (CONF / "logger").glob("*.yaml")} - {"default", *TRACKERS})
EVENTS = ["start", "steps", "scalars", "validation", "checkpoint", "message"]


def compose_logger(tmp_path, *overrides):
    """The group as an entry configuration that lists it composes it."""
    (tmp_path / "entry.yaml").write_text(
        f"defaults:\n  - _self_\n  - logger: default\nhydra:\n  searchpath:\n    - file://{CONF}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        return OmegaConf.to_container(compose("entry", overrides=list(overrides))).get("logger", {})


def build_spec(config) -> Logger:
    values = dict(config)
    return get_class(values.pop("_target_"))(**values)


@pytest.fixture(params=KINDS)
def callback(request, tmp_path_factory) -> Callback:
    config = compose_logger(tmp_path_factory.mktemp("entry"), f"logger={request.param}")
    return build_spec(config[request.param]).build()


def test_default_is_tensorboard_jsonl_and_console(tmp_path):
    assert sorted(compose_logger(tmp_path)) == ["console", "jsonl", "tensorboard"]


@pytest.mark.parametrize(
    "override, kinds",
    [
        ("logger=jsonl", ["jsonl"]),
        ("logger=[jsonl,csv]", ["csv", "jsonl"]),
        ("logger=[default,csv]", ["console", "csv", "jsonl", "tensorboard"]),
        ("~logger.tensorboard", ["console", "jsonl"]),
        ("~logger", []),
    ],
)
def test_selection_on_the_command_line(tmp_path, override, kinds):
    assert sorted(compose_logger(tmp_path, override)) == kinds


def test_complete_run_leaves_no_thread_and_no_open_file(callback, fake_run, capsys):
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    fake_run.drive(callback, 1, 30)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_ending_twice_or_before_the_start_is_harmless(callback, fake_run, capsys):
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    callback.on_end(fake_run.result(0))
    assert not list(fake_run.run_dir.iterdir()), "there was no run to write of"
    fake_run.drive(callback, 1, 10)
    written = {path: path.stat().st_size for path in fake_run.run_dir.rglob("*") if path.is_file()}
    callback.on_end(fake_run.result(10))
    assert {path: path.stat().st_size for path in written} == written, "nothing is written twice"
    fake_run.five_steps(callback, 15)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize("state", ["interrupted", "failed"])
@pytest.mark.parametrize("after", EVENTS)
def test_a_run_may_end_after_any_event(callback, fake_run, after, state, capsys):
    callback.on_start(fake_run.info())
    calls = {
        "start": lambda: None,
        "steps": lambda: callback.on_steps([], fake_progress(0)),
        "scalars": lambda: callback.on_scalars({"train/lr": float("nan")}, 1),
        "validation": lambda: fake_run.five_steps(callback, 10),
        "checkpoint": lambda: callback.on_checkpoint(0),
        "message": lambda: callback.on_message("A sentence with [brackets] and a percent sign: 5%."),
    }
    calls[after]()
    callback.on_end(fake_run.result(0, state, exit_code=1, cause="because"))
    assert threading.active_count() == 1


def fake_progress(step):
    from mxtrain.callback.protocol import Progress

    return Progress(step, 0, None)


@pytest.mark.parametrize("from_step", [0, 10, 20])
def test_a_full_disk_does_not_stop_a_run(callback, fake_run, file_size_limit, from_step, caplog, capsys):
    callback.on_start(fake_run.info())
    for step in range(5, 31, 5):
        if step > from_step:
            with file_size_limit(512):
                fake_run.five_steps(callback, step)
        else:
            fake_run.five_steps(callback, step)
    with file_size_limit(512):
        callback.on_end(fake_run.result(30))
    writes_files = any(fake_run.run_dir.iterdir())
    warnings = [record for record in caplog.records if "Cannot write" in record.getMessage()]
    assert len(warnings) == int(writes_files), "said once, not at every attempt"


def test_a_deleted_run_directory_does_not_stop_a_run(callback, fake_run, caplog, capsys):
    run_dir = fake_run.run_dir / "run"
    run_dir.mkdir()
    fake_run.run_dir = run_dir
    callback.on_start(fake_run.info())
    fake_run.five_steps(callback, 5)
    wrote_files = any(run_dir.iterdir())
    shutil.rmtree(run_dir)
    for step in range(10, 31, 5):
        fake_run.five_steps(callback, step)
    callback.on_end(fake_run.result(30))
    said = [record for record in caplog.records if "was deleted" in record.getMessage()]
    assert len(said) == int(wrote_files)


def test_a_run_directory_that_cannot_be_written_is_refused(callback, fake_run, capsys):
    fake_run.run_dir = fake_run.run_dir / "missing"
    if type(callback).__name__ == "ConsoleLogger":
        callback.on_start(fake_run.info())
        callback.on_end(fake_run.result(0))
        return
    with pytest.raises(RunDirectoryError, match="missing"):
        callback.on_start(fake_run.info())
