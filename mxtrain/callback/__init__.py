"""Callbacks: what watches a run. A user's own `mxtrain.types.Callback` needs only a `_target_`."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from mxtrain.description.config import call_target
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import Callback, Spec


class CallbackSpec(Spec):
    """Describes one callback."""

    def build(self) -> Callback:
        """Makes the callback of one run."""
        raise NotImplementedError

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        if not (isinstance(target, type) and issubclass(target, Callback)):
            raise ConfigError(f"{path}._target_: {target!r} must be a subclass of mxtrain.types.Callback.")
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
