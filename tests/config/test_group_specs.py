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
