"""One rule says where the settings of a group are defined: in the `spec.py` of the group's package."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxtrain.config.groups import GROUPS, PRESET_GROUPS

CONF = Path(__file__).resolve().parents[2] / "conf"
PACKAGES = {"dataset": "data", "distillation": "loss", "trainer": "training"}
"""Packages of the groups that have no package of their own name."""


def test_each_folder_of_options_is_a_group() -> None:
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == {*GROUPS, *PRESET_GROUPS, "hydra"}


@pytest.mark.parametrize("group", GROUPS)
def test_base_class_of_the_options_is_in_spec(group: str) -> None:
    assert GROUPS[group].__module__ == f"mxtrain.{PACKAGES.get(group, group)}.spec"


def test_documented_imports_of_callbacks_match_the_protocol() -> None:
    from mxtrain import types
    from mxtrain.callback import protocol

    kinds = {name: value for name, value in vars(protocol).items() if isinstance(value, type)}
    names = [name for name, kind in kinds.items() if kind.__module__ == protocol.__name__]
    assert {"Callback", "RunInfo", "Progress", "Validation", "Result"} < set(names)
    assert all(getattr(types, name) is getattr(protocol, name) for name in [*names, "BY_HAND", "OF_EPOCH"])
    with pytest.raises(AttributeError, match="no attribute 'Callbacks'"):
        _ = types.Callbacks
