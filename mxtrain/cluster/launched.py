"""Reads rank and size from the environment that mpirun and srun set."""

from __future__ import annotations

import os
import re
import zlib
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.cluster.hosts import NOWHERE, interface_address, is_own_address
from mxtrain.cluster.launch_spec import MIN_SOCKET, NUM_SOCKETS, Root, common_environment, local_root, roles
from mxtrain.cluster.member import HOST_RANK, HOST_WORKERS
from mxtrain.cluster.spec import Cluster
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import WORKER
from mxtrain.runtime.network import LOOPBACK, address_towards, ipv4_of

MPI_RANK, SLURM_RANK = "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"
"""Variables in which mpirun and srun pass the rank of a process."""
ROOT = "MXTRAIN_ROOT"
"""HOST:PORT on which the scheduler listens if mpirun or srun started the processes."""
OWN_GPUS = "MXTRAIN_OWN_GPUS"
"""1 if the launcher of the workers sets CUDA_VISIBLE_DEVICES to different GPUs for each worker."""
_PORTS = (20000, 10000)
"""First port and number of ports, below the ephemeral range of kernels; the job id selects one."""
_MAX_STEP = 0xFFFFFFF0
"""Steps of Slurm from this number on are not started by srun, e.g. batch scripts and interactive shells."""


def rank_of(environ: Mapping[str, str]) -> Optional[int]:
    """Returns the rank of this process under mpirun or srun; None if neither started it."""
    if MPI_RANK in environ:
        return _number(environ, MPI_RANK)
    if SLURM_RANK in environ and "SLURM_STEP_NUM_TASKS" in environ:
        step = environ.get("SLURM_STEP_ID", "")
        return _number(environ, SLURM_RANK) if step.isdecimal() and int(step) < _MAX_STEP else None
    return None


def _number(environ: Mapping[str, str], name: str, default: str = "0") -> int:
    """Returns an environment variable as an integer.

    Raises:
        ConfigError: it is not a whole number.
    """
    text = environ.get(name) or default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{name}={text} in the environment: must be a whole number. Where neither mpirun nor srun started this "
            f"process, unset it (env -u {name} ...)."
        ) from None


def ranks_here(environ: Mapping[str, str]) -> List[int]:
    """Returns the ranks of the processes on this host in order; empty if unknown. mpirun reports only their count, and
    the ranks are assumed to be consecutive."""
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environ:
        size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
        first = _number(environ, MPI_RANK) - _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK")
        return list(range(first, first + size))
    ids = environ.get("SLURM_GTIDS", "").split(",")
    return sorted(_number({"SLURM_GTIDS": text}, "SLURM_GTIDS") for text in ids if text)


