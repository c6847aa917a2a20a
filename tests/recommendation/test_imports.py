"""dataset=imported_names: files as users, names that they import as items."""

from __future__ import annotations

import json
from typing import Any, List

import numpy as np
import pytest

from mxtrain.recommendation import imported_names
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.imported_names import ImportedNames
from mxtrain.recommendation.source import Interactions


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Twelve files instead of those of Python; one has no imports."""
    names = [f"module{number}" for number in range(8)]
    names_of = {f"file{number:02}.py": " ".join(names if number else names[:2]) for number in range(12)}
    monkeypatch.setattr(imported_names, "read_bundled", lambda _: {**names_of, "empty.py": ""})
    return names


def test_files_and_names_with_enough_of_each_other(few_files: List[str]) -> None:
    found = ImportedNames().read(None)  # type: ignore[arg-type]  # nothing is found wrong
    assert found.catalog.items == tuple(few_files)
    assert found.catalog.users == tuple(f"file{number:02}.py" for number in range(1, 12)), "the first has two names"
    assert len(found.user_P) == 11 * 8


def test_bundled_files() -> None:
    found = ImportedNames().read(None)  # type: ignore[arg-type]  # nothing is found wrong
    assert len(found.user_P) == 45_493
    names = [found.catalog.items[item] for item in found.item_P[found.user_P == found.catalog.user_of["ast.py"]]]
    assert {"sys", "re", "enum.IntEnum"} & set(names)


def test_two_names_of_each_file_are_held_out_by_the_seed(few_files: List[str]) -> None:
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
        return found._replace(catalog=Catalog(found.catalog.users, (*found.catalog.items, "none")))


def test_catalogs_of_checkpoints() -> None:
    """Earlier versions also wrote an origin."""
    learned = Catalog(("a", "b"), ("x", "y"))
    content = json.loads(json.dumps(learned.to_json()))
    assert Catalog.from_json({**content, "origin": [["Python", "3.11.7"]]}) == learned == Catalog.from_json(content)
    assert learned.difference_from(learned) == ""
    said = Catalog(("a", "b"), ("x", "y", "z")).difference_from(learned)
    assert said == "3 items instead of 2, 1 of them new: z"
