"""Imported names, by a pattern: against what `ast` finds."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from typing import Any, Iterator, List, Set

import numpy as np
import pytest

from mxtrain.recommendation import python_imports
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.imported_names import ImportedNames
from mxtrain.recommendation.python_imports import imported_names, package_of, read_imports
from mxtrain.recommendation.source import Interactions

SOURCE = """
import os, sys as system  # and more
import a.b.c
from typing import (
    Any,  # a comment, with a comma
    Dict as Mapping,
)
from . import near
from ..far import one, two
from long import first, \\
    second
from everything import *
from __future__ import annotations
def function():
    from inside import late
    import os
text = "from no import thing"
>>> import example
"""


def test_each_form_of_an_import() -> None:
    found = list(imported_names(SOURCE, ("top", "middle")))
    assert found == [
        "os",
        "sys",
        "a.b.c",
        "typing.Any",
        "typing.Dict",
        "top.middle.near",
        "top.far.one",
        "top.far.two",
        "long.first",
        "long.second",
        "inside.late",
    ]


def parsed_names(path: Path, package: List[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")


@pytest.mark.parametrize("module", ["asyncio.base_events", "logging.config", "json.decoder", "email.message", "ast"])
def test_the_pattern_finds_what_the_parser_finds(module: str) -> None:
    path = Path(str(importlib.import_module(module).__file__))
    name = f"{module.replace('.', '/')}.py"
    expected: Set[str] = set(parsed_names(path, list(package_of(name))))
    assert set(imported_names(path.read_text(encoding="utf-8"), package_of(name))) == expected and expected


@pytest.fixture
def few_files(tmp_path: Path, monkeypatch: Any, own_cache: None) -> List[str]:
    """A library of 12 files, instead of Python's; no packages."""
    names = [f"module{number}" for number in range(8)]
    for number in range(12):
        kept = names if number else names[:2]
        (tmp_path / f"file{number:02}.py").write_text("".join(f"import {name}\n" for name in kept))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "left_out.py").write_text("import module0")
    monkeypatch.setattr(python_imports.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(python_imports, "PACKAGES", ())
    monkeypatch.setattr("mxtrain.recommendation.imported_names.read_imports", lambda: read_imports(()))
    return names


def test_files_are_users_and_names_items_where_there_are_enough_of_both(few_files: List[str]) -> None:
    found = ImportedNames().read(None)  # type: ignore[arg-type]  # nothing is found wrong
    assert found.catalog.items == tuple(few_files)
    assert found.catalog.users == tuple(f"file{number:02}.py" for number in range(1, 12)), "the first has two names"
    assert len(found.user_P) == 11 * 8 and found.catalog.origin[0][0] == "Python"


def test_files_are_read_once(few_files: List[str], tmp_path: Path, monkeypatch: Any) -> None:
    first = read_imports(())
    monkeypatch.setattr(python_imports, "imported_names", lambda *given: pytest.fail("read anew"))
    assert read_imports(()) == first
    (tmp_path / "file00.py").write_text("import changed")
    with pytest.raises(pytest.fail.Exception):
        read_imports(())


def test_two_names_of_each_file_are_held_out_as_the_seed_says(few_files: List[str]) -> None:
    def held_out(seed: int) -> np.ndarray:
        splits = _WithOneMore(sampled_negatives=1, split_seed=seed).open()
        val, test = splits.val, splits.test
        assert isinstance(val, Interactions) and isinstance(test, Interactions)
        assert val.user_N.tolist() == test.user_N.tolist() == sorted(set(val.user_N.tolist()))
        assert (val.item_N != test.item_N).all()
        return np.stack([val.item_N, test.item_N])

    assert (held_out(0) == held_out(0)).all() and (held_out(0) != held_out(1)).any()


class _WithOneMore(ImportedNames):
    """With an item that nobody has in common, so that there is a negative."""

    def read(self, findings: Any) -> Any:
        found = super().read(findings)
        catalog = found.catalog.__class__(found.catalog.users, (*found.catalog.items, "none"), found.catalog.origin)
        return found._replace(catalog=catalog)


def test_versions_are_part_of_what_was_learned() -> None:
    learned = Catalog(("a", "b"), ("x", "y"), (("Python", "3.11.7"), ("numpy", "1.23.5")))
    assert Catalog.from_json(json.loads(json.dumps(learned.to_json()))) == learned
    assert learned.difference_from(learned) == ""
    now = Catalog(("a", "b"), ("x", "y", "z"), (("Python", "3.11.7"), ("numpy", "1.23.6")))
    said = now.difference_from(learned)
    assert said == (
        "3 items instead of 2, 1 of them new: z; what they were read from differs: numpy 1.23.6 instead of 1.23.5"
    )
