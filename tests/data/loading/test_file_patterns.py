"""Settings that name several files of one split."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, List

import pytest

from mxtrain.data.loading.described_paths import path_exists
from mxtrain.data.loading.file_patterns import expand_files, shard_pattern
from mxtrain.errors import DataError


def make(folder: Path, *names: str) -> List[str]:
    for name in names:
        (folder / name).write_text("")
    return [str(folder / name) for name in names]


def test_patterns_are_files_in_the_order_of_their_names(tmp_path: Path, caplog: Any) -> None:
    paths = make(tmp_path, "b-1.csv", "b-2.csv", "a.csv", "b[1].csv")
    (tmp_path / "b-3.csv").mkdir()
    with caplog.at_level(logging.INFO):
        assert expand_files(str(tmp_path / "b-?.csv")) == paths[:2]
    assert "2 files in the order of their names" in caplog.text
    assert path_exists(str(tmp_path / "b-?.csv")) and not path_exists(str(tmp_path / "c-?.csv"))
    assert expand_files([paths[2], str(tmp_path / "b-*.csv")]) == [paths[2], *paths[:2]]
    # A file with such a name is that file, and missing files are those of the readers.
    assert expand_files(paths[3]) == [paths[3]] and expand_files("none.csv") == ["none.csv"]


@pytest.mark.parametrize(
    "names, given, message",
    [
        (["a.csv"], "b*.csv", "b.*no file matches. .* holds a.csv"),
        ([], "b*.csv", "holds no file"),
        (["a.csv"], ["a.csv", "*.csv"], "a.csv' is named twice"),
        ([], [], "list of files is empty"),
        (["t-00000-of-00003.csv", "t-00002-of-00003.csv"], "t-*", "t-00001-of-00003.csv' is missing: 2 of 3 shards"),
        (["t-00000-of-00002.csv", "a.csv"], ["t-00000-of-00002.csv", "a.csv"], "t-00001-of-00002.csv' is missing"),
        (["t-1-of-3", "t-3-of-3"], "t-*", "t-2-of-3' is missing"),
        (["t-0-of-1.csv", "t-0-of-2.csv", "t-1-of-2.csv"], "t-*", "shards of 1 and of 2.*e.g. .*t-[*]-of-1.csv"),
        (["t-0-of-99999999999", "t-1-of-99999999999"], "t-*", "t-2-of-99999999999' is missing"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, names: List[str], given: Any, message: str) -> None:
    make(tmp_path, *names)
    paths = str(tmp_path / given) if isinstance(given, str) else [str(tmp_path / name) for name in given]
    with pytest.raises(DataError, match=message):
        expand_files(paths)


@pytest.mark.parametrize(
    "names",
    [
        ["t-00000-of-00002.csv", "t-00001-of-00002.csv"],
        [f"t-{number}-of-11.jsonl.gz" for number in range(11)],
        ["t-1-of-2.csv", "t-2-of-2.csv"],
        ["t-00000-of-00002-0a1b2c3d4e5f6789.csv", "t-00001-of-00002-9876f5e4d3c2b1a0.csv"],
    ],
)
def test_complete_shards_are_read(tmp_path: Path, names: List[str]) -> None:
    paths = make(tmp_path, *names)
    assert expand_files(str(tmp_path / "t-*")) == sorted(paths)
    assert expand_files(paths) == paths


def test_one_shard_is_read_alone_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    paths = make(tmp_path, "t-00000-of-00002.csv", "u-00000-of-00001.csv")
    assert expand_files(paths[0]) == paths[:1]
    assert "is one of 2 shards, and the others are not read" in caplog.text and "t-*-of-00002.csv'" in caplog.text
    caplog.clear()
    assert expand_files(paths[1]) == paths[1:] and not caplog.text


@pytest.mark.parametrize(
    "path, found",
    [
        ("a/t-00000-of-00002.csv", ("a/t", "a/t-*-of-00002.csv")),
        ("t-00000-of-00001.csv", ("t", "t-00000-of-00001.csv")),
        ("t-00000-of-00002-0a1b2c3d4e5f6789.parquet", ("t", "t-*-of-00002-*.parquet")),
        ("t.csv", None),
    ],
)
def test_pattern_of_a_shard(path: str, found: Any) -> None:
    assert shard_pattern(path) == found
