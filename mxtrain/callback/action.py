"""Actions: callbacks that change a run. Imports no MXNet.

A `Callback` watches on worker 0. An `Action` runs on all workers, and its decisions must be the same on all of them:
they are functions of counters and of validation results, which are equal on all workers. After a validation the
decisions and states of worker 0 are copied to all other workers, so an action may also use a clock there.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import numbers
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
)

from mxtrain.errors import ConfigError, nearest

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.model.graph.channels import Channels
    from mxtrain.types.annotations import Json, JsonObject


@dataclass
class Decisions:
    """The decisions of all actions of a run. They are saved in checkpoints."""

    rates: Dict[str, float] = field(default_factory=dict)
    """Action -> learning rate in place of the schedule's."""
    factors: Dict[str, float] = field(default_factory=dict)
    """Action -> factor of the learning rate."""
    frozen: List[str] = field(default_factory=list)
    """Structural names of parameters that are not updated."""
    batches_per_update: int = 1
    """Number of batches whose gradients are averaged for one update."""
    stop: str = ""
    """Reason to end the run; empty: none."""
    unranked: List[str] = field(default_factory=list)
    """Actions that still change the network gradually: until they finish, no validation counts as the best."""


class RunWeights(Protocol):
    """Read and write access to the parameters of a run."""

    @property
    def arrays(self) -> Mapping[str, NDArray]:
        """Returns structural name -> canonical array."""

    @property
    def tables(self) -> Collection[str]:
        """Returns the structural names of tables whose gradients hold only the rows of a batch."""

    def write(self, arrays: Mapping[str, NDArray]) -> None:
        """Writes all parameters, on all devices."""

    def recompute_statistics(self) -> None:
        """Recomputes the batch-norm statistics over one epoch of training batches with the current weights."""

    def prune(self, owner: str, kept: Mapping[str, np.ndarray]) -> None:
        """Sets elements of parameters to 0, now and after each update. Replaces the masks that `owner` set before.

        Args:
            owner: name of the action.
            kept: structural name of a parameter -> uint8 mask of its shape: 0 for elements that are set to 0, else 1.
        """

    def find_channels(self) -> Channels:
        """Returns the channels that can be removed from the network.

        Raises:
            ConfigError: the network cannot be traced.
        """


