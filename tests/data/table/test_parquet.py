"""Rows of Parquet files, and what is said where they cannot be read."""

from __future__ import annotations

import sys

import pytest

from mxtrain.data.table.columns import read_columns
from mxtrain.errors import DataError
from mxtrain.text.classification.text import Text


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


def test_unreadable_files(path):
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
    with pytest.raises(DataError, match=r"pip install 'pyarrow>=14.0.1,<19'"):
        read_columns(tmp_path / "a.parquet", ["x"], True)


@pytest.mark.parametrize("version", ["12.0.0", "14.0.0", "14.0"])
def test_versions_of_pyarrow_that_run_code_of_a_file_open_none(path, monkeypatch, version):
    monkeypatch.setattr("pyarrow.__version__", version)
    with pytest.raises(DataError, match=rf"pyarrow {version} can run code .*CVE-2023-47248.*pyarrow>=14.0.1"):
        read_columns(path, ["sentence"], True)


def write_column(tmp_path, array):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"day": array}), tmp_path / "b.parquet")
    return tmp_path / "b.parquet"


def test_times_decimals_and_categories_are_texts(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from decimal import Decimal

    for array, text in (
        (pyarrow.array([18262], pyarrow.date32()), "2020-01-01"),
        (pyarrow.array([Decimal("12.50")]), "12.50"),
        (pyarrow.array([10**18 + 1], pyarrow.timestamp("ns")), "2001-09-09 01:46:40.000000001"),
        (pyarrow.array(["red"]).dictionary_encode(), "red"),
        (pyarrow.array([True]), "true"),
    ):
        assert read_columns(write_column(tmp_path, array), ["day"], True).rows == [(text,)]


def test_cells_and_types_that_cannot_be_read_are_refused_with_file_and_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    bad_text = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.array([0, 2], pyarrow.int32()).buffers()[1], pyarrow.py_buffer(b"a\xff")]
    )
    for array, words in (
        (pyarrow.array([2**31 - 1], pyarrow.date32()), r"'day', in records 0 to 0, is no date32\[day\]: value out of"),
        (pyarrow.array([2**62], pyarrow.timestamp("us")), "is no timestamp"),
        (bad_text, "is no UTF-8: it holds the byte 0xff"),
        (pyarrow.array([[1, 2]]), "the column 'day' is of the type list"),
        (pyarrow.array([b"x"]), "'day' is bytes, which is no text"),
    ):
        with pytest.raises(DataError, match=f"b.parquet.*{words}"):
            read_columns(write_column(tmp_path, array), ["day"], True)
