"""Creates, joins and removes the folder with the sockets of a run, which only the user of the run can enter.

Every process holds a lock (`flock`) on the folder while it uses it. The kernel releases the lock when the process dies,
so a folder without a lock belongs to no living process and can be removed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional

from mxtrain.errors import ConfigError
from mxtrain.files.temporary import temporary_place
from mxtrain.files.unused_folders import remove_unused

VARIABLE = "MXTRAIN_SOCKETS"
"""Environment variable with the path of the folder, for the processes of a run."""
PREFIX = "mxtrain-sockets-"
MAX_NAME_BYTES = 10
"""Maximum length of the name of a socket in the folder, which is a number."""
MAX_PATH_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux."""

_joined: Dict[Path, int] = {}
"""Folder that this process uses until it ends -> its open file descriptor, which holds the lock."""


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Context with a new folder, which is removed at the end. First removes the folders of killed supervisors.

    Raises:
        ConfigError: no folder for temporary files protects files from other users, or it cannot be written, or its file
            system has no locks.
    """
    place = _place()
    remove_abandoned(place)
    while True:
        folder = place / f"{PREFIX}{secrets.token_hex(8)}"
        _make(folder)
        lock = _lock(folder, fcntl.LOCK_EX)
        if lock is not None:
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def join_folder(name: str) -> Path:
    """Creates or joins the folder of a job whose processes have no common supervisor. The last process removes it.

    Args:
        name: name that is equal in all processes of the job and different from that of other jobs.

    Raises:
        ConfigError: another user has a folder with this name; see also `socket_folder`.
    """
    place = _place()
    folder = place / f"{PREFIX}{os.getuid()}-{name}"
    if folder in _joined:
        return folder
    remove_abandoned(place)
    while folder not in _joined:
        with suppress(FileExistsError):
            _make(folder)
        # Between `mkdir` and `flock`, `remove_abandoned` of another process may remove the folder: then try again.
        with suppress(FileNotFoundError):
            _require_own(folder, folder.lstat())
        lock = _lock(folder, fcntl.LOCK_SH)
        if lock is not None:
            _joined[folder] = lock
            atexit.register(_leave, folder)
    return folder


def given_folder(environ: Mapping[str, str] = os.environ) -> Optional[Path]:
    """Returns the folder that the supervisor of this process has created; None if there is none.

    Raises:
        ConfigError: other users can enter the folder.
    """
    given = environ.get(VARIABLE)
    if not given or environ.get("DMLC_LOCAL") != "1":  # inherited from another run, which started this one
        return None
    require_own(Path(given))
    return Path(given)


def require_own(folder: Path) -> None:
    """Raises: ConfigError: the path is not a folder of this user, or other users can enter it."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        raise ConfigError(f"the folder {folder}, for the sockets of this run, is gone: start the run again.") from None
    _require_own(folder, found)


def _require_own(folder: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder}, for the sockets of this run, belongs to user {found.st_uid} or can be entered by others. Set "
            "TMPDIR to a folder of your own."
        )


def remove_abandoned(place: Path) -> None:
    """Removes this user's folders that no living process uses."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                remove_unused(folder)


def _leave(folder: Path) -> None:
    with suppress(OSError):
        os.close(_joined.pop(folder))
        remove_unused(folder)


def _make(folder: Path) -> None:
    """Raises: FileExistsError. ConfigError: the parent folder cannot be written."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"no folder can be created in {folder.parent} for the sockets of this run: {error.strerror}. Set TMPDIR to "
            "a folder of your own with free space."
        ) from None


def _lock(folder: Path, kind: int) -> Optional[int]:
    """Opens and locks the folder; returns its file descriptor, or None if another process has removed the folder.

    Raises:
        ConfigError: its file system has no locks; the folder is then removed if it is empty.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(opened, kind)
    except OSError as error:
        os.close(opened)
        with suppress(OSError):  # fails if the folder holds sockets of other processes
            folder.rmdir()
        raise ConfigError(
            f"{folder.parent}, where the sockets of this run belong, is on a file system that has no locks "
            f"({error.strerror}). Set TMPDIR to a folder of your own on a local disk."
        ) from None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(opened), folder.lstat()):
            return opened
    os.close(opened)
    return None


def _place() -> Path:
    """Returns the parent of the folders for sockets: the first directory for temporary files that is safe."""
    tried: List[Path] = [Path(temporary_place()).resolve(), Path("/tmp").resolve()]
    for place in tried:
        length = len(os.fsencode(place / f"{PREFIX}{os.getuid()}-{'0' * 16}")) + 1 + MAX_NAME_BYTES
        is_writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        if is_writable and length <= MAX_PATH_BYTES and all(_is_safe(folder) for folder in (place, *place.parents)):
            return place
    raise ConfigError(
        f"other users could replace files in {' and '.join(map(str, dict.fromkeys(tried)))}, the path is too long for "
        "sockets, or cannot be written. Set TMPDIR to a folder of your own with a short path."
    )


def _is_safe(folder: Path) -> bool:
    """Returns True if other users can neither remove nor rename our files: they do not own the folder, and it has the
    sticky bit if they may write into it."""
    found, root = folder.stat(), Path("/").stat()
    may_be_changed = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (os.getuid(), 0, root.st_uid) and not may_be_changed
