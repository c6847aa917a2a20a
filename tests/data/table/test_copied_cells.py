"""Cells that `predict` copies from tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxtrain.data.table.copied_cells import copied_cells
from mxtrain.errors import DataError


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_rows_without_an_id_are_left_out_unless_ids_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 7, "x": 1}\n{"x": 2}\n{"id": 9, "x": 3}\n')
    assert copied_cells([path], None, ["x"]) == {f"{path}:1": {"id": "7"}, f"{path}:3": {"id": "9"}}
    with pytest.raises(DataError, match="line 2: there is no column 'id'"):
        copied_cells([path], ["id"], ["x"])


def test_files_that_are_not_tables_are_not_copied_by_default(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv", "id,text\n7,good\n"), write(tmp_path / "b.txt", "bad\n")]
    assert copied_cells(paths, None, ["text"]) == {}
    with pytest.raises(DataError, match="keep: only tables have columns"):
        copied_cells(paths, ["id"], ["text"])


def test_a_damaged_end_of_a_table_is_reported_by_its_reader_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,text\n7,good\n8\n")
    assert copied_cells([path], None, ["text"])[f"{path}:2"] == {"id": "7"}
