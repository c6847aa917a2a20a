"""The types that MXNet infers in a graph with casts, against what the lists of operators say. No GPU, no numbers."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np

from mxtrain.amp.operators import FLOAT16
from mxtrain.amp.spec import Float16
from mxtrain.engine.backend import mx
from mxtrain.engine.native import Library
from mxtrain.model.graph.mxnet_workarounds import replace_wrong_layers
from mxtrain.model.graph.trace import symbol_of

FOLLOWS = FLOAT16.follow | FLOAT16.follow_whole
FLOAT32_INPUTS = {"BatchNorm": 1}
"""Operators in float16 whose inputs from this one on are float32."""


def without_own_operators(monkeypatch: Any) -> None:
    """Networks are traced as on GPUs, for which there are no operators of our own."""
    for module in (
        "model.networks.attention",
        "model.networks.bert",
        "text.networks.language",
        "vision.detection.networks.region_operators",
    ):
        monkeypatch.setattr(f"mxtrain.{module}.native_operators", lambda: Library(None, "a test"))


def with_casts(symbol: Any) -> Any:
    """The symbol under amp=float16, as `Symbol.tojson` would say it with its casts."""
    precision = Float16()
    return precision.lowered(precision.marked(json.loads(symbol.tojson()), {}))


def wrong_types(symbol: Any) -> List[str]:
    """Returns mistakes in the types of a symbol under amp=float16, each kind once. Listed operators take float16
    wherever they can; other operators and readers of the outputs never do.

    An operator of the lists takes float16 wherever it can have it. No other does, nor does what reads the outputs.
    """
    graph = with_casts(symbol)
    nodes, found = graph["nodes"], []
    read = list(dict.fromkeys((source, output) for node in nodes for source, output, *_ in node["inputs"]))
    heads = [[*tensor, 0] for tensor in read] + [list(head) for head in graph["heads"]]
    every = mx.sym.load_json(json.dumps({**graph, "heads": heads}))
    # Parameters are float32, whether their variables say so or not (those of GluonCV's SymbolBlocks do not).
    arguments, outputs, statistics = every.infer_type(**dict.fromkeys(every.list_arguments(), "float32"))
    types: Dict[Any, str] = {tensor: np.dtype(kind).name for tensor, kind in zip(read, outputs)}
    for node in nodes:
        op = node["op"]
        if op in ("null", "amp_cast"):
            continue
        assert not op.startswith("_mxtrain_"), "there are no operators of our own on GPUs"
        given = [types[source, output] for source, output, *_ in node["inputs"]]
        is_half = bool(given) and given[0] == "float16"
        if is_half and op not in FLOAT16.low | FLOAT16.join | FOLLOWS or op in FLOAT16.low and not is_half:
            found.append(f"{op} computes in {given[0]}")
        num_halves = FLOAT32_INPUTS.get(op, len(given)) if is_half else 0
        if any((kind == "float16") != (number < num_halves) for number, kind in enumerate(given)):
            found.append(f"{op} takes {given}")
        could = [_is_cast_of_half(nodes, source, types) for source, *_ in node["inputs"]]
        if could and (op in FOLLOWS and could[0] or op in FLOAT16.join and all(could)):
            found.append(f"{op} computes in float32 what is there in float16")
    kinds = {np.dtype(kind).name for kind in [*outputs[len(read) :], *arguments, *statistics]}
    return sorted({*found, *(f"{kind} leaves or enters" for kind in kinds - {"float32"})})


def _is_cast_of_half(nodes: List[Any], index: int, types: Dict[Any, str]) -> bool:
    """Returns True if an input was float16 before it was cast to float32."""
    node = nodes[index]
    return node["op"] == "amp_cast" and types[tuple(node["inputs"][0][:2])] == "float16"


def wrong_in_network(network: Any, num_inputs: int = 1) -> List[str]:
    """`wrong_types` of a network, uninitialised, in training."""
    replace_wrong_layers(network)
    return wrong_types(symbol_of(network, training=True, num_inputs=num_inputs)[0])
