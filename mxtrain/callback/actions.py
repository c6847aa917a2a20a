"""Built-in actions: stopping at a target, unfreezing, gradient accumulation, SWA. Imports no MXNet at import time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.callback import Action, Control
from mxtrain.callback.spec import CallbackSpec
from mxtrain.errors import ConfigError
from mxtrain.types import Finite, NonNegativeFloat, Positive, PositiveFloat, Spec

if TYPE_CHECKING:
    import numpy as np
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Json, JsonObject

Unit = Literal["epochs", "steps"]


class Target(CallbackSpec):
    """Stops the run as soon as a validated value reaches `value`, and prints the training time."""

    acts: ClassVar[bool] = True

    monitor: str = "val/accuracy"
    """Tag of the monitored value; the metric determines if larger or smaller is better."""
    value: Finite = 1.0
    """The value to reach; must be given."""

    @property
    def monitored(self) -> str:
        return self.monitor

    def build_action(self) -> Action:
        return StopAtTarget(self)


class StopAtTarget(Action):
    """Implements `Target`. `state` holds step, seconds and value of the validation that reached the target."""

    def __init__(self, spec: Target):
        self._spec = spec

    def after_validation(self, run: Control) -> None:
        spec, value = self._spec, run.values[self._spec.monitor]
        sign = 1.0 if run.direction(spec.monitor.split("/", 1)[1]) == "max" else -1.0
        if sign * value >= sign * spec.value and not self.state:
            self.state = {"step": run.step, "seconds": round(run.seconds, 3), "value": value}
            run.stop(
                f"{spec.monitor} has reached {value:.6g} (target {spec.value:.6g}) after {run.seconds:.1f} s of "
                f"training, in step {run.step}"
            )


class LayerGroup(Spec):
    """A group of parameters that is frozen until a point of the run."""

    patterns: List[str]
    """Structural names with wildcards, as in model.freeze, e.g. [features.3.*]."""
    at: NonNegativeFloat
    """Point from which on they are updated, in `unit`s from the start of the run."""


class Unfreeze(CallbackSpec):
    """Progressive unfreezing: groups of parameters start to train one after the other.

    A frozen parameter and its optimizer state do not change. Batch-norm statistics are still updated: only scale
    and shift are frozen.
    """

    acts: ClassVar[bool] = True

    unit: Unit = "epochs"
    """Unit of `at`."""
    groups: Annotated[List[LayerGroup], pydantic.Field(min_length=1)] = []
    """Groups of parameters, e.g. [{patterns: ["features.*"], at: 3}]. All others train from the start. If a parameter
    matches several groups, the first that begins decides."""

    def build_action(self) -> Action:
        return ProgressiveUnfreezing(self)


class ProgressiveUnfreezing(Action):
    """Implements `Unfreeze`. `state["begun"]` is the number of groups that train."""

    def __init__(self, spec: Unfreeze):
        self._spec = spec
        self._names: List[Tuple[float, List[str]]] = []

    def on_begin(self, run: Control) -> None:
        per_unit = run.steps_per_epoch if self._spec.unit == "epochs" else 1
        begin = run.epoch_origin if self._spec.unit == "epochs" else 0
        self._names = [(begin + group.at * per_unit, run.match(group.patterns)) for group in self._spec.groups]
        # Without a step limit, no group is too late.
        late = [group for group, (at, _) in zip(self._spec.groups, self._names) if at >= (run.total_steps or math.inf)]
        if late:
            raise ConfigError(
                f"callback.{run.name}: the group {', '.join(late[0].patterns)} begins at {late[0].at:g} "
                f"{self._spec.unit}, when the run has ended ({run.total_steps} steps). Freeze it by model.freeze, or "
                "type a smaller number."
            )

    def before_step(self, run: Control) -> None:
        begun = [at for at, _ in self._names if at <= run.step]
        if self.state.get("begun") == len(begun):
            return
        # A parameter of several groups trains as soon as the first of them does.
        waiting = {name for at, names in self._names if at > run.step for name in names}
        training = {name for at, names in self._names if at <= run.step for name in names}
        if waiting - training:
            run.freeze(*sorted(waiting - training))
        if training:
            run.unfreeze(*sorted(training))
        self.state = {"begun": len(begun)}
        run.say(f"step {run.step + 1}: {len(waiting - training)} parameters are frozen by callback.{run.name}")


class Accumulation(CallbackSpec):
    """Gradient accumulation with a schedule: one update averages the gradients of several batches.

    A step of the run is still one batch. The last batch of an epoch always ends an update.
    """

    acts: ClassVar[bool] = True

    schedule: Annotated[Dict[str, Positive], pydantic.Field(min_length=1)] = {}
    """Finished epochs -> batches of an update from then on, e.g. {0: 1, 5: 4}; 1 before the first entry."""

    @pydantic.field_validator("schedule")
    @classmethod
    def _require_epochs(cls, schedule: Dict[str, int]) -> Dict[str, int]:
        wrong = [epoch for epoch in schedule if not epoch.isdecimal()]
        if wrong:
            raise ValueError(f"'{wrong[0]}' is no number of epochs. Type e.g. {{0: 1, 5: 4}}")
        return schedule

    def unsupported_reason(self, *, ema_decay: Optional[float], stops_early: bool, scales_loss: bool) -> str:
        if scales_loss:
            return (
                "with amp=float16 a step whose gradients overflow is left out, and with it the batches before. Type "
                "amp=bfloat16 or amp=off"
            )
        return ""

    def build_action(self) -> Action:
        return AccumulationSchedule(self)


class AccumulationSchedule(Action):
    """Implements `Accumulation`."""

    def __init__(self, spec: Accumulation):
        self._schedule = sorted((int(epoch), batches) for epoch, batches in spec.schedule.items())

    def before_step(self, run: Control) -> None:
        begun = [batches for epoch, batches in self._schedule if epoch <= run.epoch]
        run.accumulate(begun[-1] if begun else 1)


class Swa(CallbackSpec):
    """Stochastic weight averaging: a complete run ends with the mean of its weights at the ends of epochs from `start`.

    The batch-norm statistics of the mean are recomputed over one epoch of training data.

    Source: Izmailov et al., https://arxiv.org/abs/1803.05407.
    """

    acts: ClassVar[bool] = True

    start: Annotated[float, pydantic.Field(ge=0)] = 0.75
    """Point from which on weights are averaged, as a fraction of the run, or in `unit`s if that is not null."""
    unit: Optional[Unit] = None
    """Unit of `start`; null: a fraction of the run."""
    every_steps: Optional[Positive] = None
    """Steps between two weights that are averaged; null: the steps of an epoch."""
    lr: Optional[PositiveFloat] = None
    """Constant learning rate from `start` on; null: the schedule's."""

    @pydantic.model_validator(mode="after")
    def _check_start(self) -> Swa:
        if self.unit is None and self.start >= 1:
            raise ValueError(f"start={self.start:g} is a fraction of the run, below 1; or type unit=epochs")
        return self

    def unsupported_reason(self, *, ema_decay: Optional[float], stops_early: bool, scales_loss: bool) -> str:
        if ema_decay is not None:
            return (
                f"trainer.ema_decay={ema_decay:g} keeps another average of the weights. Type "
                "trainer.ema_decay=null, or leave swa out"
            )
        if stops_early:
            return "early stopping would end the run before its weights are averaged. Type early_stopping=off"
        return ""

    def build_action(self) -> Action:
        return WeightAveraging(self)


