"""The settings that `push` sends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from run_directories import write_run

from mxtrain.checkpoint.contents import Snapshot, write_contents
from mxtrain.workflows import push


def test_settings_are_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    """A run that goes on may have other settings than at its best step."""
    rows = [{"step": step, "epoch": (step - 1) // 3, "split": "train"} for step in range(1, 7)]
    run = write_run(tmp_path / "run", rows=rows)
    (run / "checkpoints").mkdir()
    for step, metric in ((3, 0.9), (6, 0.5)):
        state = {"run": {"description": {"trainer": {"log_interval": step}}}}
        arrays = {"model": {"weight": np.zeros(2, np.float32)}}
        snapshot = Snapshot(step, 1, arrays, state, metric, "max", "val/accuracy")
        write_contents(snapshot, run / "checkpoints" / f"step-{step:08d}")
    assert push.description_of(run) == ({"trainer": {"log_interval": 6}}, 3)
