"""Unpacks one file or folder of an untrusted ZIP or tar archive: only regular files, only into a new folder."""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Callable, Iterable, Iterator, Optional, Tuple

from mxtrain.files.download.transfer import CHUNK_BYTES, WrongContent
from mxtrain.files.durable import open_file
from mxtrain.files.regular_files import MAX_BYTES, open_regular

MAX_ENTRIES = 4_000_000
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    UnicodeError,
)
"""Errors of the libraries for damaged archives; RuntimeError is that of an encrypted one."""


@dataclass(frozen=True)
class _Member:
    """A file, folder or link in an archive; `open` is None unless it is a regular file."""

    name: str
    is_folder: bool
    open: Optional[Callable[[], IO[bytes]]]


@contextmanager
def unpacked(archive: Path, member: str, at_most: int = 4 * MAX_BYTES) -> Iterator[Path]:
    """Unpacks a file or folder of an archive into a temporary folder beside the archive, and yields its path.

    The temporary folder is removed at the end of the `with` block. It is on the file system of the archive, so that its
    content can be moved without a copy.

    Args:
        archive: a ZIP file, or a tar file with or without compression.
        member: path of the file or folder in the archive; everything else is skipped.
        at_most: largest allowed size of all unpacked files together, in bytes.

    Raises:
        WrongContent: the archive is damaged, too large or lacks the requested file, or it contains a path outside of
            its folder, a link or a device.
        OSError: files cannot be written.
    """
    temporary = archive.with_name(f"{archive.name}.unpacked")
    shutil.rmtree(temporary, ignore_errors=True)  # left over from a killed process
    temporary.mkdir()
    try:
        with open_regular(archive, at_most) as (file, _), _damage_described():
            _unpack(_entries(file), PurePosixPath(member), temporary, at_most)
        unpacked_path = temporary / member
        if not unpacked_path.exists():
            raise WrongContent(f"is an archive without {member}")
        yield unpacked_path
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def members_of(archive: Path) -> Iterator[Tuple[str, Callable[[int], bytes]]]:
    """Yields path and reader of each regular file of an archive, in one pass.

    Args:
        archive: a ZIP file, or a tar file with or without compression.

    Yields:
        The path in the archive, and a function that returns the content, of at most a number of bytes. It must be
        called before the next file is asked for.

    Raises:
        WrongContent: the archive is damaged, or a file is larger than its reader may return.
        OSError: it cannot be read.
    """
    with open_regular(archive) as (file, _), _damage_described():
        for entry in _entries(file):
            if entry.open is not None:
                yield entry.name, partial(_read_member, entry.open)


def _read_member(opener: Callable[[], IO[bytes]], at_most: int) -> bytes:
    content = io.BytesIO()
    with _damage_described():
        for chunk in _chunks(opener, at_most):
            content.write(chunk)
    return content.getvalue()


def _chunks(opener: Callable[[], IO[bytes]], at_most: int) -> Iterator[bytes]:
    """Yields the content of a file in parts: the libraries hold several copies of what one call returns.

    Counts the bytes that are unpacked, since the sizes in an archive's headers may be wrong.
    """
    size = 0
    with opener() as source:
        while chunk := source.read(CHUNK_BYTES):
            size += len(chunk)
            if size > at_most:
                raise WrongContent("is an archive that unpacks to more bytes than it may")
            yield chunk


@contextmanager
def _damage_described() -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise WrongContent(_damage(error)) from error


def _damage(error: BaseException) -> str:
    """Returns a clause about an archive that a library could not read. The libraries' own messages name internals."""
    # "could not be opened" is the message of Python 3.9.
    if isinstance(error, tarfile.ReadError) and re.search("not a|could not be opened", str(error)):
        return "is no archive: neither a ZIP file nor a tar file. It may be an error page of the server"
    if isinstance(error, (RuntimeError, NotImplementedError)):
        return "is an archive that is encrypted, or compressed by a method that Python does not support"
    if isinstance(error, EOFError) or re.search("truncated|unexpected end|end of file", str(error)):
        return "is an archive that ends early"
    return "is a damaged archive"


def _entries(file: BinaryIO) -> Iterator[_Member]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)  # 0: written without Unix file types
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


def _unpack(entries: Iterable[_Member], member: PurePosixPath, folder: Path, at_most: int) -> None:
    remaining_bytes = at_most
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise WrongContent(f"is an archive of more than {MAX_ENTRIES:,} files")
        name = PurePosixPath(entry.name)
        # A backslash separates folders for some libraries, and is part of a name for others.
        if name.is_absolute() or ".." in name.parts or "\\" in entry.name:
            raise WrongContent(f"is an archive with the path {entry.name!r}, which leads out of its folder")
        if member not in (name, *name.parents):
            continue
        path = folder / name
        if entry.is_folder:
            path.mkdir(parents=True, exist_ok=True)
        elif entry.open is None:
            raise WrongContent(f"is an archive in which {entry.name!r} is a link or a device")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            remaining_bytes -= _copy(entry.open, path, remaining_bytes)


def _copy(opener: Callable[[], IO[bytes]], path: Path, at_most: int) -> int:
    """Writes one file; returns its size in bytes."""
    try:
        # O_EXCL: two entries of one name could otherwise replace each other.
        target = open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
    except FileExistsError:
        raise WrongContent(f"is an archive that holds {path.name!r} twice") from None
    with target:
        return sum(target.write(chunk) for chunk in _chunks(opener, at_most))


def move_into(source: Path, target: Path, last: Path) -> None:
    """Moves an unpacked file or folder to its target. Merges into existing folders and replaces existing files.

    Args:
        source: the unpacked file or folder, on the same file system as `target`.
        target: the path to move it to.
        last: `target` or a path below it that is moved last, so that its existence proves that all files were moved.
    """
    if not (source.is_dir() and target.is_dir()):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return
    names = sorted(os.listdir(source), key=lambda name: (target / name in (last, *last.parents), name))
    for name in names:
        move_into(source / name, target / name, last)
