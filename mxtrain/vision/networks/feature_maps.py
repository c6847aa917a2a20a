"""Finds feature maps in GluonCV's classification networks, for use as backbones. Imports MXNet and GluonCV."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.graph.trace import trace, trace_symbol
from mxtrain.vision.networks.gluoncv_names import sizes_of

if TYPE_CHECKING:
    from mxnet.symbol import Symbol

    from mxtrain.types import Shape

NUMBERS = {2: "two", 3: "three", 4: "four"}


def take_initializers(part: gluon.Block, network: gluon.Block) -> None:
    """Copies the initializers of a network to a block that was made from a part of its graph.

    Args:
        part: block of a part of the graph, with additional layers.
        network: network that the part was taken from.
    """
    parameters = network.collect_params()
    for name, parameter in part.collect_params().items():
        if name in parameters:
            parameter.init, parameter.grad_req = parameters[name].init, parameters[name].grad_req
        # Parameters of layers that only exist in the symbol have no initializer, and would be initialized at random.
        if parameter.init is None and name.endswith(("_gamma", "_var")):
            parameter.init = mx.init.One()
        elif parameter.init is None and name.endswith(("_beta", "_mean", "_bias")):
            parameter.init = mx.init.Zero()


def map_sizes(features: gluon.HybridBlock, input_shape: Shape) -> List[Tuple[int, int]]:
    """Returns the (height, width) of each map that a block computes.

    Raises:
        ConfigError: images are too small for the network.
    """
    from mxtrain.model.graph.shapes import infer_shapes

    infer_shapes(features, input_shape)
    return [(shape[2], shape[3]) for shape in trace(features, input_shape).output_shapes if shape is not None]


def find_features(
    symbol: Symbol, prefix: str, backbone: str, count: int, requested: Optional[Sequence[str]] = None, at_least: int = 0
) -> List[str]:
    """Returns the names of the outputs of a backbone that a detector uses as feature maps.

    Args:
        symbol: symbol of the backbone.
        prefix: prefix of most names in the symbol.
        backbone: GluonCV's name of the backbone.
        count: number of maps.
        requested: names of outputs without the prefix, which are checked; None: for each of the `count` smallest sizes,
            the last map of this size that separates all later layers from the input.
        at_least: smallest accepted number of maps; 0: `count`.

    Raises:
        ConfigError: an output does not exist, or there are too few maps.
    """
    side = sizes_of(backbone).usual
    nodes = trace_symbol(symbol, {"data": (1, 3, side, side)}).nodes
    counts = Counter(node.name for node in nodes)
    maps = {
        node.name: index
        for index, node in enumerate(nodes)
        if node.op not in ("null", "Pad") and node.shape and len(node.shape) == 4 and counts[node.name] == 1
    }
    if requested is not None:
        known = {name[len(prefix) :]: name for name in maps if name.startswith(prefix)}
        for name in requested:
            if name not in known:
                outputs = list(known)
                raise ConfigError(
                    f"model.features: {backbone} has no output '{name}'.{did_you_mean(name, outputs)} Its maps are "
                    f"{', '.join(outputs[:4])}, ..., {', '.join(outputs[-4:])}. Type model.features=auto, or some of "
                    "them."
                )
        return [known[name] for name in requested]
    last_read = {source: index for index, node in enumerate(nodes) for source in node.inputs}
    is_computed = [node.op != "null" or node.name == "data" for node in nodes]
    by_size: Dict[Tuple[int, ...], str] = {}
    for name, index in maps.items():
        # All paths from the input go through this node: later nodes read no earlier result.
        is_cut = not any(is_computed[earlier] and last_read.get(earlier, 0) > index for earlier in range(index))
        size = (nodes[index].shape or ())[2:]
        if is_cut and max(size) > 1:
            by_size[size] = name
    features = [by_size[size] for size in sorted(by_size, reverse=True)[-count:]]
    if len(features) < (at_least or count):
        placeholders = ",".join(["NAME"] * (at_least or count))
        raise ConfigError(
            f"model.backbone={backbone}: the network has no {NUMBERS[at_least or count]} maps of different sizes that "
            f"all that follows is computed from. Name the maps by model.features=[{placeholders}], or choose another "
            "backbone, e.g. resnet18_v1."
        )
    return features