def known_length(run: Control, unit: Optional[Unit]) -> Tuple[int, int]:
    """Returns the number of steps of the whole run, and the number of steps of one `unit`; None: the unit is the run.

    Raises:
        ConfigError: only time limits the run.
    """
    if run.total_steps is None:
        raise ConfigError(
            f"callback.{run.name}: only time limits this run, so nothing says when it is complete. Set "
            "trainer.max_epochs or trainer.max_steps."
        )
    return run.total_steps, {None: run.total_steps, "epochs": run.steps_per_epoch, "steps": 1}[unit]


class WeightAveraging(Action):
    """Implements `Swa`: averages the weights at step `start`, every `every_steps` steps after it, and at the end."""

    def __init__(self, spec: Swa):
        self._spec = spec
        self._start = self._every = 0
        self._average: Dict[str, NDArray] = {}
        self._devices: Dict[str, Context] = {}

    def on_begin(self, run: Control) -> None:
        total_steps, per_unit = known_length(run, self._spec.unit)
        begin = run.epoch_origin if self._spec.unit == "epochs" else 0
        self._start = max(begin + round(self._spec.start * per_unit), 1)
        self._every = self._spec.every_steps or run.steps_per_epoch
        # Checkpoints hold arrays without devices, and the weights of a pipeline are on several.
        self._devices = {name: array.context for name, array in run.weights.arrays.items()}
        if self._start >= total_steps:
            raise ConfigError(
                f"callback.{run.name}.start: averaging would begin in step {self._start + 1}, and the run has "
                f"{total_steps}. Type a smaller number."
            )

    def before_step(self, run: Control) -> None:
        if run.step < self._start:
            return
        if self._spec.lr is not None:
            run.set_lr(self._spec.lr)
        if (run.step - self._start) % self._every == 0:
            self._add(run)

    def at_end(self, run: Control) -> None:
        # A run that is resumed at its last step has the mean already; averaging again would change it.
        if self.state.get("applied_step") == run.step:
            return
        self._add(run)
        run.weights.write(self._average)
        run.weights.recompute_statistics()  # those of the last weights do not fit the mean
        count = self.state["count"]
        self.state = {**self.state, "applied_step": run.step}
        run.say(f"callback.{run.name}: the weights are now the mean of those after {count} steps")

    def _add(self, run: Control) -> None:
        """Adds the current weights to the running mean, at most once per step."""
        if self.state.get("last_step") == run.step:
            return
        count = self.state.get("count", 0) + 1
        for name, array in run.weights.arrays.items():
            if count == 1:
                self._average[name] = array.copy()
            else:
                # A running mean needs one copy of the weights and no division at the end.
                mean = self._average[name]
                mean += (array - mean) / count
        self.state = {**self.state, "count": count, "last_step": run.step}

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        return self._average, self.state

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        super().load_state(arrays, values, source)
        from mxtrain.engine.backend import nd

        self._average = {
            name: nd.array(array, ctx=self._devices[name], dtype=array.dtype) for name, array in arrays.items()
        }
