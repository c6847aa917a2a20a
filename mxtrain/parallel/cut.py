"""Cuts a network into pieces for different devices, at the level of its graph of operators.

    network -> symbol -> operators in topological order | cut | cut | ... -> pieces

The user's code does not change: every network that MXNet can trace can be cut between any two operators. A tensor that
several later pieces read (a skip connection across a cut) is sent to each of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.amp.spec import FULL, Precision
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.graph.trace import LAYER_ATTRIBUTE, blocks_by_path, input_names, symbol_of
from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.symbol import Symbol

    from mxtrain.types.annotations import GraphNode, SymbolGraph

STAGE_ATTRIBUTE = "begins_stage"
"""Attribute that marks blocks where a stage may begin. If any block has it, no other block may begin a stage."""

Tensor = Tuple[int, int]
"""A tensor of the graph: (node index, output index)."""

JOINABLE = ("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
"""Operators whose mean and variance can be taken over several devices' samples (`mxtrain.parallel.norm`)."""


@dataclass(frozen=True)
class Piece:
    """A sequence of consecutive operators.

    Attributes:
        symbol: graph of the operators; its variables are parameters, and inputs named by `variable(tensor)`.
        inputs: input tensors, from earlier pieces or the network's input.
        outputs: tensors that later pieces or the user read, in the order of the symbol's outputs.
        kinds: types of its operators.
        norm: attributes and `op` of the batch norm, if the piece is a single one; otherwise None.
    """

    symbol: Symbol
    inputs: List[Tensor]
    outputs: List[Tensor]
    kinds: FrozenSet[str]
    norm: Optional[Dict[str, str]] = None

    @property
    def parameters(self) -> List[str]:
        """Returns the names of the parameters of the piece, including moving statistics."""
        inputs = {variable(tensor) for tensor in self.inputs}
        return [name for name in self.symbol.list_inputs() if name not in inputs]


@dataclass(frozen=True)
class BlockSequence:
    """Consecutive blocks; the output of each is the input of the next."""

    blocks: List[gluon.Block]
    inputs: List[Tensor]
    outputs: List[Tensor]
    norm: None = None

    @property
    def parameters(self) -> List[str]:
        """Returns the names of the parameters of the blocks, including moving statistics."""
        return [name for block in self.blocks for name in block.collect_params()]


def variable(tensor: Tensor) -> str:
    """Returns the name of the variable for an input tensor in the symbol of a piece."""
    return f"tensor{tensor[0]}_{tensor[1]}"


def marked_layers(network: gluon.Block) -> List[str]:
    """Returns the structural names of the blocks whose attribute `begins_stage` is true."""
    return [path for path, block in blocks_by_path(network) if path and getattr(block, STAGE_ATTRIBUTE, False)]


