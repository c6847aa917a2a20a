"""Cached files are used only if no other user could have written them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mxtrain.engine import native
from mxtrain.files.cache import Untrusted, own_folder, read_cached, write_cached

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mxtrain"


@pytest.fixture
def kept(folder):
    write_cached("kind", "name", b"content")
    assert read_cached("kind", "name") == b"content"
    return folder / "kind" / "name"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_cached_files_are_private(kept):
    old = os.umask(0)
    try:
        write_cached("kind", "other", b"")
    finally:
        os.umask(old)
    assert [mode_of(path) for path in (kept.parents[1], kept.parent, kept)] == [0o700, 0o700, 0o600]
    assert mode_of(kept.parent / "other") == 0o600 and read_cached("kind", "other") == b""
    assert read_cached("kind", "missing") is None and read_cached("no kind", "name") is None


def move_and_link(path: Path) -> None:
    os.rename(path, "elsewhere")
    path.symlink_to(Path("elsewhere").absolute())


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "changed": lambda path: path.write_bytes(path.read_bytes().replace(b"content", b"CONTENT")),
    "empty": lambda path: path.write_bytes(b""),
    "without a hash": lambda path: path.write_bytes(b"content"),
    "another's": lambda path: (write_cached("kind", "b", b"other"), os.replace(path.with_name("b"), path)),
    "writable by all": lambda path: path.chmod(0o666),
    "writable by the group": lambda path: path.chmod(0o620),
    "a link": lambda path: (os.rename(path, path.with_name("moved")), path.symlink_to("moved")),
    "a second name": lambda path: os.link(path, path.with_name("second")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "in a folder that all can write": lambda path: path.parent.chmod(0o777),
    "in a cache that all can write": lambda path: path.parents[1].chmod(0o777),
    "in a linked folder": lambda path: move_and_link(path.parent),
    "in a linked cache": lambda path: move_and_link(path.parents[1]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_writable_cache_entries_are_made_again(kept, damage, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    DAMAGE[damage](kept)
    assert read_cached("kind", "name") is None
    write_cached("kind", "name", b"new")
    cannot_be_kept = "linked" in damage or damage == "a folder"
    assert read_cached("kind", "name") == (None if cannot_be_kept else b"new")
    if not cannot_be_kept:
        assert [mode_of(path) for path in (kept.parents[1], kept.parent, kept)] == [0o700, 0o700, 0o600]


@needs_root
@pytest.mark.parametrize("whose", ["name", "kind", "mxtrain"])
def test_files_of_another_owner_are_not_read(kept, whose):
    path = {"name": kept, "kind": kept.parent, "mxtrain": kept.parents[1]}[whose]
    os.chown(path, STRANGER, STRANGER)
    assert read_cached("kind", "name") is None
    write_cached("kind", "name", b"new")
    assert read_cached("kind", "name") == (b"new" if whose == "name" else None)
    if whose == "mxtrain":
        with pytest.raises(Untrusted, match="belongs to user 65534, not to you .* set XDG_CACHE_HOME"):
            own_folder("kind")


def test_unwritable_cache_stores_no_entries(folder):
    folder.parent.write_text("a file")
    write_cached("kind", "name", b"content")
    assert read_cached("kind", "name") is None


def test_library_is_loaded_from_the_checked_file(folder):
    """Its folder may be exchanged between the look and the loading."""
    name = f"operators-0-{native._digest(b'library')}.so"
    path = own_folder() / name
    path.write_bytes(b"library")
    path.chmod(0o700)
    with native.loadable(path) as found:
        os.rename(folder, f"{folder}-moved")
        folder.mkdir()
        path.write_bytes(b"a stranger's")
        assert Path(found).read_bytes() == b"library"
    with pytest.raises(OSError), native.loadable(path):
        pass


@pytest.mark.parametrize("damage", ["writable", "stranger"])
def test_world_writable_library_is_not_loaded(folder, monkeypatch, damage):
    """Covers a foreign folder in a shared XDG_CACHE_HOME, and a file in it with the right name and hash."""
    if damage == "stranger" and os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    monkeypatch.setattr(native, "_compile", lambda compiler, cache, key: cache / "compiled-anew")
    monkeypatch.setattr(native, "_run", lambda *command: "")
    monkeypatch.setattr(native.shutil, "which", lambda name: name)
    found = native.library()
    assert found.path == folder / "compiled-anew", found
    keys = []
    monkeypatch.setattr(native, "_compile", lambda compiler, cache, key: keys.append(key) or cache / "compiled-anew")
    native.library()
    planted = folder / f"{keys[0]}-{native._digest(b'planted')}.so"
    planted.write_bytes(b"planted")
    planted.chmod(0o700)
    assert native.library().path == planted  # it would be ours
    if damage == "writable":
        planted.chmod(0o777)
        assert native.library().path == folder / "compiled-anew"
        return
    os.chown(planted, STRANGER, STRANGER)
    assert native.library().path == folder / "compiled-anew"
    os.chown(folder, STRANGER, STRANGER)
    found = native.library()
    assert found.path is None and "cannot be trusted" in found.why and "XDG_CACHE_HOME" in found.why


def test_one_module_finds_the_cache_folder():
    """No other module computes the place of the cache."""
    others = [
        path
        for path in (ROOT / "mxtrain").rglob("*.py")
        if "XDG_CACHE_HOME" in path.read_text("utf-8") and path.name != "cache.py"
    ]
    assert others == []
