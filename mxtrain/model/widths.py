"""Changes the widths of layers of a network. Imports MXNet only when called.

A layer is a Gluon block, e.g. 'features.0', or an operator in the graph of a `gluon.SymbolBlock`, which GluonCV's
detectors have as backbone, e.g. 'features.vgg0_conv0': the name of its weight without the last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Mapping, Optional, Protocol, Tuple

from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.graph.symbol_block import graph_of, norms_of, replace_graph
from mxtrain.model.graph.trace import blocks_by_path

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import GraphNode, SymbolGraph

CONVOLUTION, DENSE, NORM = "Convolution", "FullyConnected", "BatchNorm"
WEIGHT, SYMBOL_WEIGHT = ".weight", "_weight"


def layer_of(weight: str) -> str:
    """Returns the structural name of the layer that a weight belongs to, from the name of the weight."""
    return weight[: -len(WEIGHT)] if weight.endswith((WEIGHT, SYMBOL_WEIGHT)) else weight


def is_standard(block: gluon.Block, operator: str, first_parameter: str) -> bool:
    """Returns True if `set_widths` can change the width of an operator that a block calls.

    Args:
        block: the block.
        operator: its kind, e.g. "Convolution".
        first_parameter: structural name of the operator's first parameter.
    """
    from mxtrain.engine.backend import gluon

    if isinstance(block, gluon.SymbolBlock):
        return operator == NORM or first_parameter.endswith(SYMBOL_WEIGHT)
    kinds = {CONVOLUTION: gluon.nn.conv_layers._Conv, DENSE: gluon.nn.Dense, NORM: gluon.nn.BatchNorm}
    return isinstance(block, kinds[operator])


def set_widths(network: gluon.Block, widths: Mapping[str, int]) -> None:
    """Sets the number of output channels of layers. Input shapes are unknown afterwards and must be inferred again.

    Args:
        network: uninitialised network with the shapes of its class.
        widths: structural name of a convolution or dense layer -> channels.

    Raises:
        ConfigError: there is no such layer.
    """
    from mxtrain.engine.backend import gluon

    blocks = list(blocks_by_path(network))
    layers: Dict[str, _Layer] = {}
    for path, block in blocks:
        if isinstance(block, gluon.nn.Dense) or getattr(block, "_op_name", None) == CONVOLUTION:
            layers[path] = _GluonLayer(block)
        elif isinstance(block, gluon.SymbolBlock):
            layers.update(_layers_in_graph(path, block))
    for path in widths:
        if path not in layers:
            raise ConfigError(
                f"model.widths: there is no convolution or dense layer '{path}' in this network."
                f"{did_you_mean(path, layers)} Layers are called as in the table that a run prints, e.g. "
                f"{', '.join(list(layers)[:3]) or 'none here'}."
            )
    # By weight, because several layers may share one, and `widths` names one of them.
    width_by_weight = {id(layers[path].weight): width for path, width in widths.items()}
    old_shapes = {id(layer.weight): layer.weight.shape for layer in layers.values()}
    for layer in layers.values():
        old = old_shapes[id(layer.weight)]
        width = width_by_weight.get(id(layer.weight), old[0])
        # 0 is MXNet's unknown size: inference fills it from the width of the layer before.
        layer.weight._shape = (width, 0, *old[2:])
        if layer.bias is not None:
            layer.bias._shape = (width,)
        layer.set_width(width, old)
    for _, block in blocks:
        if isinstance(block, gluon.nn.BatchNorm):
            _forget(block.gamma, block.beta, block.running_mean, block.running_var)
        if isinstance(block, gluon.SymbolBlock):
            _forget(*(block.params[name] for names in norms_of(block) for name in names))
        for parameter in block._reg_params.values():
            parameter._var = None  # the symbol of a parameter knows its shape
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()


def _forget(*parameters: gluon.Parameter) -> None:
    """Makes the shapes of a batch norm unknown."""
    for parameter in parameters:
        parameter._shape = (0,)


class _Layer(Protocol):
    """A layer whose width can be set."""

    weight: gluon.Parameter
    bias: Optional[gluon.Parameter]

    def set_width(self, width: int, old_shape: Tuple[int, ...]) -> None:
        """Sets the width in the settings of the operator, not in the shapes of the parameters."""


class _GluonLayer:
    """A convolution or dense layer of Gluon."""

    def __init__(self, block: gluon.Block):
        self._block, self.weight, self.bias = block, block.weight, block.bias

    def set_width(self, width: int, old_shape: Tuple[int, ...]) -> None:
        block = self._block
        if hasattr(block, "_units"):
            block._units = width
        else:
            groups = _groups(old_shape, block._kwargs["num_group"], block._kwargs["num_filter"], width)
            block._kwargs.update(num_group=groups, num_filter=width)
            block._channels = width


class _GraphLayer:
    """A convolution or dense layer in the graph of a `gluon.SymbolBlock`."""

    def __init__(self, block: gluon.SymbolBlock, weight: gluon.Parameter, bias: Optional[gluon.Parameter]):
        self._block, self.weight, self.bias = block, weight, bias

    def set_width(self, width: int, old_shape: Tuple[int, ...]) -> None:
        graph = graph_of(self._block)
        for node in graph["nodes"]:
            if node["op"] == "null":
                node.get("attrs", {}).pop("__shape__", None)  # the symbol of a parameter knows its shape
            elif node["op"] == DENSE and _weight_name(graph, node) == self.weight.name:
                node["attrs"]["num_hidden"] = str(width)
            elif node["op"] == CONVOLUTION and _weight_name(graph, node) == self.weight.name:
                attrs = node["attrs"]
                groups = _groups(old_shape, int(attrs.get("num_group", 1)), int(attrs["num_filter"]), width)
                attrs.update(num_group=str(groups), num_filter=str(width))
        replace_graph(self._block, graph)


def _layers_in_graph(path: str, block: gluon.SymbolBlock) -> Dict[str, _GraphLayer]:
    """Returns the layers of a `SymbolBlock`, by structural name."""
    names = {parameter.name: name for name, parameter in block._reg_params.items()}
    graph = graph_of(block)
    layers = {}
    for node in graph["nodes"]:
        input_names = [graph["nodes"][source]["name"] for source, *_ in node["inputs"][1:]]
        has_weight = node["op"] in (CONVOLUTION, DENSE) and input_names[0].endswith(SYMBOL_WEIGHT)
        if has_weight and all(name in names for name in input_names):
            weight, *biases = (block.params[name] for name in input_names)
            name = layer_of(names[input_names[0]])
            layers[f"{path}.{name}" if path else name] = _GraphLayer(block, weight, biases[0] if biases else None)
    return layers


def _weight_name(graph: SymbolGraph, node: GraphNode) -> str:
    return graph["nodes"][node["inputs"][1][0]]["name"]


def _groups(old_shape: Tuple[int, ...], groups: int, old_width: int, width: int) -> int:
    """Returns the number of groups of a convolution with another width; it only changes for depthwise convolutions."""
    is_depthwise = groups > 1 and old_shape[1] == 1
    # The width may be set already: a layer can have two names.
    return max(width * groups // old_width, 1) if is_depthwise else groups