class Cuttable:
    """Base class of networks as a sequence of operators that can be cut between any two.

    Position p is before operator p: 0 is the beginning of the network, `len(self)` its end.

    Attributes:
        operators: node indices of the operators in topological order.
        layers: structural name of the block that called each operator.
        heads, inputs: output and input tensors of the network.
        marked: layers that their author marked to begin a stage.
        without_gradient: tensors that do not depend on a trained parameter: the inputs, and outputs of layers without
            trained parameters that read only such tensors.
        text: description of the whole computation; equal strings mean equal computations.
    """

    operators: List[int]
    layers: List[str]
    heads: List[Tensor]
    inputs: List[Tensor]
    marked: List[str]
    without_gradient: FrozenSet[Tensor]
    text: str
    _produced_at: Dict[int, int]
    _last_read: Dict[Tensor, int]
    _shared: List[Tuple[int, int]]

    def __len__(self) -> int:
        return len(self.operators)

    def crossing(self, position: int) -> List[Tensor]:
        """Returns the tensors that are produced before `position` and read at or after it."""
        return [
            tensor
            for tensor, last in self._last_read.items()
            if self._produced_at[tensor[0]] < position and last >= position
        ]

    def can_cut(self, position: int) -> bool:
        """Returns True if no parameter is read on both sides of `position`; it would have to be on two devices."""
        return 0 < position < len(self) and not any(first < position <= last for first, last in self._shared)

    def norms(self) -> List[int]:
        """Returns the positions of the batch norms that compute statistics.

        Raises:
            ConfigError: a batch norm is of a kind that cannot be synchronised over devices.
        """
        raise NotImplementedError

    def shapes(self, input_shape: Shapes, batch_size: int) -> Dict[Tensor, Shape]:
        """Returns the shape of every tensor that `crossing` may return for some position."""
        raise NotImplementedError

    def _piece(self, begin: int, end: int, outputs: List[Tensor]) -> Union[Piece, BlockSequence]:
        """Returns the operators from `begin` up to `end`."""
        raise NotImplementedError

    def beginnings(self) -> Dict[int, str]:
        """Returns position -> structural name of the outermost layer that begins there."""
        layer_at: Dict[int, str] = {}
        visited = set()
        for position, layer in enumerate(self.layers):
            words = layer.split(".") if layer else []
            for depth in range(1, len(words) + 1):
                path = ".".join(words[:depth])
                if path not in visited:
                    visited.add(path)
                    layer_at.setdefault(position, path)
        return layer_at

    def computes(self, layer: str) -> bool:
        """Returns True if an operator belongs to a layer, given by its structural name."""
        return any(name == layer or name.startswith(f"{layer}.") for name in self.layers)

    def begin_of(self, layer: str, asked_by: str = "parallel.cut_before") -> int:
        """Returns the position before the first operator of a layer.

        Args:
            layer: structural name of the layer.
            asked_by: setting that names the layer, for messages.

        Raises:
            ConfigError: there is no such layer, or the network cannot be cut before it.
        """
        inside = [p for p, name in enumerate(self.layers) if name == layer or name.startswith(f"{layer}.")]
        if not inside:
            words = [name.split(".") for name in self.layers if name]
            paths = (".".join(path[: depth + 1]) for path in words for depth in range(len(path)))
            known_layers = list(dict.fromkeys(paths))
            raise ConfigError(
                f"{asked_by}: the network has no layer '{layer}' that computes.{did_you_mean(layer, known_layers)} "
                f"Its layers: {', '.join(known_layers[:12])}{', ...' if len(known_layers) > 12 else ''}."
            )
        if not self.can_cut(inside[0]):
            shares = "it shares parameters with layers on the other side"
            reason = "nothing comes before it" if inside[0] == 0 else shares
            raise ConfigError(f"{asked_by}: the network cannot be cut before '{layer}': {reason}.")
        return inside[0]

    def cut(self, positions: Sequence[int]) -> List[Union[Piece, BlockSequence]]:
        """Returns the pieces between the given positions, in order."""
        bounds = [0, *sorted(set(positions) - {0, len(self)}), len(self)]
        pieces = []
        for begin, end in zip(bounds, bounds[1:]):
            produced = set(self.operators[begin:end])
            outputs = [tensor for tensor, last in self._last_read.items() if tensor[0] in produced and last >= end]
            pieces.append(self._piece(begin, end, outputs))
        return pieces


