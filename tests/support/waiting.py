"""Waits for other processes and threads."""

import socket
import time
from pathlib import Path
from typing import Any, Callable, Iterable, List

from mxtrain.cluster.process import state_of


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Returns the first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.01)
    return found


def read_pids(path: Path, seconds: float = 30) -> List[int]:
    """Returns the numbers of processes in a file, as soon as it has a whole line."""
    line = wait_until(lambda: path.exists() and "\n" in path.read_text() and path.read_text(), seconds)
    return [int(pid) for pid in line.split()]


def wait_for_ends(pids: Iterable[int], seconds: float = 5) -> None:
    """Waits until these processes have ended."""
    wait_until(lambda: all(state_of(pid) in ("", "Z") for pid in pids), seconds)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])
