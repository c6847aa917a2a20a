"""All processes of a run on this machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Dict, List, Sequence

from mxtrain.cluster.member import HOST_WORKERS, WORKER
from mxtrain.cluster.process import Order
from mxtrain.cluster.spec import Cluster

LOOPBACK = "127.0.0.1"


def local_orders(cluster: Cluster, needs_servers: bool, arguments: Sequence[str], logs: Path) -> List[Order]:
    """Scheduler, servers and workers, worker 0 with the supervisor's own output; everything listens on loopback only.

    Args:
        cluster: the description.
        needs_servers: whether gradients meet on servers.
        arguments: of the workers' command line.
        logs: folder for the output of the others.
    """
    common = {
        **os.environ, "DMLC_PS_ROOT_URI": LOOPBACK, "DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_NODE_HOST": LOOPBACK,
        "DMLC_NUM_WORKER": str(cluster.workers), "DMLC_NUM_SERVER": str(cluster.num_servers),
        HOST_WORKERS: str(cluster.workers), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "mxtrain"]
    orders = []

    def order(role: str, number: int, log: bool = True, **more: str) -> None:
        name = role if role == "scheduler" else f"{role} {number}"
        environment: Dict[str, str] = {**common, "DMLC_ROLE": role, **more}
        orders.append(
            Order(name, [*command, *arguments], environment, logs / f"{name.replace(' ', '-')}.log" if log else None)
        )

    if needs_servers:
        order("scheduler", 0)
        for number in range(cluster.num_servers):
            order("server", number)
    for rank in range(cluster.workers):
        order("worker", rank, log=rank > 0, **{WORKER: str(rank)})
    return orders


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