class Graph(Cuttable):
    """Cuttable network that is traced with MXNet symbols.

    Args:
        network: a gluon.HybridBlock.
        precision: precision of the computation inside pieces; tensors between pieces are float32.
        input_shape: shape of one sample, or of each input; None if there is one input and the precision is full.

    Raises:
        NotTraceable: the network's code needs real arrays.
    """

    def __init__(self, network: gluon.Block, precision: Precision = FULL, input_shape: Optional[Shapes] = None):
        from mxtrain.engine.backend import gluon

        names = input_names(1 if input_shape is None else len(shapes_of(input_shape)))
        symbol, _ = symbol_of(network, training=True, num_inputs=len(names))
        self._precision = precision
        shapes = {parameter.name: parameter.shape for parameter in network.collect_params().values()}
        if precision.dtype != FULL.dtype and input_shape is not None:
            shapes.update(output_shapes(symbol, dict(zip(names, shapes_of(input_shape)))))
        # The default of tojson removes all amp_cast nodes, including those of the user's network.
        text = symbol.tojson(remove_amp_cast=False)
        # Precision is assigned before the cut, over the whole network, so that a cut changes no operator's precision.
        raw = precision.marked(json.loads(text), shapes)
        self.text = f"{precision!r} {text}"
        self.marked = marked_layers(network)
        self._nodes = raw["nodes"]
        self._states = frozenset(symbol.list_auxiliary_states())
        self._format = raw["attrs"]
        self.operators = [index for index, node in enumerate(self._nodes) if node["op"] != "null"]
        # The operators of a SymbolBlock have no blocks of their own, so each counts as a layer.
        is_graph = isinstance(network, gluon.SymbolBlock)
        nodes = [self._nodes[index] for index in self.operators]
        self.layers = [node.get("attrs", {}).get(LAYER_ATTRIBUTE, node["name"] if is_graph else "") for node in nodes]
        self.heads = [(entry[0], entry[1]) for entry in raw["heads"]]
        index_of = {node["name"]: index for index, node in enumerate(self._nodes)}
        # An unused input has no node in the graph. It gets a negative index, which no node has.
        self.inputs = [(index_of.get(name, -1 - n), 0) for n, name in enumerate(names)]
        self._produced_at = {
            **{node: -1 for node, _ in self.inputs},
            **{node: position for position, node in enumerate(self.operators)},
        }
        # Frozen parameters and moving statistics have grad_req "null" and need no backward pass.
        variables = {p.name for p in network.collect_params().values() if p.grad_req != "null"}
        self.without_gradient = self._find_without_gradient(variables)
        self._last_read = self._find_last_reads()
        self._shared = self._find_shared_parameters()

    def norms(self) -> List[int]:
        """Returns the positions of the batch norms that compute statistics.

        Raises:
            ConfigError: a batch norm is of a kind that cannot be synchronised over devices.
        """
        positions = [position for position, node in enumerate(self.operators) if self._computes_statistics(node)]
        for position in positions:
            node = self.operators[position]
            kind = self._nodes[node]["op"]
            # The other outputs of the operator are mean and variance, which `parallel.norm` does not compute.
            if kind not in JOINABLE or any(tensor[0] == node and tensor[1] > 0 for tensor in self._last_read):
                raise ConfigError(
                    f"parallel.batch_norm: layer '{self.layers[position]}' ({kind}) keeps statistics that cannot be "
                    "taken over several devices. Type parallel.batch_norm=per_device, or use a gluon BatchNorm whose "
                    "output alone is read."
                )
        return positions

    def _computes_statistics(self, node: int) -> bool:
        """Returns True if a forward pass in training mode updates auxiliary states, such as moving statistics."""
        uses_moving = self._nodes[node].get("attrs", {}).get("use_global_stats", "False") in ("True", "1")
        sources = {self._nodes[source]["name"] for source, *_ in self._nodes[node]["inputs"]}
        return not uses_moving and not sources.isdisjoint(self._states)

    def shapes(self, input_shape: Shapes, batch_size: int) -> Dict[Tensor, Shape]:
        """Returns the shape of every tensor that `crossing` may return for some position."""
        input_shapes = {t: (batch_size, *shape) for t, shape in zip(self.inputs, shapes_of(input_shape))}
        tensors = [tensor for tensor in self._last_read if tensor not in input_shapes]
        outputs = self._piece(0, len(self), tensors).symbol
        read = {variable(tensor): shape for tensor, shape in input_shapes.items() if tensor in self._last_read}
        _, shapes, _ = outputs.infer_shape(**read)
        return {**input_shapes, **dict(zip(tensors, map(tuple, shapes)))}

    def _find_without_gradient(self, variables: Collection[str]) -> FrozenSet[Tensor]:
        """Returns the tensors that do not depend on any parameter in `variables`; autograd does not record them."""
        with_gradient = {index for index, node in enumerate(self._nodes) if node["name"] in variables}
        tensors = set(self.inputs)
        for node in self.operators:
            sources = self._nodes[node]["inputs"]
            if any(source in with_gradient for source, *_ in sources):
                with_gradient.add(node)
        computed = set(self.operators)
        for node in self.operators:
            sources = self._nodes[node]["inputs"]
            tensors.update((source, output) for source, output, *_ in sources if source in computed - with_gradient)
        return frozenset(tensors)

    def _find_last_reads(self) -> Dict[Tensor, int]:
        """Returns tensor -> last position that reads it; `len(self)` for outputs of the network."""
        last: Dict[Tensor, int] = {}
        for position, node in enumerate(self.operators):
            for source, output, *_ in self._nodes[node]["inputs"]:
                if source in self._produced_at:
                    last[(source, output)] = position
        return {**last, **{head: len(self) for head in self.heads}}

    def _find_shared_parameters(self) -> List[Tuple[int, int]]:
        """Returns the (first, last) reading position of each parameter that several operators read."""
        reads: Dict[int, List[int]] = {}
        for position, node in enumerate(self.operators):
            for source, *_ in self._nodes[node]["inputs"]:
                if source not in self._produced_at:
                    reads.setdefault(source, []).append(position)
        return [(min(positions), max(positions)) for positions in reads.values() if min(positions) != max(positions)]

    def _piece(self, begin: int, end: int, outputs: List[Tensor]) -> Piece:
        from mxtrain.engine.backend import mx

        operators = self.operators[begin:end]
        operator_set: FrozenSet[int] = frozenset(operators)
        nodes: List[GraphNode] = []
        variable_of: Dict[Tensor, int] = {}  # external tensor or parameter -> index of its variable in the piece
        inputs: List[Tensor] = []
        new_index: Dict[int, int] = {}

        def entry(source: int, output: int, *version: int) -> List[int]:
            if source in operator_set:
                return [new_index[source], output, *version]
            tensor = (source, output)
            if tensor not in variable_of:
                is_tensor = source in self._produced_at
                node: GraphNode = (
                    {"op": "null", "name": variable(tensor), "inputs": []} if is_tensor else self._nodes[source]
                )
                if is_tensor:
                    inputs.append(tensor)
                variable_of[tensor] = len(nodes)
                nodes.append(node)
            return [variable_of[tensor], 0, *version]

        for index in operators:
            node: GraphNode = {
                **self._nodes[index],
                "inputs": [entry(*source) for source in self._nodes[index]["inputs"]],
            }
            new_index[index] = len(nodes)
            nodes.append(node)
        graph: SymbolGraph = {
            "nodes": nodes,
            "arg_nodes": [index for index, node in enumerate(nodes) if node["op"] == "null"],
            "heads": [[new_index[tensor[0]], tensor[1], 0] for tensor in outputs],
            "attrs": self._format,
        }
        kinds = frozenset(self._nodes[index]["op"] for index in operators)
        first = self._nodes[operators[0]]
        is_norm = len(operators) == 1 and self._computes_statistics(operators[0])
        norm = {**first.get("attrs", {}), "op": first["op"]} if is_norm else None
        # Casts are added within each piece. Tensors between pieces stay float32, so executors and stores do not depend
        # on amp.
        return Piece(mx.sym.load_json(json.dumps(self._precision.lowered(graph))), inputs, outputs, kinds, norm)


def output_shapes(symbol: Symbol, input_shapes: Mapping[str, Shape]) -> Dict[str, Shape]:
    """Returns name of an operator's output -> its shape for a batch of 1; ambiguous names are omitted."""
    internals = symbol.get_internals()
    read = set(symbol.list_arguments())
    _, shapes, _ = internals.infer_shape(**{name: (1, *s) for name, s in input_shapes.items() if name in read})
    names = internals.list_outputs()
    return {name: tuple(shape) for name, shape in zip(names, shapes) if names.count(name) == 1}
