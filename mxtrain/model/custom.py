"""A user's own network class or function, brought in by `_target_`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar, Mapping, Optional, Sequence, Tuple, Type

from mxtrain.config.specs import call_target, check_arguments, name_of
from mxtrain.config.wrapped import Wrapped
from mxtrain.errors import ConfigError
from mxtrain.model.spec import Model
from mxtrain.types import NonNegative, Shape, Spec
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

NUM_CLASSES_NAMES = ("num_classes", "classes")


class CustomFields(Model):
    """Fields allowed beside the `_target_` of a network that is no `Model`."""

    auxiliary_outputs: NonNegative = 0
    """Number of auxiliary outputs, each like the first and used only in training."""

    @property
    def num_auxiliary(self) -> int:
        return self.auxiliary_outputs


class CustomModel(Wrapped, CustomFields):
    """Wraps a HybridBlock class, or a function that returns one.

    Where it has an argument called `num_classes` or `classes`, or one of the `known_names` of the dataset's signature,
    such as `input_shape`, that the description does not give, it gets the dataset's.
    """

    filled: ClassVar[Optional[Tuple[str, ...]]] = None
    takes: ClassVar[Takes] = Takes()

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return CustomFields

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        return self.build_filled(num_classes, input_shape=input_shape)

    def build_filled(self, num_classes: int, **known: object) -> gluon.Block:
        known.update(dict.fromkeys(NUM_CLASSES_NAMES, num_classes))
        accepted = inspect.signature(self.target).parameters
        fitted = {name: value for name, value in known.items() if name in accepted}
        # Typed arguments take precedence over values inferred from the dataset.
        return self._call({**fitted, **self.arguments})

    def require_known(self, names: Sequence[str]) -> None:
        check_arguments(self.target, self.arguments, "model", (*NUM_CLASSES_NAMES, *names))

    def _call(self, arguments: Mapping[str, object]) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        network = call_target(self.target, arguments, "model")
        if not isinstance(network, gluon.Block):
            hint = " Does it end without `return`?" if network is None else ""
            raise ConfigError(
                f"model._target_={name_of(self.target)}: it must return a gluon.HybridBlock, and returned "
                f"{network!r:.100}.{hint}"
            )
        return network
