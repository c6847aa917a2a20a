"""A side of a comparison, in a process of its own. Needs nothing but the standard library.

    python -m bench_parts.turn MODULE:FUNCTION BLOCK_STEPS ARGUMENTS          ARGUMENTS: a list in JSON

BLOCK_STEPS 0: the function is called, and what it returns is printed as a line of JSON. More: it returns (step, end).
Blocks of so many steps are made, whenever it is this side's turn; `end` waits until all of a block is computed.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from typing import Callable, List, Optional

SOCKET = "BENCH_TURNS"


class Turns:
    """Tells the harness (`in_turns` in harness.py) when a block is done, and waits for the next turn."""

    def __init__(self) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[SOCKET])
        self._began: Optional[float] = None

    def next(self, steps: int = 0) -> None:
        """Ends a block of so many steps (0: not counted), all of whose work must be done; returns when the next may
        begin."""
        took = 0.0 if self._began is None else time.perf_counter() - self._began
        self._connection.sendall(f"{took} {steps}\n".encode())
        if not self._connection.recv(1):
            os._exit(0)  # enough was measured
        self._began = time.perf_counter()


def take_turns(step: Callable[[], None], end: Callable[[], None], block_steps: int) -> None:
    """Makes blocks of steps until no more are wanted."""
    turns = Turns()
    while True:
        for _ in range(block_steps):
            step()
        end()
        turns.next(block_steps)


def main(arguments: List[str]) -> None:
    module, _, function = arguments[0].partition(":")
    block_steps = int(arguments[1])
    found = getattr(importlib.import_module(f"bench_parts.{module}"), function)(*json.loads(arguments[2]))
    if block_steps:
        take_turns(*found, block_steps)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
