"""SSD detectors of symbols as Gluon blocks. Imports MXNet.

Legend: B batch, N anchors of an image, K classes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Dict, List, Mapping

import numpy as np

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError, reason_of
from mxtrain.model.symbol.graph_file import VARIABLE, cut_at, inputs_of
from mxtrain.model.symbol.inputs import input_names
from mxtrain.model.symbol.network import block_of, load_json, read_known
from mxtrain.model.symbol.ssd_graph import SSDGraph, find_ssd, map_readers, set_classes
from mxtrain.model.weights_report import ClassRows
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph


def build_network(text: str, num_classes: int) -> gluon.SymbolBlock:
    """Returns a network of images -> class logits (B, N, 1 + K), background first, and box offsets (B, N, 4).

    Args:
        text: JSON of the graph.
        num_classes: K.

    Raises:
        ConfigError: MXNet does not know an operator, or refuses its arguments.
    """
    graph = read_known(text)
    ssd = find_ssd(graph)
    set_classes(graph, ssd, num_classes)
    layers = {graph["nodes"][position]["name"]: anchors for position, anchors in ssd.layers}
    part = cut_at(graph, [ssd.scores, ssd.offsets])
    first = len(part["nodes"])
    for number, (name, columns) in enumerate((("class_scores", 1 + num_classes), ("box_offsets", 4))):
        source = part["heads"][number]
        node: GraphNode = {"op": "Reshape", "name": name, "attrs": {"shape": f"(0, -1, {columns})"}, "inputs": [source]}
        part["nodes"].append(node)
    part["heads"] = [[first, 0, 0], [first + 1, 0, 0]]
    network = block_of(part)
    network.class_heads = {name: ClassRows(anchors, leading=1) for name, anchors in layers.items()}
    network.new_layers = ()
    return network


def anchors_of(graph: SymbolGraph, ssd: SSDGraph, input_shape: Shape, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """Computes the anchors for images of one size: centre x and y, width and height in pixels, (N, 4).

    Anchors depend on the sizes of maps only, so the maps are replaced by zeros.

    Args:
        graph: see `parse_graph`.
        ssd: its parts.
        input_shape: (C, H, W) of the images.
        stored: anchors that the file of the weights has, by name; see `StoredAnchors`.

    Raises:
        ConfigError: images are too small for the network.
    """
    nodes = graph["nodes"]
    readers = map_readers(graph, ssd)
    sources = [inputs_of(nodes[position])[number] for position, number in readers]
    maps = cut_at(graph, sources)
    data = input_names(maps)[0]
    replaced: List[GraphNode] = [{**node} for node in nodes]
    arrays: Dict[str, mx.nd.NDArray] = {name: mx.nd.array(array) for name, array in stored.items()}
    try:
        _, shapes, _ = load_json(json.dumps(maps)).infer_shape_partial(**{data: (1, *input_shape)})
        for number, (source, shape) in enumerate(zip(sources, shapes)):
            # The node that computes the map becomes a variable, so that all before it goes.
            replaced[source[0]] = {"op": VARIABLE, "name": f"map{number}", "inputs": []}
            arrays[f"map{number}"] = mx.nd.zeros(shape)
        part = load_json(json.dumps(cut_at({**graph, "nodes": replaced}, [ssd.anchors])))
        arrays = {name: arrays[name] for name in part.list_arguments()}
        anchor_N4 = part.eval(ctx=mx.cpu(), **arrays)[0].asnumpy().reshape(-1, 4)
    except mx.MXNetError as error:
        raise ConfigError(
            f"dataset.image_size: MXNet finds no anchors for images of {input_shape[1]}x{input_shape[2]}: "
            f"{reason_of(error)}. They may be too small for the network in model.symbol. Type a larger "
            "dataset.image_size."
        ) from error
    if not ssd.in_corners:
        return anchor_N4
    edge_N4 = anchor_N4 * np.array([input_shape[2], input_shape[1]] * 2, np.float32)
    return np.concatenate([(edge_N4[:, :2] + edge_N4[:, 2:]) / 2, edge_N4[:, 2:] - edge_N4[:, :2]], axis=1)
