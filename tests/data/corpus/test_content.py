"""The content of files as hashes: remembered, and noticed where it changes."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from mxtrain.data.corpus import content
from mxtrain.data.corpus.content import contents_of
from mxtrain.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


def sha256(paths):
    return [found.sha256 for found in contents_of(paths)]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(path.name)
        os.utime(path, (1, 1))
    return paths


def test_contents_are_remembered(files, monkeypatch):
    expected = [hashlib.sha256(name).hexdigest() for name in (b"a", b"b")]
    assert sha256(files) == expected
    monkeypatch.setattr(content, "OLD_ENOUGH_NS", -1)  # the times of inodes are of just now
    assert sha256(files) == expected
    monkeypatch.setattr(content, "_digest", lambda path, stamp: pytest.fail("it was read again"))
    assert sha256(files) == expected


def test_threads_find_the_same_hashes_and_report_progress(tmp_path, monkeypatch):
    paths = [tmp_path / str(number) for number in range(9)]
    for path in paths:
        path.write_bytes(path.name.encode() * 3000)
    said = []
    monkeypatch.setattr(content.ProgressDisplay, "begin", lambda self, *given: said.append(given))
    monkeypatch.setattr(content.ProgressDisplay, "advance", lambda self, count: said.append(count))
    found = [one.sha256 for one in contents_of(paths, "content of recordings", 3)]
    assert found == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert said == [("content of recordings", 9), *[1] * 9]


def test_a_change_is_noticed(files, monkeypatch):
    monkeypatch.setattr(content, "OLD_ENOUGH_NS", -1)
    before = sha256(files)
    files[1].write_text("c")  # as long as before
    os.utime(files[1], (1, 1))  # and as old
    after = sha256(files)
    assert after[0] == before[0] and after[1] == hashlib.sha256(b"c").hexdigest()
    found = contents_of(files)[0]
    found.require_unchanged()
    time.sleep(0.02)
    files[0].write_text("d")
    with pytest.raises(DataError, match="was changed while it was read"):
        found.require_unchanged()


def test_hash_of_a_recent_file_is_not_cached(files):
    sha256(files)
    stamp = os.stat(files[0])
    with open(files[0], "r+b") as file:
        file.write(b"e")
    os.utime(files[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert sha256(files)[0] == hashlib.sha256(b"e").hexdigest()


def test_unreadable_files(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        contents_of([tmp_path / "none"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="named pipe"):
        contents_of([tmp_path / "pipe"])
