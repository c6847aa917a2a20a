"""The chosen faults of `scripts/mutate` are still about lines that exist, and drawn changes are programs."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Sequence

import pytest
from mutate_parts import mutants
from mutate_parts.__main__ import FILES
from mutate_parts.faults import FAULTS
from mutate_parts.mutants import GROUPS, draw

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_line_of_a_fault_is_there_once(fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.old) == 1, f"{fault.file}: {fault.old}"
    assert all((ROOT / name).exists() for name in fault.tests if name.startswith("tests/"))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_changes_are_drawn_by_seed_in_all_areas_and_change_one_statement(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both draws choose among the same places, and finding them takes most of the time.
    found = functools.lru_cache(None)(lambda *given, places=mutants.places: list(places(*given)))
    monkeypatch.setattr(mutants, "places", lambda root, patterns: found(root, tuple(patterns)))
    drawn = draw(ROOT, 3, 16, group)
    assert {one.area for one in drawn} == set(GROUPS[group])
    assert drawn[:8] == draw(ROOT, 3, 8, group)  # the first ones are a sample of all
    for one in drawn:
        before, after = ast.parse((ROOT / one.file).read_text()), ast.parse(one.source)
        assert ast.dump(before) != ast.dump(after), one
        assert len(ast.unparse(before).splitlines()) - len(one.source.splitlines()) in range(30), one


@pytest.mark.parametrize("patterns", [patterns for areas in GROUPS.values() for patterns in areas.values()])
def test_patterns_of_areas_match_files(patterns: Sequence[str]) -> None:
    assert all(any(ROOT.glob(pattern)) for pattern in patterns)


def test_files_of_areas_exist() -> None:
    assert set(FILES) == set(GROUPS["results"])
    for name in (name for names in FILES.values() for name in names):
        assert len([*(ROOT / "tests").rglob(f"{name}.py")]) == 1, name
