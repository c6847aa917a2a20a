"""Learning rates that fall from the last layer to the first. Imports no MXNet until called.

Layer i of L has the factor decay ** (L + 1 - i). What is read before the first layer, such as embeddings, counts as
layer 0, and what is read after the last one, such as the head, as layer L + 1.

Source: Clark et al., "ELECTRA", https://arxiv.org/abs/2003.10555, appendix; Bao et al., "BEiT", for the numbers.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Dict, Optional, Set

from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import NotTraceable, symbol_of
from mxtrain.model.parameters import distinct_parameters
from mxtrain.types import Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

_NEARLY_ALL = 0.9


def decay_rates(network: gluon.Block, input_shape: Shapes, decay: float) -> Dict[str, int]:
    """Multiplies the learning rate of each parameter by the factor of its layer.

    The layers are the numbered blocks of one container: the one with the most parameters, e.g.
    `bert.encoder.transformer_cells` or `features`. If one of its blocks is nearly all of it, as in a container of a
    backbone and a head, they are those of a container in that block.

    Args:
        network: network in which parameters are frozen.
        input_shape: shape of a sample, or of each of its parts.
        decay: factor from one layer to the one before.

    Returns:
        The number of each parameter's layer, by structural name.

    Raises:
        ConfigError: the network has no such container, or cannot be traced.
    """
    parameters = distinct_parameters(network)
    prefix = _layer_prefix(parameters)
    if prefix is None:
        raise ConfigError(
            f"model.layer_decay={decay:g}: the network has no container of numbered layers, as 'features.0' and "
            "'features.1'. Give rates by model.param_groups."
        )
    try:
        position_of = _first_reads(network, input_shape)
    except NotTraceable as error:
        raise ConfigError(
            f"model.layer_decay={decay:g}: the network cannot be traced ({error}), so the order of its layers is not "
            "known. Give rates by model.param_groups."
        ) from error
    number_of = {name: int(name[len(prefix) :].split(".")[0]) for name in parameters if _is_below(name, prefix)}
    layer_of = {number: layer for layer, number in enumerate(sorted(set(number_of.values())), start=1)}
    begin = min(position_of.get(parameters[name].name, math.inf) for name in number_of)
    layers = {}
    for name, parameter in parameters.items():
        outside = 0 if position_of.get(parameter.name, math.inf) < begin else len(layer_of) + 1
        layers[name] = layer_of[number_of[name]] if name in number_of else outside
        parameter.lr_mult *= decay ** (len(layer_of) + 1 - layers[name])
    return layers


def _is_below(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].split(".")[0].isdigit()


def _layer_prefix(parameters: Dict[str, gluon.Parameter]) -> Optional[str]:
    """Returns the prefix of the numbers of layers, e.g. "features."; None if there are no two numbered layers."""
    sizes: Dict[str, int] = defaultdict(int)
    numbers: Dict[str, Set[str]] = defaultdict(set)
    blocks: Dict[str, Dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, parameter in parameters.items():
        parts = name.split(".")
        for place, part in enumerate(parts[:-1]):
            if part.isdigit():
                prefix = "".join(f"{one}." for one in parts[:place])
                numbers[prefix].add(part)
                sizes[prefix] += math.prod(parameter.shape)
                blocks[prefix][f"{prefix}{part}."] += math.prod(parameter.shape)
    several = [prefix for prefix in numbers if len(numbers[prefix]) > 1]
    chosen: Optional[str] = None
    while several:
        chosen = max(several, key=lambda prefix: (sizes[prefix], -len(prefix)))
        largest = max(blocks[chosen], key=blocks[chosen].__getitem__)
        is_nearly_all = blocks[chosen][largest] > _NEARLY_ALL * sizes[chosen]
        several = [prefix for prefix in several if is_nearly_all and prefix.startswith(largest)]
    return chosen


def _first_reads(network: gluon.Block, input_shape: Shapes) -> Dict[str, float]:
    """Returns `Parameter.name` -> position of the first operator of the graph that reads it."""
    symbol, _ = symbol_of(network, training=True, num_inputs=len(shapes_of(input_shape)))
    nodes = json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]
    reads: Dict[str, float] = {}
    for position, node in enumerate(nodes):
        for source, *_ in node["inputs"]:
            reads.setdefault(nodes[source]["name"], position)
    return reads
