"""The user's cache folder: compiled operators and other files that can be created again.

    $XDG_CACHE_HOME/mxtrain/<kind>/<name>, or below ~/.cache

Write access to the cache would allow others to run code or change results. So only files are used that this user owns
and no other user can write, in folders for which the same is true, and whose content matches the hash in front of it.
All other files are ignored and created again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, Optional, Tuple

from mxtrain.files.durable import replace_file

CACHE_VARIABLE = "XDG_CACHE_HOME"
"""Environment variable of the folder for caches."""
ANOTHER_DISK = f"choose another disk with {CACHE_VARIABLE}=FOLDER"
"""End of a sentence, for messages about a cache that cannot be written."""
_HEADER_BYTES = len("sha256:") + 64 + len("\n")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Untrusted(OSError):
    """A file or folder of the cache belongs to, or can be written by, another user."""


def cache_folder() -> Path:
    """Returns the root of the cache: $XDG_CACHE_HOME/mxtrain, or ~/.cache/mxtrain.

    Raises:
        RuntimeError, KeyError: this user has no home directory.
    """
    return caches_of_user() / "mxtrain"


def caches_of_user() -> Path:
    """Returns the folder in which each program has its cache: $XDG_CACHE_HOME, or ~/.cache.

    Raises:
        RuntimeError, KeyError: this user has no home directory.
    """
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache").expanduser()


def read_cached(kind: str, name: str) -> Optional[bytes]:
    """Returns the content that `write_cached` wrote; None if it is missing or cannot be trusted."""
    with suppress(OSError, RuntimeError, KeyError), opened(kind, name) as file:
        return _unsealed(name, file.read())
    return None


def write_cached(kind: str, name: str, content: bytes) -> None:
    """Stores content for later processes of this user. Does nothing if the cache cannot be written."""
    with suppress(OSError, RuntimeError, KeyError):
        write_sealed(own_folder(kind) / name, content)


def cached_json(kind: str, name: str, compute: Callable[[], Any]) -> Any:
    """Returns a value from the cache, or computes and stores it. Tuples come back from the cache as lists.

    Args:
        kind: folder of the cache.
        name: name of the file, which must change with everything that the value depends on.
        compute: function that returns a value that JSON can hold.
    """
    content = read_cached(kind, name)
    if content is not None:
        return json.loads(content)
    value = compute()
    write_cached(kind, name, json.dumps(value).encode())
    return value


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a file that starts with a hash of its name and content.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(path, _header(path.name, content) + content, mode=0o600)


def read_sealed(path: Path) -> Optional[bytes]:
    """Returns the content that `write_sealed` wrote; None if it is missing or cannot be trusted."""
    with suppress(OSError), open_own(path) as file:
        return _unsealed(path.name, file.read())
    return None


def own_folder(*kind: str) -> Path:
    """Returns the cache folder, or a subfolder, and creates it if it is missing. Other users cannot read it.

    Raises:
        Untrusted: the folder exists, and is a link or belongs to another user.
        OSError: the folder cannot be created.
        RuntimeError, KeyError: this user has no home directory.
    """
    path = cache_folder()
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    for part in (path, *(path.joinpath(*kind[: n + 1]) for n in range(len(kind)))):
        with suppress(FileExistsError):
            os.mkdir(part, 0o700)
        with _opened_folder(part) as (fd, mode):
            if mode != 0o700:  # others may have written files before, but each file is checked when it is read
                os.fchmod(fd, 0o700)
    return path.joinpath(*kind)


@contextmanager
def opened(kind: str, name: str) -> Iterator[BinaryIO]:
    """Opens a file of the cache. `kind` is its folder; "" for the root of the cache.

    Each folder is opened relative to the descriptor of its parent, so that other users cannot replace it between the
    check and the use.

    Raises:
        Untrusted: the file, or a parent folder, belongs to another user, can be written by others, or is a link.
        OSError: the file does not exist or cannot be read.
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
    """Opens a folder of this user; yields its descriptor and permissions."""
    if parent is None and path.is_symlink():
        raise Untrusted(f"{path} is a link")
    fd = os.open(path if parent is None else path.name, _FOLDER, dir_fd=parent)
    try:
        _require_owner(os.fstat(fd), path)
        yield fd, stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def open_own(path: Path) -> BinaryIO:
    """Opens a file in a folder of `own_folder` or below it, which other users cannot enter.

    Raises:
        Untrusted: the file belongs to another user, can be written by others, or is a link.
        OSError: the file does not exist or cannot be read.
    """
    return _opened_file(None, os.fspath(path))


def _opened_file(folder: Optional[int], name: str) -> BinaryIO:
    file = open(os.open(name, _FILE, dir_fd=folder), "rb")
    try:
        status = os.fstat(file.fileno())
        _require_owner(status, name)
        _require_private(stat.S_IMODE(status.st_mode), name)
        # `replace_file` creates files with one name; with a further hard link this is some other file of the user.
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


def _unsealed(name: str, sealed: bytes) -> Optional[bytes]:
    """Returns the content after the header; None if the hash in the header does not match."""
    content = sealed[_HEADER_BYTES:]
    return content if sealed[:_HEADER_BYTES] == _header(name, content) else None


def _header(name: str, content: bytes) -> bytes:
    """Returns the first line of a cached file: a hash of content and name, so that a renamed file is invalid."""
    return b"sha256:%s\n" % hashlib.sha256(name.encode() + b"\0" + content).hexdigest().encode()
