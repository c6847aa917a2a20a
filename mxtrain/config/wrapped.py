"""Base class of the specs that wrap a user's own class or function."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from mxtrain.types import Spec


class Wrapped(Spec):
    """Wraps the class or function that `_target_` names. A group's wrapper derives from this and from its base."""

    target: Callable[..., Any]
    """The class or function."""
    arguments: Dict[str, Any] = {}
    """Arguments of the object itself, without the fields of the group."""

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        """Wraps a class or function.

        Args:
            target: the class or function.
            arguments: its keyword arguments.
            common: the fields of the group.
            path: path of the node in the configuration, for messages.
        """
        return cls(target=target, arguments=dict(arguments), **dict(common))
