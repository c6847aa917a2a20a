"""The reader of metrics.jsonl and meta.json, which all commands share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mxtrain.archive import meta
from mxtrain.archive.meta import read_recorded_run
from mxtrain.archive.run_records import MAX_META_BYTES, MAX_ROW_BYTES, last_step, read_rows


def test_last_step_is_read_from_the_last_complete_row(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_step(tmp_path) == 0
    file.write_text('{"step": 3, "a": "' + "x" * 100_000 + '"}\n{"step": 4}\n{"step": 5')
    assert last_step(tmp_path) == 4
    file.write_text('{"step": 3}\nnot a row\n')
    assert last_step(tmp_path) == 3


def test_rows_skip_invalid_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    long = '{"a": "' + "x" * MAX_ROW_BYTES + '"}'
    lines = ['{"step": 1}', "x", "[]", '{"step": 2, "loss": NaN}', long, '{"step": 3}']
    file.write_text("\n".join(lines) + '\n{"step": 4}')
    assert [row["step"] for row in read_rows(file)] == [1, 3]
    assert [row["step"] for row in read_rows(file, max_bytes=5)] == [1]
    with pytest.raises(OSError):
        list(read_rows(tmp_path))


def test_one_limit_for_meta(tmp_path: Path) -> None:
    """A description of 2 MiB is read by `runs` and by `reproduce`; a larger file than the limit by neither."""
    content = {"description": {"a": "x" * (1 << 21)}, "working_folder": "/work"}
    (tmp_path / "meta.json").write_text(json.dumps(content))
    assert meta.read_meta(str(tmp_path)).working_folder == "/work"
    assert read_recorded_run(tmp_path).description == content["description"]
    (tmp_path / "meta.json").write_text(json.dumps({**content, "b": "x" * MAX_META_BYTES}))
    assert meta.read_meta(str(tmp_path)).working_folder == ""
    with pytest.raises(Exception, match="at most"):
        read_recorded_run(tmp_path)
