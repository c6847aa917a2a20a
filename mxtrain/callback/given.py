"""Callbacks and actions that were passed as objects or functions."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Sequence

from mxtrain.callback import CallbackSpec
from mxtrain.callback.action import Action, require_known_hooks
from mxtrain.errors import ConfigError
from mxtrain.given import Given, plain_attributes
from mxtrain.types import Callback, Progress, Validation

if TYPE_CHECKING:
    from mxtrain.annotations import MetricRow


class GivenCallback(Given, CallbackSpec):
    """A `Callback`, or a function that is called with each row of metrics.jsonl."""

    argument: ClassVar[str] = "callbacks"

    @classmethod
    def describe_object(cls, value: Any) -> Dict[str, Any]:
        """No facts beyond the class identify a callback, since it does not change the computation.

        Raises:
            ConfigError: it is none.
        """
        if isinstance(value, Callback):
            CallbackSpec.of_target(type(value), {}, CallbackSpec(), "callbacks")  # refuses hooks that nothing calls
        elif isinstance(value, type) or not callable(value):
            made = f" Make one: {value.__name__}()." if isinstance(value, type) else ""
            raise ConfigError(
                f"callbacks: {value!r:.60} is neither an mxtrain.types.Callback nor a function of one argument, the "
                f"row of metrics.jsonl.{made}"
            )
        return {}

    def build(self) -> Callback:
        value = self.require()
        return value if isinstance(value, Callback) else RowCallback(value)


class RowCallback(Callback):
    """Calls a function with each row of metrics.jsonl, for training steps and for validations.

    Args:
        function: of one row, a dict.
    """

    def __init__(self, function: Callable[[MetricRow], object]):
        self._function = function

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        for row in rows:
            self._function(dict(row))

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._function(dict(validation.row))


class GivenAction(GivenCallback):
    """An `Action`, of which each run asks a copy: its state is that of the run, and in checkpoints."""

    acts: ClassVar[bool] = True

    settings: Dict[str, Any] = {}
    """Plain attributes of it, such as the arguments that it was made with."""

    @classmethod
    def describe_object(cls, action: Action) -> Dict[str, Any]:
        """Returns facts that identify an action besides its class: its plain attributes.

        Raises:
            ConfigError: it has a method that looks like a hook, and nothing calls it.
        """
        require_known_hooks(type(action), "callbacks")
        return {"settings": plain_attributes(action)}

    def build_action(self) -> Action:
        action = copy.copy(self.require())
        action.state = copy.deepcopy(action.state)
        return action
