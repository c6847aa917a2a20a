"""Rows of Parquet files, and what is said where they cannot be read."""

from __future__ import annotations

import sys

import pytest

from mxtrain.dataset.table.columns import read_columns
from mxtrain.dataset.text import Text
from mxtrain.errors import DataError


@pytest.fixture
def path(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [f"text number {n}" for n in range(20)]
    table = pyarrow.table({"sentence": texts, "label": [n % 2 for n in range(20)], "other": [None] * 20})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    return tmp_path / "a.parquet"


def test_rows(path, own_cache):
    rows, places = read_columns(path, ["sentence", "label"], True)
    assert rows[8] == ("text number 8", "0") and len(rows) == 20 and str(places[8]) == f"record 8 of '{path}'"
    splits = Text(train=str(path)).open()
    assert splits.class_names == ["0", "1"] and sorted(splits.train.pairs[:1])[0][0].startswith("text number")


def test_what_cannot_be_read(path):
    with pytest.raises(DataError, match="no column 'labels'. Did you mean 'label'"):
        read_columns(path, ["labels"], True)
    with pytest.raises(DataError, match="record 0 .*'other' is null"):
        read_columns(path, ["other"], True)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_columns(path, ["sentence"], True)


def test_pyarrow_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"pip install 'pyarrow>=12,<19'"):
        read_columns(tmp_path / "a.parquet", ["x"], True)
