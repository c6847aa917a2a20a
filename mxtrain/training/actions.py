"""Calls the actions of a run and carries out their decisions.

Actions write plain values into `Decisions`, which are carried out here and are state of the checkpoint, so a resumed
run needs no replay. After a validation, where all workers wait anyway, those of worker 0 replace the others. A frozen
parameter's gradient is still computed, because executors are bound when the network is placed.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Callable, Collection, Dict, Mapping, Set, Tuple, Union

from mxtrain.callback.action import Action, Control, Decisions
from mxtrain.config.specs import shown
from mxtrain.errors import CheckpointError, ConfigError, run_dir_setting
from mxtrain.model.graph.channels import Channels, find_channels
from mxtrain.model.graph.trace import NotTraceable
from mxtrain.training.callback_list import call_hook
from mxtrain.training.statistics import recompute_statistics

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.config.groups import Description
    from mxtrain.training.plan import Plan, RunData
    from mxtrain.training.state import TrainState
    from mxtrain.training.step import TrainingStep
    from mxtrain.types.annotations import Json, JsonObject

SCHEDULE = "lr_scheduler"
"""Name of the learning-rate schedule among the actions, if the schedule is an action."""


class StepWeights:
    """Access to the parameters of a run for actions; see `RunWeights`."""

    def __init__(self, step: TrainingStep, data: RunData):
        self._step, self._data = step, data

    @property
    def arrays(self) -> Mapping[str, NDArray]:
        """See `RunWeights`."""
        return self._step.strategy.values

    @property
    def tables(self) -> Collection[str]:
        """See `RunWeights`."""
        return self._step.strategy.rows

    def write(self, arrays: Mapping[str, NDArray]) -> None:
        """See `RunWeights`."""
        for name, value in self._step.strategy.values.items():
            arrays[name].copyto(value)
        # Weights that an action writes need not be pruned where channels are.
        self._step.apply_pruning()
        self._step.strategy.publish()

    def recompute_statistics(self) -> None:
        """See `RunWeights`."""
        recompute_statistics(self._step, self._data.train)

    def prune(self, owner: str, kept: Mapping[str, np.ndarray]) -> None:
        """See `RunWeights`."""
        self._step.prune(owner, kept)

    def find_channels(self) -> Channels:
        """See `RunWeights`."""
        objective = self._step.strategy.objective
        if objective.state_shapes:
            raise ConfigError("the network carries state from batch to batch, whose size would change")
        try:
            return find_channels(objective.network, objective.input_shape)
        except NotTraceable as error:
            raise ConfigError(f"the network cannot be traced ({error})") from error


class ActionList:
    """The actions of a run. Their state and decisions are the state `actions` of a checkpoint.

    Args:
        actions: name -> action.
        settings: name -> settings of the action; a checkpoint with other settings is rejected.
    """

    def __init__(self, actions: Mapping[str, Action], settings: Mapping[str, Json]):
        self._actions, self._settings = dict(actions), dict(settings)
        self._decisions = Decisions()
        self._controls: Dict[str, Control] = {}
        self._warned: Set[str] = set()
        self._seconds_before, self._started = 0.0, time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._actions)

    def require_same(self, checkpoint: Checkpoint) -> None:
        """Checks that the checkpoint's run had the same actions; other callbacks may differ.

        Raises:
            CheckpointError: an action differs; the message names the first one.
        """
        saved_settings = (checkpoint.state.get("states") or {}).get("actions", {}).get("settings", {})
        for name in sorted({*saved_settings, *self._settings}):
            if saved_settings.get(name) != self._settings.get(name):
                raise CheckpointError(
                    f"{checkpoint.path} was trained with {_shown(name, saved_settings)}, now with "
                    f"{_shown(name, self._settings)}, which changes the weights. Type the same settings, or another "
                    f"{run_dir_setting()}."
                )

    def bind(
        self,
        step: TrainingStep,
        data: RunData,
        plan: Plan,
        lr: float,
        direction: Callable[[str], str],
        say: Callable[[str], None],
    ) -> None:
        """Connects the actions to the run. Called once, before the run begins.

        Args:
            step: training step.
            data: loaders of the run.
            plan: plan of the run.
            lr: base learning rate.
            direction: maps the name of a metric to "max" or "min".
            say: shows a message to the user.

        Raises:
            ConfigError: an action does not fit the run.
        """
        self._step, self._plan = step, plan
        weights = StepWeights(step, data)
        self._controls = {
            name: Control(
                name,
                self._decisions,
                weights,
                step.strategy.trainable,
                plan,
                lr,
                direction,
                say,
            )
            for name in self._actions
        }
        for name, action in self._actions.items():
            action.on_begin(self._controls[name])

    @property
    def ranks_validations(self) -> bool:
        """Returns False while an action slowly changes the network, e.g. prunes it; validations are not ranked then."""
        return not self._decisions.unranked

    @property
    def stop_reason(self) -> str:
        """Returns the reason for which an action ends the run; empty if none does."""
        return self._decisions.stop

    def before_step(self, state: TrainState, lr: float) -> float:
        """Calls the actions before each step; returns its learning rate. `lr` is that of the schedule."""
        if not self._actions:
            return lr
        self._call("before_step", state)
        self._apply_decisions(state)
        decisions = self._decisions
        # If several actions set a rate, the last of them counts; the factors of all actions are multiplied.
        rate = next(iter(reversed(list(decisions.rates.values()))), lr)
        for factor in decisions.factors.values():
            rate *= factor
        return rate

    def after_validation(self, state: TrainState) -> None:
        """Calls the actions after each validation. Collective: all workers use the decisions and states of worker 0."""
        if not self._actions:
            return
        self._call("after_validation", state)
        store = self._step.store
        if store.world.size > 1:
            is_first = store.world.rank == 0
            # Actions may decide by the clock, which differs between workers.
            received = json.loads(store.broadcast(json.dumps(self._values()).encode() if is_first else None))
            if not is_first:
                self._load_decisions(received)
                for name, action in self._actions.items():
                    action.state = received["states"][name]

    def at_end(self, state: TrainState) -> None:
        """Calls the actions after the last step of a complete run."""
        self._call("at_end", state)

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        """See `Stateful`."""
        arrays = {
            f"{name}/{key}": array
            for name, action in self._actions.items()
            for key, array in action.save_state()[0].items()
        }
        return arrays, self._values()

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        for name, action in self._actions.items():
            own_arrays = {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(f"{name}/")}
            action.load_state(own_arrays, values["states"][name], source)
        self._load_decisions(values)
        self._seconds_before, self._started = float(values["seconds"]), time.monotonic()

    def _load_decisions(self, values: JsonObject) -> None:
        for name, value in values["decisions"].items():
            setattr(self._decisions, name, value)

    def _values(self) -> Dict[str, Json]:
        states = {name: _json_state(name, action) for name, action in self._actions.items()}
        return {
            "settings": self._settings,
            "decisions": asdict(self._decisions),
            "states": states,
            "seconds": self._seconds,
        }

    @property
    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _call(self, hook: str, state: TrainState) -> None:
        for name, action in self._actions.items():
            control = self._controls[name]
            control.advance(
                step=state.step,
                epoch=state.epoch,
                epoch_step=state.epoch_step,
                values=state.values,
                seconds=self._seconds,
            )
            call_hook(action, hook, (control,), "call run.stop(REASON) to stop the run", self._warned)

    def _apply_decisions(self, state: TrainState) -> None:
        step, decisions = self._step, self._decisions
        step.freeze(decisions.frozen)
        ends_epoch = state.epoch_step + 1 == self._plan.steps_per_epoch
        ends_run = state.step + 1 == self._plan.total_steps
        count = decisions.batches_per_update
        if count > 1 and step.strategy.rows:
            raise ConfigError(
                "several batches for one update: the gradient of an embedding table holds the rows of one batch only. "
                "Type trainer.sparse_grad=false."
            )
        # An epoch and a run always end with an update, so that no accumulated gradient is lost.
        step.gradient_sum.is_open = (state.epoch_step + 1) % count != 0 and not ends_epoch and not ends_run


def _json_state(name: str, action: Action) -> Dict[str, Json]:
    """Returns the JSON state of an action.

    Raises:
        ConfigError: a value cannot be written as JSON.
    """
    values = dict(action.save_state()[1])
    for key, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"callback.{name}: state[{key!r}] is a {type(value).__name__} ({error}), and state holds JSON values. "
                "Keep float(x) or x.tolist(), or arrays by save_state and load_state."
            ) from error
    return values


def _shown(name: str, settings: Mapping[str, Json]) -> str:
    return f"callback.{name}={shown(settings[name])}" if name in settings else f"no callback.{name}"


def build_actions(description: Description) -> ActionList:
    """Builds the actions of a description: callbacks that act, and the learning-rate schedule if it is an action."""
    actions: Dict[str, Action] = {name: spec.build_action() for name, spec in description.callback.items() if spec.acts}
    settings = {name: description.config["callback"][name] for name in actions}
    schedule = description.lr_scheduler.build_action()
    if schedule is not None:
        actions[SCHEDULE] = schedule  # its settings are compared with the rest of the description
    return ActionList(actions, settings)
