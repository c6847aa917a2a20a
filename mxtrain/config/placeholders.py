"""Python objects in a description: a network, a dataset, a loss, a metric, an optimizer or a callback that was passed
to the Python API instead of being named by `_target_`.

The configuration is plain JSON, so it holds a placeholder: a node with the class of the object and facts that identify
it. `describe` makes a `Given` spec of the node, and attaches the object, which is passed separately from the
configuration. A description without the object, as of a checkpoint, can be read; an error names the object to pass
again once the object is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Collection, Dict, Iterator, Mapping, Tuple, TypeVar

import pydantic
from typing_extensions import Self

from mxtrain.config.specs import name_of
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

AnySpec = TypeVar("AnySpec", bound=Spec)

PLACEHOLDERS: Mapping[str, str] = {
    "model": "mxtrain.model.custom.GivenModel",
    "dataset": "mxtrain.data.given.GivenDataset",
    "loss": "mxtrain.loss.custom.GivenLoss",
    "optimizer": "mxtrain.optimizer.spec.GivenOptimizer",
    "metric": "mxtrain.metric.given.GivenMetric",
    "callback": "mxtrain.callback.spec.GivenCallback",
}
"""Group -> class of its placeholders."""
GLUON_ATTRIBUTES = frozenset(
    (
        "_empty_prefix",
        "_prefix",
        "_name",
        "_active",
        "_backend",
        "_backend_opts",
        "_flags",
        "_v2",
        "_children",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_cached_graph",
        "_cached_op",
        "_cached_op_args",
        "_callback",
        "_monitor_all",
        "_in_format",
        "_out_format",
        "_partition_if_dynamic",
        "_first_forward",
        "_called_infer_shape_already",
        "_reg_params",
        "_in_units",
        "_in_channels",
        "_input_size",
        "skip_states",
    )
)
"""Attributes that Gluon itself sets or changes, which say nothing about the computation of a block."""


class Given(Spec):
    """Base class of placeholders for objects."""

    argument: ClassVar[str] = ""
    """Argument of the Python API that the object is passed to."""

    given_as: str
    """Path of the setting that the object replaces."""
    object: str
    """Import path of the object's class, or of the function."""

    _object: Any = pydantic.PrivateAttr(None)

    @classmethod
    def describe_object(cls, value: Any) -> Dict[str, Any]:
        """Returns facts that identify an object besides its class, as plain values.

        Raises:
            ConfigError: the group does not accept objects of this kind.
        """
        raise NotImplementedError

    @classmethod
    def refusal(cls, value: Any, kind: str, override: str, more: str = "") -> ConfigError:
        """Returns the error about an object that the group does not accept.

        Args:
            value: the object.
            kind: kinds of objects that it accepts.
            override: example of an override that chooses one by its name.
            more: further sentence, with a space before it.
        """
        return ConfigError(
            f"{cls.argument}={value!r:.60}: must be {kind}, and is a {type(value).__name__}. To choose one by its "
            f'name, give an override: "{override}".{more}'
        )

    @classmethod
    def node_of(cls, path: str, value: Any, facts: Config) -> Config:
        """Returns the placeholder of an object as plain values.

        Args:
            path: path of the setting, e.g. "model" or "metric.f1".
            value: the object.
            facts: result of `describe_object`.
        """
        several = isinstance(value, (tuple, list))
        shown = f"({', '.join(map(class_of, value))})" if several else class_of(value)
        return {"_target_": name_of(cls), "given_as": path, "object": shown, **facts}

    def with_object(self, value: Any) -> Self:
        """Returns the spec with its object."""
        spec = self.model_copy()
        spec._object = value
        return spec

    @property
    def is_given(self) -> bool:
        """Returns True if the object was passed in this process."""
        return self._object is not None

    def require(self) -> Any:
        """Returns the object.

        Raises:
            ConfigError: the object was not passed in this process.
        """
        if self._object is None:
            raise ConfigError(self.missing)
        return self._object

    @property
    def missing(self) -> str:
        """Returns the sentence that names the object to pass again."""
        name = self.argument
        return (
            f"{self.given_as}: the run was given this as a Python object ({self.object}), which no checkpoint holds. "
            f"Give it again in Python: mxtrain.load(PATH, {name}=...) or mxtrain.train({name}=..., dir=PATH)."
        )


def class_of(value: object) -> str:
    """Returns the import path of an object's class, or of the object itself if it is a function or class."""
    return name_of(value if callable(value) and hasattr(value, "__qualname__") else type(value))


def plain_attributes(value: object, without: Collection[str] = ()) -> Dict[str, Any]:
    """Returns the attributes of an object that are booleans, numbers or strings, by name."""
    return {
        name: one
        for name, one in sorted(vars(value).items())
        if name not in without and isinstance(one, (bool, int, float, str))
    }


def with_object(spec: AnySpec, objects: Mapping[str, Any]) -> AnySpec:
    """Returns a spec with its object, if it is a placeholder of one of them.

    Args:
        spec: spec of any group.
        objects: objects by the path of their setting.
    """
    return spec.with_object(objects[spec.given_as]) if isinstance(spec, Given) and spec.given_as in objects else spec


def placeholders_in(config: Config) -> Iterator[Tuple[str, Config]]:
    """Yields path and node of each placeholder in a configuration."""
    for group, node in config.items():
        if isinstance(node, Mapping):
            if node.get("given_as") == group:
                yield group, node
            yield from (
                (f"{group}.{name}", member)
                for name, member in node.items()
                if isinstance(member, Mapping) and member.get("given_as") == f"{group}.{name}"
            )
