"""The state of a pruned trial in its run directory."""

from __future__ import annotations

import json
from pathlib import Path

from mxtrain.archive.registry import read_run
from mxtrain.tuning.trials import note_pruned, read_progress


def test_runs_lists_a_pruned_trial(tmp_path: Path) -> None:
    """A worker that is killed before the study knows it finds the same progress, and prunes the trial again."""
    file = tmp_path / "status.json"
    status = {
        "state": "interrupted",
        "exit_code": 75,
        "cause": "trainer.epoch_budget=1 reached",
        "epoch": 1,
        "step": 20,
        "best": {"metric": "val/accuracy", "value": 0.5, "step": 20},
        "metrics": {"val/accuracy": 0.5},
    }
    file.write_text(json.dumps(status))
    before = read_progress(tmp_path)
    note_pruned(tmp_path, "pruned by pruner=asha")
    run = read_run(str(tmp_path))
    assert (run.state, run.status.cause) == ("pruned", "pruned by pruner=asha")
    after = read_progress(tmp_path)
    assert (after.exit_code, after.epoch, after.metrics) == (before.exit_code, before.epoch, before.metrics)
    file.write_text("{")
    note_pruned(tmp_path, "pruned by pruner=asha")
    assert file.read_text() == "{"
