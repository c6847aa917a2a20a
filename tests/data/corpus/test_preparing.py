"""Preparing data once: one process at a time, found again, and made anew where it was damaged."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from mxtrain.data.corpus import preparing
from mxtrain.data.corpus.preparing import prepare, prepare_temporary
from mxtrain.data.corpus.shards import ArrayForm
from mxtrain.errors import DataError
from mxtrain.files.cache import cache_folder

pytestmark = pytest.mark.usefixtures("own_cache")
FORMS = {"x": ArrayForm("int32")}
ROOT = "corpora"


def prepare_ten(calls, made_of=1, begin=None, at=None):
    """Prepares ten records, five of them a block; `calls` gets how many there were before."""

    def write(writer, advance):
        calls.append(writer.records)
        for number in range(writer.records, 10):
            if begin is not None and number == at:
                begin()
            writer.append(1, {"x": np.array([number])})
            advance(1)
            if number == 4:
                writer.commit()
        return {"count": 10}

    return prepare("test", made_of, FORMS, write, what="numbers", total=10)


def test_entry_is_prepared_once_and_found_by_its_inputs():
    calls = []
    assert prepare_ten(calls).array("x").tolist() == list(range(10))
    found = prepare_ten(calls)
    assert found.array("x").tolist() == list(range(10)) and found.facts == {"count": 10} and calls == [0]
    prepare_ten(calls, made_of=2)
    assert calls == [0, 0] and len(list((cache_folder() / ROOT).glob("*/manifest.json"))) == 2
    assert (cache_folder() / ROOT).stat().st_mode & 0o777 == 0o700


def test_failure_is_reported_and_complete_files_are_kept():
    calls = []

    def fail():
        raise DataError("no row")

    with pytest.raises(DataError, match="no row"):
        prepare_ten(calls, begin=fail, at=7)
    assert prepare_ten(calls).array("x").tolist() == list(range(10)) and calls == [0, 5]
    assert not list((cache_folder() / ROOT).glob("*.part"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_reported(number):
    def fail():
        raise OSError(number, "full")

    with pytest.raises(DataError, match=r"corpora is full: preparing numbers .* XDG_CACHE_HOME"):
        prepare_ten([], begin=fail, at=3)


def test_damaged_entry_is_prepared_again(caplog):
    calls = []
    path = prepare_ten(calls).folder / "x.values"
    path.write_bytes(bytes(40))
    assert prepare_ten(calls).array("x").tolist() == list(range(10)) and calls == [0, 0]
    assert "x.values has another checksum: it is prepared again" in caplog.text


def interrupted():
    """The folder of a preparation that ended behind its first block of five records."""

    def fail():
        raise DataError("no row")

    with pytest.raises(DataError, match="no row"):
        prepare_ten([], begin=fail, at=7)
    (part,) = (cache_folder() / ROOT).glob("*.part")
    return part


def test_changed_byte_in_a_committed_block_is_prepared_again(caplog):
    part = interrupted()
    content = bytearray((part / "x.values").read_bytes())
    content[5] ^= 1
    (part / "x.values").write_bytes(content)
    calls = []
    assert prepare_ten(calls).array("x").tolist() == list(range(10)) and calls == [0]
    assert "block 0 of" in caplog.text and "preparing starts from the beginning" in caplog.text


@pytest.mark.parametrize("spoil", ["pipe", "folder", "link"])
def test_block_file_that_is_no_file_is_prepared_again(spoil, tmp_path):
    path = interrupted() / "x.values"
    path.unlink()
    (tmp_path / "other").write_bytes(bytes(20))
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(tmp_path / "other", path)}[spoil](path)
    calls = []
    assert prepare_ten(calls).array("x").tolist() == list(range(10)) and calls == [0]
    assert (tmp_path / "other").read_bytes() == bytes(20)


@pytest.mark.parametrize("name", ["part", "whole"])
def test_folder_that_is_a_link_is_replaced_and_its_target_left_alone(tmp_path, name):
    part = interrupted()
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    if name == "part":
        part.rename(tmp_path / "old")
        part.symlink_to(target)
    else:
        part.with_suffix("").symlink_to(target)
    found = prepare_ten([])
    assert found.array("x").tolist() == list(range(10)) and not found.folder.is_symlink()
    assert [path.name for path in target.iterdir()] == ["mine.txt"]


def test_damaged_folder_is_removed_only_under_the_lock(monkeypatch):
    folder = prepare_ten([]).folder
    (folder / "x.values").write_bytes(bytes(40))
    seen = []
    locked = preparing._locked

    def look(path, what):
        seen.append(folder.exists())
        return locked(path, what)

    monkeypatch.setattr(preparing, "_locked", look)
    prepare_ten([])
    assert seen == [True]


def test_disk_that_alters_written_bytes_is_reported(monkeypatch):
    finish = preparing.ShardWriter.finish

    def change(self, facts, what=""):
        finish(self, facts, what)
        (self._folder / "x.values").write_bytes(bytes(40))

    monkeypatch.setattr(preparing.ShardWriter, "finish", change)
    with pytest.raises(DataError, match="although it was written just now"):
        prepare_ten([])
    assert not [path for path in (cache_folder() / ROOT).iterdir() if path.is_dir()]


def test_one_thread_prepares_while_others_wait(caplog):
    caplog.set_level(logging.INFO)
    calls, ready, go_on = [], threading.Event(), threading.Event()

    def pause():
        ready.set()
        assert go_on.wait(10)

    threads = [threading.Thread(target=prepare_ten, args=(calls,), kwargs={"begin": pause, "at": 2})]
    threads.append(threading.Thread(target=prepare_ten, args=(calls,)))
    threads[0].start()
    assert ready.wait(10)
    threads[1].start()
    while "another process prepares numbers: waiting for it" not in caplog.text:
        time.sleep(0.01)
    go_on.set()
    for thread in threads:
        thread.join()
    assert calls == [0]


def _killed(counts):
    prepare_ten(counts, begin=lambda: os.kill(os.getpid(), signal.SIGKILL), at=8)


@pytest.mark.slow
def test_killed_process_leaves_no_half_prepared_entry():
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=([],))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and list((cache_folder() / ROOT).glob("*.part"))
    calls = []
    assert prepare_ten(calls).array("x").tolist() == list(range(10)) and calls == [
        5
    ]  # behind the block; its lock is gone


def test_data_are_prepared_for_this_process_without_a_cache(monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    monkeypatch.setattr(preparing, "_temporary", None)
    calls = []
    assert len(prepare_ten(calls)) == 10 and len(prepare_ten(calls)) == 10 and calls == [0]
    assert "The cache cannot be used" in caplog.text


def test_data_check_leaves_no_files():
    def write(writer, advance):
        writer.append(1, {"x": np.array([7])})
        return {}

    found = prepare_temporary("test", FORMS, write)
    folder = found.folder
    assert found.array("x").tolist() == [7] and folder.exists()
    del found
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError):
        prepare_temporary("test", FORMS, lambda writer, advance: 1 // 0)
    assert not list((cache_folder() / ROOT).glob("check-*"))


def test_a_cache_that_is_only_read_is_used_and_not_written(monkeypatch):
    calls = []
    prepare_ten(calls)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(preparing, "_temporary", None)
    assert len(prepare_ten(calls)) == 10 and calls == [0]
    assert cache_folder() not in prepare_ten(calls, made_of=3).folder.parents and calls == [0, 0]