def local_rank_variables(workers: Sequence[int], environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables that say how many workers share this host, and which of them this process is.

    Args:
        workers: ranks of the workers among the processes that mpirun or srun started.
        environ: environment variables.
    """
    ranks, rank = [rank for rank in ranks_here(environ) if rank in workers], rank_of(environ)
    variables = {HOST_WORKERS: str(len(ranks) or len(workers))}
    if rank in ranks:
        variables[HOST_RANK] = str(ranks.index(rank))
    return variables


def has_own_gpus(num_gpus: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True if this process sees other GPUs than the other processes on this host.

    This is the case if `OWN_GPUS` is 1, or if srun has assigned fewer GPUs to it than to the job on this host.

    Args:
        num_gpus: number of GPUs that this process sees.
        environ: environment variables.
    """
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    # Slurm 22 gives two tasks with --gpus-per-task=1 CUDA_VISIBLE_DEVICES=0 and 1, and SLURM_GPUS_ON_NODE=2.
    is_bound = rank_of(environ) is not None and on_node.isdecimal() and num_gpus < int(on_node)
    return is_bound or environ.get(OWN_GPUS, "") == "1"


def launched_environment(
    cluster: Cluster, van: Optional[str], environ: Mapping[str, str] = os.environ
) -> Optional[Dict[str, str]]:
    """Returns the variables that make this process the scheduler, a server or a worker, by its rank: in this order.

    Args:
        cluster: description of the processes.
        van: transport of ps-lite; None if there are no servers.
        environ: environment variables.

    Returns:
        The variables; None if mpirun or srun did not start this process together with others.

    Raises:
        ConfigError: there are more or fewer processes than described, or the scheduler's address is unknown.
    """
    rank = rank_of(environ)
    size = _number(environ, "OMPI_COMM_WORLD_SIZE" if MPI_RANK in environ else "SLURM_STEP_NUM_TASKS", "1")
    if rank is None or size == 1:
        return None
    members = roles(cluster, van)
    starter, variable = ("mpirun", MPI_RANK) if MPI_RANK in environ else ("srun", SLURM_RANK)
    if size != len(members):
        servers = 0 if van is None else cluster.num_servers
        needed = f"{cluster.workers} workers" + (f", {servers} servers and a scheduler" if van is not None else "")
        raise ConfigError(
            f"{starter} started {size} processes, but the description needs {len(members)}: {needed} (cluster.workers="
            f"{cluster.workers} cluster.servers={cluster.servers}). Type {starter} -n {len(members)}; or, if {starter} "
            f"did not start this process, unset its leftover variable: env -u {variable} ..."
        )
    if not 0 <= rank < size:
        raise ConfigError(
            f"{variable}={rank} in the environment, and {starter} started {size} processes. Where it did not start "
            f"this one, unset the variable (env -u {variable} ...)."
        )
    role, number = members[rank]
    root = find_root(environ, van, len(ranks_here(environ)) == size, starter)
    variables = {**common_environment(cluster, van, root), "DMLC_ROLE": role}
    variables.update(local_rank_variables(range(size - cluster.workers, size), environ))
    if role == "worker":
        variables[WORKER] = str(number)
    if root.is_local:
        variables["PORT"] = str(root.port + rank)
    else:
        is_root = rank == 0 and cluster.interface is None and root.address != LOOPBACK and is_own_address(root.address)
        # From rank 0, the host of the scheduler, the route to the scheduler's own address would be loopback.
        towards = NOWHERE if rank == 0 else root.address
        variables["DMLC_NODE_HOST"] = root.address if is_root else own_address(cluster.interface, towards)
    return variables


def own_address(interface: Optional[str], root: str) -> str:
    """Returns the address to which processes of this host bind.

    Args:
        interface: network interface; None = the one that leads to `root`.
        root: address of the scheduler; `NOWHERE`: the default route counts.

    Raises:
        ConfigError: the host has no such address.
    """
    if interface is not None:
        return interface_address(interface)
    address = address_towards(root)
    if address is None:
        missing = "this machine has no default route" if root == NOWHERE else f"there is no way to {root}"
        raise ConfigError(f"{missing}: set cluster.interface to the network interface of the hosts.")
    return address


def find_root(environ: Mapping[str, str], van: Optional[str], is_one_host: bool, starter: str) -> Root:
    """Returns the address of the scheduler, rank 0. All processes compute the same address independently.

    Raises:
        ConfigError: the address cannot be derived from the environment, or ps-lite cannot create its sockets.
    """
    if environ.get(ROOT):
        host, port = scheduler_of(environ)
        return Root(_resolved(host, environ[ROOT]), port)
    job = environ.get("PMIX_NAMESPACE") or f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    # All processes must derive the same number without communication; the user id separates jobs of several users.
    number = zlib.crc32(f"{starter} {job} {os.getuid()}".encode())
    if is_one_host:
        return local_root(van, MIN_SOCKET + number % NUM_SOCKETS)
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    if not nodes:
        raise ConfigError(
            f"mpirun started processes on several hosts, and nothing says where the scheduler listens. Type "
            f"mpirun -x {ROOT}=HOST:PORT ... with the host of rank 0 and a port that is free there."
        )
    first = first_node(nodes)
    return Root(_resolved(first, first), _PORTS[0] + number % _PORTS[1])


def scheduler_of(environ: Mapping[str, str]) -> Tuple[str, int]:
    """Returns the host and the port of the scheduler from the variable `ROOT`. Raises: ConfigError."""
    address = environ.get(ROOT, "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{ROOT}={address}: must be HOST:PORT, of the host of rank 0.")
    return host, int(port)


def _resolved(host: str, source: str) -> str:
    """Returns the IPv4 address of a host: ps-lite does not bind to names."""
    try:
        return ipv4_of(host)
    except OSError as error:
        raise ConfigError(
            f"the scheduler's host {source} has no IPv4 address ({error}). Set {ROOT}=ADDRESS:PORT."
        ) from None


def first_node(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it: "n[03-05,9],m1" -> "n03"."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    if match is None:
        raise ConfigError(f"SLURM_STEP_NODELIST={nodes}: names no host. Set {ROOT}=HOST:PORT.")
    return "".join(part or "" for part in match.groups())
