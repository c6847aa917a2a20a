"""The sockets of processes on one machine: files under /tmp, that nobody but their user can open."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import List

SOCKETS = Path("/tmp")  # ps-lite asks nobody
_NAME = re.compile(r"[12]\d{9}\Z")
STALE_S = 60.0
"""Younger sockets may belong to a process that is about to listen."""


def socket_names(count: int) -> List[Path]:
    """Where ps-lite puts its sockets on one machine, instead of ports that every user of it could connect to."""
    first = 1_000_000_000 + secrets.randbelow(1_000_000_000)
    return [SOCKETS / str(first + number) for number in range(count)]


def remove_stale_sockets() -> None:
    """What groups left behind whose supervisor was killed: this user's old sockets on which nobody listens."""
    for path in SOCKETS.iterdir():
        with suppress(OSError):
            if not _NAME.match(path.name) or not path.is_socket() or path.stat().st_uid != os.getuid():
                continue
            if time.time() - path.stat().st_mtime > STALE_S and not _is_listened_to(path):
                path.unlink()


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True
