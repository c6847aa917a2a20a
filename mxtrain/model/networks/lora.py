"""Dense layers with low-rank additions (LoRA). Imports MXNet.

The layer is computed as it is, with its frozen weight, and the addition from the input, so that no gradient of the
frozen weight is computed.

Legend: B batch, T tokens, U units, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, NamedTuple, Optional

from mxtrain.engine.backend import gluon, mx, native_operators
from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.lora import A, B, match_names
from mxtrain.model.networks.bert import PROJECTIONS, SelfAttention

if TYPE_CHECKING:
    from mxtrain.model.lora import Lora
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn


class LoraDense(gluon.nn.Dense):
    """Dense layer with a low-rank addition, before its activation: W x + b + (alpha / r) B A x."""

    lora_scale: float

    def hybrid_forward(
        self,
        F: OperatorModule,
        x: Array,
        weight: Array,
        bias: Optional[Array] = None,
        lora_a: Any = None,
        lora_b: Any = None,
    ) -> Array:
        inputs = [x, weight] if bias is None else [x, weight, bias]
        y = F.FullyConnected(*inputs, no_bias=bias is None, num_hidden=self._units, flatten=self._flatten)
        rank = self.lora_a.shape[0]
        low = F.FullyConnected(self.lora_dropout(x), lora_a, no_bias=True, num_hidden=rank, flatten=self._flatten)
        y = y + F.FullyConnected(low * self.lora_scale, lora_b, no_bias=True, num_hidden=self._units, flatten=False)
        return y if self.act is None else self.act(y)


class LoraSelfAttention(SelfAttention):
    """Self-attention with low-rank additions to queries, keys or values."""

    lora_scale: float

    def project(self, F: OperatorModule, x_TBU: Array, parameters: Mapping[str, Array]) -> Array:
        adapted = [name for name in PROJECTIONS if f"{name}_{A}" in parameters]
        rank = self._reg_params[f"{adapted[0]}_{A}"].shape[0]
        # One product for all: a native operator that reads `x_TBU` allows few other readers, see `fused`.
        first = F.concat(*[parameters[f"{name}_{A}"] for name in adapted], dim=0)
        low = F.FullyConnected(
            self.lora_dropout(x_TBU), first, no_bias=True, num_hidden=rank * len(adapted), flatten=False
        )
        low = low * self.lora_scale
        added: Dict[str, Array] = {}
        for number, name in enumerate(adapted):
            part = F.slice_axis(low, axis=2, begin=number * rank, end=(number + 1) * rank)
            second = parameters[f"{name}_{B}"]
            added[name] = F.FullyConnected(part, second, no_bias=True, num_hidden=self._units, flatten=False)
        zeros = F.zeros_like(added[adapted[0]])
        parts = [added.get(name, zeros) for name in PROJECTIONS]
        if native_operators().path:
            joined = F.concat(*parts, dim=2)
        else:
            by_head = [F.reshape(part, shape=(0, 0, self._num_heads, -1)) for part in parts]
            joined = F.reshape(F.concat(*by_head, dim=3), shape=(0, 0, -1))
        return super().project(F, x_TBU, parameters) + joined


class LinearMap(NamedTuple):
    """A weight that a low-rank addition can be made to."""

    block: gluon.HybridBlock
    kind: type
    """Class of the block with additions."""
    attribute: str
    """Prefix of the parameter's attribute of the block, e.g. "query_" for `query_weight`."""
    weight: gluon.Parameter


def linear_maps(network: gluon.Block) -> Dict[str, LinearMap]:
    """Returns the weights that additions can be made to, by the structural name of their layer.

    A weight with two names is left out: the other layer that reads it, such as an embedding, would miss the addition.
    """
    names: Dict[int, List[str]] = {}
    for name, parameter in network._collect_params_with_prefix().items():
        names.setdefault(id(parameter), []).append(name)
    maps = []
    for _, block in blocks_by_path(network):
        if type(block) is nn.Dense:
            maps.append(LinearMap(block, LoraDense, "", block.weight))
        elif type(block) is SelfAttention:
            for name in PROJECTIONS:
                maps.append(LinearMap(block, LoraSelfAttention, f"{name}_", getattr(block, f"{name}_weight")))
    return {
        names[id(one.weight)][0][: -len("weight")].rstrip("."): one for one in maps if len(names[id(one.weight)]) == 1
    }


def add_to(one: LinearMap, lora: Lora) -> None:
    """Adds the two matrices of an addition to a block, uninitialised.

    Args:
        one: weight with a known shape.
        lora: settings with a rank.
    """
    block, (units, in_units) = one.block, one.weight.shape
    assert lora.rank is not None
    if type(block) is not one.kind:
        block.__class__ = one.kind
        block.lora_scale = lora.alpha / lora.rank
        block.lora_dropout = nn.Dropout(lora.dropout, prefix=f"{block.prefix}lora_dropout_")
    # Source: the paper draws A and starts with B = 0; the range is that of its published code.
    for matrix, shape, init in (
        (A, (lora.rank, in_units), mx.init.Uniform(in_units**-0.5)),
        (B, (units, lora.rank), mx.init.Zero()),
    ):
        name = f"{one.attribute}{matrix}"
        setattr(block, name, block.params.get(name, shape=shape, init=init, dtype=one.weight.dtype))


@dataclass(frozen=True)
class Additions:
    """Additions to a network.

    Attributes:
        parameters: their matrices by structural name, uninitialised.
        layers: structural names of their layers.
        trained: structural names of all parameters to train.
    """

    parameters: Mapping[str, gluon.Parameter]
    layers: List[str]
    trained: Collection[str]


def add_lora(network: gluon.Block, lora: Lora, fresh: Collection[str], learned: Collection[str]) -> Additions:
    """Adds low-rank additions to dense layers.

    Args:
        network: network with known shapes.
        lora: settings with a rank.
        fresh: structural names of parameters that the weights file does not have.
        learned: structural names of parameters that are trained without LoRA.

    Raises:
        ConfigError: a pattern matches nothing, or no layer is left.
    """
    names = list(network._collect_params_with_prefix())
    trained = {name for name in fresh if name in learned}
    for pattern in lora.train:
        trained.update(set(match_names(pattern, names, "train", "parameter")) & set(learned))
    maps = linear_maps(network)
    if not maps:
        raise ConfigError(
            "model.lora: the network has no dense layer with a weight of its own, to which an addition could be made. "
            "Leave model.lora out, and freeze layers by model.freeze."
        )
    matched = {layer for pattern in lora.layers for layer in match_names(pattern, list(maps), "layers", "dense layer")}
    weight_of = {layer: f"{layer}.weight".lstrip(".") for layer in maps}
    layers = [layer for layer in maps if layer in matched and weight_of[layer] not in trained]
    if not layers:
        raise ConfigError(
            f"model.lora.layers=[{','.join(lora.layers)}]: all of these layers are trained themselves, so none gets an "
            "addition. Name others, or leave model.lora out."
        )
    for layer in layers:
        add_to(maps[layer], lora)
    parameters = network._collect_params_with_prefix()
    added = {name: parameters[name] for name in parameters if name not in names}
    return Additions(added, layers, {*trained, *added})
