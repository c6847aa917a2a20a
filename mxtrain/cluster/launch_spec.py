"""Launch specs: the command, environment and role with which each process of a run is started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.cluster.member import HOST_RANK, HOST_WORKERS
from mxtrain.cluster.process import LaunchSpec
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.kvstore.world import WORKER
from mxtrain.private_sockets.folder import VARIABLE
from mxtrain.runtime.network import LOOPBACK

PASSED = (
    "MXNET_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "DNNL_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHON",
    "MXTRAIN_",
    "CUDA_",
    "NCCL_",
    "LD_LIBRARY_PATH",
    "TZ",
)
"""Prefixes of environment variables that are copied to other hosts because they change numerical results."""
_FOREIGN = ("DMLC_", "PS_")


@dataclass(frozen=True)
class Root:
    """The address at which the scheduler listens.

    Attributes:
        address: IPv4 address of this machine.
        port: TCP port; on a single machine the number of its socket file, followed by those of the other processes.
        folder: folder of the socket files if all processes are on this machine; otherwise None.
    """

    address: str
    port: int
    folder: Optional[Path] = None


def local_root(folder: Path) -> Root:
    """Returns the root of processes that are all on this machine.

    Args:
        folder: folder of their sockets.
    """
    return Root(LOOPBACK, 1, folder)


def common_environment(cluster: Cluster, van: Optional[str], root: Root) -> Dict[str, str]:
    """Returns the environment variables that all processes of a run share, whatever starts them.

    Args:
        cluster: description of the processes.
        van: transport of ps-lite; None if there are no servers.
        root: address of the scheduler.
    """
    common = {
        "DMLC_PS_ROOT_URI": root.address,
        "DMLC_PS_ROOT_PORT": str(root.port),
        "DMLC_NUM_WORKER": str(cluster.workers),
        "DMLC_NUM_SERVER": str(cluster.num_servers),
        "PYTHONUNBUFFERED": "1",
    }
    if van is not None:
        common["DMLC_PS_VAN_TYPE"] = van
    if root.folder is not None:
        common.update({"DMLC_LOCAL": "1", "DMLC_NODE_HOST": root.address, VARIABLE: str(root.folder)})
    return common


def roles(cluster: Cluster, van: Optional[str]) -> List[Tuple[str, int]]:
    """Returns (role, number) of all processes: scheduler and servers, if any, then the workers by rank."""
    serving = [] if van is None else [("scheduler", 0), *(("server", number) for number in range(cluster.num_servers))]
    return [*serving, *(("worker", rank) for rank in range(cluster.workers))]


def name_of(role: str, number: int) -> str:
    """Returns the name of a process in messages, e.g. "worker 1"."""
    return role if role == "scheduler" else f"{role} {number}"


def launch_specs(
    cluster: Cluster,
    van: Optional[str],
    arguments: Sequence[str],
    logs: Path,
    root: Root,
    environment: Mapping[str, str],
    host_workers: Optional[Sequence[int]] = None,
) -> List[LaunchSpec]:
    """Returns the specs of all processes as they run on one machine; worker 0 has the supervisor's own output.

    Args:
        cluster: description of the processes.
        van: see `common_environment`.
        arguments: arguments of the workers' command line.
        logs: folder for the output of all processes except worker 0.
        root: address of the scheduler.
        environment: further environment variables.
        host_workers: ranks of the workers that share this host; None: all of them.
    """
    variables = {**environment, **common_environment(cluster, van, root)}
    sharing = range(cluster.workers) if host_workers is None else host_workers
    variables[HOST_WORKERS] = str(max(len(sharing), 1))
    specs = []
    for at, (role, number) in enumerate(roles(cluster, van)):
        name = name_of(role, number)
        process_environment = {**variables, "DMLC_ROLE": role}
        if role == "worker":
            process_environment[WORKER] = str(number)
            if number in sharing:
                process_environment[HOST_RANK] = str(sharing.index(number))
        if root.folder is not None:
            process_environment["PORT"] = str(root.port + at)
        log = None if name == "worker 0" else logs / f"{name.replace(' ', '-')}.log"
        specs.append(LaunchSpec(name, [*module_command("mxtrain"), *arguments], process_environment, log, number))
    return specs


def inherited(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Returns the environment that processes on this machine inherit, without the variables of an earlier run of
    several."""
    return {n: value for n, value in environ.items() if not n.startswith(_FOREIGN) and n not in ("PORT", VARIABLE)}


def passed(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Returns the variables to copy to other hosts: variables that change numerical results, and `names`."""
    return {name: value for name, value in inherited(environ).items() if name.startswith(PASSED) or name in names}
