"""Moves the Unix sockets of ps-lite, which it would create in /tmp (DMLC_LOCAL=1), to the folder of the run."""

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
    """Moves ps-lite's sockets to the folder. Must be called in each process of the run before ps-lite starts.

    Does nothing if the run has no folder for sockets.

    Args:
        library: path of MXNet's library, which contains ps-lite.
        rank: rank of this worker, whose connections can then be delayed (`slow_link`); None in other processes.

    Raises:
        ConfigError: other users can enter the folder, or the calls of this library cannot be replaced.
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
    """Returns True if the socket belongs to this user or does not exist yet, so no other user listens there."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return True
