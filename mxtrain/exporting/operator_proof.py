"""Compares single operators in onnxruntime and MXNet, for networks that sort scores. Imports MXNet and onnx.

Detectors keep the regions with the highest scores. If two scores are nearly equal, their last bits decide which region
is kept, so two correct engines may return different regions. Then outputs are compared as sets of rows, and each
operator is compared on its own: MXNet computes it from the inputs that it had in onnxruntime.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Set

import numpy as np
from onnx import helper, numpy_helper

from mxtrain.engine.backend import mx
from mxtrain.exporting.graph import evaluate
from mxtrain.exporting.standalone import MAX_ERROR, relative_error, rows_error

if TYPE_CHECKING:
    from onnx import ModelProto

    from mxtrain.exporting.graph import OnnxGraph, ProbedGraph

ORDERING = frozenset(("topk", "argsort", "argmax", "_contrib_box_nms", "_mxtrain_suppression"))
"""Operators whose results jump where numbers are nearly equal."""


def order_dependent(graph: ProbedGraph, outputs: Sequence[str]) -> List[str]:
    """Returns the names of the outputs that depend on an operator of `ORDERING`."""
    reached: Set[int] = set()
    for number, node in enumerate(graph.nodes):
        if node["op"] in ORDERING or any(entry[0] in reached for entry in node["inputs"]):
            reached.add(number)
    return [name for name, (number, _) in zip(outputs, graph.heads) if number in reached]


def differing_operator(graph: OnnxGraph, model: ModelProto, inputs: Mapping[str, np.ndarray]) -> str:
    """Returns a sentence that names the first operator that differs in MXNet for the same inputs; "" if none does.

    Args:
        graph: the converted graph.
        model: its ONNX model.
        inputs: inputs of the network.
    """
    import onnxruntime

    hidden = {*graph.initializers, *graph.inputs}
    entries = [(number, output) for number, output in graph.names if graph.names[number, output] not in hidden]
    names = {graph.names[entry]: entry for entry in entries}
    exposed = type(model).FromString(model.SerializeToString())
    del exposed.graph.output[:]
    exposed.graph.output.extend(
        helper.make_tensor_value_info(name, graph.onnx_type(*entry), None) for name, entry in names.items()
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph_inputs = {name: array for name, array in inputs.items() if name in graph.inputs}
    known: Dict[str, np.ndarray] = {**graph_inputs, **dict(zip(names, session.run(list(names), graph_inputs)))}
    for number, node in enumerate(graph.nodes):
        if node["op"] == "null" or (number, 0) not in graph.names or graph.names[number, 0] in graph.initializers:
            continue
        arrays = [
            # The ONNX tensor may have another type than MXNet's, for example int64 for indices.
            _value(graph, known, graph.names[entry[0], entry[1]]).astype(graph.dtype((entry[0], entry[1])))
            for entry in node["inputs"]
        ]
        actual = [_value(graph, known, graph.names[number, k]) for k in range(2) if (number, k) in graph.names]
        expected = evaluate(_alone(node, len(actual)), {f"input{k}": array for k, array in enumerate(arrays)})
        error = max(_error(node, arrays, *pair) for pair in zip(actual, expected))
        if not error <= MAX_ERROR:
            layer = node.get("attrs", {}).get("__layer__", "")
            return f"The operator {node['op']} ({node['name']}) of layer '{layer}' differs by {error:.1e}."
    return ""


def _value(graph: OnnxGraph, known: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return known[name] if name in known else numpy_helper.to_array(graph.initializers[name])


def _alone(node: Mapping[str, Any], num_outputs: int) -> Any:
    """Returns a symbol of one operator with the variables input0, input1, ..."""
    count = len(node["inputs"])
    variables = [{"op": "null", "name": f"input{k}", "inputs": []} for k in range(count)]
    operator = {**node, "inputs": [[k, 0, 0] for k in range(count)]}
    content = {
        "nodes": [*variables, operator],
        "arg_nodes": list(range(count)),
        "node_row_ptr": list(range(count + 2)),
        "heads": [[count, k, 0] for k in range(num_outputs)],
        # Without a version MXNet would take the JSON for that of an old release, and upgrade it.
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(content))


def _error(node: Mapping[str, Any], arrays: Sequence[np.ndarray], actual: np.ndarray, expected: np.ndarray) -> float:
    """Returns the relative error of one output. Indices are compared by their values, since ties have no order."""
    error = relative_error(actual, expected)
    if error <= MAX_ERROR or node["op"] not in ORDERING or actual.shape != expected.shape:
        return error
    if node["op"] in ("topk", "argsort", "argmax"):
        axis = int(node.get("attrs", {}).get("axis", "-1"))
        locations = [one.astype(np.int64) for one in (actual, expected)]
        if actual.ndim != arrays[0].ndim or min(one.min() for one in locations) < 0:
            return error
        values = [np.sort(np.take_along_axis(arrays[0], one, axis), axis) for one in locations]
        return relative_error(*values)
    return rows_error(actual, expected, 1.0) if actual.ndim == 3 else error
