"""Removes files below a folder through descriptors, so that no link is followed that replaces a folder meanwhile.

A path is looked up anew by each system call, so another user who can write to a parent folder may exchange a folder for
a link between two calls. A descriptor stays with the folder that was opened.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Iterator, List, Sequence, Tuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(path: str, inside: int = -1) -> Iterator[int]:
    """Opens a folder that is no link, and yields its descriptor.

    Args:
        path: path of the folder, or its name inside of another one.
        inside: descriptor of the other folder.

    Raises:
        OSError: there is no such folder, or it is a link.
    """
    fd = os.open(path, _FOLDER, dir_fd=inside if inside >= 0 else None)
    try:
        yield fd
    finally:
        os.close(fd)


def path_of(fd: int) -> str:
    """Returns a path that leads to the opened folder itself, wherever its own path leads now."""
    return f"/proc/self/fd/{fd}"


def mount_of(fd: int) -> Tuple[int, str]:
    """Returns the device of a folder and the number of its mount, because a bind mount has the device of its source."""
    number = ""
    with suppress(OSError), open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        found = re.search(r"^mnt_id:\s*(\d+)", file.read(), re.MULTILINE)
        number = found[1] if found else ""
    return os.fstat(fd).st_dev, number


def list_files(folder: int) -> Tuple[List[str], List[str]]:
    """Returns the paths of all regular files and empty folders (ending in /) below a folder, and the paths of all other
    entries, such as links and mounted folders, which are not entered."""
    files: List[str] = []
    others: List[str] = []
    _list_into(folder, "", mount_of(folder), files, others)
    return sorted(files), sorted(others)


def _list_into(folder: int, prefix: str, mount: Tuple[int, str], files: List[str], others: List[str]) -> None:
    names = os.listdir(folder)
    if not names and prefix:
        files.append(prefix)
    for name in names:
        try:
            kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(kind):
                (files if stat.S_ISREG(kind) else others).append(prefix + name)
                continue
            with open_folder(name, folder) as child:
                if mount_of(child) == mount:
                    _list_into(child, f"{prefix}{name}/", mount, files, others)
                else:
                    others.append(f"{prefix}{name}/")
        except OSError:  # removed, exchanged or not readable
            others.append(prefix + name)


def remove_files(folder: int, paths: Sequence[str]) -> None:
    """Removes regular files below a folder, and then its empty subfolders.

    Args:
        folder: descriptor of the folder.
        paths: relative paths as `list_files` returns them, in the order of their removal; missing ones are passed over.

    Raises:
        OSError: a file cannot be removed, a parent folder is a link or mounted, or a file is not regular any more.
    """
    mount = mount_of(folder)
    for path in paths:
        *parents, name = PurePosixPath(path).parts
        if path.endswith("/"):
            continue
        with suppress(FileNotFoundError), _opened(folder, parents, mount) as parent:
            if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise OSError(f"{path} is not a file any more")
            os.unlink(name, dir_fd=parent)
    folders = {parent for path in paths for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}
    for emptied in sorted(folders, reverse=True):  # the deepest ones first
        *parents, name = emptied.parts or ("",)
        if name:
            with suppress(OSError), _opened(folder, parents, mount) as parent:
                os.rmdir(name, dir_fd=parent)  # fails where files are left


def remove_empty_folder(path: str, folder: int) -> None:
    """Removes an empty folder if `path` still leads to the opened one.

    Raises:
        OSError: it is not empty, or was exchanged.
    """
    name = os.path.basename(os.path.abspath(path))
    parent = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(folder)):
            raise OSError(f"{path} was exchanged meanwhile")
        os.rmdir(name, dir_fd=parent)
        os.fsync(parent)
    finally:
        os.close(parent)


@contextmanager
def _opened(folder: int, parents: Sequence[str], mount: Tuple[int, str]) -> Iterator[int]:
    if not parents:
        yield folder
        return
    with open_folder(parents[0], folder) as child:
        if mount_of(child) != mount:
            raise OSError(f"{parents[0]} is mounted")
        with _opened(child, parents[1:], mount) as parent:
            yield parent
