"""All processes of a run on this machine."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mxtrain.cluster.member import HOST_WORKERS, RING, WORKER
from mxtrain.cluster.process import Order
from mxtrain.cluster.spec import Cluster

LOOPBACK = "127.0.0.1"
SOCKETS = Path("/tmp")  # ps-lite asks nobody
_NAME = re.compile(r"[12]\d{9}\Z")
STALE_S = 60.0
"""Younger sockets may belong to a process that is about to listen."""


def local_orders(
    cluster: Cluster, van: Optional[str], arguments: Sequence[str], logs: Path, ring: Optional[str] = None
) -> List[Order]:
    """Scheduler, servers and workers, worker 0 with the supervisor's own output; who talk through sockets of this user.

    Args:
        cluster: the description.
        van: ps-lite's transport, where gradients meet on servers; None where they don't.
        arguments: of the workers' command line.
        logs: folder for the output of the others.
        ring: host:port of the supervisor's ring, where gradients meet along one.
    """
    remove_stale_sockets()
    names = socket_names(1 + cluster.num_servers + cluster.workers)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "PS_"))}
    common = {
        **inherited, "DMLC_LOCAL": "1", "DMLC_PS_ROOT_URI": LOOPBACK, "DMLC_NODE_HOST": LOOPBACK,
        "DMLC_PS_ROOT_PORT": names[0].name, "DMLC_NUM_WORKER": str(cluster.workers),
        "DMLC_NUM_SERVER": str(cluster.num_servers), HOST_WORKERS: str(cluster.workers), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if ring is not None:
        common[RING] = ring
    command = [sys.executable, "-m", "mxtrain"]
    orders = []

    def order(role: str, number: int, log: bool = True, **more: str) -> None:
        name = role if role == "scheduler" else f"{role} {number}"
        own = names[len(orders)]
        environment: Dict[str, str] = {**common, "DMLC_ROLE": role, "PORT": own.name, **more}
        file = logs / f"{name.replace(' ', '-')}.log" if log else None
        orders.append(Order(name, [*command, *arguments], environment, file, own, number))

    if van is not None:
        common["DMLC_PS_VAN_TYPE"] = van
        order("scheduler", 0)
        for number in range(cluster.num_servers):
            order("server", number)
    for rank in range(cluster.workers):
        order("worker", rank, log=rank > 0, **{WORKER: str(rank)})
    return orders


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
