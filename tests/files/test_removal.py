"""Lists and removes files through descriptors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest

from mxtrain.files.removal import list_files, open_folder, remove_empty_folder, remove_files


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    for name in ("b/c/d", "b/a", "a", "z/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "b/empty/inner").mkdir(parents=True)
    (folder / "m").symlink_to(folder / "b")
    (folder / "b/link").symlink_to(folder / "a")
    os.mkfifo(folder / "pipe")
    return folder


def test_files_and_other_entries_are_listed_in_order(folder: Path) -> None:
    with open_folder(str(folder)) as opened:
        assert list_files(opened) == (["a", "b/a", "b/c/d", "b/empty/inner/", "z/x"], ["b/link", "m", "pipe"])
    (folder.parent / "empty").mkdir()
    with open_folder(str(folder.parent / "empty")) as opened:
        assert list_files(opened) == ([], [])


def test_links_are_not_opened(folder: Path) -> None:
    with pytest.raises(OSError), open_folder(str(folder / "m")):
        pass
    with open_folder(str(folder)) as opened, pytest.raises(OSError), open_folder("m", opened):
        pass


def test_files_are_removed_with_the_folders_that_become_empty(folder: Path) -> None:
    with open_folder(str(folder)) as opened:
        remove_files(opened, ["b/c/d", "missing", "missing/too", "b/empty/inner/"])
        assert sorted(os.listdir(folder / "b")) == ["a", "link"]
        remove_files(opened, ["z/x", "a", "b/a"])
    assert sorted(os.listdir(folder)) == ["b", "m", "pipe"] and os.listdir(folder / "b") == ["link"]


@pytest.mark.parametrize(
    "name, said",
    [
        ("m", "m is not a file any more"),
        ("m/a", "Not a directory"),
        ("pipe", "not a file"),
        ("z", "z is not a file"),
    ],
)
def test_other_entries_in_place_of_files_stop_the_removal(folder: Path, name: str, said: str) -> None:
    with open_folder(str(folder)) as opened, pytest.raises(OSError, match=said):
        remove_files(opened, [name, "a"])
    assert (folder / "a").exists() and os.path.lexists(folder / name) and (folder / "b/a").exists()


def test_a_folder_is_removed_if_it_is_empty_and_still_the_same(folder: Path) -> None:
    path = folder / "b/empty/inner"
    with open_folder(str(folder / "b/empty")) as other, pytest.raises(OSError, match="not empty"):
        remove_empty_folder(str(folder / "b/empty"), other)
    with open_folder(str(path)) as opened:
        path.rename(folder / "moved")
        path.symlink_to(folder / "moved")
        with pytest.raises(OSError, match="was exchanged meanwhile"):
            remove_empty_folder(str(path), opened)
        path.unlink()
        path.mkdir()
        with pytest.raises(OSError, match="was exchanged meanwhile"):
            remove_empty_folder(str(path), opened)
        assert path.is_dir() and (folder / "moved").is_dir()
        remove_empty_folder(str(folder / "moved"), opened)
    assert not (folder / "moved").exists()


def test_a_folder_that_disappears_or_cannot_be_read_is_another_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, inside: int = -1) -> None:
        raise PermissionError(path)

    with open_folder(str(folder)) as opened:
        monkeypatch.setattr("mxtrain.files.removal.open_folder", refuse)
        assert list_files(opened) == (["a"], ["b", "m", "pipe", "z"])
