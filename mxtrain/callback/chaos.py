"""The schedule of injected faults (`debug=chaos`); `mxtrain.cli.chaos` injects them from outside of the processes."""

from __future__ import annotations

import random
from typing import Collection, List, NamedTuple

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.callback.spec import CallbackSpec
from mxtrain.types import Callback, NonNegative, Positive, PositiveFloat

CHILD = "MXTRAIN_CHAOS_FULL_DISK"
"""Environment variable of the processes of both runs: path of a file; while it exists, the disk counts as full."""

FaultKind = Literal["kill", "pause", "corrupt", "full", "delay"]


class Fault(NamedTuple):
    """A fault of the schedule: its kind, and the step after which it happens."""

    kind: FaultKind
    step: int


class Chaos(CallbackSpec):
    """Injects faults into a run, and compares its result with that of an undisturbed one."""

    faults: Annotated[List[FaultKind], pydantic.Field(min_length=1)] = [
        "kill",
        "pause",
        "corrupt",
        "full",
        "delay",
    ]
    """Kinds of faults: kill = SIGKILL to a process of the run; left out with kvstore=horovod, where the others go on
    with other sums; pause = stop a process for `pause_s`, so that all that
    it is connected to wait; corrupt = end the run and damage its newest checkpoint; full = no write succeeds for
    `pause_s`, as on a full disk; delay = hold back what one worker sends to servers, or what the workers of a ring send
    each other, for `pause_s`; it is left out where there are no such links."""
    count: Positive = 5
    """Number of faults. Each kind comes in turn."""
    seed: NonNegative = 0
    """Seed of the schedule."""
    pause_s: PositiveFloat = 0.5
    """Length of a pause, a delay and a full disk, in seconds; below `cluster.heartbeat_timeout`, nothing is
    restarted."""

    def build(self) -> Callback:
        return Callback()

    def schedule(self, num_steps: int, left_out: Collection[str] = ()) -> List[Fault]:
        """Returns the faults of a run in the order of their steps, which depends only on `seed`.

        Args:
            num_steps: number of steps of the run.
            left_out: kinds that do not happen.
        """
        draw = random.Random(self.seed)
        possible = [kind for kind in self.faults if kind not in left_out]
        kinds = [possible[number % len(possible)] for number in range(self.count)]
        draw.shuffle(kinds)
        steps = sorted(draw.randint(1, max(num_steps - 1, 1)) for _ in kinds)
        return [Fault(kind, step) for kind, step in zip(kinds, steps)]
