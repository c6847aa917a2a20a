"""What `eval` and `predict` take of the description in a checkpoint, and what is this machine's and this command's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from mxtrain.composing import arguments
from mxtrain.composing.restored import restore_description
from mxtrain.config import rules
from mxtrain.errors import ConfigError
from mxtrain.runtime import MACHINE_FIELDS, Runtime

LARGE = {
    "threads": 64,
    "cpu_workers": 64,
    "cpu_temp_copy": 128,
    "huge_pages": True,
    "operators": False,
    "env": {"OMP_NUM_THREADS": 64, "OMP_DYNAMIC": "false"},
}


@pytest.fixture
def restored(description: Dict[str, Any], write_run: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Overrides -> the runtime that `eval` has of a run that was trained on 64 cores; this machine has two."""
    description["runtime"].update(LARGE)
    run_dir: Path = write_run(description)
    monkeypatch.setattr(rules, "usable_cores", lambda: 2)

    def restore(*overrides: str) -> Runtime:
        given = arguments.parse([str(run_dir), *overrides], reads_checkpoint=True)
        return restore_description(given, "eval", "best", list(overrides))[1].runtime

    return restore


def test_what_fits_the_machine_of_a_run_is_not_asked_of_another(restored: Callable) -> None:
    found = restored()
    assert found == Runtime(operators=False, env={"OMP_DYNAMIC": "false"})
    assert set(MACHINE_FIELDS) <= set(Runtime.model_fields)


def test_what_is_typed_is_taken_or_refused_as_for_any_command(restored: Callable) -> None:
    assert restored("runtime.threads=3").threads == 3
    with pytest.raises(ConfigError, match="^runtime.threads=64: this process may use 2 cores"):
        restored("runtime.threads=64")


def test_what_training_monitored_need_not_be_measured_with_other_metrics(
    description: Dict[str, Any], write_run: Callable
) -> None:
    run_dir = write_run(description)
    given = arguments.parse([str(run_dir), "metric=[f1]"], reads_checkpoint=True)
    found = restore_description(given, "eval", "best", ["metric=[f1]"])[1]
    assert list(found.metric) == ["f1"] and found.trainer.monitor == "val/loss"
    given = arguments.parse([str(run_dir)], reads_checkpoint=True)
    assert restore_description(given, "eval", "best", [])[1].trainer.monitor == description["trainer"]["monitor"]
