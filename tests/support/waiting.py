"""Waits for other processes and threads."""

import socket
import time
from typing import Any, Callable


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Returns the first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])
