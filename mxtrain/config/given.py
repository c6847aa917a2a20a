"""Python objects in a description: a network, a dataset, a loss, a metric, an optimizer or a callback that was passed
to the Python API instead of being named by `_target_`.

A description is plain JSON, so it holds a placeholder: a `Given` spec with the class of the object and what identifies
it. The object itself is found by its argument while the specs are made, within `giving`. A description without it, as
of a checkpoint, can be read, and says what must be given again once the object is needed.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ClassVar, Collection, Dict, Iterator, Mapping

import pydantic

from mxtrain.config.specs import name_of
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

_OBJECTS: ContextVar[Mapping[str, Any]] = ContextVar("objects of the Python API", default=MappingProxyType({}))


@contextmanager
def giving(objects: Mapping[str, Any]) -> Iterator[None]:
    """Within it, specs of `Given` get their objects.

    Args:
        objects: by the path of the setting, e.g. "model" or "metric.f1".
    """
    before = _OBJECTS.set(objects)
    try:
        yield
    finally:
        _OBJECTS.reset(before)


class Given(Spec):
    """Base of placeholders for objects."""

    argument: ClassVar[str] = ""
    """The argument of the Python API that takes it."""

    given_as: str
    """Path of the setting that the object takes the place of."""
    object: str
    """Import path of the object's class, or of the function."""

    _object: Any = pydantic.PrivateAttr(None)

    def model_post_init(self, context: Any, /) -> None:
        self._object = _OBJECTS.get().get(self.given_as)

    @property
    def is_given(self) -> bool:
        """Returns True if the object is at hand."""
        return self._object is not None

    def require(self) -> Any:
        """Returns the object.

        Raises:
            ConfigError: this process was not given it.
        """
        if self._object is None:
            raise ConfigError(self.missing)
        return self._object

    @property
    def missing(self) -> str:
        """Returns the sentence that says what must be given again."""
        name = self.argument
        return (
            f"{self.given_as}: the run was given this as a Python object ({self.object}), which no checkpoint holds. "
            f"Give it again in Python: mxtrain.load(PATH, {name}=...) or mxtrain.train({name}=..., dir=PATH)."
        )


def class_of(value: object) -> str:
    """Returns the name by which a placeholder knows an object: the import path of its class, or of the function
    itself."""
    return name_of(value if callable(value) and hasattr(value, "__qualname__") else type(value))


def plain_attributes(value: object, without: Collection[str] = ()) -> Dict[str, Any]:
    """Attributes of an object that JSON holds, by name."""
    return {
        name: one
        for name, one in sorted(vars(value).items())
        if name not in without and isinstance(one, (bool, int, float, str))
    }
