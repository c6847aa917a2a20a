"""A process that trains in turns with others: see turns.py. Needs nothing but the standard library."""

from __future__ import annotations

import os
import socket
import time
from typing import Optional

SOCKET = "BENCH_TURNS"


class Turns:
    """The child's side."""

    def __init__(self) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[SOCKET])
        self._began: Optional[float] = None

    def next(self) -> None:
        """Ends a block, all of whose work must be done, and returns when the next may begin."""
        if self._began is not None:
            self._connection.sendall(f"{time.perf_counter() - self._began}\n".encode())
        else:
            self._connection.sendall(b"ready\n")
        if not self._connection.recv(1):
            os._exit(0)  # enough was measured
        self._began = time.perf_counter()
