"""Reading of whole regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mxtrain.files.regular_files import UnsuitableFile, read_regular, read_with_status


def test_content_and_time_of_the_last_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, (5, 1234.5))
    content, status = read_with_status(path)
    assert (content, status.st_mtime) == (b"content", 1234.5)


def test_a_file_system_that_returns_less_than_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 7)))
    assert read_regular(path) == bytes(range(100))


def test_unsuitable_files_are_refused_and_closed(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    assert read_regular(tmp_path / "large", 5) == b"12345"
    with pytest.raises(UnsuitableFile, match="it has 5 bytes; at most 4 are read"):
        read_regular(tmp_path / "large", 4)
    with pytest.raises(UnsuitableFile, match="a named pipe"):
        read_regular(tmp_path / "pipe")
    assert os.listdir("/proc/self/fd") == before
