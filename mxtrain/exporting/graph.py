"""Builds an ONNX graph from a traced network. Imports MXNet and onnx.

    symbol -> JSON -> for each node: its converter (mxtrain.exporting.converters) -> ONNX nodes

Shapes are found by probing: MXNet infers them for two or more sizes of each open (dynamic) dimension. A dimension that
is equal in all probes is a constant. Any other one is expressed by the dimensions of the node's inputs, see
`OperatorCall.size_tensor`. So operators that compute shapes (Reshape with its special codes, `reshape_like`,
`arange_like`) need no rules of their own.

Reasons: docs/decisions/0101-own-onnx-exporter.md.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import LAYER_ATTRIBUTE, first_outputs

if TYPE_CHECKING:
    from mxnet.symbol import Symbol
    from onnx import ModelProto

    from mxtrain.exporting.converters.table import Converter

OPSET, IR_VERSION = 17, 8
"""Versions that onnxruntime reads since 1.19. LayerNormalization requires opset 17."""

TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "bool": TensorProto.BOOL,
}
STRIDES = (2, 4, 8, 16, 32, 64)
"""Divisors that are tried for sizes that layers halve and round up: total strides of networks for images."""
MAX_SHARED_SIZE = 64
"""Equal constants with fewer elements are written only once."""

Entry = Tuple[int, int]
"""A tensor of the symbol: number of the node, number of its output."""
Size = Tuple[int, ...]
"""Sizes of one dimension of a tensor, one for each probe."""
Converted = Union[str, Sequence[str]]


class Unsupported(ConfigError):
    """A part of the network cannot be converted to ONNX."""


class ShapeNotExpressible(Unsupported):
    """A dimension cannot be computed from those of the inputs: the network depends on the size of an open one."""


@dataclass(frozen=True)
class Input:
    """An input of the graph.

    Attributes:
        dims: sizes, or names of open dimensions.
        dtype: name of a NumPy dtype.
    """

    dims: Tuple[Union[int, str], ...]
    dtype: str = "float32"

    def shape(self, sizes: Mapping[str, int]) -> Tuple[int, ...]:
        """Returns the shape for these sizes of the open dimensions."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)


def has_open_batch(inputs: Mapping[str, Input]) -> bool:
    """Returns True if the network takes batches of any size; False if it takes one sample."""
    return next(iter(inputs.values())).dims[0] == "batch"


class Operator:
    """One operator of the network: its arguments, inputs and outputs.

    Args:
        graph: the traced network.
        number: number of the node in the symbol.
    """

    target = "ONNX"
    """Format to which the operator is converted, for messages."""
    converters = "mxtrain/exporting/converters/ (docs/deploy/export.md)"
    """Location of the converters, for messages."""

    def __init__(self, graph: ProbedGraph, number: int):
        node = graph.nodes[number]
        self.graph: Any = graph
        self.number = number
        self.op, self.name = node["op"], node["name"]
        attrs = node.get("attrs", {})
        self.layer = attrs.get(LAYER_ATTRIBUTE, "")
        self.attrs = {name: value for name, value in attrs.items() if not name.startswith("__")}
        self.entries: List[Entry] = [(entry[0], entry[1]) for entry in node["inputs"]]

    def __len__(self) -> int:
        return len(self.entries)

    def unsupported(self, reason: str = "") -> Unsupported:
        """Returns the error for this operator: its layer, the reason `reason` as a clause, and what to do."""
        location = f"layer '{self.layer}'" if self.layer else "the network itself"
        return Unsupported(
            f"export: the operator {self.op} ({self.name}, in {location}) has no conversion to "
            f"{self.target}{f' {reason}' if reason else ''}. Replace the layer by one of supported operators, or add a "
            f"converter to {self.converters}."
        )

    # Inputs and outputs.

    def dims(self, index: int = 0) -> List[Size]:
        """Returns the dimensions of an input."""
        return self.graph.dims(self.entries[index])

    def rank(self, index: int = 0) -> int:
        """Returns the number of dimensions of an input."""
        return len(self.dims(index))

    def out_dims(self) -> List[Size]:
        """Returns the dimensions of the first output."""
        return self.graph.dims((self.number, 0))

    def dtype(self, index: int = 0) -> str:
        """Returns the dtype of an input."""
        return self.graph.dtype(self.entries[index])

    def out_dtype(self) -> str:
        """Returns the dtype of the first output."""
        return self.graph.dtype((self.number, 0))

    # Arguments.

    def text(self, name: str, default: str = "") -> str:
        """Returns an argument as text; the default if it is None or missing."""
        # MXNet's JSON holds all arguments as text, and None as "None".
        value = self.attrs.get(name, "None")
        return default if value == "None" else value

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a boolean argument."""
        return self.text(name, str(default)) in ("True", "1", "true")

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an integer argument."""
        return int(float(self.text(name, str(default))))

    def number_of(self, name: str, default: float = 0.0) -> float:
        """Returns a floating-point argument."""
        return float(self.text(name, str(default)))

    def numbers(self, name: str, default: Sequence[int] = ()) -> Tuple[Any, ...]:
        """Returns an argument of several numbers; the default if it is empty."""
        values = ast.literal_eval(self.text(name, "()"))
        values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
        return values or tuple(default)

    def axis(self, name: str = "axis", default: int = -1, index: int = 0) -> int:
        """Returns an axis argument as a non-negative number, for input `index`."""
        return self.integer(name, default) % self.rank(index)


