"""Unpacks one folder or file of a ZIP or tar archive: only regular files, only below a folder that is made for them."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Callable, Iterable, Iterator, Optional

from mxtrain.download.transfer import CHUNK_BYTES, WrongContent
from mxtrain.files.durable import open_file
from mxtrain.files.regular_files import MAX_BYTES, open_regular

MAX_ENTRIES = 4_000_000
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
    ValueError, UnicodeError,
)  # fmt: skip
"""Errors of the libraries for damaged archives; RuntimeError is that of an encrypted one."""


@dataclass(frozen=True)
class _Member:
    """A file, folder or link in an archive; `open` is None unless it is a regular file."""

    name: str
    is_folder: bool
    open: Optional[Callable[[], IO[bytes]]]


@contextmanager
def unpacked(archive: Path, wanted: str, at_most: int = 4 * MAX_BYTES) -> Iterator[Path]:
    """Unpacks a file or folder of an archive, and yields its path in a folder beside the archive that is removed
    afterwards.

    Args:
        archive: ZIP, or tar with or without compression.
        wanted: path of the file or folder in the archive. Everything else is left out.
        at_most: bytes of all unpacked files.

    Raises:
        WrongContent: the archive is damaged, too large or lacks the requested file, or it contains a path outside of
            its folder, a link or a device.
        OSError: files cannot be written.
    """
    temporary = archive.with_name(f"{archive.name}.unpacked")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        with open_regular(archive, at_most) as (file, _):
            try:
                _unpack(_entries(file), PurePosixPath(wanted), temporary, at_most)
            except _DAMAGED as error:
                raise WrongContent(f"is a damaged archive ({error})") from error
        found = temporary / wanted
        if not found.exists():
            raise WrongContent(f"is an archive without {wanted}")
        yield found
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _entries(file: BinaryIO) -> Iterator[_Member]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)  # 0: made by a system without kinds
                yield _Member(info.filename, info.is_dir(), partial(packed.open, info) if is_file else None)
        return
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:*") as tar:
        for member in tar:
            yield _Member(member.name, member.isdir(), partial(_extracted, tar, member) if member.isreg() else None)


def _extracted(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    assert file is not None, "it is a regular file"
    return file


def _unpack(entries: Iterable[_Member], wanted: PurePosixPath, folder: Path, at_most: int) -> None:
    left = at_most
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise WrongContent(f"is an archive of more than {MAX_ENTRIES:,} files")
        name = PurePosixPath(entry.name)
        if name.is_absolute() or ".." in name.parts or "\\" in entry.name:
            raise WrongContent(f"is an archive with the path {entry.name!r}, which leads out of its folder")
        if wanted not in (name, *name.parents):
            continue
        path = folder / name
        if entry.is_folder:
            path.mkdir(parents=True, exist_ok=True)
        elif entry.open is None:
            raise WrongContent(f"is an archive in which {entry.name!r} is a link or a device")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            left -= _copy(entry.open, path, left)


def _copy(opener: Callable[[], IO[bytes]], path: Path, at_most: int) -> int:
    """Writes one file; returns its bytes."""
    size = 0
    try:
        target = open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
    except FileExistsError:
        raise WrongContent(f"is an archive that holds {path.name!r} twice") from None
    with target, opener() as source:
        while chunk := source.read(CHUNK_BYTES):
            size += len(chunk)
            if size > at_most:
                raise WrongContent("is an archive that unpacks to more bytes than it may")
            target.write(chunk)
    return size


def move_into(source: Path, target: Path, last: Path) -> None:
    """Moves an unpacked folder or file to its place, into folders that are there already; existing files are replaced.

    Args:
        source: the unpacked folder or file, on the same file system.
        target: its place.
        last: a path in `target`, or `target`, that is moved last: if it exists, everything does.
    """
    if not (source.is_dir() and target.is_dir()):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return
    names = sorted(os.listdir(source), key=lambda name: (target / name in (last, *last.parents), name))
    for name in names:
        move_into(source / name, target / name, last)
