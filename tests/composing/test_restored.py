"""Fields of a checkpoint's description that `eval` and `predict` take, and those of this machine and command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from mxtrain.composing.restored import on_this_machine, restore
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

    def runtime_of(*overrides: str) -> Runtime:
        return restore(run_dir, overrides=overrides).description.runtime

    return runtime_of


def test_a_runtime_that_is_no_mapping_is_left_to_the_validation() -> None:
    assert on_this_machine("auto", {}) == "auto"


@pytest.mark.slow
def test_settings_of_the_training_machine_are_optional_on_another(restored: Callable) -> None:
    found = restored()
    assert found == Runtime(operators=False, env={"OMP_DYNAMIC": "false"})
    assert set(MACHINE_FIELDS) <= set(Runtime.model_fields)


@pytest.mark.slow
def test_overrides_are_accepted_and_refused_as_by_any_command(restored: Callable) -> None:
    assert restored("runtime.threads=3").threads == 3
    with pytest.raises(ConfigError, match="^runtime.threads=64: this process may use 2 cores"):
        restored("runtime.threads=64")


@pytest.mark.slow
def test_monitored_metric_is_not_required_with_other_metrics(description: Dict[str, Any], write_run: Callable) -> None:
    run_dir = write_run(description)
    found = restore(run_dir, overrides=["metric=[f1]"]).description
    assert list(found.metric) == ["f1"] and found.trainer.monitor == "val/loss"
    assert restore(run_dir).description.trainer.monitor == description["trainer"]["monitor"]
