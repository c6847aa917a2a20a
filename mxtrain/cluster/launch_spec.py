"""Launch specs: the command, environment and role with which each process of a run is started.

Reasons: docs/decisions/0022-private-sockets.md.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.cluster.member import HOST_RANK, HOST_WORKERS
from mxtrain.cluster.process import LaunchSpec
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import WORKER
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
SOCKETS = Path("/tmp")
"""Folder of ps-lite's Unix sockets (DMLC_LOCAL=1), a constant of its zmq_van.h."""
MIN_SOCKET, NUM_SOCKETS = 1 << 20, 1 << 30
"""Range of the names of ps-lite's Unix sockets: positive 32-bit integers that are no TCP ports, which ps-lite takes as
names if its first choice is taken."""


@dataclass(frozen=True)
class Root:
    """The address at which the scheduler listens.

    Attributes:
        address: IPv4 address of this machine.
        port: TCP port; on a single machine the number of its socket file, followed by those of the other processes.
        is_local: whether all processes are on this machine. Then ps-lite talks through Unix sockets, which it creates
            in `SOCKETS`; the processes create them with a umask that keeps other users out.
    """

    address: str
    port: int
    is_local: bool = False

    def remove_sockets(self, count: int) -> None:
        """Removes the socket files of processes that were killed; the others have removed theirs.

        Args:
            count: number of processes.
        """
        for port in range(self.port, self.port + count):
            path = SOCKETS / str(port)
            with suppress(OSError):
                # /tmp is shared by all users: only sockets are removed, and links are not followed.
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()


def local_root(van: Optional[str], number: Optional[int] = None) -> Root:
    """Returns the root of processes that are all on this machine.

    Args:
        van: transport of ps-lite; None if there are no servers.
        number: number of the scheduler's socket file, equal in all processes. By default it is random, so that nobody
            can take the name in advance.

    Raises:
        ConfigError: ps-lite cannot create its sockets.
    """
    if van is not None and not os.access(SOCKETS, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{SOCKETS} cannot be written, and MXNet's parameter server creates its sockets there, whatever TMPDIR "
            f"says: make {SOCKETS} writable, or type kvstore=horovod."
        )
    return Root(LOOPBACK, MIN_SOCKET + secrets.randbelow(NUM_SOCKETS) if number is None else number, is_local=True)


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
        # The log of a process that is killed must contain its last lines.
        "PYTHONUNBUFFERED": "1",
    }
    if van is not None:
        common["DMLC_PS_VAN_TYPE"] = van
    if root.is_local:
        common.update({"DMLC_LOCAL": "1", "DMLC_NODE_HOST": root.address})
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
    hosts: Mapping[str, object] = MappingProxyType({}),
) -> List[LaunchSpec]:
    """Returns the specs of all processes; worker 0 has the supervisor's own output.

    Args:
        cluster: description of the processes.
        van: see `common_environment`.
        arguments: arguments of the workers' command line.
        logs: folder for the output of all processes except worker 0.
        root: address of the scheduler.
        hosts: name of a process -> its host; empty: all have the same.
    """
    variables = common_environment(cluster, van, root)
    host_of_worker = [hosts.get(name_of("worker", rank)) for rank in range(cluster.workers)]
    specs = []
    for at, (role, number) in enumerate(roles(cluster, van)):
        name = name_of(role, number)
        sharing = [rank for rank, host in enumerate(host_of_worker) if host == hosts.get(name)]
        environment = {**variables, "DMLC_ROLE": role, HOST_WORKERS: str(max(len(sharing), 1))}
        if role == "worker":
            environment.update({WORKER: str(number), HOST_RANK: str(sharing.index(number))})
        if root.is_local:
            environment["PORT"] = str(root.port + at)
        log = None if name == "worker 0" else logs / f"{name.replace(' ', '-')}.log"
        specs.append(LaunchSpec(name, [*module_command("mxtrain"), *arguments], environment, log, number))
    return specs


def inherited(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Returns the environment that processes on this machine inherit, without the variables of an earlier run of
    several."""
    return {n: value for n, value in environ.items() if not n.startswith(_FOREIGN) and n != "PORT"}


def passed(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Returns the variables to copy to other hosts: variables that change numerical results, and `names`."""
    return {name: value for name, value in inherited(environ).items() if name.startswith(PASSED) or name in names}
