"""Base class of descriptions."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Optional, Tuple, Type, TypeVar

import pydantic

from mxtrain.errors import ConfigError

S = TypeVar("S", bound="Spec")


class Spec(pydantic.BaseModel):
    """Base class of descriptions: frozen and validated. Unknown keys and wrong types are errors.

    `build...` methods construct the described object.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        defer_build=True,  # saves start-up time: a command imports 140 classes, but validates only 25
    )

    filled: ClassVar[Optional[Tuple[str, ...]]] = ()
    """Arguments that the group itself passes to a user's own class or function; None: another part of the run decides
    them."""

    def as_class(self, kind: Type[S]) -> S:
        """Returns a description of another class, which has the fields of this class, with the same settings."""
        return kind(**{field: getattr(self, field) for field in type(self).model_fields})

    @classmethod
    def with_target(cls) -> Type[Spec]:
        """Returns the class of the fields that are allowed besides a `_target_` that is no `Spec`.

        All other fields are arguments of the target.
        """
        return cls

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        """Wraps a user's own class or function that is no `Spec`. Groups that support this override it.

        Args:
            target: class or function at `_target_`.
            arguments: its arguments.
            common: fields of the group, of the class that `with_target` returns.
            path: path in the configuration, for messages.

        Raises:
            ConfigError: this group accepts only subclasses of its base class.
        """
        raise ConfigError(f"{path}._target_={target!r:.100}: must be a subclass of {cls.__module__}.{cls.__name__}.")
