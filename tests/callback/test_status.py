"""status.json of a run that is under way, which is all that is left of one that was killed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from mxtrain.callback.protocol import Progress
from mxtrain.callback.status import StatusFile


@pytest.fixture
def started(tmp_path: Path) -> StatusFile:
    status = StatusFile(tmp_path)
    run = SimpleNamespace(
        metric_signatures={}, direction="max", lr_scaling={}, resumed_step=0, steps_per_epoch=10, epoch_origin=0
    )
    status.on_start(run)  # type: ignore[arg-type]
    return status


def written(folder: Path) -> Dict[str, Any]:
    return json.loads((folder / "status.json").read_text())


def test_a_status_is_never_older_than_the_last_checkpoint(started: StatusFile, tmp_path: Path) -> None:
    for step in (7, 14):
        started.on_steps([{"samples_per_s": 100.0}], Progress(step, step // 10, None))
        best = {"metric": "val/loss", "value": 1.0, "step": step}
        started.on_validation(SimpleNamespace(best=best), Progress(step, step // 10, None))  # type: ignore[arg-type]
        started.on_checkpoint(step)
        found = written(tmp_path)
        assert (found["step"], found["epoch"], found["best"]["step"]) == (step, step // 10, step)


def test_between_checkpoints_fast_steps_do_not_wait_for_the_disk(started: StatusFile, tmp_path: Path) -> None:
    started.on_steps([{"samples_per_s": 100.0}], Progress(7, 0, None))
    assert written(tmp_path)["step"] == 0
