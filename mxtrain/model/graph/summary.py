"""Summarises a network: its layers with shapes, parameters and FLOPs, and its graph."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from mxtrain.model.graph.trace import NotTraceable, blocks_by_path, recorded_calls, trace
from mxtrain.model.graph.work import node_flops
from mxtrain.model.parameters import is_trained
from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon
    from rich.table import Table

    from mxtrain.types.annotations import GraphRow

MAX_TABLE_ROWS = 30
RANDOM_PREFIXES = ("_random_", "_sample_", "_npi_normal", "_npi_uniform", "_npi_bernoulli", "_npi_choice", "_npi_gamma")
RANDOM_OPS = {"_shuffle", "_npi_multinomial", "_npi_exponential", "_npi_shuffle", "_npi_gumbel", "_npi_laplace"}
OPAQUE_OPS = {"Custom", "_foreach", "_while_loop", "_cond"}
_AXES = re.compile(r"_[A-Z][A-Z0-9]*$")


@dataclass(frozen=True)
class LayerRow:
    """Row of a layer in the summary.

    Attributes:
        name: structural name; "" for the network itself.
        type: name of the block's class.
        output_shape: output shape for a batch of one sample; None if unknown.
        parameters: number of learned or frozen parameters, without moving statistics.
        flops: FLOPs of the forward pass for one sample.
    """

    name: str
    type: str
    output_shape: Optional[Shape]
    parameters: int
    flops: int

    @property
    def sample_shape(self) -> Optional[Shape]:
        """Returns `output_shape` without the batch axis. That is the first axis of size 1: it is second in text
        encoders."""
        shape = self.output_shape
        if shape is None or 1 not in shape:
            return shape
        return (*shape[: shape.index(1)], *shape[shape.index(1) + 1 :])


@dataclass(frozen=True)
class Summary:
    """Layers of a network, and totals.

    FLOPs are those of the convolutions, dense layers and matrix products of a forward pass for one sample; a
    multiply-add counts as 2, so published "MACs" are half of it. Normalisation, pooling, biases and other elementwise
    operators are not counted: they are a few percent.

    Attributes:
        rows: layers in the order of computation.
        input_shape: shape of one sample without the batch axis, or of each of several inputs.
        parameters: number of learned or frozen parameters.
        trainable: number of parameters that are not frozen.
        statistics: number of values that are updated without a gradient, such as BatchNorm's mean and variance.
        flops: FLOPs of all layers; None if the network cannot be traced.
        input_names: names of the inputs; empty for a single input, and if the network does not name them.
    """

    rows: List[LayerRow]
    input_shape: Shapes
    parameters: int
    trainable: int
    statistics: int
    flops: Optional[int]
    input_names: Sequence[str] = ()

    def table(self, max_rows: int = MAX_TABLE_ROWS) -> Table:
        """Returns a rich table of about `max_rows` rows at most; neighbouring layers of one block are grouped."""
        from rich.table import Table

        table = Table(caption=self.totals(), caption_justify="left")
        table.add_column("layer", overflow="fold")
        table.add_column("type")
        for title in ("output", "parameters", "FLOPs"):
            table.add_column(title, justify="right")
        for row in self.grouped(max_rows):
            shape = "?" if row.sample_shape is None else "x".join(map(str, row.sample_shape)) or "1"
            flops = _short(row.flops) if row.flops else ""
            parameters = f"{row.parameters:,}" if row.parameters else ""
            table.add_row(row.name or "(network)", row.type, shape, parameters, flops)
        return table

    def totals(self) -> str:
        """Returns one line with the totals."""
        flops = "FLOPs unknown" if self.flops is None else f"{_short(self.flops)} FLOPs (multiply-add = 2)"
        shapes = ["x".join(map(str, shape)) or "1" for shape in shapes_of(self.input_shape)]
        descriptions = [f"{name} {shape}" for name, shape in zip(self.input_names, shapes)] or shapes
        sample = " and ".join(filter(None, [", ".join(descriptions[:-1]), descriptions[-1]]))
        return f"{self.parameters:,} parameters, {self.trainable:,} trainable; {flops} for one sample of {sample}"

    def grouped(self, max_rows: int) -> List[LayerRow]:
        """Returns about `max_rows` rows at most, by merging neighbouring layers with the same prefix of their names."""
        deepest = max((row.name.count(".") + 1 for row in self.rows), default=1)
        coarser = finer = self.rows
        for depth in range(deepest, 0, -1):
            coarser = self._at_depth(depth)
            if len(coarser) <= max_rows:
                break
            finer = coarser
        if len(coarser) > max_rows or (len(finer) > max_rows and 3 * len(coarser) < max_rows):
            return _chunked(finer, max_rows)
        return coarser

    def _at_depth(self, depth: int) -> List[LayerRow]:
        groups: Dict[str, List[LayerRow]] = defaultdict(list)
        for row in self.rows:
            groups[".".join(row.name.split(".")[:depth])].append(row)
        return [
            rows[0] if len(rows) == 1 and rows[0].name == name else _merge(name, rows) for name, rows in groups.items()
        ]


def _chunked(rows: Sequence[LayerRow], max_rows: int) -> List[LayerRow]:
    """Returns about `max_rows` rows, by merging neighbouring layers of the same block."""
    length = math.ceil(len(rows) / max_rows)
    chunks: List[List[LayerRow]] = []
    for row in rows:
        parent = row.name.rpartition(".")[0]
        if chunks and len(chunks[-1]) < length and chunks[-1][0].name.rpartition(".")[0] == parent:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return [
        chunk[0] if len(chunk) == 1 else _merge(f"{chunk[0].name} to {chunk[-1].name.rpartition('.')[2]}", chunk)
        for chunk in chunks
    ]


def _merge(name: str, rows: Sequence[LayerRow]) -> LayerRow:
    """Merges rows into one. Its type is the class with the most FLOPs, and the number of such layers."""
    parameters, flops = sum(row.parameters for row in rows), sum(row.flops for row in rows)
    main = max(rows, key=lambda row: (row.flops, row.parameters)).type
    count = sum(row.type == main for row in rows)
    kind = f"{count} {main}" + ("" if count == len(rows) else ", ...")
    return LayerRow(name, kind, rows[-1].output_shape, parameters, flops)


def _short(count: int) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)


def summarize(network: gluon.Block, input_shape: Shapes) -> Summary:
    """Returns the layers of a network, without changing it. Computes one sample if the network cannot be traced.

    Args:
        network: a block with known shapes.
        input_shape: shape of one sample without the batch axis, or of each of several inputs.
    """
    rows, flops = _rows_and_flops(network, input_shape)
    # A parameter that several layers share counts once.
    parameters = {id(parameter): parameter for parameter in network.collect_params().values()}.values()
    learned = [parameter for parameter in parameters if parameter._differentiable]
    return Summary(
        rows=rows,
        input_shape=input_shape,
        parameters=sum(_size(parameter) for parameter in learned),
        trainable=sum(_size(parameter) for parameter in learned if is_trained(parameter)),
        statistics=sum(_size(parameter) for parameter in parameters if not parameter._differentiable),
        flops=flops,
        input_names=_input_names(network, len(shapes_of(input_shape))),
    )


def _rows_and_flops(network: gluon.Block, input_shape: Shapes) -> Tuple[List[LayerRow], Optional[int]]:
    from mxtrain.model.networks.group import NetworkGroup

    if isinstance(network, NetworkGroup):  # it is not called: each network has inputs of its own
        return _rows(network, dict(blocks_by_path(network)), {}, {}), None
    try:
        traced = trace(network, input_shape)
    except NotTraceable:
        return _rows(network, *_run(network, input_shape), {}), None
    by_layer: Dict[str, int] = defaultdict(int)
    shapes: Dict[str, Optional[Shape]] = {}
    for node in traced.nodes:
        if node.op != "null":
            by_layer[node.layer] += node_flops(node, traced)
            shapes[node.layer] = node.shape
    return _rows(network, traced.layers, shapes, by_layer), sum(by_layer.values())


def _input_names(network: gluon.Block, count: int) -> List[str]:
    """Returns the names of a network's inputs without axes (`token_BT` becomes `token`); empty for a single input."""
    call = getattr(network, "hybrid_forward", network.forward)
    names: List[str] = []
    for argument in inspect.signature(call).parameters.values():
        if argument.kind is argument.VAR_POSITIONAL:
            names += [argument.name] * (count - len(names))
        elif argument.name != "F" and argument.name not in network._reg_params:
            names.append(_AXES.sub("", argument.name))
    return names[:count] if len(names) >= count > 1 else []


