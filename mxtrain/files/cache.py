"""The cache folder of the user: compiled operators and whatever else can be made again.

    $XDG_CACHE_HOME/mxtrain/<kind>/<name>, or below ~/.cache

Whoever can write there could choose the code that runs, or the numbers that are computed. So nothing counts but files
that this user owns and no other can write, in folders of which the same is true, with the content that they had when
they were written. Anything else is made again, or never kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Iterator, Optional, Tuple

from mxtrain.files.durable import replace_file

PLACE = "XDG_CACHE_HOME"
"""The variable that says where caches are."""
_HEADER_BYTES = len("sha256:") + 64 + len("\n")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Untrusted(OSError):
    """Others own or can write what lies in the cache."""


def cache_folder() -> Path:
    """The folder of the whole cache: $XDG_CACHE_HOME/mxtrain, or ~/.cache/mxtrain.

    Raises:
        RuntimeError, KeyError: this user has no home directory.
    """
    return Path(os.environ.get(PLACE) or Path.home() / ".cache").expanduser() / "mxtrain"


def read_cached(kind: str, name: str) -> Optional[bytes]:
    """The content that `write_cached` kept; None if there is none, or none that can be trusted."""
    with suppress(OSError, RuntimeError, KeyError):
        with opened(kind, name) as file:
            return _unsealed(name, file.read())
    return None


def write_cached(kind: str, name: str, content: bytes) -> None:
    """Keeps content for later processes of this user; does nothing where the cache cannot be written."""
    with suppress(OSError, RuntimeError, KeyError):
        write_sealed(own_folder(kind) / name, content)


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a file with a hash of its name and content in front; raises OSError where it cannot be written."""
    replace_file(path, _header(path.name, content) + content, mode=0o600)


def read_sealed(path: Path) -> Optional[bytes]:
    """The content that `write_sealed` wrote; None if there is none, or none that can be trusted."""
    with suppress(OSError):
        with open_own(path) as file:
            return _unsealed(path.name, file.read())
    return None


def own_folder(*kind: str) -> Path:
    """Returns the folder of the cache, or one inside, and creates it if it is missing. No other user can read it.

    Raises:
        Untrusted: it is there, and is a link or another user's.
        OSError: it cannot be made.
        RuntimeError, KeyError: this user has no home directory.
    """
    path = cache_folder()
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    for part in (path, *(path.joinpath(*kind[: n + 1]) for n in range(len(kind)))):
        with suppress(FileExistsError):
            os.mkdir(part, 0o700)
        with _opened_folder(part) as (fd, mode):
            if mode != 0o700:  # opened to others: each file in it is judged by itself
                os.fchmod(fd, 0o700)
    return path.joinpath(*kind)


@contextmanager
def opened(kind: str, name: str) -> Iterator[BinaryIO]:
    """Opens a file of the cache through folders that other users cannot replace; kind "" is the cache itself.

    Raises:
        Untrusted: it, or a folder on the way, belongs to another user, can be written by others, or is a link.
        OSError: there is none, or it cannot be read.
    """
    with _opened_folder(cache_folder()) as (folder, mode):
        _require_private(mode, cache_folder())
        if not kind:
            with _opened_file(folder, name) as file:
                yield file
            return
        with _opened_folder(cache_folder() / kind, folder) as (inner, mode):
            _require_private(mode, cache_folder() / kind)
            with _opened_file(inner, name) as file:
                yield file


@contextmanager
def _opened_folder(path: Path, parent: Optional[int] = None) -> Iterator[Tuple[int, int]]:
    """(descriptor, permissions) of a folder of this user's."""
    if parent is None and path.is_symlink():
        raise Untrusted(f"{path} is a link")
    fd = os.open(path if parent is None else path.name, _FOLDER, dir_fd=parent)
    try:
        _require_owner(os.fstat(fd), path)
        yield fd, stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def open_own(path: Path) -> BinaryIO:
    """A file in a folder that `own_folder` made or in one of its own below that, which other users cannot enter.

    Raises:
        Untrusted: it belongs to another user, can be written by others, or is a link.
        OSError: there is none, or it cannot be read.
    """
    return _opened_file(None, os.fspath(path))


def _opened_file(folder: Optional[int], name: str) -> BinaryIO:
    file = open(os.open(name, _FILE, dir_fd=folder), "rb")
    try:
        status = os.fstat(file.fileno())
        _require_owner(status, name)
        _require_private(stat.S_IMODE(status.st_mode), name)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise Untrusted(f"{name} is no file of its own")
    except BaseException:
        file.close()
        raise
    return file


def _require_owner(status: os.stat_result, path: object) -> None:
    if status.st_uid != os.geteuid():
        raise Untrusted(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}); set XDG_CACHE_HOME to a folder of "
            "yours"
        )


def _require_private(mode: int, path: object) -> None:
    if mode & 0o022:
        raise Untrusted(f"others can write {path}; type chmod go-w {path}")


def _unsealed(name: str, found: bytes) -> Optional[bytes]:
    """The content behind a header; None where the header is of another one."""
    content = found[_HEADER_BYTES:]
    return content if found[:_HEADER_BYTES] == _header(name, content) else None


def _header(name: str, content: bytes) -> bytes:
    """The first line of a cached file: a hash of name and content, so that no file takes the place of another."""
    return b"sha256:%s\n" % hashlib.sha256(name.encode() + b"\0" + content).hexdigest().encode()
