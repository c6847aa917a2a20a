"""An evaluation's folder holds what one evaluation wrote, and keeps what is not of any."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import List

import pytest

from mxtrain.archive.written_files import foreign_files
from mxtrain.errors import DataError
from mxtrain.types import Artifact, Table
from mxtrain.workflows.eval_folder import EvaluationFolder
from mxtrain.workflows.evaluate import write_part


def tables(*names: str) -> List[Artifact]:
    return [Table(name, ["x"], [[name]]) for name in names]


def names_in(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.iterdir())


def test_earlier_evaluation_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    first = EvaluationFolder(folder)
    with first.new_results():
        first.write(tables("classes", "coco"))
        first.write(tables("explain"))
        first.write_values({"step": 3})
    listed = json.loads((folder / "metrics.json").read_text())
    assert listed == {"step": 3, "files": ["classes.csv", "coco.csv", "explain.csv"]}
    (folder / "mine.csv").write_text("kept")
    second = EvaluationFolder(folder)
    with second.new_results():
        second.write(tables("classes"))
        second.write_values({"step": 4})
    assert json.loads((folder / "metrics.json").read_text()) == {"step": 4, "files": ["classes.csv"]}
    assert names_in(folder) == ["classes.csv", "metrics.json", "mine.csv"]


def test_a_part_has_a_folder_with_values_of_its_own(tmp_path: Path) -> None:
    write_part(tables("brightness"), {"step": 3}, tmp_path / "val" / "corrupted")
    assert names_in(tmp_path / "val" / "corrupted") == ["brightness.csv", "metrics.json"]
    listed = json.loads((tmp_path / "val" / "corrupted" / "metrics.json").read_text())
    assert listed == {"step": 3, "files": ["brightness.csv"]}


def test_only_files_that_an_evaluation_could_have_written_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    (folder / "below.csv").mkdir(parents=True)
    for name in ("a.csv", "notes.txt", "../outside.csv"):
        (folder / name).write_text("kept")
    names = ["../outside.csv", str(tmp_path / "outside.csv"), "notes.txt", "below.csv", "missing.png", "..", "", 3]
    for content in (json.dumps({"files": names}), json.dumps({"files": "a.csv"}), "[]", "{", '{"step": 1}'):
        (folder / "metrics.json").write_text(content)
        results = EvaluationFolder(folder)
        with results.new_results():
            results.write_values({})
        assert names_in(folder) == ["a.csv", "below.csv", "metrics.json", "notes.txt"]
        assert (tmp_path / "outside.csv").exists()


def written(folder: Path, step: int, *names: str) -> None:
    results = EvaluationFolder(folder)
    with results.new_results():
        results.write(tables(*names))
        results.write_values({"step": step})


def test_a_full_disk_keeps_the_earlier_results(tmp_path: Path, small_disk) -> None:
    disk = small_disk("64k")
    written(disk / "val", 1, "classes")
    before = {path: path.read_bytes() for path in (disk / "val").iterdir()}
    with pytest.raises(DataError, match="val' cannot be written: No space left on device"):
        written(disk / "val", 2, "classes", "x" * 100, *("y" * number for number in range(1, 40)))
    assert {path: path.read_bytes() for path in (disk / "val").iterdir()} == before


def test_the_limit_of_the_size_of_files_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1, "classes")

    def fail(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("mxtrain.workflows.eval_folder.write_artifacts", fail)
    with pytest.raises(DataError, match="cannot be written: File too large"):
        written(tmp_path, 2, "classes")
    assert names_in(tmp_path) == ["classes.csv", "metrics.json"] and "1" in (tmp_path / "metrics.json").read_text()


def test_two_evaluations_at_once_write_one_after_the_other(tmp_path: Path) -> None:
    first, second = EvaluationFolder(tmp_path), EvaluationFolder(tmp_path)
    with first.new_results():
        first.write(tables("a"))
        with second.new_results():
            second.write(tables("b"))
            second.write_values({"step": 2})
        first.write_values({"step": 1})
    assert names_in(tmp_path) == ["a.csv", "metrics.json"]


def test_leftovers_of_a_killed_evaluation_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".results-x1_").mkdir()
    (tmp_path / ".results-x1_" / "predictions.csv").write_text("half")
    written(tmp_path, 1, "classes")
    assert names_in(tmp_path) == ["classes.csv", "metrics.json"]
    left = ["eval/val/.results-x1_/predictions.csv", "eval/averaged/A/test/corrupt/.results-x1_/"]
    assert foreign_files(str(tmp_path), left, []) == []
    mine = ["eval/val/.results-x1_/thesis.tex", "eval/val/mine/.results-x1_/a/b.csv", "eval/.results-x1_/a.csv"]
    assert foreign_files(str(tmp_path), mine, []) == mine
