"""Callbacks, which watch a run, and actions, which change it. A user's own `mxtrain.types.Callback` or
`mxtrain.callback.action.Action` needs only a `_target_`, or is passed to the Python API as an object."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Mapping, Optional, Sequence

from mxtrain.callback.action import Action as Action
from mxtrain.callback.action import Control as Control
from mxtrain.callback.action import require_known_hooks
from mxtrain.callback.protocol import Callback, Progress, Validation, require_known_events
from mxtrain.config.placeholders import Given, plain_attributes
from mxtrain.config.specs import call_target
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow


class CallbackSpec(Spec):
    """Base class of the options of the group `callback`."""

    acts: ClassVar[bool] = False
    """True if it describes an action, which `build_action` builds."""

    @property
    def monitored(self) -> str:
        """Returns the tag of the monitored value, e.g. val/loss; empty if there is none."""
        return ""

    def build(self) -> Callback:
        """Builds the callback of one run."""
        raise NotImplementedError

    def build_action(self) -> Action:
        """Builds the action of one run. Called if `acts` is True."""
        raise NotImplementedError

    def unsupported_reason(self, *, ema_decay: Optional[float], stops_early: bool, scales_loss: bool) -> str:
        """Returns why the callback does not work with other settings, and what to type; "" if it does.

        Args:
            ema_decay: `trainer.ema_decay`.
            stops_early: True if early stopping monitors a value.
            scales_loss: True if steps may be skipped because a gradient overflows.
        """
        return ""

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        if isinstance(target, type) and issubclass(target, Action):
            require_known_hooks(target, path)
            return CustomAction(target=target, arguments=dict(arguments))
        if not (isinstance(target, type) and issubclass(target, Callback)):
            raise ConfigError(
                f"{path}._target_: {target!r} must be a subclass of mxtrain.types.Callback, which watches, or of "
                "mxtrain.callback.Action, which changes the run."
            )
        require_known_events(target, f"{path}._target_")
        return CustomCallback(target=target, arguments=dict(arguments))


class CustomCallback(CallbackSpec):
    """Wraps a user's Callback class."""

    target: Callable[..., Any]
    arguments: Dict[str, Any] = {}

    def build(self) -> Callback:
        return call_target(self.target, self.arguments, "callback")


class CustomAction(CallbackSpec):
    """Wraps a user's Action class."""

    acts: ClassVar[bool] = True

    target: Callable[..., Any]
    arguments: Dict[str, Any] = {}

    def build_action(self) -> Action:
        return call_target(self.target, self.arguments, "callback")


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
        else:
            require_one_argument(value)
        return {}

    def build(self) -> Callback:
        value = self.require()
        return value if isinstance(value, Callback) else RowCallback(value)


def require_one_argument(function: Callable[..., object]) -> None:
    """Checks that a function can be called with a row. Otherwise the run would fail after its first steps.

    Raises:
        ConfigError: it takes no argument, or needs several.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind({})
    except TypeError as error:
        raise ConfigError(
            f"callbacks: {getattr(function, '__qualname__', function)!s:.60}{signature} cannot be called with one "
            f"argument, the row of metrics.jsonl: {error}."
        ) from None


class RowCallback(Callback):
    """Calls a function with each row of metrics.jsonl, for training steps and for validations.

    Its methods return True if the function did, so that the caller can warn: returning True does not stop the run.

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
    """Attributes of the object that are numbers or strings, such as its constructor arguments."""

    @classmethod
    def describe_object(cls, action: Action) -> Dict[str, Any]:
        """Returns facts that identify an action besides its class: its plain attributes.

        Raises:
            ConfigError: a method has the prefix of a hook, but is not one.
        """
        require_known_hooks(type(action), "callbacks")
        return {"settings": plain_attributes(action)}

    def build_action(self) -> Action:
        action = copy.copy(self.require())
        action.state = copy.deepcopy(action.state)
        return action
