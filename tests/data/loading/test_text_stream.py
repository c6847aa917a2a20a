"""Text files as streams: packed or not, in UTF-8, of lines that have an end."""

from __future__ import annotations

import gzip

import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.loading import text_stream
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.errors import DataError


def lines_of(path, newline="\n", **options):
    with open_text(path, newline, **options) as lines:
        return list(lines)


def test_plain_and_packed_are_the_same(tmp_path):
    content = "\ufeffcaf\xe9\r\ntwo\n\nlast".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
    expected = ["caf\xe9\r\n", "two\n", "\n", "last"]
    assert lines_of(tmp_path / "a.txt") == lines_of(tmp_path / "a.txt.gz") == expected
    assert lines_of(tmp_path / "a.txt", None)[0] == "caf\xe9\n"
    assert [ending_of(name) for name in ("a.csv", "a.csv.gz", "a.b.gz", "gz")] == [".csv", ".csv", ".b", ""]


def test_bytes_that_are_not_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" * 5000 + b"caf\xe9\n" + b"two\n" * 5 + b"\xff\n")
    with pytest.raises(DataError, match="line 5001 is no UTF-8: it holds the byte 0xe9.*iconv -f WINDOWS-1252"):
        lines_of(path)
    findings = CollectedFindings()
    assert lines_of(path, findings=findings)[5000] == "caf\ufffd\n"
    assert [problem.location.line for problem in findings.shown["undecodable_text"]] == [5001, 5007]
    path.write_bytes("x".encode("utf-16"))
    with pytest.raises(DataError, match="is in UTF-16, not UTF-8"):
        lines_of(path)
    path.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(DataError, match=r"is packed by gzip, and its name does not say so: call it .*a.txt.gz\."):
        lines_of(path)


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-9], lambda packed: packed[:40] + b"x" + packed[41:], lambda packed: b"no"]
)
def test_damaged_packed_files(tmp_path, damage):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(97, 123)) * 9 + b"0123456789")))
    with pytest.raises(DataError, match="a.txt.gz is damaged: it cannot be unpacked"):
        lines_of(path)


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(text_stream, "MAX_LINE", 100)
    path = tmp_path / "a.txt"
    path.write_text("x" * 99 + "\n" + "y" * 200)
    with pytest.raises(DataError, match="a line of more than 100 characters"):
        lines_of(path)
