"""ps-lite's sockets, which it would put into /tmp under numbers (DMLC_LOCAL=1), are put into the run's own folder."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import partial
from pathlib import Path
from typing import Optional

from mxtrain.errors import ConfigError
from mxtrain.private_sockets.calls import Replacement, replace_calls
from mxtrain.private_sockets.folder import given_folder
from mxtrain.private_sockets.slow_link import VARIABLE as LINKS
from mxtrain.private_sockets.slow_link import link_through

PUBLIC = b"ipc:///tmp/"
"""Prefix of ps-lite's addresses (its zmq_van.h)."""
_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, use_errno=True)
_CALLS = ("zmq_bind", "zmq_connect")
_moved_to: Optional[Path] = None


def move_ps_lite(library: str, rank: Optional[int] = None) -> None:
    """Must be called before ps-lite begins, in each process of the run. Does nothing where there is no folder.

    Args:
        library: path of MXNet's, which holds ps-lite.
        rank: rank of this worker, whose connections can then be held back (`slow_link`); None in other processes.

    Raises:
        ConfigError: others could reach the folder, or this MXNet cannot be made to use it.
    """
    global _moved_to
    folder = given_folder()
    if folder is None or _moved_to == folder:
        return

    def moved(original: Replacement, connects: bool) -> Replacement:
        def call(socket: Optional[int], address: bytes) -> int:
            if not address.startswith(PUBLIC):
                return int(original(socket, address))
            path = folder / os.fsdecode(address[len(PUBLIC) :])
            if not _may_be_used(path):
                raise PermissionError(errno.EACCES, "another user listens there")
            if connects and control is not None and rank is not None:
                path = link_through(control, rank, path)
            return int(original(socket, b"ipc://" + os.fsencode(path)))

        return call

    control = os.environ.get(LINKS)
    replacements = {name: partial(moved, connects=name == "zmq_connect") for name in _CALLS}
    if not replace_calls(library, {name: _TYPE for name in _CALLS}, replacements):
        raise ConfigError(
            f"{library} is built in a way that does not let mxtrain choose where its sockets are, and would listen in "
            "/tmp, where every user of this machine may take their names. Type kvstore=horovod."
        )
    _moved_to = folder


def _may_be_used(path: Path) -> bool:
    """Returns True if no other user's process listens there: it is this user's socket, or not there yet."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return True
