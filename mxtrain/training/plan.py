"""The plan of a run: its number of steps and when it logs, validates and saves. Plain values.

`trainer.max_epochs` is the length of a run over all resumes, and schedules end there. `trainer.max_time`, and
`trainer.max_steps` before the last epoch, are budgets of a process: it saves, exits with 75, and the same command
continues. Schedules never see budgets, so a run that is cut into pieces computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Tuple

from mxtrain.checkpoint.memory import is_kept_in_memory
from mxtrain.cluster.stopping import GRACE_S, Budget
from mxtrain.config.cadence import Cadence
from mxtrain.config.groups import Description
from mxtrain.errors import MEMORY_ADVICE
from mxtrain.kvstore.world import World
from mxtrain.training.remedies import less_memory
from mxtrain.training.spec import Trainer

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader
    from mxtrain.training.evaluate import ShownSamples
    from mxtrain.types.annotations import JsonObject


@dataclass
class Plan:
    """The lengths and cadences of a run: plain numbers and functions.

    Attributes:
        lr: learning rate by the number of finished steps.
        total_steps: where the description is complete; None if only time limits it.
        max_steps, max_time: budgets of `trainer`; `max_steps` is the smaller one of its steps and epochs.
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
    identity: JsonObject
    """Facts of the run in its checkpoints: the description and the signature of the network."""
    grace_s: float = GRACE_S
    """Seconds after a signal, when the process is ended if it has not saved and ended by itself."""
    save_on_end: bool = True
    """True if the last step is saved, whatever the cadence says."""
    keeps_best: bool = True
    """True if a new best is saved when it is found, whatever the cadence says."""

    less_memory: str = MEMORY_ADVICE
    """Advice for a device with too little memory."""

    epoch_origin: int = 0
    """Step at which epoch 0 would have begun with `steps_per_epoch`; not 0 after a change of the batch size."""

    step_setting: str = ""
    """The setting that gives `max_steps`, as it is typed."""

    keep: Cadence = field(default_factory=Cadence)
    """When the state is kept in memory, for a restart by the supervisor."""

    def budget(self, with_time: bool = True) -> Budget:
        """Returns the limits of the run, whose time begins now.

        Args:
            with_time: False = only steps count.
        """
        return Budget(self.total_steps, self.max_steps, self.max_time if with_time else None, self.step_setting)

    def next_meeting(self, step: int, origin: int) -> int:
        """Returns the next step after `step` at which workers that take chunks of the data must meet: at the end of the
        epoch, or before it to validate, to save or to stop.

        Args:
            step: finished steps.
            origin: step at which the epoch began.
        """
        steps = [origin + self.steps_per_epoch]
        for rule in (self.validate, self.save, self.keep):
            if rule.every_steps is not None:
                steps.append((step // rule.every_steps + 1) * rule.every_steps)
        steps += [limit for limit in (self.total_steps, self.max_steps) if limit is not None and limit > step]
        return min(steps)

    @property
    def saves_midway(self) -> bool:
        """Returns True if checkpoints are written before the end, which a run can be continued from after a crash."""
        return self.save.is_set


@dataclass
class RunData:
    """The loaders of a run; a split that does not exist is None."""

    train: BatchLoader
    val: Optional[BatchLoader] = None
    test: Optional[BatchLoader] = None
    samples: Optional[ShownSamples] = None
    """Loader of the few validation samples whose predictions are shown."""

    def share(self, world: World) -> None:
        """Divides batches among the workers of `world` from the next call of `epoch` on."""
        for loader in (self.train, self.val):
            if loader is not None:
                loader.world = world


def total_steps_of(trainer: Trainer, steps_per_epoch: int, epoch_origin: int = 0) -> Optional[int]:
    """Returns the number of steps of the whole run; None if only time limits it."""
    return epoch_origin + trainer.max_epochs * steps_per_epoch if trainer.max_epochs else trainer.max_steps


def step_budget(trainer: Trainer, steps_per_epoch: int, epoch_origin: int = 0) -> Tuple[Optional[int], str]:
    """Returns the smaller one of the budgets in steps and in epochs: its steps, and the setting that gives it."""
    budgets = [(trainer.max_steps, f"trainer.max_steps={trainer.max_steps}")]
    if trainer.epoch_budget is not None:
        steps = epoch_origin + trainer.epoch_budget * steps_per_epoch
        budgets.append((steps, f"trainer.epoch_budget={trainer.epoch_budget}"))
    return min(((steps, setting) for steps, setting in budgets if steps is not None), default=(None, ""))


def build_rate(
    description: Description, steps_per_epoch: int, total_steps: Optional[int], epoch_origin: int
) -> Callable[[int], float]:
    """Returns the learning rate by the number of finished steps. Schedules in epochs follow the epochs of the run."""
    schedule, base_lr = description.rates.schedule, description.rates.lr
    if schedule.unit != "epochs":
        return schedule.build(base_lr, steps_per_epoch, total_steps)
    lr = schedule.build(base_lr, steps_per_epoch, None if total_steps is None else total_steps - epoch_origin)
    # After a change of the batch size epochs have another number of steps, so the schedule counts from `epoch_origin`.
    return lambda step: lr(step - epoch_origin)


def build_plan(
    description: Description, steps_per_epoch: int, identity: JsonObject, direction: str, epoch_origin: int = 0
) -> Plan:
    """Builds the plan: lengths, cadences and the schedule, in steps."""
    trainer, checkpoint = description.trainer, description.checkpoint
    total_steps = total_steps_of(trainer, steps_per_epoch, epoch_origin)
    by_steps = trainer.val_interval_unit == "steps"
    max_steps, step_setting = step_budget(trainer, steps_per_epoch, epoch_origin)
    return Plan(
        lr=build_rate(description, steps_per_epoch, total_steps, epoch_origin),
        epoch_origin=epoch_origin,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        max_steps=max_steps,
        step_setting=step_setting,
        max_time=trainer.max_time,
        log=Cadence(every_steps=trainer.log_interval),
        validate=Cadence(**{"every_steps" if by_steps else "every_epochs": trainer.val_interval}),
        save=checkpoint.cadence(),
        keep=Cadence(every_steps=description.cluster.memory_steps if is_kept_in_memory() else None),
        grace_s=description.cluster.grace,
        save_on_end=checkpoint.save_on_end,
        keeps_best=checkpoint.keep_top > 0,
        monitor=trainer.monitor,
        direction=direction,
        identity=identity,
        less_memory=less_memory(description),
    )