def _run(network: gluon.Block, input_shape: Shapes) -> Tuple[Mapping[str, gluon.Block], Mapping[str, Optional[Shape]]]:
    from mxtrain.engine.backend import autograd, mx, nd

    contexts = [context for parameter in network.collect_params().values() for context in parameter.list_ctx()]
    with recorded_calls(network) as recorder, autograd.predict_mode():
        device = contexts[0] if contexts else mx.cpu()
        network(*[nd.zeros((1, *shape), ctx=device) for shape in shapes_of(input_shape)])
    return recorder.called, recorder.output_shapes


def _rows(
    network: gluon.Block,
    layers: Mapping[str, gluon.Block],
    shapes: Mapping[str, Optional[Shape]],
    flops: Mapping[str, int],
) -> List[LayerRow]:
    """Returns a row for each layer with own parameters or FLOPs, and for each layer without children."""
    counted: Set[int] = set()
    rows = []
    for path, block in layers.items():
        uncounted = [p for p in block._reg_params.values() if p._differentiable and id(p) not in counted]
        counted.update(map(id, uncounted))
        if uncounted or flops.get(path) or (not block._children and path in shapes):
            parameters = sum(map(_size, uncounted))
            rows.append(LayerRow(path, type(block).__name__, shapes.get(path), parameters, flops.get(path, 0)))
    return rows


