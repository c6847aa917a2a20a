"""Base classes that extensions implement stay small."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Set

import pydantic
import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mxtrain"
MAX_MEMBERS = {
    "data/spec.py:BaseDataset": 30,
    "kvstore/store.py:Store": 25,
    "parallel/base.py:Strategy": 16,
    "task/spec.py:Task": 35,
}
"""Class -> largest number of public attributes and methods."""


def public_members(base: type) -> Set[str]:
    """Returns the public attributes and methods of a class, annotated ones included."""
    pydantic_names = vars(pydantic.BaseModel)
    names = {*vars(base), *base.__annotations__, *getattr(base, "model_fields", {})} - {*pydantic_names}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("place", MAX_MEMBERS)
def test_members_are_few_and_each_is_used_in_another_module(place: str) -> None:
    file, _, name = place.partition(":")
    module = importlib.import_module(f"mxtrain.{file[:-3].replace('/', '.')}")
    members = public_members(getattr(module, name))
    assert len(members) <= MAX_MEMBERS[place]
    others = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path != PACKAGE / file]
    used = [one for one in members if any(re.search(rf"(?m)(\.|def |^    ){one}\b", text) for text in others)]
    assert members == set(used)