class OperatorCall(Operator):
    """One operator of the network: the interface of its converter.

    Methods that return a tensor add ONNX nodes to the graph, and return the name of the resulting tensor.

    Args:
        graph: graph to which nodes are added.
        number: number of the node in the symbol.
    """

    graph: OnnxGraph

    def x(self, index: int = 0) -> str:
        """Returns the name of an input."""
        return self.graph.names[self.entries[index]]

    @property
    def inputs(self) -> List[str]:
        """Returns the names of all inputs."""
        return [self.graph.names[entry] for entry in self.entries]

    def value(self, index: int) -> np.ndarray:
        """Returns the value of a constant input.

        Raises:
            Unsupported: the input is computed from an input of the network.
        """
        name = self.x(index)
        if name not in self.graph.initializers:
            raise self.unsupported("where this input is computed")
        return numpy_helper.to_array(self.graph.initializers[name])

    # Nodes.

    def add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Adds a node with one output; returns its name."""
        return self.graph.add(op, inputs, **attrs)

    def add_several(self, op: str, inputs: Sequence[str], count: int, **attrs: Any) -> List[str]:
        """Adds a node with `count` outputs; returns their names."""
        return self.graph.add_several(op, inputs, count, **attrs)

    def constant(self, value: Any, dtype: str = "") -> str:
        """Adds a constant, by default of the dtype of the first input."""
        return self.graph.constant(np.asarray(value, dtype or self.dtype()))

    def ints(self, *values: int) -> str:
        """Adds a constant 1-dimensional int64 tensor, as ONNX requires for shapes and axes."""
        return self.graph.constant(np.array(values, np.int64))

    def cast(self, name: str, dtype: str) -> str:
        """Casts a tensor to another dtype."""
        return self.add("Cast", [name], to=TYPES[dtype])

    def as_ints(self, index: int) -> str:
        """Casts an input of integers, which MXNet often stores as float32, to int64."""
        return self.x(index) if self.dtype(index) == "int64" else self.cast(self.x(index), "int64")

    def size(self, name: str, axis: int) -> str:
        """Returns a dimension of a tensor as an int64 tensor (1,)."""
        return self.add("Slice", [self.add("Shape", [name]), self.ints(axis), self.ints(axis + 1)])

    def scalar_size(self, name: str, axis: int) -> str:
        """Returns a dimension of a tensor as an int64 scalar."""
        return self.add("Squeeze", [self.size(name, axis)])

    def range_of(self, name: str, axis: int) -> str:
        """Returns 0, 1, 2, ... up to the size of a tensor's axis, as int64."""
        zero, step = (self.graph.constant(np.array(value, np.int64)) for value in (0, 1))
        return self.add("Range", [zero, self.scalar_size(name, axis), step])

    def squeeze(self, name: str, *axes: int) -> str:
        """Removes axes of size 1."""
        return self.add("Squeeze", [name, self.ints(*axes)])

    def unsqueeze(self, name: str, *axes: int) -> str:
        """Inserts axes of size 1."""
        return self.add("Unsqueeze", [name, self.ints(*axes)])

    def transpose(self, name: str, *order: int) -> str:
        """Permutes the axes of a tensor."""
        return self.add("Transpose", [name], perm=list(order))

    def reshape(self, name: str, *sizes: int) -> str:
        """Reshapes a tensor to constant sizes; 0 copies the size of the same axis, -1 is inferred."""
        return self.add("Reshape", [name, self.ints(*sizes)])

    def shape_tensor(self, dims: Sequence[Size]) -> str:
        """Returns a shape, whose dimensions may be open, as an int64 tensor."""
        if all(len(set(size)) == 1 for size in dims):
            return self.ints(*(size[0] for size in dims))
        return self.add("Concat", [self.size_tensor(size) for size in dims], axis=0)

    def to_shape(self, name: str, old_dims: Sequence[Size], new_dims: Sequence[Size]) -> str:
        """Reshapes a tensor to a shape of which any dimensions may be open.

        Args:
            name: the tensor.
            old_dims: its dimensions, or [] if they are unknown.
            new_dims: the wanted dimensions.
        """
        is_open = [len(set(size)) > 1 for size in new_dims]
        if sum(is_open) <= 1:
            return self.reshape(name, *(-1 if free else size[0] for free, size in zip(is_open, new_dims)))
        sizes = [
            0 if number < len(old_dims) and old_dims[number] == size else -1 if free else size[0]
            for number, (free, size) in enumerate(zip(is_open, new_dims))
        ]
        if sizes.count(-1) <= 1:
            return self.reshape(name, *sizes)
        # allowzero: a size of 0, as that of an empty cache of tokens, would otherwise mean "copy the input's size".
        return self.add("Reshape", [name, self.shape_tensor(new_dims)], allowzero=1)

    def size_tensor(self, target: Size) -> str:
        """Returns one dimension as an int64 tensor (1,), computed from those of the node's or the graph's inputs.

        It tries, in this order: a constant; an integer multiple of a known dimension, or of the product of two; an
        integer fraction of a dimension; a dimension divided by one of `STRIDES` and rounded up; a dimension plus a
        constant. The formula must be right in all probes.

        Raises:
            ShapeNotExpressible: none of these is right.
        """
        if len(set(target)) == 1:
            return self.ints(target[0])
        known_sizes = [(self.x(i), axis, size) for i in range(len(self)) for axis, size in enumerate(self.dims(i))]
        known_sizes += self.graph.input_sizes()
        known_sizes = [entry for entry in known_sizes if len(set(entry[2])) > 1]
        for name, axis, size in known_sizes:
            ratio = _ratio(target, size)
            if ratio is not None:
                tensor = self.size(name, axis)
                return tensor if ratio == 1 else self.add("Mul", [tensor, self.ints(ratio)])
        for name, axis, size in known_sizes:
            for other_name, other_axis, other_size in known_sizes:
                product = tuple(a * b for a, b in zip(size, other_size))
                ratio = _ratio(target, product)
                if ratio is not None:
                    tensor = self.add("Mul", [self.size(name, axis), self.size(other_name, other_axis)])
                    return tensor if ratio == 1 else self.add("Mul", [tensor, self.ints(ratio)])
        for name, axis, size in known_sizes:
            divisor = _ratio(size, target)
            if divisor is not None:
                return self.add("Div", [self.size(name, axis), self.ints(divisor)])
            stride = next((one for one in STRIDES if all(-(-a // one) == b for a, b in zip(size, target))), None)
            if stride is not None:  # of layers that halve a size and round up
                raised = self.add("Add", [self.size(name, axis), self.ints(stride - 1)])
                return self.add("Div", [raised, self.ints(stride)])
            offset = {a - b for a, b in zip(target, size)}
            if len(offset) == 1:
                return self.add("Add", [self.size(name, axis), self.ints(offset.pop())])
        location = f"layer '{self.layer}'" if self.layer else "the network itself"
        raise ShapeNotExpressible(
            f"export: the operator {self.op} ({self.name}, in {location}) makes a size that cannot be computed from "
            f"those of its inputs ({', '.join(map(str, target))} in the trials). Type dynamic=batch."
        )


def _ratio(target: Size, size: Size) -> Optional[int]:
    """Returns the integer r with target = r * size in all probes; None if there is none."""
    if not all(size) or any(a % b for a, b in zip(target, size)):
        return None
    ratios = {a // b for a, b in zip(target, size)}
    return ratios.pop() if len(ratios) == 1 else None


class ProbedGraph:
    """A traced network whose shapes are inferred for several sizes of its open dimensions.

    Args:
        symbol: the traced network.
        parameters: values of its variables other than inputs.
        inputs: the inputs by name.
        probes: several sets of sizes of the open dimensions. Sizes must not be multiples of each other, or a wrong
            formula could be right by chance.

    Raises:
        ShapeNotExpressible: the network depends on the value of an open dimension.
    """

    def __init__(
        self,
        symbol: Symbol,
        parameters: Mapping[str, np.ndarray],
        inputs: Mapping[str, Input],
        probes: Sequence[Mapping[str, int]],
    ):
        used_names = set(symbol.list_inputs())
        self.inputs = {name: entry for name, entry in inputs.items() if name in used_names}
        self.parameters = {name: value for name, value in parameters.items() if name in used_names}
        self.probes = probes
        self.nodes: List[Dict[str, Any]]
        # By default `tojson` drops amp_cast nodes, and the numbers of nodes would differ from those of the symbol.
        loaded = json.loads(symbol.tojson(remove_amp_cast=False))
        self.nodes, self.heads = loaded["nodes"], [(head[0], head[1]) for head in loaded["heads"]]
        self._internals = symbol.get_internals()
        # The JSON lists nodes, `get_internals` their outputs: each node with several outputs shifts the later indices.
        self._first = first_outputs(self._internals, [node["name"] for node in self.nodes])
        self._shapes = [self._shapes_for(sizes) for sizes in probes]
        types = {name: np.dtype(entry.dtype) for name, entry in self.inputs.items()}
        types.update((name, value.dtype) for name, value in self.parameters.items())
        self._types = self._internals.infer_type(**types)[1]

    def _shapes_for(self, sizes: Mapping[str, int]) -> List[Tuple[int, ...]]:
        from mxtrain.engine.backend import mx

        shapes = {name: one.shape(sizes) for name, one in self.inputs.items()}
        # Without scalars: MXNet reads the shape () as unknown.
        shapes.update((name, value.shape) for name, value in self.parameters.items() if value.ndim)
        try:
            inferred = self._internals._infer_shape_impl(False, **shapes)[1]  # `infer_shape` would also print the error
        except mx.MXNetError as error:
            raise ShapeNotExpressible(f"export: the network takes no other sizes: {_last_line(error)}") from error
        if inferred is None or any(shape is None for shape in inferred):
            raise Unsupported("export: MXNet cannot infer the shapes of the network.")
        return list(inferred)

    # Shapes and types of tensors.

    def dims(self, entry: Entry) -> List[Size]:
        """Returns the dimensions of a tensor of the symbol, each with its size in all probes."""
        return list(zip(*(shapes[self._first[entry[0]] + entry[1]] for shapes in self._shapes)))

    def dtype(self, entry: Entry) -> str:
        """Returns the dtype of a tensor of the symbol."""
        return np.dtype(self._types[self._first[entry[0]] + entry[1]]).name

    def first(self, number: int) -> int:
        """Returns the index of a node's first output among the internals of the symbol."""
        return self._first[number]

    def onnx_type(self, number: int, output: int = 0) -> int:
        """Returns the ONNX type of an output of a node."""
        return TYPES[self.dtype((number, output))]

    def input_sizes(self) -> List[Tuple[str, int, Size]]:
        """Returns (name, axis, sizes in all probes) of each open dimension of the inputs."""
        return [
            (name, axis, tuple(sizes[dim] for sizes in self.probes))
            for name, one in self.inputs.items()
            for axis, dim in enumerate(one.dims)
            if isinstance(dim, str)
        ]

    def num_users(self, entry: Entry) -> int:
        """Returns the number of inputs of operators that read a tensor."""
        return sum(tuple(used[:2]) == entry for node in self.nodes for used in node["inputs"])


class OnnxGraph(ProbedGraph):
    """Converts a symbol to an ONNX graph.

    Args:
        symbol, parameters, inputs, probes: see `ProbedGraph`.
        converters: `mxtrain.exporting.converters.CONVERTERS`.

    Raises:
        Unsupported: an operator has no conversion.
        ShapeNotExpressible: the network depends on the value of an open dimension.
    """

    def __init__(
        self,
        symbol: Symbol,
        parameters: Mapping[str, np.ndarray],
        inputs: Mapping[str, Input],
        probes: Sequence[Mapping[str, int]],
        converters: Mapping[str, Converter],
    ):
        super().__init__(symbol, parameters, inputs, probes)
        self.names: Dict[Entry, str] = {}
        self.initializers: Dict[str, TensorProto] = {}
        self._onnx_nodes: List[Any] = []
        self._shared: Dict[Tuple[str, Tuple[int, ...], bytes], str] = {}
        self._count = 0
        self._ends: Dict[int, int] = {}  # node of the symbol -> number of ONNX nodes up to its last one
        self._convert(converters)

    # Nodes and constants of the ONNX graph.

    def _new(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    def add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Adds a node with one output; returns its name."""
        return self.add_several(op, inputs, 1, **attrs)[0]

    def add_several(self, op: str, inputs: Sequence[str], count: int, **attrs: Any) -> List[str]:
        """Adds a node with `count` outputs; returns their names."""
        outputs = [self._new(op) for _ in range(count)]
        self._add_node(op, inputs, outputs, **attrs)
        return outputs

    def _add_node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> None:
        # onnxruntime's optimiser rejects two nodes with the same name, so each gets a unique one.
        name = self._new(f"node_{op}")
        self._onnx_nodes.append(helper.make_node(op, list(inputs), list(outputs), name=name, **attrs))

    def constant(self, value: np.ndarray, name: str = "") -> str:
        """Adds a constant tensor and returns its name. Equal small constants are shared."""
        key = (value.dtype.str, value.shape, value.tobytes()) if value.size < MAX_SHARED_SIZE and not name else None
        if key in self._shared:
            return self._shared[key]
        unique_name = name if name and name not in self.initializers else self._new(name or "constant")
        self.initializers[unique_name] = numpy_helper.from_array(np.array(value, order="C"), unique_name)
        if key is not None:
            self._shared[key] = unique_name
        return unique_name

    def _convert(self, converters: Mapping[str, Converter]) -> None:
        folded = self._constants()
        for number, node in enumerate(self.nodes):
            if number in folded:
                continue
            if node["op"] == "null":
                self.names[number, 0] = node["name"]
                continue
            call = OperatorCall(self, number)
            converter = converters.get(call.op)
            if converter is None:
                raise call.unsupported()
            outputs = converter(call)
            for output, name in enumerate([outputs] if isinstance(outputs, str) else outputs):
                self.names[number, output] = name
            self._ends[number] = len(self._onnx_nodes)

    def _constants(self) -> Set[int]:
        """Folds nodes that depend on parameters alone: MXNet computes them, and they become constants.

        Returns:
            The numbers of these nodes.
        """
        is_constant: List[bool] = []
        for node in self.nodes:
            inputs = [is_constant[entry[0]] for entry in node["inputs"]]
            is_variable = node["op"] == "null"
            is_constant.append(node["name"] in self.parameters if is_variable else bool(inputs) and all(inputs))
        read = {entry[:2] for entry in self.heads}
        for number, node in enumerate(self.nodes):
            if not is_constant[number]:
                read.update((entry[0], entry[1]) for entry in node["inputs"])
        for number, output in sorted(read):
            if not is_constant[number]:
                continue
            name = self.nodes[number]["name"]
            if self.nodes[number]["op"] == "null":
                self.names[number, output] = self.constant(self.parameters[name], name)
                continue
            piece = self._internals[self._first[number] + output]
            self.names[number, output] = self.constant(evaluate(piece, self.parameters)[0], name)
        return {number for number, constant in enumerate(is_constant) if constant}

    def model(self, outputs: Sequence[str], metadata: Mapping[str, str]) -> ModelProto:
        """Builds the ONNX model.

        Args:
            outputs: names of the outputs, in the order of the symbol's outputs.
            metadata: properties to write into the model.
        """
        from mxtrain import __version__

        infos = []
        for name, head in zip(outputs, self.heads):
            # Identity gives the output its name, also if the tensor is an input or occurs twice among the outputs.
            self._add_node("Identity", [self.names[head]], [name])
            dims = [self._dim_name(size, f"{name}_{axis}") for axis, size in enumerate(self.dims(head))]
            infos.append(helper.make_tensor_value_info(name, TYPES[self.dtype(head)], dims))
        model = self._model(self._onnx_nodes, infos, __version__)
        helper.set_model_props(model, dict(metadata))
        if model.ByteSize() < 2**31:  # the checker serializes the model, and a protocol buffer has at most 2 GB
            checker.check_model(model)
        return model

    def _model(self, nodes: Sequence[Any], outputs: Sequence[Any], version: str = "") -> ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, TYPES[entry.dtype], list(entry.dims))
            for name, entry in self.inputs.items()
        ]
        used = {name for node in nodes for name in node.input}
        constants = [tensor for name, tensor in self.initializers.items() if name in used]
        graph = helper.make_graph(nodes, "mxtrain", inputs, outputs, constants)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="mxtrain",
            producer_version=version,
        )

    @property
    def converted(self) -> List[int]:
        """Returns the numbers of the converted operators, in order."""
        return list(self._ends)

    def model_of_first(self, count: int) -> Tuple[ModelProto, Dict[str, Entry]]:
        """Builds a model of the first `count` converted operators.

        Returns:
            The model, and the tensors of the symbol by the names of the outputs: the results of all operators.
        """
        numbers = self.converted[:count]
        hidden = {*self.initializers, *self.inputs}
        entries = {name: entry for entry, name in self.names.items() if entry[0] in numbers and name not in hidden}
        infos = [helper.make_tensor_value_info(name, self.onnx_type(*entry), None) for name, entry in entries.items()]
        return self._model(self._onnx_nodes[: self._ends[numbers[-1]]], infos), entries

    def shapes_for_inputs(self, shapes: Mapping[str, Tuple[int, ...]]) -> Dict[Entry, Tuple[int, ...]]:
        """Returns the shape of each tensor of the symbol for these shapes of the inputs."""
        known = {**shapes, **{name: value.shape for name, value in self.parameters.items() if value.ndim}}
        inferred = self._internals._infer_shape_impl(False, **known)[1]
        return {entry: tuple(inferred[self._first[entry[0]] + entry[1]]) for entry in self.names}

    def _dim_name(self, size: Size, otherwise: str) -> Union[int, str]:
        if len(set(size)) == 1:
            return size[0]
        return next((dim for dim in self.probes[0] if tuple(sizes[dim] for sizes in self.probes) == size), otherwise)


def evaluate(symbol: Symbol, arrays: Mapping[str, np.ndarray]) -> List[np.ndarray]:
    """Evaluates a symbol with MXNet.

    Args:
        symbol: the symbol.
        arrays: values of its variables; other arrays are ignored.
    """
    from mxtrain.engine.backend import autograd, nd

    arguments = [nd.array(arrays[name], dtype=arrays[name].dtype) for name in symbol.list_inputs()]
    with autograd.predict_mode():
        outputs = nd.CachedOp(symbol)(*arguments)
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
