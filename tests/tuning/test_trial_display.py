"""The line about a trial that trains: what it takes from the files of the run."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from waiting import wait_until

from mxtrain.tuning import trial_display
from mxtrain.tuning.folder import StudyDescription
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.trial_display import TrialDisplay


def description_of(**settings: object) -> StudyDescription:
    space = Space([TunedSetting("trainer.seed", "choice", ("1", "2"))])
    objectives = ["val/accuracy", "samples_per_s"]
    return StudyDescription("s", [], [], ".", TuneSettings(**settings), space, objectives, ["max", "max"], 9)


def write_run(run: Path) -> None:
    run.mkdir()
    (run / "status.json").write_text(json.dumps({"state": "running", "epoch": 2, "step": 40}))
    (run / "meta.json").write_text(json.dumps({"steps_per_epoch": 20}))
    rows = [
        {"step": 20, "epoch": 1, "split": "val", "accuracy": 0.25},
        {"step": 40, "epoch": 2, "split": "val", "accuracy": 0.5, "samples_per_s": 9},
        {"step": 1055, "epoch": 3, "split": "train", "accuracy": 0.75, "samples_per_s": 1234},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 10')


@pytest.mark.parametrize(
    "settings, budget, said",
    [
        ({}, None, "epoch 3 of 9, step 1,055 of 180"),
        ({"pruner": "asha"}, 3, "epoch 3 of 3, step 1,055 of 60"),
        ({"pruner": "asha", "min_steps": 2000}, 2000, "epoch 3 of 9, step 1,055 of 2,000"),
    ],
)
def test_line_shows_the_newest_row(tmp_path: Path, settings, budget, said: str) -> None:
    run = tmp_path / "0"
    display = TrialDisplay("trial 0 (1 of 4)", run, description_of(**settings), budget, io.StringIO())
    assert display.line().startswith("trial 0 (1 of 4): starting, ")
    write_run(run)
    assert display.line().startswith(f"trial 0 (1 of 4): {said}, val/accuracy=0.5000, samples_per_s=1234.0000, ")


def test_line_ends_with_the_time_since_the_trial_began(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 1000.0)
        display = TrialDisplay("trial 0", tmp_path / "0", description_of(), None, io.StringIO())
        patch.setattr(time, "monotonic", lambda: 1007.0)
        assert display.line() == "trial 0: starting, 7.0s"


def test_damaged_files_are_ignored_and_plain_lines_are_periodic(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(trial_display, "INTERVAL_S", 0.01)
    run, stream = tmp_path / "0", io.StringIO()
    write_run(run)
    for name in ("meta.json", "status.json"):
        (run / name).write_text("{")
    with TrialDisplay("trial 0 (1 of 4)", run, description_of(), None, stream):
        wait_until(lambda: "\n" in stream.getvalue())
    assert stream.getvalue().startswith("trial 0 (1 of 4): epoch 3 of 9, step 1,055, val/accuracy=0.5000, ")
