"""Cuts maps out of GluonCV's networks for classification. Imports MXNet and GluonCV."""

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
    """Gives the parameters of a part of the graph the initial values of the network's parameters.

    Args:
        part: of the network, with further layers behind it.
        network: that the part was cut out of.
    """
    known = network.collect_params()
    for name, parameter in part.collect_params().items():
        if name in known:
            parameter.init, parameter.grad_req = known[name].init, known[name].grad_req
        # Parameters of layers that exist only in the symbol have no initialiser, and would be drawn at random.
        if parameter.init is None and name.endswith(("_gamma", "_var")):
            parameter.init = mx.init.One()
        elif parameter.init is None and name.endswith(("_beta", "_mean", "_bias")):
            parameter.init = mx.init.Zero()


def map_sizes(features: gluon.HybridBlock, input_shape: Shape) -> List[Tuple[int, int]]:
    """(height, width) of each of its maps.

    Raises:
        ConfigError: images are too small for the network.
    """
    from mxtrain.model.graph.shapes import infer_shapes

    infer_shapes(features, input_shape)
    return [(shape[2], shape[3]) for shape in trace(features, input_shape).output_shapes if shape is not None]


def find_features(
    symbol: Symbol, prefix: str, backbone: str, count: int, asked: Optional[Sequence[str]] = None, at_least: int = 0
) -> List[str]:  # fmt: skip
    """Returns the names of the outputs that boxes are found in.

    Args:
        symbol: of the backbone.
        prefix: of most names in it.
        backbone: GluonCV's name of it.
        count: how many.
        asked: those outputs by GluonCV's names, which are checked; None: the last map of each of the `count` smallest
            sizes that all that follows is computed from.
        at_least: so many will do; 0: all of them are wanted.

    Raises:
        ConfigError: there are no such outputs.
    """
    side = sizes_of(backbone).usual
    nodes = trace_symbol(symbol, {"data": (1, 3, side, side)}).nodes
    counts = Counter(node.name for node in nodes)
    maps = {
        node.name: index for index, node in enumerate(nodes)
        if node.op not in ("null", "Pad") and node.shape and len(node.shape) == 4 and counts[node.name] == 1
    }  # fmt: skip
    if asked is not None:
        known = {name[len(prefix) :]: name for name in maps if name.startswith(prefix)}
        for name in asked:
            if name not in known:
                shown = list(known)
                raise ConfigError(
                    f"model.features: {backbone} has no output '{name}'.{did_you_mean(name, shown)} Its maps are "
                    f"{', '.join(shown[:4])}, ..., {', '.join(shown[-4:])}. Type model.features=auto, or some of them."
                )
        return [known[name] for name in asked]
    last_read = {source: index for index, node in enumerate(nodes) for source in node.inputs}
    is_value = [node.op != "null" or node.name == "data" for node in nodes]
    by_size: Dict[Tuple[int, ...], str] = {}
    for name, index in maps.items():
        alone = not any(is_value[before] and last_read.get(before, 0) > index for before in range(index))
        size = (nodes[index].shape or ())[2:]
        if alone and max(size) > 1:
            by_size[size] = name
    found = [by_size[size] for size in sorted(by_size, reverse=True)[-count:]]
    if len(found) < (at_least or count):
        names = ",".join(["NAME"] * (at_least or count))
        raise ConfigError(
            f"model.backbone={backbone}: the network has no {NUMBERS[at_least or count]} maps of different sizes that "
            f"all that follows is computed from. Name the maps by model.features=[{names}], or choose another backbone,"
            " e.g. resnet18_v1."
        )
    return found
