"""Builds the JSON of a symbol from the nodes of an ONNX file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np

from mxtrain.engine.parameter_names import role_of
from mxtrain.model.onnx.file import OnnxContent
from mxtrain.model.symbol.graph_file import VARIABLE, Output

if TYPE_CHECKING:
    from onnx import NodeProto

    from mxtrain.types.annotations import GraphNode

DATA = "data"
"""Name of the input of the symbol, whatever the file calls it."""
ROLE_END = re.compile(r"[._/](weight|kernel|gamma|scale|bias|beta|running_mean|running_var)$")
"""End of the name of an array that says its role."""
ARITHMETIC = {"Sub": "offset", "Add": "offset", "Div": "divisor", "Mul": "factor"}
"""Operators that normalise images -> what their constant is."""


@dataclass(frozen=True)
class KnownTensor:
    """A tensor that is known before the network runs.

    Attributes:
        array: its value; of dtype object if it holds names of open sizes.
        source: name of the array of the file with this value; empty for one that was computed, or is in a node.
    """

    array: np.ndarray
    source: str = ""


Value = Union[Output, KnownTensor]
"""A tensor of the file: an output of a node of the symbol, or a constant."""
Attribute = Union[int, float, str, bool, Sequence[int], Sequence[Optional[int]]]
"""An argument of an operator of MXNet."""


class SymbolBuilder:
    """Builds the JSON of a symbol.

    Attributes:
        file: the file.
        nodes: the nodes of the symbol so far.
        values: the tensors of the file by name.
        size_matters: True if a converter has relied on the image size of the file.
        scales: constants with which the first operators normalise images: offset and divisor.
        scaled: names of the input and of the tensors that these operators have made of it.
    """

    def __init__(self, file: OnnxContent):
        self.file = file
        self.nodes: List[GraphNode] = []
        self.values: Dict[str, Value] = {
            name: KnownTensor(array, source=name) for name, array in file.initializers.items()
        }
        self.size_matters = False
        self._arrays: Dict[str, np.ndarray] = {}
        self._shared: Dict[Tuple[str, Tuple[int, ...], bytes], Output] = {}
        self._names = {DATA}
        self._layers = {DATA}
        self._readers = Counter(name for node in file.nodes for name in node.input)
        self._readers.update(file.outputs)
        self.scales: Dict[str, float] = {"offset": 0.0, "divisor": 1.0}
        self.scaled = {file.input}

    def num_readers(self, name: str) -> int:
        """Returns the number of inputs and outputs of the file that are this tensor."""
        return self._readers[name]

    def scales_images(self, node: NodeProto) -> bool:
        """Returns True for arithmetic of the input with constants, before any layer: it does not train."""
        tensors = [name for name in node.input if not isinstance(self.values[name], KnownTensor)]
        return node.op_type in ARITHMETIC and len(tensors) == 1 and tensors[0] in self.scaled

    # Nodes and variables.

    @staticmethod
    def _unique(name: str, taken: Set[str]) -> str:
        count, unique = 1, name
        while unique in taken:
            count += 1
            unique = f"{name}_{count}"
        taken.add(unique)
        return unique

    def layer_name(self, node: NodeProto, number: int) -> str:
        """Returns the name of a layer: that of its weight without its role, of the node, or its operator and number."""
        arrays = [name for name in node.input[1:] if name in self.file.initializers and ROLE_END.search(name)]
        name = ROLE_END.sub("", arrays[0]) if arrays else node.name
        name = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_") or f"{node.op_type.lower()}{number}"
        return self._unique(name, self._layers)

    def add(self, op: str, layer: str, inputs: Sequence[Output], attributes: Mapping[str, Attribute]) -> Output:
        """Adds an operator; returns its first output."""
        node: GraphNode = {
            "op": op,
            "name": self._unique(layer, self._names),
            "inputs": [[position, index, 0] for position, index in inputs],
        }
        if attributes:
            node["attrs"] = {key: _attribute_text(value) for key, value in attributes.items()}
        self.nodes.append(node)
        return len(self.nodes) - 1, 0

    def with_bias(self, position: int, bias: Output) -> Output:
        """Adds a copy of a layer with a bias, and returns its output. Nothing reads the layer without one any more."""
        node: Any = dict(self.nodes[position])
        node["attrs"] = {**node["attrs"], "no_bias": "False"}
        node["inputs"] = [*node["inputs"], [*bias, 0]]
        self.nodes.append(node)
        return len(self.nodes) - 1, 0

    def parameter(self, name: str, array: np.ndarray, source: str, *, fixed_shape: bool = False) -> Output:
        """Adds a variable with a value; an array of the file that is used again is the same variable.

        Args:
            name: its name, with its role.
            array: its value.
            source: name of the array in the file; empty for one that does not train.
            fixed_shape: True to write down its shape.
        """
        array = np.ascontiguousarray(array, dtype=np.float32)
        role = role_of(name)
        key = (f"{source}:{role}", array.shape, b"" if source else array.tobytes())
        if source and key in self._shared:
            return self._shared[key]
        # The number of a second one stands before its role.
        unique = name if name not in self._names else f"{self._unique(name[: -len(role) - 1], self._names)}_{role}"
        self._names.add(unique)
        attributes: Dict[str, str] = {}
        if fixed_shape:
            attributes["__shape__"] = _attribute_text(array.shape)
        if not source:
            attributes.update(__lr_mult__="0.0", __wd_mult__="0.0")
        node: GraphNode = {"op": VARIABLE, "name": unique, "inputs": []}
        if attributes:
            node["attrs"] = attributes
        self.nodes.append(node)
        self._arrays[unique] = array
        output = (len(self.nodes) - 1, 0)
        if source:
            self._shared[key] = output
        return output


def _attribute_text(value: Attribute) -> str:
    """Returns an argument as MXNet writes it into the JSON of a symbol."""
    if isinstance(value, (tuple, list)):
        inner = ", ".join(str(number) for number in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value) if isinstance(value, float) else str(value)