def _size(parameter: gluon.Parameter) -> int:
    # The network holds only a few rows of a table that is on servers; `whole_shape` is the shape of the whole table.
    shape = getattr(parameter, "whole_shape", parameter.shape)
    return math.prod(shape) if shape else 0


def has_random_layers(network: gluon.Block, input_shape: Shapes) -> bool:
    """Returns True if training the network draws random numbers (dropout and the like); True if it cannot be traced."""
    try:
        return any(draws_random(node.op, node.attrs) for node in trace(network, input_shape, training=True).nodes)
    except NotTraceable:
        return True


def draws_random(op: str, attrs: Mapping[str, str]) -> bool:
    """Returns True if an operator with these attributes draws random numbers while training, or may draw some."""
    if op == "Dropout":
        return float(attrs.get("p", 0.5)) > 0
    if op == "RNN":
        return float(attrs.get("p", 0)) > 0
    if op == "LeakyReLU":
        return attrs.get("act_type") == "rrelu"
    return op in RANDOM_OPS or op in OPAQUE_OPS or op.startswith(RANDOM_PREFIXES)


def graph_nodes(network: gluon.Block, input_shape: Shapes) -> List[GraphRow]:
    """Returns the nodes of the graph for TensorBoard, in topological order; none if the network cannot be traced.

    The name of a parameter is its structural name, e.g. `features.0.weight`. That of an operator is the name of its
    layer with `.fwd`, or with the name of the operator if the layer has several. Parameters and inputs have the
    operator "null".
    """
    try:
        traced = trace(network, input_shape)
    except NotTraceable:
        return []
    structural: Dict[str, str] = {}
    for name, parameter in network._collect_params_with_prefix().items():
        structural.setdefault(parameter.name, name)
    per_layer = Counter(node.layer for node in traced.nodes if node.op != "null")
    names: List[str] = []
    used_names: Set[str] = set()
    for node in traced.nodes:
        if node.op == "null":
            name = structural.get(node.name, node.name)
        else:
            # One operator is the layer itself; a block that calls several names each after its operator.
            part = "fwd" if per_layer[node.layer] == 1 and not traced.layers[node.layer]._children else node.op
            name = f"{node.layer}.{part}".lstrip(".")
        unique, count = name, 1
        while unique in used_names:
            count += 1
            unique = f"{name}_{count}"
        used_names.add(unique)
        names.append(unique)
    return [
        (name, node.op, tuple(names[index] for index in node.inputs), node.attrs, node.shape)
        for name, node in zip(names, traced.nodes)
    ]
