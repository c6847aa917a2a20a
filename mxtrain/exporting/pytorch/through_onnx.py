"""Networks with operators that have no code of torch.nn: onnx2torch makes a network of their ONNX graph.

    symbol -> ONNX (mxtrain.exporting.converters) -> onnx2torch -> the tensors of each parameter -> model.py

onnx2torch names tensors by nodes of the graph. Those of a parameter are found by a second conversion, in which each
parameter is filled with a number of its own. Imports MXNet, onnx and onnx2torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.errors import ConfigError, first_line
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import TYPES, Input, OnnxGraph, OperatorCall, ShapeNotExpressible, Unsupported

if TYPE_CHECKING:
    from mxnet.symbol import Symbol
    from onnx import ModelProto

NETWORK_ONNX = "network.onnx"
MARK = 1000.5
"""Number with which the first parameter is filled in the second conversion; the others count on from it. No other
tensor of a graph is filled with such a number."""

NEGATED = {"GreaterOrEqual": "Less", "LessOrEqual": "Greater"}
"""Comparison of which onnx2torch 1.5.15 has an older version only -> its negation."""

CODE = '''import warnings
from pathlib import Path

from onnx2torch import convert
from torch import nn

# onnx2torch 1.5.15 indexes tensors with lists.
warnings.filterwarnings("ignore", "Using a non-tuple sequence", UserWarning)
TRAINED = (
{trained})
"""Tensors of the graph that are trained; those of a row are one parameter."""
DETACHED = ({detached})
"""Modules of the graph that let no gradient pass."""
FROZEN = ({frozen})
"""Batch normalisations of the graph that use the moving statistics, also in training."""


class Detached(nn.Module):
    """Returns its input, and lets no gradient pass."""

    def forward(self, x):
        return x.detach()


class Network(nn.Module):
    """The network that onnx2torch makes of network.onnx, from normalised inputs to its outputs."""

    def __init__(self):
        super().__init__()
        self.converted = convert(Path(__file__).with_name("{onnx}")).requires_grad_(False)
        for name in DETACHED:
            setattr(self.converted, name, Detached())
        for paths in TRAINED:
            parts = [path.rpartition(".") for path in paths]
            owners = [(self.converted.get_submodule(owner), name) for owner, _, name in parts]
            parameter = nn.Parameter(getattr(*owners[0]).detach())
            for owner, name in owners:
                delattr(owner, name)
                setattr(owner, name, parameter)

    def train(self, mode=True):
        super().train(mode)
        for name in FROZEN:
            self.converted.get_submodule(name).eval()
        return self

    def forward(self, *inputs):
        outputs = self.converted(*inputs)
        return tuple(outputs) if isinstance(outputs, (list, tuple)) else outputs
'''


class TorchGraph(OnnxGraph):
    """An ONNX graph of operators that onnx2torch knows in opset 17."""

    def add_several(self, op: str, inputs: Sequence[str], count: int, **attrs: Any) -> List[str]:
        if op in NEGATED:
            return [self.add("Not", [self.add(NEGATED[op], inputs)])]
        if op == "GatherND" and attrs.get("batch_dims"):  # of rows (B, N, C) by numbers (B, M, 1)
            columns = [self.constant(np.array([value])) for value in (2, 3)]
            columns = [self.constant(np.array([1, 1])), self.add("Slice", [self.add("Shape", inputs[:1]), *columns])]
            index = self.add("Expand", [inputs[1], self.add("Concat", columns, axis=0)])
            return [self.add("GatherElements", [inputs[0], index], axis=1)]
        if op == "Clip" and not all(name in self.initializers for name in inputs[1:] if name):  # computed bounds
            found = inputs[0]
            for bound, name in zip(("Max", "Min"), inputs[1:]):
                found = self.add(bound, [found, name]) if name else found
            return [found]
        if op == "OneHot":  # along a new last axis
            zero, one, last = (self.constant(np.array(value)) for value in (0, 1, [-1]))
            classes = self.add("Range", [zero, self.add("Squeeze", inputs[1:2]), one])
            is_on = self.add("Equal", [self.add("Unsqueeze", [inputs[0], last]), classes])
            return [self.add("Gather", [inputs[2], self.add("Cast", [is_on], to=TYPES["int64"])], axis=0)]
        return super().add_several(op, inputs, count, **attrs)


@dataclass
class GraphConversion:
    """A network as ONNX.

    Attributes:
        graph: the graph.
        model: its content.
        detached: outputs of nodes that let no gradient pass.
        frozen: outputs of batch normalisations that use the moving statistics in training, too.
        fixed: variables of the gammas that MXNet fixes at 1: in the graph they are constants.
    """

    graph: OnnxGraph = field(init=False)
    model: ModelProto = field(init=False)
    detached: List[str] = field(default_factory=list)
    frozen: List[str] = field(default_factory=list)
    fixed: List[str] = field(default_factory=list)

    def convert(
        self,
        symbol: Symbol,
        parameters: Mapping[str, np.ndarray],
        inputs: Mapping[str, Input],
        probes: Sequence[Mapping[str, int]],
    ) -> GraphConversion:
        """Converts a symbol, see `OnnxGraph`; returns itself."""
        own = {
            "BlockGrad": self._block,
            "stop_gradient": self._block,
            "BatchNorm": self._batch_norm,
            "FullyConnected": fully_connected,
        }
        self.graph = TorchGraph(symbol, parameters, inputs, probes, {**CONVERTERS, **own})
        self.model = self.graph.model([f"output{number}" for number in range(len(self.graph.heads))], {})
        return self

    def _block(self, call: OperatorCall) -> str:
        """The converter for inference leaves the operator out."""
        self.detached.append(call.add("Identity", [call.x()]))
        return self.detached[-1]

    def _batch_norm(self, call: OperatorCall) -> Any:
        output = CONVERTERS["BatchNorm"](call)
        if call.flag("use_global_stats"):
            self.frozen.append(str(output))
        if call.flag("fix_gamma", True):
            self.fixed.append(call.graph.nodes[call.entries[1][0]]["name"])
        return output

    def modules(self, outputs: Sequence[str]) -> List[str]:
        """Returns the names of the nodes with these outputs, which onnx2torch gives their modules."""
        return [node.name for node in self.model.graph.node if {*node.output} & {*outputs}]


def fully_connected(call: OperatorCall) -> Any:
    """Transposes a weight in the graph: the converter for inference transposes it in the file."""
    if call.flag("flatten", True):
        return CONVERTERS["FullyConnected"](call)
    product = call.add("MatMul", [call.x(), call.transpose(call.x(1), 1, 0)])
    return product if call.flag("no_bias") else call.add("Add", [product, call.x(2)])


@dataclass(frozen=True)
class OnnxSource:
    """The code of a network that onnx2torch makes of its ONNX graph. It takes the place of `ModuleSource`.

    Attributes:
        graph: the ONNX graph.
        model: its content.
        code: the Python module.
        names: structural name of a parameter -> name in the state_dict.
        extra: name in the state_dict -> array, of all others.
        remarks: sentences about what the code leaves out.
    """

    graph: OnnxGraph
    model: ModelProto
    code: str
    names: Mapping[str, str]
    extra: Mapping[str, np.ndarray]
    remarks: Sequence[str]


def source_through_onnx(
    symbol: Symbol,
    parameters: Mapping[str, np.ndarray],
    inputs: Mapping[str, Input],
    probes: Sequence[Mapping[str, int]],
    structural: Mapping[str, str],
    reason: Unsupported,
) -> OnnxSource:
    """Converts a network by onnx2torch.

    Args:
        symbol, parameters, inputs, probes: see `ProbedGraph`.
        structural: parameter variable -> its structural name.
        reason: why there is no code of torch.nn.

    Raises:
        Unsupported: the graph has no conversion, or a parameter could not be trained.
        ShapeNotExpressible: see `ProbedGraph`.
        ConfigError: onnx2torch is missing.
    """
    sentence = str(reason).partition(". ")[0]
    convert = require_library("onnx2torch", "torch", f"{sentence}. Its ONNX graph", ConfigError).convert
    marks = {name: MARK + number for number, name in enumerate(parameters)}
    try:
        first = GraphConversion().convert(symbol, parameters, inputs, probes)
        filled = {name: np.full_like(value, marks[name]) for name, value in parameters.items()}
        second = GraphConversion().convert(symbol, filled, inputs, probes)
    except ShapeNotExpressible:
        raise
    except Unsupported as error:
        raise reason from error
    try:
        found, marked = (_arrays(convert(one.model)) for one in (first, second))
    except Exception as error:  # of onnx2torch, which has no common class for them
        raise Unsupported(f"{sentence}, and onnx2torch does not convert its ONNX graph: {first_line(error)}") from error
    paths = {
        name: [
            path
            for path, array in marked.items()
            if array.shape == value.shape
            and (array == marks[name]).all()
            and path in found
            and np.array_equal(found[path], value)
        ]
        for name, value in parameters.items()
    }
    untrained = {*symbol.list_auxiliary_states(), *first.fixed}
    read = [name for name in structural if name in first.graph.parameters]
    trained = [name for name in read if name not in untrained]
    lost = next((name for name in trained if not paths[name]), None)
    if lost is not None:
        raise Unsupported(f"{sentence}, and in its ONNX graph {structural[lost]} is no tensor that could be trained.")
    names = {structural[name]: f"converted.{paths[name][0]}" for name in read if paths[name]}
    state = {f"converted.{path}": array for path, array in found.items()}
    code = CODE.format(
        trained="".join(f"    ({_listed(paths[name])}),\n" for name in trained),
        detached=_listed(first.modules(first.detached)),
        frozen=_listed(first.modules(first.frozen)),
        onnx=NETWORK_ONNX,
    )
    remarks = [
        f"onnx2torch makes the network of {NETWORK_ONNX}: {sentence.replace('export: ', '')}",
        *["The graph has no dropout"] * any("ropout" in node["op"] for node in first.graph.nodes),
    ]
    extra = {path: array for path, array in state.items() if path not in names.values()}
    return OnnxSource(first.graph, first.model, code, names, extra, remarks)


def _arrays(network: Any) -> Dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def _listed(names: Sequence[str]) -> str:
    """Returns the items of a tuple as code."""
    return ", ".join(f'"{name}"' for name in names) + "," * (len(names) == 1)
