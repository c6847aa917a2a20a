"""Callbacks, which watch a run, and actions, which change it. A user's own `mxtrain.types.Callback` or
`mxtrain.callback.action.Action` needs only a `_target_`."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict, Mapping, Optional

from mxtrain.callback.action import Action as Action
from mxtrain.callback.action import Control as Control
from mxtrain.callback.action import require_known_hooks
from mxtrain.callback.protocol import Callback
from mxtrain.config.specs import call_target
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import Spec


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
        hooks = [name for name in dir(Callback) if name.startswith("on_")]
        for name in dir(target):
            if name.startswith("on_") and name not in hooks:
                near = did_you_mean(name, hooks)
                raise ConfigError(
                    f"{path}._target_: nothing calls {target.__name__}.{name}.{near} A callback may have "
                    f"{', '.join(hooks)}; begin the names of other methods with something else."
                )
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
