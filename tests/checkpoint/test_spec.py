"""The group `checkpoint`: YAML and class agree, values are checked, and nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
import yaml

import mxtrain
from mxtrain.checkpoint import CheckpointSpec

ROOT = Path(mxtrain.__file__).parents[1]
OPTIONS = sorted((ROOT / "conf" / "checkpoint").glob("*.yaml"))


def load(path: Path) -> dict:
    fields = yaml.safe_load(path.read_text())
    assert fields.pop("_target_") == "mxtrain.checkpoint.spec.CheckpointSpec"
    return fields


def test_names_describe_saved_arrays():
    spec = {path.stem: CheckpointSpec(**load(path)) for path in OPTIONS}
    assert not spec["off"].saves and spec["end_only"].saves and spec["default"].saves
    assert not spec["end_only"].cadence().due(1000, 1000, 1e9)
    assert spec["default"].cadence().due(1, 1, 0.0)


@pytest.mark.parametrize(
    "field, value",
    [
        ("every_steps", 0),
        ("every_epochs", -1),
        ("every_minutes", 0.0),
        ("every_minutes", float("inf")),
        ("keep_last", 0),
        ("keep_last", 1.5),
        ("keep_top", -1),
        ("resume", ""),
        ("resume", None),
        ("save_on_end", "yes"),
        ("every_step", 5),
    ],
)
def test_wrong_values_are_refused(field, value):
    with pytest.raises(pydantic.ValidationError, match=field):
        CheckpointSpec(**{field: value})
