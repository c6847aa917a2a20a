"""Readers of exported folders choose by the kind of target, not by the name of a task."""

from __future__ import annotations

from typing import Any, Dict

from mxtrain.config.options import option_classes
from mxtrain.data.exported_folder import TARGETS_OF_TASKS, targets_in
from mxtrain.data.features.exported_rows import predicted_row
from mxtrain.types.kinds import TargetKind, kind_names


def test_folders_without_targets_are_read_by_their_task() -> None:
    """Folders that were exported when signature.json had no `targets`."""
    tasks = option_classes("task")
    for task, target in TARGETS_OF_TASKS.items():
        assert kind_names(tasks[task].takes.targets[0])[0] == target  # type: ignore[attr-defined]
        assert targets_in({"task": task}) == [target]
    assert targets_in({"task": ["unknown"]}) == [""]
    assert targets_in({"task": "regression", "targets": ["Dose", "Number"]}) == ["Dose", "Number"]
    assert targets_in({"task": "regression", "targets": []}) == []


def test_names_of_a_kind_exclude_the_base_class() -> None:
    class Dose(option_classes("task")["regression"].takes.targets[0]):  # type: ignore[attr-defined, misc]
        """A kind of a user."""

    assert kind_names(Dose) == ["Dose", "Number"] and kind_names(TargetKind) == kind_names(None) == []


def test_row_of_a_special_kind_is_that_of_its_base_class() -> None:
    import numpy as np

    signature: Dict[str, Any] = {"signature": {"target_std": 2.0}, "class_names": [], "task": "dosing"}
    row = predicted_row({**signature, "targets": ["Dose", "Number"]}, {"output": np.array([[1.5]])})
    assert row == {"value": 3.0}
