"""Data of a run from another folder: read as where the run was started, or named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Collection, List

import pytest

from mxtrain.checkpoint import open_checkpoint
from mxtrain.composing.moved_data import find_data
from mxtrain.composing.restored import restore
from mxtrain.data.loading.described_paths import lost_paths


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, describe_run: Callable) -> Callable:
    """Words of a run that was started in `there` -> its dataset as it is seen from `here`."""
    for name in ("there/data", "here", "run"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")

    def call(*words: str, folder: Any = tmp_path / "there", typed: Collection[str] = (), eval: bool = True) -> Any:
        (tmp_path / "run/meta.json").write_text(json.dumps({"working_folder": str(folder)}))
        return find_data(tmp_path / "run", describe_run(*words), set(typed), eval).dataset

    return call


IMAGES = ("dataset=image_folder", "dataset.root=data/x", "model=mlp")


@pytest.mark.slow
def test_relative_paths_are_resolved_from_the_start_folder_of_the_run(
    find: Callable, tmp_path: Path, capsys: Any
) -> None:
    there = tmp_path / "there/data/x"
    there.mkdir()
    assert find(*IMAGES).root == str(there)
    said = f"dataset.root=data/x: read from {tmp_path}/there, where the run was started"
    assert said in capsys.readouterr().err
    assert find(*IMAGES, typed=["dataset.root"]).root == find(*IMAGES, typed=["dataset"]).root == "data/x"
    (tmp_path / "here/data/x").mkdir(parents=True)
    assert find(*IMAGES).root == "data/x" and not capsys.readouterr().err  # what is here is meant


@pytest.mark.slow
def test_missing_paths_are_named(find: Callable, tmp_path: Path, capsys: Any) -> None:
    cases: List[Any] = [
        (tmp_path / "there", f"nor from {tmp_path}/there, where the run was started"),
        (None, "nothing says where"),
        ("../there", "nothing says where"),
    ]
    for folder, also in cases:
        assert find(*IMAGES, folder=folder).root == "data/x"
        said = capsys.readouterr().err
        assert "dataset.root=data/x of the run leads nowhere from here" in said and also in said
        assert "type dataset.root=PATH" in said
    (tmp_path / "run/meta.json").unlink()
    find(*IMAGES, eval=False)
    assert not capsys.readouterr().err  # files to predict for are named


@pytest.mark.slow
def test_aligned_files_and_lists_are_found(find: Callable, tmp_path: Path) -> None:
    for name in ("a.en", "a.de", "b.en", "b.de"):
        (tmp_path / "there/data" / name).touch()
    words = ("task=translation", "dataset=parallel_text", "dataset.source=en", "dataset.target=de")
    found = find(*words, "dataset.train=[data/a,data/b]", "dataset.val=data/b", "dataset.vocab=gone.txt")
    assert found.train == [f"{tmp_path}/there/data/a", f"{tmp_path}/there/data/b"]
    assert found.val == f"{tmp_path}/there/data/b" and lost_paths(found) == {"vocab": ["gone.txt"]}


@pytest.mark.slow
def test_eval_resolves_data_from_the_start_folder_of_the_run(
    find: Callable, composed: str, write_run: Callable, tmp_path: Path
) -> None:
    description = json.loads(composed)
    description["dataset"] = {"_target_": "mxtrain.vision.classification.image_folder.ImageFolder", "root": "data"}
    run_dir = write_run(description)
    (run_dir / "meta.json").write_text(json.dumps({"working_folder": f"{tmp_path}/there"}))
    found = restore(run_dir)
    assert found.description.dataset.root == f"{tmp_path}/there/data"  # type: ignore[attr-defined]
    assert str(tmp_path) not in json.dumps(open_checkpoint(found.checkpoint.path).state)
