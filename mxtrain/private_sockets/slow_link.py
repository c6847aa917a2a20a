"""Links of workers that can be held back, for injected faults (`debug=chaos`).

    worker -- connects --> SlowLinks (in the process that injects faults) -- connects --> server, or another worker

Processes that find the environment variable `VARIABLE` connect their Unix sockets through `SlowLinks`, which forwards
bytes in both directions and, while a worker is held back, keeps what that worker sends to servers. Of two members of a
ring either one may connect, so all of their links are held back together, in both directions. Nothing is lost or
reordered.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional

VARIABLE = "MXTRAIN_CHAOS_LINKS"
"""Path of the socket on which `SlowLinks` takes requests."""
_REQUEST = struct.Struct("<iH")
"""Rank of the worker, and number of bytes of the path that follows."""
RING_LINKS = -1
"""In the place of a rank: the links between the workers of a ring."""
_PIECE = 1 << 16
_TIMEOUT_S = 10.0


def link_through(control: str, rank: int, path: Path) -> Path:
    """Returns the path of a socket that leads to `path` through the process that injects faults.

    Args:
        control: its socket for requests.
        rank: rank of this worker, or `RING_LINKS`.
        path: path of the socket to connect to; it may not exist yet.

    Raises:
        OSError: the process has ended.
    """
    name = os.fsencode(path)
    with socket.socket(socket.AF_UNIX) as request:
        request.settimeout(_TIMEOUT_S)
        request.connect(control)
        request.sendall(_REQUEST.pack(rank, len(name)) + name)
        with request.makefile("rb") as file:
            answer = file.read()
    if not answer:
        raise ConnectionError(f"{control} gave no link")
    return Path(os.fsdecode(answer))


class SlowLinks:
    """Forwards the connections of workers, and holds back what one of them sends, or what the links of a ring carry.

    Args:
        folder: folder for sockets, which only this user can enter.
    """

    def __init__(self, folder: Path):
        self._folder, self._numbers = folder, itertools.count(1)
        self._released: Dict[Optional[int], threading.Event] = {}
        self._held_bytes: Dict[int, int] = {}
        self._listeners: List[socket.socket] = []
        self.control = str(folder / "control")
        """Value of the environment variable `VARIABLE`."""
        self._start(self._answer, self._listen(Path(self.control)))

    @contextmanager
    def hold(self, rank: int) -> Iterator[Callable[[], int]]:
        """Keeps what a worker sends until the end of the block; yields a function that returns the number of bytes.

        Args:
            rank: rank of the worker, or `RING_LINKS`.
        """
        self._held_bytes[rank] = 0
        self._released[rank] = threading.Event()
        try:
            yield lambda: self._held_bytes[rank]
        finally:
            self._released.pop(rank).set()

    def close(self) -> None:
        """Takes no more connections. Those that exist end with their processes."""
        for one in self._listeners:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # which wakes a thread that accepts
            one.close()

    def _listen(self, path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        self._listeners.append(listener)
        return listener

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _answer(self, control: socket.socket) -> None:
        """Takes requests for links."""
        with suppress(OSError):
            while True:
                request, _ = control.accept()
                # Errors are those of a process that was killed meanwhile.
                with suppress(OSError, struct.error), request, request.makefile("rb") as content:
                    request.settimeout(_TIMEOUT_S)
                    rank, length = _REQUEST.unpack(content.read(_REQUEST.size))
                    target = os.fsdecode(content.read(length))
                    path = self._folder / str(next(self._numbers))
                    self._start(self._accept, self._listen(path), rank, target)
                    request.sendall(os.fsencode(path))

    def _accept(self, listener: socket.socket, rank: int, target: str) -> None:
        """Forwards the connections of one link."""
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                try:
                    far.connect(target)
                except OSError:  # nobody listens there yet: the worker's library tries again
                    far.close()
                    near.close()
                    continue
                self._start(self._forward_both, near, far, rank)

    def _forward_both(self, near: socket.socket, far: socket.socket, rank: int) -> None:
        """Forwards both directions of a connection to their ends."""
        with near, far:
            rank_back = rank if rank == RING_LINKS else None
            back = threading.Thread(target=self._forward, args=(far, near, rank_back), daemon=True)
            back.start()
            self._forward(near, far, rank)
            back.join()

    def _forward(self, source: socket.socket, target: socket.socket, rank: Optional[int]) -> None:
        """Forwards one direction until it ends, and then ends the other side."""
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                released = self._released.get(rank)
                if released is not None and rank is not None:
                    self._held_bytes[rank] += len(piece)
                    released.wait()
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
