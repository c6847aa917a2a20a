"""An evaluation's folder holds what one evaluation wrote, and keeps what is not of any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

from mxtrain.cli.eval_folder import EvaluationFolder
from mxtrain.types import Artifact, Table


def tables(*names: str) -> List[Artifact]:
    return [Table(name, ["x"], [[name]]) for name in names]


def names_in(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_of_an_earlier_evaluation_stays(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    first = EvaluationFolder(folder)
    first.begin()
    first.write(tables("classes", "coco"))
    first.write_values({"step": 3})
    first.write(tables("explain"))
    listed = json.loads((folder / "metrics.json").read_text())
    assert listed == {"step": 3, "files": ["classes.csv", "coco.csv", "explain.csv"]}
    (folder / "mine.csv").write_text("kept")
    second = EvaluationFolder(folder)
    second.begin()
    assert names_in(folder) == ["mine.csv"]
    second.write(tables("classes"))
    second.write_values({"step": 4})
    assert names_in(folder) == ["classes.csv", "metrics.json", "mine.csv"]


def test_only_files_that_an_evaluation_could_have_written_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    (folder / "below.csv").mkdir(parents=True)
    for name in ("a.csv", "notes.txt", "../outside.csv"):
        (folder / name).write_text("kept")
    names = ["../outside.csv", str(tmp_path / "outside.csv"), "notes.txt", "below.csv", "missing.png", "..", "", 3]
    for content in (json.dumps({"files": names}), json.dumps({"files": "a.csv"}), "[]", "{", '{"step": 1}'):
        (folder / "metrics.json").write_text(content)
        EvaluationFolder(folder).begin()
        assert names_in(folder) == ["a.csv", "below.csv", "notes.txt"] and (tmp_path / "outside.csv").exists()