class RunLength(Protocol):
    """Steps of a run, see the attributes of `Control`."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def total_steps(self) -> Optional[int]: ...

    @property
    def epoch_origin(self) -> int: ...


class Control:
    """Interface of a run for an action: its counters and values, and methods that change it.

    Attributes:
        name: name of the action, e.g. "plateau".
        step: finished steps.
        epoch: finished epochs.
        epoch_step: finished steps of the current epoch; 0 between epochs.
        steps_per_epoch: steps of an epoch.
        epoch_origin: step at which epoch 0 would have begun if all epochs had `steps_per_epoch` steps; not 0 after a
            change of the batch size.
        total_steps: steps of the whole run; None if only time limits it.
        values: loss and metrics of the last validation by tag, e.g. ``{"val/loss": 0.1}``; empty before the first.
        seconds: time spent training so far, over all resumes. Differs between workers: use it after validations only.
        direction: name of a metric -> "max" or "min".
        lr: base learning rate, before the schedule.
        say: shows the user a message of one sentence.
        weights: access to the parameters.
    """

    def __init__(
        self,
        name: str,
        decisions: Decisions,
        weights: RunWeights,
        trainable: Sequence[str],
        length: RunLength,
        lr: float,
        direction: Callable[[str], str],
        say: Callable[[str], None],
    ):
        self.name, self.weights, self.lr, self.direction, self.say = name, weights, lr, direction, say
        self.steps_per_epoch, self.total_steps = length.steps_per_epoch, length.total_steps
        self.epoch_origin = length.epoch_origin
        self.step = self.epoch = self.epoch_step = 0
        self.seconds = 0.0
        self.values: Mapping[str, float] = {}
        self._trainable = list(trainable)
        self._decisions = decisions  # last: __setattr__ rejects every assignment after this one

    def __setattr__(self, name: str, value: object) -> None:
        if "_decisions" in vars(self):
            advice = (
                f"Use run.set_lr({value!r})."
                if name == "lr"
                else "Use its methods to change the run, and self.state to keep values."
            )
            raise ConfigError(f"callback.{self.name}: run.{name} = {value!r:.60} changes nothing. {advice}")
        super().__setattr__(name, value)

    def advance(self, **progress: Any) -> None:
        """Updates the counters and values above. Called by the runner only."""
        vars(self).update(progress)

    @property
    def has_epoch_begun(self) -> bool:
        """Returns True before the first step of an epoch."""
        return self.epoch_step == 0

    def stop(self, reason: str) -> None:
        """Ends the run after this step; it counts as complete, with `reason` as its cause."""
        self._decisions.stop = reason

    def set_lr(self, rate: Optional[float]) -> None:
        """Sets the learning rate from the next step on, instead of the schedule's; None returns to the schedule.

        Raises:
            ConfigError: the value is not a finite number of at least 0.
        """
        rate = None if rate is None else learning_rate(rate, f"callback.{self.name}: run.set_lr(")
        self._decisions.rates.pop(self.name, None)
        if rate is not None:
            self._decisions.rates[self.name] = rate

    def scale_lr(self, factor: float) -> None:
        """Sets this action's factor of the learning rate. The factors of all actions are multiplied. Raises as
        `set_lr`."""
        self._decisions.factors[self.name] = learning_rate(factor, f"callback.{self.name}: run.scale_lr(")

    def freeze(self, *patterns: str) -> None:
        """Freezes all matching parameters: neither they nor their optimizer state change.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        self._decisions.frozen = sorted({*self._decisions.frozen, *self.match(patterns)})

    def unfreeze(self, *patterns: str) -> None:
        """Resumes updates of all matching parameters. Raises as `freeze`."""
        self._decisions.frozen = sorted(set(self._decisions.frozen) - set(self.match(patterns)))

    def rank_validations(self, ranks: bool) -> None:
        """Sets whether validations can become the best one; True by default.

        While any action passes False, early stopping ignores validations too, and no checkpoint is saved as the best.
        """
        other_actions = [name for name in self._decisions.unranked if name != self.name]
        self._decisions.unranked = other_actions if ranks else [*other_actions, self.name]

    def accumulate(self, batches: int) -> None:
        """Sets the number of batches per update. Gradients are averaged over all samples of these batches; the last
        batch of an epoch always ends an update."""
        self._decisions.batches_per_update = batches

    def match(self, patterns: Sequence[str]) -> List[str]:
        """Returns the trainable parameters whose structural names match one of the patterns.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        matches: List[str] = []
        for pattern in patterns:
            names = [name for name in self._trainable if fnmatch.fnmatchcase(name, pattern)]
            if not names:
                near = nearest(pattern.replace("*", ""), self._trainable, 3) or self._trainable[-2:]
                raise ConfigError(
                    f"callback.{self.name}: the pattern '{pattern}' matches no parameter that is trained. Names are "
                    f"like {', '.join(near)}; '*' matches any text."
                )
            matches += names
        return matches


def learning_rate(value: object, call: str) -> float:
    """Validates a learning rate, or a factor of the learning rate, that user code has passed.

    Args:
        value: value passed by the user.
        call: text of the call up to its argument, for messages, e.g. "run.set_lr(".

    Raises:
        ConfigError: the value is not a finite number of at least 0.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]  # it is a number
        raise ConfigError(f"{call}{value!r:.60}): must be a finite number of at least 0, e.g. 0.01.")
    return float(value)  # type: ignore[arg-type]  # it is a number


class Action:
    """Changes a run while it trains. Every method does nothing by default; override the ones you need.

    The methods run on all workers. Checkpoints hold the result of `save_state`, by default `state`, so that a resumed
    run computes the same bits as an uninterrupted one.
    """

    @functools.cached_property  # so that a subclass need not call __init__ of this class
    def state(self) -> Dict[str, Any]:
        """Returns JSON values by name that are saved in checkpoints; empty at first."""
        return {}

    def on_begin(self, run: Control) -> None:
        """Prepares the action. Called before training and before a saved state is loaded; reject invalid settings here.

        Raises:
            ConfigError: the action does not fit the run.
        """

    def before_step(self, run: Control) -> None:
        """Changes the run before each step. Use only the counters, so that all workers make the same decisions.

        A step that is repeated because a worker was lost calls it again with the same counters.
        """

    def after_validation(self, run: Control) -> None:
        """Changes the run after each validation, whose values are in `run.values`."""

    def at_end(self, run: Control) -> None:
        """Changes the run after the last step of a complete run, before the last validation."""

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        """See `mxtrain.types.Stateful`."""
        return {}, self.state

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `mxtrain.types.Stateful`."""
        self.state = dict(values)


HOOKS = ("on_begin", "before_step", "after_validation", "at_end")
"""The methods of an action that the runner calls."""


def require_known_hooks(target: type, path: str) -> None:
    """Rejects a user's action with a misspelt hook, which would never be called.

    Raises:
        ConfigError: a method has the prefix of a hook but is not in `HOOKS`.
    """
    for name in vars(target):
        if name.startswith(("on_", "before_", "after_", "at_")) and name not in HOOKS:
            raise ConfigError(
                f"{path}._target_: nothing calls {target.__name__}.{name}. An action may have {', '.join(HOOKS)}; "
                "begin the names of other methods with something else."
            )
