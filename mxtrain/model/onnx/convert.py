"""Converts an ONNX file to the graph of a symbol and its arrays. Imports onnx, but no MXNet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence

import numpy as np

from mxtrain.errors import did_you_mean
from mxtrain.model.onnx.builder import ARITHMETIC, DATA, KnownTensor, SymbolBuilder, Value
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.file import DOMAINS, OnnxContent, Shape, check_schema, load_onnx
from mxtrain.model.onnx.operators import CONVERTERS, FOLDED
from mxtrain.model.onnx.refusals import DamagedOnnx, RefusedOnnx
from mxtrain.model.onnx.sizes import plain, with_sizes
from mxtrain.model.symbol.graph_file import VARIABLE, cut_at
from mxtrain.model.symbol.scaling import LEAST_PIXEL_OFFSET

if TYPE_CHECKING:
    from onnx import NodeProto

    from mxtrain.types.annotations import GraphNode, SymbolGraph

SHAPE_KEY, FIXED_KEY, PIXELS_KEY = "__onnx_shape__", "__onnx_fixed__", "__onnx_pixels__"
"""Attributes of the input's variable: the shape in the file; "True" if the network computes right at this image size
only; "True" if it scales pixels from 0 to 255 itself."""


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Attributes:
        graph: the symbol.
        arrays: its parameters by name, in the order of its variables.
        file: the file.
    """

    graph: SymbolGraph
    arrays: Mapping[str, np.ndarray]
    file: OnnxContent

    @property
    def text(self) -> str:
        """Returns the JSON of the symbol."""
        return json.dumps(self.graph)


def convert_file(path: str, *, partial: bool = False) -> Converted:
    """Converts a file.

    Args:
        path: path of the file.
        partial: True to leave out what cannot be converted, for networks that are cut before it.

    Raises:
        ImportError, OSError, DamagedOnnx, RefusedOnnx: see `load_onnx`; RefusedOnnx also for a node that cannot be
            converted.
    """
    return _Conversion(with_sizes(load_onnx(path))).convert(partial)


class _Conversion(SymbolBuilder):
    """Converts the nodes of a file one after the other."""

    def convert(self, partial: bool) -> Converted:
        """Converts all nodes; see `convert_file`."""
        self.nodes.append({"op": VARIABLE, "name": DATA, "inputs": []})
        self.values[self.file.input] = (0, 0)
        skipped: List[RefusedOnnx] = []
        for number, node in enumerate(self.file.nodes):
            try:
                self._convert_node(node, number)
            except RefusedOnnx as refusal:
                if not partial:
                    raise
                skipped.append(refusal)
        heads = [self.values[name] for name in self.file.outputs if name in self.values]
        outputs = [head for head in heads if not isinstance(head, KnownTensor)]
        if not outputs:
            # All outputs were left out: the network is cut at a node in front of that.
            outputs = [(len(self.nodes) - 1, 0)] if skipped else []
        if not outputs or outputs[0][0] == 0:
            raise RefusedOnnx("its outputs do not depend on its input")
        graph = cut_at({"nodes": self.nodes, "heads": []}, outputs)
        graph["attrs"] = {"mxnet_version": ("int", 10901)}
        kept = {node["name"] for node in graph["nodes"]}
        if DATA not in kept:
            raise RefusedOnnx("its outputs do not depend on its input")
        self._describe_input(graph)
        return Converted(graph, {name: array for name, array in self._arrays.items() if name in kept}, self.file)

    def _describe_input(self, graph: SymbolGraph) -> None:
        variable = next(node for node in graph["nodes"] if node["name"] == DATA)
        variable["attrs"] = {SHAPE_KEY: json.dumps(self.file.input_shape)}
        if self.size_matters:
            variable["attrs"][FIXED_KEY] = "True"
        if self.file.takes_bytes or max(self.scales.values()) >= LEAST_PIXEL_OFFSET:
            variable["attrs"][PIXELS_KEY] = "True"

    def _convert_node(self, node: NodeProto, number: int) -> None:
        for name in node.input:
            if name and name not in self.values:
                if any(name in other.output for other in list(self.file.nodes)[:number]):
                    # A node that was left out computes it.
                    raise RefusedOnnx(f"the node '{node.name}' ({node.op_type}) reads '{name}', which was left out")
                raise DamagedOnnx(f"the node '{node.name}' ({node.op_type}) reads '{name}', which nothing computes")
        if any(name in self.values for name in node.output if name):
            raise DamagedOnnx(f"the node '{node.name}' ({node.op_type}) computes a tensor for the second time")
        if len(node.output) == 1 and node.output[0] in self.file.known:
            self.values[node.output[0]] = KnownTensor(self.file.known[node.output[0]])
            return
        converter = CONVERTERS.get(node.op_type) if node.domain in DOMAINS else None
        fold = FOLDED.get(node.op_type) if node.domain in DOMAINS else None
        call = OnnxCall(self, node, self.layer_name(node, number))
        if converter is None and fold is None:
            domain = f" of the domain '{node.domain}'" if node.domain not in DOMAINS else ""
            near = "" if domain else did_you_mean(node.op_type, [*CONVERTERS, *FOLDED])
            raise RefusedOnnx(
                f"the node '{node.name or node.output[0]}' has the operator {node.op_type}{domain}, which is not read."
                f"{near} Name a layer before it by model.output="
            )
        check_schema(node, self.file)
        inputs = [self.values[name] for name in node.input if name]
        if fold is not None and (node.op_type == "Shape" or all(isinstance(value, KnownTensor) for value in inputs)):
            # PyTorch writes one array for parameters of equal values, and an Identity for each of the others.
            is_copy = node.op_type == "Identity" and getattr(inputs[0], "source", "")
            results: Sequence[Value] = [KnownTensor(plain(fold(call)), node.output[0] if is_copy else "")]
        elif converter is not None:
            converted = converter(call)
            results = converted if isinstance(converted, list) else [converted]
        else:
            raise call.refused("computes from the images or their size")
        call.refuse_unread()
        self._note_scaling(call)
        for name, value in zip(node.output, results):
            if name:
                self.values[name] = value

    def _note_scaling(self, call: OnnxCall) -> None:
        """Notes offset and divisor of the images: constants in the operators that the input passes first."""
        if call.op in ("Cast", "Identity") and call.node.input[0] in self.scaled:
            self.scaled.add(call.node.output[0])
        if call.op not in ARITHMETIC or not self.scales_images(call.node) or not call.is_constant(1):
            return
        size = float(np.abs(call.array(1)).max(initial=0))
        kind = ARITHMETIC[call.op]
        if kind == "factor":
            kind, size = "divisor", 1 / size if size else 1.0
        self.scales[kind] = max(self.scales[kind], size)
        self.scaled.add(call.node.output[0])


def input_shape_of(graph: SymbolGraph) -> Shape:
    """Returns the shape of the input in the file that a graph was converted from; () if it is of no such file."""
    return tuple(json.loads(_input_attributes(graph).get(SHAPE_KEY, "[]")))


def is_flagged(graph: SymbolGraph, key: str) -> bool:
    """Returns True if the input of a graph has a flag.

    Args:
        graph: the graph.
        key: FIXED_KEY or PIXELS_KEY.
    """
    return key in _input_attributes(graph)


def _input_attributes(graph: SymbolGraph) -> Mapping[str, str]:
    found: Optional[GraphNode] = next((node for node in graph["nodes"] if node["name"] == DATA), None)
    return (found or {}).get("attrs") or {}
