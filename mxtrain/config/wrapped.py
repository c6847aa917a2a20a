"""A user's own class or function that is no `Spec`, as a part of the description."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from mxtrain.types import Spec


class Wrapped(Spec):
    """Wraps what `_target_` names; a group's own wrapper is a subclass of this and of the group's base."""

    target: Callable[..., Any]
    """The class or function."""
    arguments: Dict[str, Any] = {}
    """Arguments of the object itself, without the fields of the group."""

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        return cls(target=target, arguments=dict(arguments), **dict(common))
