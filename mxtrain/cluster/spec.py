"""Settings of the processes of a run (`conf/cluster/*.yaml`)."""

from __future__ import annotations

from typing import List, Literal, Optional, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.cluster.preemption import unsupported_notice_reason
from mxtrain.cluster.stopping import GRACE_S
from mxtrain.types import NonNegative, NonNegativeFloat, PathText, Positive, PositiveFloat, Spec

VariableName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Cluster(Spec):
    """The processes of a run, and their timeouts. Settings change results only in the last bits, through the order of
    summation."""

    workers: Positive = 1
    """Processes that train, each on its share of every batch."""
    servers: Union[Literal["auto"], Positive] = "auto"
    """Processes that sum the gradients of all workers, for stores that need them; auto: 1."""
    launcher: Literal["local", "nodes", "ssh", "slurm", "ray"] = "local"
    """Launcher of the processes; local: all on this machine; nodes: those of this node, whose number an engine has
    set (files of `mxtrain launch`); ssh: on the hosts of `hostfile`; slurm: one srun; ray: actors of a Ray
    cluster."""
    hostfile: Optional[PathText] = None
    """For ssh: a file with a line `HOST [slots=N]` for each host; one of them is this machine."""
    interface: Optional[str] = None
    """The network interface, of this name on every host, to which processes on several hosts bind; None: the one by
    which the hosts reach each other."""
    python: str = "auto"
    """Python on the other hosts; auto: the same path as here."""
    directory: str = "auto"
    """Working directory on the other hosts; auto: the same path as here."""
    launcher_options: List[str] = []
    """Further arguments of ssh or srun, e.g. [-F,my_ssh_config]; for ray: NAME=VALUE with the names address,
    cpus, gpus, server_cpus, strategy and wait, e.g. [address=auto,cpus=4]."""
    environment: List[VariableName] = []
    """Further environment variables that go along to other hosts; what MXNet, OpenMP and Python read always does."""
    balance: Literal["equal", "speed", "dynamic"] = "equal"
    """Division of the data among workers. equal: equal shares of each batch; speed: smaller shares for slower workers,
    measured again in each epoch; dynamic (kvstore=dist_async): each worker takes the next share when it has finished
    one, so that slower workers take fewer, and those of a lost worker are taken by others."""
    balance_every: Optional[Positive] = None
    """With balance=speed: steps after which shares follow the measured speeds, also within an epoch; null: only at the
    beginning of an epoch."""
    heartbeat_timeout: PositiveFloat = 5.0
    """Seconds without a heartbeat after which a process counts as dead."""
    start_timeout: PositiveFloat = 300.0
    """Seconds from the start to the first batch, in which data is read and all processes find each other; also how long
    a restart waits for a host that cannot be reached."""
    step_timeout: PositiveFloat = 300.0
    """Seconds without any finished batch, in training or validation, after which the run counts as hung."""
    restarts: NonNegative = 3
    """Maximum number of restarts from the last checkpoint after the loss of a process; the count starts again after
    each new checkpoint."""
    backoff: NonNegativeFloat = 1.0
    """Seconds before the first restart; twice as long before each further one, a minute at most."""
    standby: bool = False
    """Keep a second process for each one, which has loaded its libraries and takes its place after a failure, without
    `backoff` before the first restart. It needs the memory of an idle process; with launcher=local, ssh or ray (without
    GPUs)."""
    memory_steps: Optional[Positive] = None
    """Optimizer steps between copies of the state in memory (/dev/shm), from which a restart continues if they are
    newer than the last checkpoint. They end with the run; with launcher=local or ssh. None: no copies."""
    grace: PositiveFloat = GRACE_S
    """Seconds that a run has to save after SIGINT, SIGTERM or SIGHUP before it is killed."""

    notice: Optional[Annotated[str, pydantic.StringConstraints(min_length=1)]] = None
    """Source of the notice that a preemptible (spot) machine is about to end: aws or gcp (metadata service of the
    cloud), a URL (http://...), or a file that is created as the notice. It is polled every 5 seconds; the run reacts as
    `checkpoint.on_signal` says."""

    @property
    def num_servers(self) -> int:
        """Returns `servers` as a number."""
        return 1 if self.servers == "auto" else self.servers

    def unsupported_reason(self) -> str:
        """Returns the reason why the launcher does not support these settings, or ""."""
        notice_reason = "" if self.notice is None else unsupported_notice_reason(self.notice)
        if notice_reason:
            return notice_reason
        if self.balance_every is not None and self.balance != "speed":
            reason = "equal shares do not change" if self.balance == "equal" else "shares are taken, not measured"
            return (
                f"cluster.balance_every={self.balance_every} with cluster.balance={self.balance}: {reason}. Type "
                "cluster.balance=speed, or leave cluster.balance_every out."
            )
        if self.balance == "dynamic" and self.launcher == "nodes":
            return (
                "cluster.balance=dynamic with cluster.launcher=nodes: the supervisors of several nodes cannot go on "
                "together without a lost worker. Type cluster.balance=speed."
            )
        if self.launcher == "ssh" and self.hostfile is None:
            return (
                "cluster.launcher=ssh needs cluster.hostfile=FILE with a line 'HOST [slots=N]' for each host, this "
                "machine among them."
            )
        if self.hostfile is not None and self.launcher != "ssh":
            return (
                f"cluster.hostfile={self.hostfile} with cluster.launcher={self.launcher}: only ssh starts "
                "processes on the hosts of a file. Type cluster.launcher=ssh."
            )
        if self.launcher_options and self.launcher == "nodes":
            return (
                f"cluster.launcher_options={self.launcher_options} with cluster.launcher=nodes: this launcher calls no "
                "other program. Leave it out."
            )
        if self.memory_steps is not None and self.launcher not in ("local", "ssh"):
            return (
                f"cluster.memory_steps={self.memory_steps} with cluster.launcher={self.launcher}: copies in memory "
                "need worker 0 on the machine of the supervisor: cluster.launcher=local or ssh. Leave it out."
            )
        if self.standby and self.launcher not in ("local", "ssh", "ray"):
            return (
                f"cluster.standby=true with cluster.launcher={self.launcher}: only processes of cluster.launcher="
                "local, ssh and ray have standbys. Leave it out."
            )
        for name in ("interface", "launcher_options"):
            if getattr(self, name) and self.launcher == "local":
                return (
                    f"cluster.{name}={getattr(self, name)} with cluster.launcher=local: processes on one machine talk "
                    "through sockets in its file system. Type cluster.launcher=ssh, slurm, ray or nodes for "
                    "several."
                )
        return ""
