"""One node of an ONNX file: the interface of its converter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from mxtrain.model.onnx.builder import Attribute, KnownTensor, SymbolBuilder, Value
from mxtrain.model.onnx.refusals import RefusedOnnx
from mxtrain.model.symbol.graph_file import Output

if TYPE_CHECKING:
    from onnx import NodeProto

    from mxtrain.model.onnx.file import Shape
    from mxtrain.types.annotations import GraphNode


def shortest(value: float) -> float:
    """Returns the shortest decimal that is this number in float32: 1e-05 for 9.99999974738e-06.

    ONNX stores arguments as float32, and MXNet computes with them as float64.
    """
    return float(str(np.float32(value)))


class OnnxCall:
    """One node of the file.

    Methods that return an `Output` add nodes to the symbol.

    Args:
        graph: the symbol that is built.
        node: the node.
        layer: name of the nodes of the symbol that it becomes.
    """

    def __init__(self, graph: SymbolBuilder, node: NodeProto, layer: str):
        from onnx import helper

        self.graph, self.node, self.layer = graph, node, layer
        self.op, self.opset = node.op_type, graph.file.opset
        self.attributes: Dict[str, Any] = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            self.attributes[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        self._read: Set[str] = set()

    def __len__(self) -> int:
        return len(self.node.input)

    def refused(self, reason: str) -> RefusedOnnx:
        """Returns the error for this node: its name, its operator, and the reason as a clause."""
        name = self.node.name or (self.node.output[0] if self.node.output else "?")
        return RefusedOnnx(f"the node '{name}' ({self.op}) {reason}, which cannot be converted to MXNet")

    # Inputs.

    def has(self, index: int) -> bool:
        """Returns True if an optional input is given."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def value(self, index: int) -> Value:
        """Returns an input.

        Raises:
            RefusedOnnx: it is missing.
        """
        if not self.has(index):
            raise self.refused(f"has no input {index}")
        return self.graph.values[self.node.input[index]]

    def is_constant(self, index: int) -> bool:
        """Returns True if an input is given and known before the network runs."""
        return self.has(index) and isinstance(self.graph.values[self.node.input[index]], KnownTensor)

    def x(self, index: int = 0, role: str = "beta") -> Output:
        """Returns an input as a tensor of the symbol; a constant becomes a parameter.

        Args:
            index: number of the input.
            role: end of the name of such a parameter.
        """
        value = self.value(index)
        if not isinstance(value, KnownTensor):
            return value
        return self.parameter(index, role, fixed_shape=True)

    def array(self, index: int, default: Optional[np.ndarray] = None) -> np.ndarray:
        """Returns the value of a constant input; the default if it is not given.

        Raises:
            RefusedOnnx: it is computed from the input of the network.
        """
        if default is not None and not self.has(index):
            return default
        value = self.value(index)
        if not isinstance(value, KnownTensor) or value.array.dtype == object:
            raise self.refused(f"has an input '{self.node.input[index]}' that depends on the images or their size")
        return value.array

    def ints(self, index: int, default: Sequence[int] = ()) -> List[int]:
        """Returns a constant input of integers."""
        return [int(number) for number in self.array(index, np.array(default, np.int64)).reshape(-1)]

    def sizes(self, index: int) -> List[Union[int, str]]:
        """Returns a constant input of sizes, of which some may be open.

        Raises:
            RefusedOnnx: see `array`.
        """
        value = self.value(index)
        if isinstance(value, KnownTensor) and value.array.dtype == object:
            return [size if isinstance(size, str) else int(size) for size in value.array.reshape(-1)]
        return [int(number) for number in self.array(index).reshape(-1)]

    def shape(self, index: int = 0) -> Shape:
        """Returns the shape of an input.

        Raises:
            RefusedOnnx: it is not known.
        """
        value = self.value(index)
        if isinstance(value, KnownTensor):
            return tuple(value.array.shape)
        found = self.graph.file.shapes.get(self.node.input[index])
        if found is None:
            raise self.refused(f"has an input '{self.node.input[index]}' of unknown shape")
        return found

    def rank(self, index: int = 0) -> int:
        """Returns the number of dimensions of an input."""
        return len(self.shape(index))

    def axis(self, name: str, default: int, index: int = 0) -> int:
        """Returns the attribute of an axis as a non-negative number."""
        return self.non_negative(self.integer(name, default), index)

    def non_negative(self, axis: int, index: int = 0, added_axes: int = 0) -> int:
        """Returns an axis of an input as a non-negative number.

        Args:
            axis: number of the axis; negative from the end.
            index: number of the input.
            added_axes: number of axes that the operator adds.
        """
        rank = self.rank(index) + added_axes
        if not -rank <= axis < rank:
            raise self.refused(f"has axis={axis}, and its input has {rank} axes")
        return axis % rank

    # Attributes.

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an integer attribute."""
        self._read.add(name)
        return int(self.attributes.get(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns a floating-point attribute."""
        self._read.add(name)
        return shortest(self.attributes.get(name, default))

    def numbers(self, name: str, default: Sequence[int] = ()) -> List[int]:
        """Returns an attribute of several integers."""
        self._read.add(name)
        return [int(number) for number in self.attributes.get(name, default)]

    def text(self, name: str, default: str = "") -> str:
        """Returns an attribute of text."""
        self._read.add(name)
        return str(self.attributes.get(name, default))

    def require(self, name: str, *allowed: object) -> object:
        """Returns an attribute that has few allowed values, the first of which is the default.

        Raises:
            RefusedOnnx: it has another one.
        """
        self._read.add(name)
        value = self.attributes.get(name, allowed[0])
        if value not in allowed:
            raise self.refused(f"has {name}={value}")
        return value

    def ignore(self, *names: str) -> None:
        """Marks attributes as read that change nothing here."""
        self._read.update(names)

    def refuse_unread(self) -> None:
        """Raises `RefusedOnnx` for an attribute that the converter has not read."""
        for name, value in self.attributes.items():
            if name not in self._read:
                raise self.refused(f"has {name}={str(value):.60}")

    def require_one_output(self) -> None:
        """Raises `RefusedOnnx` if something reads another output than the first."""
        for name in self.node.output[1:]:
            if name and self.graph.num_readers(name):
                raise self.refused(f"has the output '{name}', which is read")

    # Nodes of the symbol.

    def add(self, op: str, inputs: Sequence[Output], **attributes: Attribute) -> Output:
        """Adds the last operator of a layer, which gets the name of the layer; arguments are those of MXNet."""
        return self.graph.add(op, self.layer, inputs, attributes)

    def step(self, op: str, inputs: Sequence[Output], **attributes: Attribute) -> Output:
        """Adds an operator in front of the last one of a layer, named by both; arguments are those of MXNet."""
        return self.graph.add(op, f"{self.layer}_{op.strip('_').lower()}", inputs, attributes)

    def parameter(
        self, index: int, role: str, array: Optional[np.ndarray] = None, *, fixed_shape: bool = False
    ) -> Output:
        """Adds the variable of a parameter.

        Args:
            index: number of the input whose constant it is. An array of the file trains, unless it normalises images;
                a computed one does not.
            role: end of its name, see `mxtrain.engine.parameter_names`.
            array: its value; by default that of the input.
            fixed_shape: True if MXNet cannot infer its shape from its operator.
        """
        value = self.value(index)
        source = value.source if isinstance(value, KnownTensor) and not self.graph.scales_images(self.node) else ""
        values = self.array(index) if array is None else array
        return self.graph.parameter(f"{self.layer}_{role}", values, source, fixed_shape=fixed_shape)

    def filled(self, role: str, size: int, number: float) -> Output:
        """Adds the variable of a parameter that the file does not have."""
        return self.graph.parameter(f"{self.layer}_{role}", np.full(size, number, np.float32), "")

    def producer(self, index: int) -> Optional[Tuple[GraphNode, int]]:
        """Returns the node that computes an input that nothing else reads, and its position; else None."""
        value = self.value(index)
        if isinstance(value, KnownTensor) or self.graph.num_readers(self.node.input[index]) != 1:
            return None
        return self.graph.nodes[value[0]], value[0]
