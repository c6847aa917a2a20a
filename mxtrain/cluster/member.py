"""Reads the role and rank of this process from the environment, which its launcher has set.

Worker L of a host takes the GPUs from L x N on, of those that it sees. A process that sees fewer GPUs than its job has
on the node has GPUs of its own and counts from 0. GPUs are not hidden from workers, because that must happen before
MXNet is imported, when their number is not known.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import List, Mapping, Optional

from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.kvstore.world import ALONE, WORKER, World

ROLES = ("scheduler", "server", "worker")
HOST_WORKERS, HOST_RANK = "MXTRAIN_HOST_WORKERS", "MXTRAIN_HOST_RANK"
"""Number of workers on this host, and the index of this one among them."""
HEARTBEAT_FD = "MXTRAIN_HEARTBEAT_FD"
"""The open file into which a process writes its heartbeats."""
STANDBY_FD = "MXTRAIN_STANDBY_FD"
"""The open file from which a standby reads the process that it becomes."""
FORK_SERVER_FD = "MXTRAIN_FORK_SERVER_FD"
"""The socket from which a fork server reads its orders."""


@dataclass(frozen=True)
class Member:
    """One process of a run."""

    role: str
    """scheduler, server or worker, in ps-lite's sense."""
    world: World = ALONE
    """The rank of a worker among all workers."""


@dataclass(frozen=True)
class LocalRank:
    """The rank of a worker among the workers of its host."""

    rank: int = 0
    """Local rank, from 0."""
    size: int = 1
    """Number of workers on the host."""


def find_local_rank(environ: Mapping[str, str] = os.environ) -> LocalRank:
    """Reads this worker's local rank from the environment, as our launchers, horovodrun, mpirun, srun or dmlc's local
    tracker set it; the first of one worker if it runs alone, or its local rank is unknown.

    Raises:
        ConfigError: a variable is no number.
    """
    member = find_member(environ)
    if member is None or member.role != "worker":
        return LocalRank()
    names = [HOST_RANK, "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"]
    if environ.get("DMLC_JOB_CLUSTER") == "local":
        # dmlc's local tracker numbers tasks on one host, so the task's number is the local rank only there.
        names.insert(1, "DMLC_TASK_ID")
    rank = next((_number(environ, name) for name in names if name in environ), 0)
    sizes = (HOST_WORKERS, "HOROVOD_LOCAL_SIZE")
    size = next((_number(environ, name) for name in sizes if name in environ), 1)
    # A local rank without a size still shows how many workers there are at least.
    return LocalRank(rank, max(size, rank + 1))


def find_member(environ: Mapping[str, str] = os.environ) -> Optional[Member]:
    """Reads the role of this process from the environment: mxtrain's, dmlc trackers' or Kubeflow's variables; None if
    it is not one of several processes.

    Raises:
        ConfigError: the variables are incomplete or contradict one another.
    """
    role = environ.get("DMLC_ROLE")
    if role is None:
        if "HOROVOD_RANK" not in environ or "HOROVOD_SIZE" not in environ:  # of horovodrun
            return None
        return Member("worker", World(_number(environ, "HOROVOD_RANK"), _number(environ, "HOROVOD_SIZE")))
    if role not in ROLES:
        raise ConfigError(f"DMLC_ROLE={role}: must be one of {', '.join(ROLES)}.")
    if role != "worker":
        return Member(role)
    size = _number(environ, "DMLC_NUM_WORKER")
    rank = _rank(environ, size)
    if not 0 <= rank < size:
        raise ConfigError(f"this worker has the rank {rank}, but DMLC_NUM_WORKER={size}.")
    return Member(role, World(rank, size))


def find_world() -> World:
    """Reads the rank of this process and the number of workers from the environment."""
    member = find_member()
    return ALONE if member is None else member.world


def _rank(environ: Mapping[str, str], size: int) -> int:
    for name in (WORKER, "DMLC_WORKER_ID", "DMLC_TASK_ID"):
        if name in environ:
            return _number(environ, name)
    try:  # Kubeflow's MXJob
        return int(json.loads(environ["MX_CONFIG"])["task"]["index"])
    except (KeyError, TypeError, ValueError):
        if size == 1:
            return 0
        raise ConfigError(
            f"DMLC_ROLE=worker, but no variable says which: set {WORKER}, DMLC_WORKER_ID or DMLC_TASK_ID to a number "
            "from 0, another one for each worker."
        ) from None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except KeyError:
        raise ConfigError(f"{name} is not set, but DMLC_ROLE={environ['DMLC_ROLE']} is.") from None
    except ValueError:
        raise ConfigError(f"{name}={environ[name]}: must be a whole number.") from None


# Standbys.


def is_standby() -> bool:
    """Returns True until `wait_until_needed` was called in a process that the supervisor has started as a standby."""
    return STANDBY_FD in os.environ


def wait_until_needed() -> Optional[List[str]]:
    """Waits until the supervisor needs this standby, and then takes the environment of the process that it replaces.

    The supervisor starts a standby for each process with the same command line, and tells it the final one when it is
    needed: most of the time of a restart is spent in imports, in composing the configuration, and in opening data.

    Returns:
        The command line of that process, without the program; None in a process that is no standby, at once.
    """
    number = os.environ.pop(STANDBY_FD, "")
    if not number:
        return None
    with open(int(number), "rb") as pipe:
        line = pipe.readline()
    if not line:  # the supervisor has ended
        sys.exit(EXIT_FINISHED)
    order = json.loads(line)
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return list(order["arguments"])
