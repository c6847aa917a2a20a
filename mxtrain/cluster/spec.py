"""The description of the processes of a run: what `conf/cluster/*.yaml` may say."""

from __future__ import annotations

from typing import Literal, Union

from mxtrain.types import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Spec


class Cluster(Spec):
    """The processes of a run, and how long each may be silent. Nothing of it changes what is computed, but for
    the last bits, which depend on who computes what."""

    workers: Positive = 1
    """Processes that train, each on its share of every batch."""
    servers: Union[Literal["auto"], Positive] = "auto"
    """Processes in which gradients meet, for stores that need them; auto: 1."""
    launcher: Literal["local"] = "local"
    """What starts the processes; local: all of them on this machine."""
    balance: Literal["equal", "speed"] = "equal"
    """How a batch is shared: equally, or so that a slower worker gets fewer samples, measured anew for each epoch."""
    heartbeat_timeout: PositiveFloat = 5.0
    """Seconds without a sign of life after which a process counts as dead."""
    start_timeout: PositiveFloat = 300.0
    """Seconds from the start to the first batch, in which data is read and all processes find each other."""
    step_timeout: PositiveFloat = 300.0
    """Seconds without any finished batch, in training or validation, after which the run counts as hung."""
    restarts: NonNegative = 3
    """How often a run that lost a process goes on from its last checkpoint; counted anew after each new checkpoint."""
    backoff: NonNegativeFloat = 1.0
    """Seconds before the first restart; twice as long before each further one, a minute at most."""
    grace: PositiveFloat = 30.0
    """Seconds that workers have for saving after SIGTERM or SIGINT, before they are killed."""

    @property
    def num_servers(self) -> int:
        """`servers` as a number."""
        return 1 if self.servers == "auto" else self.servers
