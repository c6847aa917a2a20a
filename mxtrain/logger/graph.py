"""Writes the network's graph in TensorBoard's form."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from tensorboardX.proto.attr_value_pb2 import AttrValue
from tensorboardX.proto.graph_pb2 import GraphDef
from tensorboardX.proto.node_def_pb2 import NodeDef
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.proto.versions_pb2 import VersionDef

Node = Tuple[str, str, Sequence[str], Any, Any]
"""(name, operator, names of the inputs, attributes, output shape or None)"""


def build_graph_def(nodes: Iterable[Node]) -> GraphDef:
    """Returns a GraphDef that TensorBoard draws: each layer a node that opens into its operator and its parameters.

    Args:
        nodes: (name, operator, inputs, attributes, output shape) in topological order; parameters and inputs of the
            network are nodes with the operator "null" and no inputs.

    Returns:
        The graph; parameters have the operator "Parameter", inputs of the network "Input".
    """
    nodes = list(nodes)
    names = _scoped_names(nodes)
    graph = GraphDef(versions=VersionDef(producer=22))
    for name, op, inputs, attrs, shape in nodes:
        kind = op if op != "null" else "Parameter" if "/" in names[name] else "Input"
        node = NodeDef(name=names[name], op=kind, input=[names[source] for source in inputs if source in names])
        for key, value in dict(attrs or {}).items():
            if not str(key).startswith("__"):
                node.attr[str(key)].s = str(value).encode("utf-8")
        if shape:
            dims = [TensorShapeProto.Dim(size=int(size)) for size in shape]
            node.attr["_output_shapes"].CopyFrom(
                AttrValue(list=AttrValue.ListValue(shape=[TensorShapeProto(dim=dims)]))
            )
        graph.node.append(node)
    return graph


def _scoped_names(nodes: Sequence[Node]) -> Dict[str, str]:
    """Returns a unique TensorBoard path for each node: `layer/operator`, and `layer/weight` for what only that layer
    uses."""
    users: Dict[str, List[str]] = {}
    for name, _, inputs, _, _ in nodes:
        for source in inputs:
            users.setdefault(source, []).append(name)
    variables = [name for name, op, *_ in nodes if op == "null"]
    # The first variable is the network's input, even where only one operator reads it.
    layer_of_variable = {name: users[name][0] for name in variables[1:] if len(set(users.get(name, ()))) == 1}
    layers_with_variables = set(layer_of_variable.values())
    prefix = _common_prefix([name for name, op, *_ in nodes if op != "null"])
    display_names = {name: _display_name(name, op, prefix) for name, op, *_ in nodes}
    paths: Dict[str, str] = {}
    used_paths: set[str] = set()
    for name, op, *_ in nodes:
        path = display_names[name]
        if name in layer_of_variable:
            path = f"{display_names[layer_of_variable[name]]}/{name.replace('.', '_').rsplit('_', 1)[-1]}"
        elif name in layers_with_variables:
            path = f"{path}/{op}"
        unique, count = path, 1
        while unique in used_paths:
            count += 1
            unique = f"{path}_{count}"
        used_paths.add(unique)
        paths[name] = unique
    return paths


def _common_prefix(names: Sequence[str]) -> str:
    """Returns the beginning that all names share, up to a separator: Gluon puts the network's own name before every
    layer's."""
    if len(names) < 2:
        return ""
    shared = os.path.commonprefix(list(names))
    return shared[: max(shared.rfind("_"), shared.rfind(".")) + 1]


def _display_name(name: str, op: str, prefix: str) -> str:
    """Returns the name as a TensorBoard path; short, because TensorBoard cuts names after some fifteen letters.

    The operator is appended to a name that is only a number.
    """
    short = name[len(prefix) :] if name.startswith(prefix) else name
    for ending in ("_fwd", ".fwd"):
        if short.endswith(ending):
            short = short[: -len(ending)]
    path = short.replace(".", "/") or name
    return f"{path}_{op}" if path.rsplit("/", 1)[-1].isdigit() and op != "null" else path
