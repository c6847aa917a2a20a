"""Descriptions of callbacks and actions that were passed as objects or functions."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Sequence

from mxtrain.callback.action import Action, require_known_hooks
from mxtrain.callback.protocol import Callback, Progress, Validation
from mxtrain.callback.spec import CallbackSpec
from mxtrain.config.placeholders import Given, plain_attributes
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow


class GivenCallback(Given, CallbackSpec):
    """Placeholder of a `Callback` object, or of a function that is called with each row of metrics.jsonl."""

    argument: ClassVar[str] = "callbacks"

    @classmethod
    def describe_object(cls, value: Any) -> Dict[str, Any]:
        """Returns {}: a callback does not change the computation, so no facts besides its class identify it.

        Raises:
            ConfigError: the object is neither a callback nor a function.
        """
        if isinstance(value, Callback):
            CallbackSpec.of_target(type(value), {}, CallbackSpec(), "callbacks")  # refuses hooks that nothing calls
        elif isinstance(value, type) or not callable(value):
            advice = f" Make one: {value.__name__}()." if isinstance(value, type) else ""
            raise ConfigError(
                f"callbacks: {value!r:.60} is neither an mxtrain.types.Callback nor a function of one argument, the "
                f"row of metrics.jsonl.{advice}"
            )
        return {}

    def build(self) -> Callback:
        value = self.require()
        return value if isinstance(value, Callback) else RowCallback(value)


class RowCallback(Callback):
    """Calls a function with each row of metrics.jsonl, for training steps and for validations. If the function returns
    True, which stops nothing, the caller warns.

    Args:
        function: called with one argument, the row as a dict.
    """

    def __init__(self, function: Callable[[MetricRow], object]):
        self._function = function

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> bool:  # type: ignore[override]  # see above
        # A list: with a generator `any` would stop at the first True, and the function would miss rows.
        return any([self._function(dict(row)) is True for row in rows])

    def on_validation(self, validation: Validation, progress: Progress) -> bool:  # type: ignore[override]  # see above
        return self._function(dict(validation.row)) is True


class GivenAction(GivenCallback):
    """Placeholder of an `Action` object. Each run uses a copy, since the state of an action belongs to the run."""

    acts: ClassVar[bool] = True

    settings: Dict[str, Any] = {}
    """Plain attributes of it, such as the arguments that it was made with."""

    @classmethod
    def describe_object(cls, action: Action) -> Dict[str, Any]:
        """Returns facts that identify an action besides its class: its plain attributes.

        Raises:
            ConfigError: a method is named like a hook, but is none.
        """
        require_known_hooks(type(action), "callbacks")
        return {"settings": plain_attributes(action)}

    def build_action(self) -> Action:
        action = copy.copy(self.require())
        action.state = copy.deepcopy(action.state)
        return action
