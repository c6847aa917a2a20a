"""A network that was passed as a block."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.given import Given, class_of
from mxtrain.model.custom import CustomFields
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon

OF_EVERY_BLOCK = frozenset((
    "_empty_prefix", "_prefix", "_name", "_active", "_backend", "_backend_opts", "_flags", "_v2", "_children",
    "_forward_hooks", "_forward_pre_hooks", "_cached_graph", "_cached_op", "_cached_op_args", "_callback",
    "_monitor_all", "_in_format", "_out_format", "_partition_if_dynamic", "_first_forward",
    "_called_infer_shape_already", "_reg_params",
    "_in_units", "_in_channels", "_input_size", "skip_states",
))  # fmt: skip
"""Attributes that Gluon itself sets, changes at the first call, or compiles by."""


class GivenModel(Given, CustomFields):
    """A gluon block. Each run computes with a copy; the block itself stays as it was. Parameters that have values start
    from these, the others from `init`."""

    argument: ClassVar[str] = "model"
    input_types: ClassVar[Tuple[str, ...]] = ()

    networks: Dict[str, str] = {}
    """Of several networks of a custom loop: the class of each."""
    structure: Dict[str, str] = {}
    """The class and a hash of the block itself and of each child, or of each network: of its layers, their settings and
    the shapes of parameters."""

    @classmethod
    def describe_object(cls, block: Any) -> Dict[str, Any]:
        """Returns facts that identify a block besides its class: the structure of its children.

        Raises:
            ConfigError: it is no block.
        """
        from mxtrain.engine.backend import gluon

        if isinstance(block, Mapping):
            for name, one in block.items():
                if not str(name).isidentifier():
                    raise ConfigError(f"model: {name!r} is no name of a network. Use a name such as 'generator'.")
                cls.describe_object(one[0] if isinstance(one, tuple) else one)
            blocks = {name: _block_of(one) for name, one in block.items()}
            return {
                "networks": {name: class_of(one) for name, one in blocks.items()},
                "structure": {name: structure_of(one) for name, one in blocks.items()},
            }
        if not isinstance(block, gluon.Block):
            raise ConfigError(
                f"model={block!r:.60}: must be a gluon.Block, and is a {type(block).__name__}. To choose a network by "
                'its name, give an override: "model=resnet".'
            )
        children = {name: structure_of(one) for name, one in block._children.items()}
        return {"structure": {"itself": structure_of(block, children=False), **children}}

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        given = self.require()
        return build_group(given) if isinstance(given, Mapping) else copy_block(given)

    def build_filled(self, num_classes: int, **known: Any) -> gluon.Block:
        return self.build(num_classes, ())

    def require_known(self, names: Sequence[str]) -> None:
        """Nothing is filled in: the block is there."""

    def set_initial_values(self, network: gluon.Block) -> None:
        own = network._collect_params_with_prefix()
        given = self.require()
        blocks = {"": given}
        if isinstance(given, Mapping):
            blocks = {f"{name}.": _block_of(one) for name, one in given.items()}
        found = {
            f"{prefix}{name}": parameter for prefix, block in blocks.items()
            for name, parameter in block._collect_params_with_prefix().items()
        }  # fmt: skip
        for name, parameter in found.items():
            if parameter._data is not None and name in own:
                own[name].set_data(parameter.data(parameter.list_ctx()[0]))


def structure_of(block: gluon.Block, children: bool = True) -> str:
    """Returns the class of a block and a hash of what it computes, as far as its attributes tell. It does not depend on
    values of parameters, names that Gluon counts up, or whether shapes were inferred by a first call.

    Args:
        block: of any class.
        children: whether the hash is of the blocks in it, too.
    """
    said = hashlib.sha256(_layout(block, children).encode()).hexdigest()[:12]
    return f"{type(block).__name__} {said}"


def _layout(block: gluon.Block, children: bool) -> str:
    settings = {
        name: one for name, one in sorted(vars(block).items()) if name not in OF_EVERY_BLOCK and _is_plain(one)
    }  # fmt: skip
    parameters = {
        # Sizes that a first call infers are 0 before it.
        name: (one.grad_req, len(one.shape or ()) if one._allow_deferred_init else one.shape)
        for name, one in sorted(block._reg_params.items())
    }
    below = [f"{name}={_layout(one, True)}" for name, one in block._children.items()] if children else []
    return f"{class_of(block)}({settings}, {parameters}, [{', '.join(below)}])"


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _block_of(one: Any) -> Any:
    """Returns the block of a network, which may be given with the shape of its input."""
    return one[0] if isinstance(one, tuple) else one


def build_group(networks: Mapping[str, Any]) -> gluon.Block:
    """Copies of several networks as one block.

    Args:
        networks: blocks, or pairs of a block and the shape of one sample of its input.

    Raises:
        ConfigError: a parameter's shape is not known.
    """
    from mxtrain.model.graph.shapes import infer_shapes
    from mxtrain.model.networks.group import NetworkGroup

    copies = {name: copy_block(_block_of(one)) for name, one in networks.items()}
    for name, one in networks.items():
        if isinstance(one, tuple):
            infer_shapes(copies[name], tuple(one[1]))
        for parameter_name, parameter in copies[name]._collect_params_with_prefix().items():
            if parameter.shape is None or min(parameter.shape, default=1) <= 0:
                raise ConfigError(
                    f"model: the shape of '{name}.{parameter_name}' is not known. Give the shape of one input beside "
                    f'the network, model={{"{name}": (network, (16,)), ...}}.'
                )
    return NetworkGroup(copies)


def copy_block(block: gluon.Block) -> gluon.Block:
    """Returns a copy of a block whose parameters have shapes and no values. Compiled graphs of the block itself are
    dropped, and made again at its next call: they cannot be copied."""
    from mxtrain.engine.backend import gluon

    copies: Dict[int, Any] = {}
    for parameter in block.collect_params().values():
        made = copies[id(parameter)] = copy.copy(parameter)
        made._data = made._grad = made._ctx_list = made._ctx_map = made._trainer = None
        made._deferred_init = ()

    def drop_graph(one: gluon.Block) -> None:
        if isinstance(one, gluon.HybridBlock):
            one._clear_cached_op()

    block.apply(drop_graph)
    try:
        return copy.deepcopy(block, copies)
    except Exception as error:
        raise ConfigError(
            f"model: a {type(block).__name__} cannot be copied ({type(error).__name__}: {error}). Name its class "
            "instead: \"model._target_=package.Class\"."
        ) from error
