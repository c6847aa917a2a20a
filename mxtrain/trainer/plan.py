"""The plan of a run: its number of steps and when it logs, validates and saves. Plain values, made by `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Mapping, Optional

from mxtrain.errors import LESS_MEMORY
from mxtrain.kvstore.world import World
from mxtrain.process.stopping import GRACE_S
from mxtrain.trainer.cadence import Cadence

if TYPE_CHECKING:
    from mxtrain.annotations import Json
    from mxtrain.dataset.loading.loader import BatchLoader
    from mxtrain.trainer.evaluate import ShownSamples


@dataclass
class Plan:
    """The lengths and cadences of a run: plain numbers and functions, made by `build`.

    Attributes:
        lr: learning rate by the number of finished steps.
        total_steps: where the description is complete; None if only time limits it.
        max_steps, max_time: budgets of `trainer`.
        monitor: e.g. "val/accuracy"; `direction` is "max" or "min".
    """

    lr: Callable[[int], float]
    steps_per_epoch: int
    total_steps: Optional[int]
    max_steps: Optional[int]
    max_time: Optional[float]
    log: Cadence
    validate: Cadence
    save: Cadence
    monitor: str
    direction: str
    identity: Mapping[str, Json]
    """What checkpoints note of their run: the description, and what enters and leaves the network."""
    grace_s: float = GRACE_S
    """Seconds after a signal, when the process is ended if it has not saved and ended by itself."""
    save_on_end: bool = True
    """Whether the last step is saved, whatever the cadence says."""
    keeps_best: bool = True
    """Whether a new best is saved when it is found, whatever the cadence says."""

    less_memory: str = LESS_MEMORY
    """What to set where a device has too little memory."""

    @property
    def saves_midway(self) -> bool:
        """Whether checkpoints are written before the end, which a run can be continued from after a crash."""
        return not self.save.every_steps is self.save.every_epochs is self.save.every_minutes is None


@dataclass
class RunData:
    """The loaders of a run; a split that does not exist is None."""

    train: BatchLoader
    val: Optional[BatchLoader] = None
    test: Optional[BatchLoader] = None
    samples: Optional[ShownSamples] = None
    """A loader of the few samples to show predictions of."""

    def share(self, world: World) -> None:
        """Workers have come or gone: batches are shared anew from the next epoch or `start` on."""
        for loader in (self.train, self.val):
            if loader is not None:
                loader.world = world
