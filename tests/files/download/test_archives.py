"""Archives are unpacked below their folder or not at all."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Mapping, Tuple

import pytest

from mxtrain.files.download.archives import move_into, unpacked
from mxtrain.files.download.transfer import WrongContent


def write_zip(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name) if compression == zipfile.ZIP_STORED else name, content)
    return path


def write_tar(path: Path, files: Mapping[str, bytes], *others: Tuple[str, bytes, str]) -> Path:
    """An archive of files, and of other members: name, type and target of each."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, kind, target in others:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return path


def unpack(archive: Path, wanted: str, at_most: int = 10_000) -> Mapping[str, bytes]:
    with unpacked(archive, wanted, at_most) as found:
        files = [found] if found.is_file() else [path for path in sorted(found.rglob("*")) if path.is_file()]
        return {path.relative_to(found.parent).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("write, ending", [(write_zip, "zip"), (write_tar, "tar.gz")])
def test_only_wanted_members_are_unpacked(write, ending: str, tmp_path: Path) -> None:
    archive = write(tmp_path / f"a.{ending}", {"top/a": b"1", "top/in/b": b"2", "topping/c": b"3", "__MACOSX/d": b""})
    assert unpack(archive, "top") == {"top/a": b"1", "top/in/b": b"2"}
    assert unpack(archive, "top/in") == {"in/b": b"2"}
    assert unpack(archive, "top/a") == {"a": b"1"}
    with pytest.raises(WrongContent, match="without other"):
        unpack(archive, "other")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("name", ["../a", "top/../../a", "/a", "top/..\\..\\a"])
def test_paths_outside_the_archive_are_refused(name: str, tmp_path: Path) -> None:
    for archive in (write_zip(tmp_path / "a.zip", {name: b"x"}), write_tar(tmp_path / "a.tar.gz", {name: b"x"})):
        with pytest.raises(WrongContent, match="leads out of its folder"):
            unpack(archive, "top")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "a.zip"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", {"top/a": b"1"}, ("top/b", kind, "/etc/passwd"))
    with pytest.raises(WrongContent, match="'top/b' is a link or a device"):
        unpack(archive, "top")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("top/b")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(WrongContent, match="is a link"):
        unpack(tmp_path / "a.zip", "top")


def test_archives_that_unpack_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    files = {"top/a": bytes(6000), "top/b": bytes(6000)}
    assert len(unpack(write_zip(tmp_path / "a.zip", files), "top", 12_000)) == 2
    for archive in (tmp_path / "a.zip", write_tar(tmp_path / "a.tar.gz", files)):
        with pytest.raises(WrongContent, match="more bytes than it may"):
            unpack(archive, "top", 11_999)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    """A changed byte in a tar is found by the checksum of the archive."""
    packed = write_zip(tmp_path / "a.zip", {"top/a": bytes(range(256)) * 9}).read_bytes()
    tar = write_tar(tmp_path / "a.tar.gz", {"top/a": bytes(range(256)) * 9}).read_bytes()
    no_archive, early = (
        "is no archive: neither a ZIP file nor a tar file",
        "is an archive that ends early",
    )
    for content, said in (
        (b"", "is no archive|ends early"),
        (b"<html>", no_archive),
        (packed[: len(packed) // 2], no_archive),
        (packed[:60] + b"\0\1\2\3" + packed[64:], "is a damaged archive$"),
        (tar[:200], early),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(WrongContent, match=said):
            unpack(tmp_path / "a", "top")


def test_duplicate_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongContent, match="holds 'a' twice"):
        unpack(write_tar(tmp_path / "a.tar", {"top/a": b"1", "./top/a": b"2"}), "top")


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {"top/a": b"1"})
    (tmp_path / "a.zip.unpacked" / "top").mkdir(parents=True)
    (tmp_path / "a.zip.unpacked" / "top" / "old").write_bytes(b"")
    assert unpack(archive, "top") == {"top/a": b"1"}


def test_folders_are_merged_and_the_last_path_moves_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a/1", "lists/train", "lists/z", "z/1"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("new")
    for name in ("a/0", "lists/z"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("old")
    order, replace = [], os.replace

    def noting(old: Path, new: Path) -> None:
        order.append(Path(new).relative_to(target).as_posix())
        replace(old, new)

    monkeypatch.setattr(os, "replace", noting)
    move_into(source, target, target / "lists" / "train")
    assert order == ["a/1", "z", "lists/z", "lists/train"]
    assert (target / "a" / "0").read_text() == "old" and (target / "lists" / "z").read_text() == "new"
