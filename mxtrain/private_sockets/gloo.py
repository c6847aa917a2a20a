"""Replaces the loopback ports of Gloo with Unix sockets in the folder of the run.

Every user of a machine can connect to its loopback ports, and Gloo accepts the first connection as the expected worker.
So a socket that Gloo binds to a loopback port is replaced by a Unix socket, whose name is a number in the place of the
port, and connections to that port go to this socket. Gloo itself sees only loopback addresses.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Any, Optional, Set, Tuple

from mxtrain.errors import ConfigError
from mxtrain.private_sockets.calls import Replacement, find_calls, replace_calls
from mxtrain.private_sockets.folder import given_folder
from mxtrain.private_sockets.slow_link import RING_LINKS, link_through
from mxtrain.private_sockets.slow_link import VARIABLE as LINKS

_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
_NAME = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32), use_errno=True)
_OPTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True
)
_TYPES = {"bind": _ADDRESS, "connect": _ADDRESS, "getsockname": _NAME, "getpeername": _NAME, "setsockopt": _OPTION}
_INET = struct.Struct("!2xH4s8x")
_LOOPBACKS, _STAND_IN = 127, socket.inet_aton("127.88.84.82")
"""First byte of loopback addresses, and the byte that represents the folder in the addresses that Gloo exchanges."""
_MAX_PORT = 0xFFFF
_SO_DOMAIN = 39
_MAX_ADDRESS_BYTES = 128
_LIBC = ctypes.CDLL(None)
_moved: Optional[Loopback] = None


def move_gloo(library: str) -> None:
    """Moves Gloo's sockets to the folder. Must be called in each worker before each ring is formed.

    Does nothing if the run has no folder for sockets.

    Args:
        library: path of Horovod's library, which contains Gloo.

    Raises:
        ConfigError: other users can enter the folder, or the calls of this library cannot be replaced.
    """
    global _moved
    folder = given_folder()
    if folder is None:
        return
    if _moved is not None:
        _moved.forget()
        return
    if not find_calls(Path(library), ["bind"]):
        return  # built without Gloo: MPI or NCCL does the all-reduce
    moved = Loopback(folder)
    replacements = {name: getattr(moved, name) for name in _TYPES}
    if not replace_calls(library, _TYPES, replacements):
        raise ConfigError(
            f"{library} is built in a way that does not let mxtrain choose its sockets, and every user of this machine "
            "could connect to its ports. Build Horovod with scripts/horovod --force."
        )
    _moved = moved


class Loopback:
    """Emulates loopback ports by sockets in a folder. Each method returns the replacement of a function of libc.

    Args:
        folder: folder that only this user can enter.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._own: Set[Path] = set()

    def forget(self) -> None:
        """Removes the sockets of this process from the folder, because their ring no longer exists."""
        for path in self._own:
            path.unlink(missing_ok=True)
        self._own.clear()

    def bind(self, original: Replacement) -> Replacement:
        def call(fd: int, address: int, length: int) -> int:
            host, port = _read(address, length)
            if host[:1] != bytes([_LOOPBACKS]) or port:
                return int(original(fd, address, length))
            with socket.socket(socket.AF_UNIX) as ours:
                self._own.add(self._bind_anywhere(ours))
                _become(fd, ours)
            return 0

        return call

    def connect(self, original: Replacement) -> Replacement:
        control = os.environ.get(LINKS)

        def call(fd: int, address: int, length: int) -> int:
            host, port = _read(address, length)
            if host != _STAND_IN:
                return int(original(fd, address, length))
            path = self._folder / str(port)
            if control is not None:
                path = link_through(control, RING_LINKS, path)
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(str(path))
                if _peer_user(ours) != os.getuid():
                    raise PermissionError(errno.EACCES, "another user listens there")
                _become(fd, ours)
            return 0

        return call

    def getsockname(self, original: Replacement) -> Replacement:
        return _named(original)

    def getpeername(self, original: Replacement) -> Replacement:
        return _named(original)

    def setsockopt(self, original: Replacement) -> Replacement:
        def call(fd: int, level: int, option: int, value: int, length: int) -> int:
            # Unix sockets never delay data, and do not have this option.
            is_no_delay = (level, option) == (socket.IPPROTO_TCP, socket.TCP_NODELAY)
            if is_no_delay and _family(fd) == socket.AF_UNIX:
                return 0
            return int(original(fd, level, option, value, length))

        return call

    def _bind_anywhere(self, ours: socket.socket) -> Path:
        while True:
            path = self._folder / str(1 + secrets.randbelow(_MAX_PORT))
            try:
                ours.bind(str(path))
                return path
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise


def _named(original: Replacement) -> Replacement:
    """Returns the port that a socket's own name, or its peer's, represents; 0 if it has no name."""

    def call(fd: int, address: int, length: Any) -> int:
        if _family(fd) != socket.AF_UNIX:
            return int(original(fd, address, length))
        found = ctypes.create_string_buffer(_MAX_ADDRESS_BYTES)
        size = ctypes.c_uint32(_MAX_ADDRESS_BYTES)
        if original(fd, ctypes.addressof(found), ctypes.byref(size)):
            return -1
        name = Path(os.fsdecode(found.raw[2 : size.value].split(b"\0")[0])).name
        text = _INET.pack(int(name) if name.isdecimal() else 0, _STAND_IN)
        text = struct.pack("=H", socket.AF_INET) + text[2:]
        ctypes.memmove(address, text, min(len(text), length[0]))
        length[0] = len(text)
        return 0

    return call


def _read(address: int, length: int) -> Tuple[bytes, int]:
    """Returns (host, port) of an IPv4 address; an empty host for other address families."""
    text = ctypes.string_at(address, min(length, _INET.size))
    if len(text) < _INET.size or struct.unpack_from("=H", text)[0] != socket.AF_INET:
        return b"", 0
    port, host = _INET.unpack(text)
    return host, port


def _family(fd: int) -> int:
    domain, size = ctypes.c_int(-1), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
    _LIBC.getsockopt(fd, socket.SOL_SOCKET, _SO_DOMAIN, ctypes.byref(domain), ctypes.byref(size))
    return domain.value


def _become(fd: int, ours: socket.socket) -> None:
    """Replaces the socket behind a file descriptor. The descriptor keeps its flags, such as non-blocking."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    os.dup2(ours.fileno(), fd, inheritable=False)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _peer_user(connected: socket.socket) -> int:
    """Returns the user id of the process at the other end of a connection."""
    _, user, _ = struct.unpack("=iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)
