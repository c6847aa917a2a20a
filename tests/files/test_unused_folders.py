"""Temporary folders: those of living processes stay, those of ended ones are removed."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from mxtrain.files import unused_folders
from mxtrain.files.unused_folders import locked_folder, make_locked, remove_abandoned, remove_unused

PREFIX = ".draft[1]-"


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_folders_of_ended_processes_are_removed(tmp_path: Path) -> None:
    others = [".draft1-other", f"{PREFIX}file", f"{PREFIX}link"]
    (tmp_path / others[0]).mkdir()
    (tmp_path / others[1]).touch()
    (tmp_path / others[2]).symlink_to(others[0])
    with locked_folder(tmp_path, PREFIX) as living:
        (tmp_path / f"{PREFIX}old").mkdir()
        (tmp_path / f"{PREFIX}old" / "file").touch()
        with locked_folder(tmp_path, PREFIX) as second:
            assert sorted(os.listdir(tmp_path)) == sorted([*others, living.name, second.name])
            with pytest.raises(BlockingIOError):
                remove_unused(living)
            (second / "file").touch()
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}old").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        remove_abandoned(tmp_path, PREFIX)
    assert len(os.listdir(tmp_path)) == 1
    remove_abandoned(tmp_path, PREFIX)
    assert os.listdir(tmp_path) == []


def test_folder_that_replaces_a_locked_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def exchange(*arguments: Any) -> None:
        folder.rename(tmp_path / "old")
        folder.mkdir()

    monkeypatch.setattr(unused_folders.fcntl, "flock", exchange)
    remove_unused(folder)
    assert sorted(os.listdir(tmp_path)) == ["folder", "old"]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_folder_that_another_process_removes_before_it_is_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    removed: List[Path] = []
    flock = fcntl.flock

    def remove(descriptor: int, kind: int) -> None:
        if not removed:
            removed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            shutil.rmtree(removed[0])
            if is_made_again:
                removed[0].mkdir()
        flock(descriptor, kind)

    monkeypatch.setattr(unused_folders.fcntl, "flock", remove)
    folder, lock = make_locked(tmp_path, PREFIX)
    os.close(lock)
    assert folder.is_dir() and folder != removed[0] and os.path.samestat(folder.stat(), folder.lstat())


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(unused_folders.fcntl, "flock", refuse)
    (tmp_path / f"{PREFIX}old").mkdir()
    with locked_folder(tmp_path, PREFIX) as folder:
        assert folder.is_dir() and len(os.listdir(tmp_path)) == 2
