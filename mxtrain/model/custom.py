"""A user's own network: a class or function that `_target_` names, or a block that was passed to the Python API."""

from __future__ import annotations

import copy
import hashlib
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Collection, Dict, Mapping, Optional, Sequence, Tuple, Type

from mxtrain.config.placeholders import GLUON_ATTRIBUTES, Given, class_of
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


class GivenModel(Given, CustomFields):
    """A gluon block. Each run computes with a copy; the block itself stays as it was. Parameters that have values start
    from these, the others from `init`."""

    argument: ClassVar[str] = "model"
    takes: ClassVar[Takes] = Takes()

    networks: Dict[str, str] = {}
    """Class of each network, for a custom loop with several networks."""
    structure: Dict[str, str] = {}
    """Class of the block, of each child or of each network, and a hash of its layers, their settings and the shapes of
    parameters."""

    @classmethod
    def describe_object(cls, block: Any) -> Dict[str, Any]:
        """Returns facts that identify a block besides its class: the structure of its children.

        Raises:
            ConfigError: it is no block.
        """
        from mxtrain.engine.backend import gluon

        if isinstance(block, Mapping):
            for name, value in block.items():
                if not str(name).isidentifier():
                    raise ConfigError(f"model: {name!r} is no name of a network. Use a name such as 'generator'.")
                cls.describe_object(value[0] if isinstance(value, tuple) else value)
            blocks = {name: _block_of(value) for name, value in block.items()}
            return {
                "networks": {name: class_of(value) for name, value in blocks.items()},
                "structure": {name: structure_of(value) for name, value in blocks.items()},
            }
        if not isinstance(block, gluon.Block):
            raise cls.refusal(block, "a gluon.Block", "model=resnet")
        children = {name: structure_of(value) for name, value in block._children.items()}
        return {"structure": {"itself": structure_of(block, children=False), **children}}

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        network = self.require()
        return build_group(network) if isinstance(network, Mapping) else copy_block(network)

    def build_filled(self, num_classes: int, **known: Any) -> gluon.Block:
        return self.build(num_classes, ())

    def require_known(self, names: Sequence[str]) -> None:
        """Does nothing: the block exists already."""

    def valued_parameters(self) -> Collection[str]:
        return self._valued()

    def set_initial_values(self, network: gluon.Block) -> None:
        parameters = network._collect_params_with_prefix()
        for name, parameter in self._valued().items():
            if name in parameters:
                parameters[name].set_data(parameter.data(parameter.list_ctx()[0]))

    def _valued(self) -> Dict[str, gluon.Parameter]:
        original = self.require()
        blocks = {"": original}
        if isinstance(original, Mapping):
            blocks = {f"{name}.": _block_of(value) for name, value in original.items()}
        return {
            f"{prefix}{name}": parameter
            for prefix, block in blocks.items()
            for name, parameter in block._collect_params_with_prefix().items()
            # Only values that exist are taken over: deferred parameters start from the run's initializer.
            if parameter._data is not None
        }


def structure_of(block: gluon.Block, children: bool = True) -> str:
    """Returns the class of a block and a hash of its layers and settings.

    The hash does not depend on values of parameters, numbers in Gluon's names, or whether a first call has inferred
    shapes.

    Args:
        block: block of any class.
        children: True to include the blocks in it.
    """
    digest = hashlib.sha256(_layout(block, children).encode()).hexdigest()[:12]
    return f"{type(block).__name__} {digest}"


def _layout(block: gluon.Block, children: bool) -> str:
    settings = {
        name: value for name, value in sorted(vars(block).items()) if name not in GLUON_ATTRIBUTES and _is_plain(value)
    }
    parameters = {
        # Sizes that a first call infers are 0 before it.
        name: (value.grad_req, len(value.shape or ()) if value._allow_deferred_init else value.shape)
        for name, value in sorted(block._reg_params.items())
    }
    children_layout = [f"{name}={_layout(value, True)}" for name, value in block._children.items()] if children else []
    return f"{class_of(block)}({settings}, {parameters}, [{', '.join(children_layout)}])"


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _block_of(network: Any) -> Any:
    """Returns the block of a network, which may be a pair of block and input shape."""
    return network[0] if isinstance(network, tuple) else network


def build_group(networks: Mapping[str, Any]) -> gluon.Block:
    """Copies several networks into one block.

    Args:
        networks: name -> block, or pair of a block and the shape of one sample of its input.

    Raises:
        ConfigError: the shape of a parameter is unknown.
    """
    from mxtrain.model.graph.shapes import infer_shapes
    from mxtrain.model.networks.group import NetworkGroup

    copies = {name: copy_block(_block_of(network)) for name, network in networks.items()}
    for name, network in networks.items():
        if isinstance(network, tuple):
            infer_shapes(copies[name], tuple(network[1]))
        for parameter_name, parameter in copies[name]._collect_params_with_prefix().items():
            if parameter.shape is None or min(parameter.shape, default=1) <= 0:
                raise ConfigError(
                    f"model: the shape of '{name}.{parameter_name}' is not known. Give the shape of one input beside "
                    f'the network, model={{"{name}": (network, (16,)), ...}}.'
                )
    return NetworkGroup(copies)


def copy_block(block: gluon.Block) -> gluon.Block:
    """Returns a copy of a block whose parameters have shapes but no values.

    Clears the cached graphs of the block itself, which cannot be copied; its next call creates them again.
    """
    from mxtrain.engine.backend import gluon

    copies: Dict[int, Any] = {}
    for parameter in block.collect_params().values():
        copied = copies[id(parameter)] = copy.copy(parameter)
        # Values and contexts belong to the caller's block; the copy is initialised on the devices of its own run.
        copied._data = copied._grad = copied._ctx_list = copied._ctx_map = copied._trainer = None
        copied._deferred_init = ()

    def drop_graph(child: gluon.Block) -> None:
        if isinstance(child, gluon.HybridBlock):
            child._clear_cached_op()

    # A CachedOp holds a handle of C, which deepcopy cannot copy.
    block.apply(drop_graph)
    try:
        return copy.deepcopy(block, copies)
    except Exception as error:
        raise ConfigError(
            f"model: a {type(block).__name__} cannot be copied ({type(error).__name__}: {error}). Name its class "
            'instead: "model._target_=package.Class".'
        ) from error
