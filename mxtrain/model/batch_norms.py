"""Selects the batch norms of a network that normalise by the batch or by their moving statistics.

One rule holds for each way to freeze parameters (`model.freeze`, `grad_req="null"`, `callback=unfreeze`, fixed scale
and shift): a batch norm normalises by the batch and its statistics follow the data, unless `model.freeze` matches the
statistics or the layer has `use_global_stats=True`. Imports no MXNet until called.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, NamedTuple, Set

from mxtrain.errors import ConfigError
from mxtrain.model.graph.symbol_block import keep_statistics, norms_in
from mxtrain.model.graph.trace import LAYER_ATTRIBUTE, NotTraceable, blocks_by_path, symbol_of
from mxtrain.types import Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon


class _Norm(NamedTuple):
    """A batch norm."""

    layer: str
    parameters: List[str]
    """`Parameter.name` of scale, shift, moving mean and moving variance."""


def freeze_statistics(network: gluon.Block, frozen: Collection[str]) -> None:
    """Makes batch norms with frozen moving mean and variance normalise by these, so that they do not change.

    Args:
        network: network with its layers.
        frozen: structural names.
    """
    from mxtrain.engine.backend import gluon

    names = {network._collect_params_with_prefix()[name].name for name in frozen}
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.basic_layers._BatchNorm):
            if {block.running_mean.name, block.running_var.name} <= names:
                # With this flag the operator only reads the moving statistics, in whichever pass MXNet
                # or cuDNN would write them.
                block._kwargs["use_global_stats"] = True
        elif isinstance(block, gluon.SymbolBlock):
            keep_statistics(block, names)


def norm_parameters(network: gluon.Block, input_shape: Shapes, with_scale: bool) -> List[str]:
    """Returns the structural names of the statistics of all batch norms, and of scale and shift with `with_scale`.

    Args:
        network: initialised network.
        input_shape: shape of a sample, or of each of its parts.
        with_scale: True to include scale and shift.
    """
    parameters = {parameter.name: parameter for parameter in network.collect_params().values()}
    found = {
        name
        for _, names in _norms(network, input_shape, parameters, with_fixed=True)
        for name in (names if with_scale else names[2:])
    }
    return [name for name, one in network._collect_params_with_prefix().items() if one.name in found]


def let_statistics_move(network: gluon.Block, input_shape: Shapes) -> None:
    """Ensures that batch norms that normalise by the batch have a backward pass, in which MXNet updates statistics.

    MXNet skips this pass if scale, shift and all earlier layers have no gradient. Such a norm gets a gradient of its
    shift, which no optimizer applies.

    Args:
        network: initialised network in which parameters are frozen.
        input_shape: shape of a sample, or of each of its parts.

    Raises:
        ConfigError: statistics are frozen, but the network's own code normalises by the batch.
    """
    parameters = {parameter.name: parameter for parameter in network.collect_params().values()}
    for layer, (gamma, beta, mean, variance) in _norms(network, input_shape, parameters):
        if parameters[mean].lr_mult == parameters[variance].lr_mult == 0:
            position = f"layer '{layer}'" if layer else "the network"
            raise ConfigError(
                f"model.freeze: the code of {position} calls BatchNorm itself, so its frozen statistics would change. "
                "Give that call use_global_stats=True, or use mxnet.gluon.nn.BatchNorm()."
            )
        scale, shift = parameters[gamma], parameters[beta]
        if scale.grad_req == shift.grad_req == "null":
            shift.lr_mult = 0.0
            # The setter refuses the shift of a layer with center=False.
            shift._grad_req = "write"
            if shift._data is not None:
                shift._init_grad()


def _norms(
    network: gluon.Block, input_shape: Shapes, parameters: Mapping[str, gluon.Parameter], with_fixed: bool = False
) -> Iterator[_Norm]:
    """Yields the batch norms that normalise by the batch; with `with_fixed`, also the ones with fixed statistics."""
    from mxtrain.engine.backend import gluon

    known: Set[str] = set()
    for path, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.basic_layers._BatchNorm):
            arrays = (block.gamma, block.beta, block.running_mean, block.running_var)
            norms = {block.name: (block._kwargs, [parameter.name for parameter in arrays])}
        elif isinstance(block, gluon.SymbolBlock):
            norms = norms_in(block)
        else:
            continue
        for options, names in norms.values():
            known.update(names)
            if with_fixed or not _uses_statistics(options):
                yield _Norm(path, names)
    others = {name for name, parameter in parameters.items() if parameter.grad_req == "null"} - known
    # A trace takes time, so it is made only where some array without a gradient may be a statistic.
    if any(not isinstance(parameters[name], gluon.parameter.Constant) for name in others):
        yield from (norm for norm in _called_norms(network, input_shape) if known.isdisjoint(norm.parameters))


def _called_norms(network: gluon.Block, input_shape: Shapes) -> Iterator[_Norm]:
    """Yields the batch norms that the code of blocks calls."""
    try:
        # In training mode: code of a network may call another operator when it predicts.
        symbol, _ = symbol_of(network, training=True, num_inputs=len(shapes_of(input_shape)))
    except NotTraceable:
        return
    nodes = json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]
    for node in nodes:
        attributes: Dict[str, str] = node.get("attrs", {})
        if node["op"] in NORMS and not _uses_statistics(attributes):
            names = [nodes[source]["name"] for source, *_ in node["inputs"][1:]]
            yield _Norm(attributes.get(LAYER_ATTRIBUTE, ""), names)


def _uses_statistics(options: Mapping[str, object]) -> bool:
    return str(options.get("use_global_stats", False)) in ("True", "1")


NORMS = ("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
"""Operators that normalise by the batch; their inputs are x, scale, shift, moving mean and moving variance."""
