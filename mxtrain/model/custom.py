"""A user's own network class or function, brought in by `_target_`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar, Mapping, Sequence, Tuple, Type

from mxtrain.description.config import call_target, name_of
from mxtrain.description.wrapped import Wrapped
from mxtrain.errors import ConfigError
from mxtrain.model.base import Model
from mxtrain.types import NonNegative, Shape, Shapes, Spec

if TYPE_CHECKING:
    from mxnet import gluon

NUM_CLASSES_NAMES = ("num_classes", "classes")


class CustomFields(Model):
    """The fields that stand beside the `_target_` of a network that is no `Model`."""

    auxiliary_outputs: NonNegative = 0
    """How many further outputs it returns, each like the first, which only train."""

    @property
    def num_auxiliary(self) -> int:
        return self.auxiliary_outputs


class CustomModel(Wrapped, CustomFields):
    """Wraps a HybridBlock class, or a function that returns one.

    Where it has an argument called `num_classes` or `classes` (or `input_shape`, for text `vocab_size`, for
    features of tables `field_sizes` and `num_numbers`) that the description does not give, it gets the dataset's.
    """

    filled: ClassVar[Tuple[str, ...]] = (*NUM_CLASSES_NAMES, "input_shape", "vocab_size", "field_sizes", "num_numbers")
    reads: ClassVar[Tuple[str, ...]] = ()

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return CustomFields

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        return self._build(num_classes, input_shape=input_shape)

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        return self._build(num_classes, input_shape=input_shape, vocab_size=vocab_size)

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.Block:
        return self._build(num_classes, field_sizes=list(field_sizes), num_numbers=num_numbers)

    def _build(self, num_classes: int, **known: object) -> gluon.Block:
        known.update(dict.fromkeys(NUM_CLASSES_NAMES, num_classes))
        takes = inspect.signature(self.target).parameters
        fitted = {name: value for name, value in known.items() if name in takes}
        return self._call({**fitted, **self.arguments})

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
