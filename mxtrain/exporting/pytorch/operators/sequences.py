"""Operators of sequences of different lengths, and MXNet's fused recurrent operator."""

from __future__ import annotations

import re
from typing import Dict

from mxtrain.exporting.graph import Entry
from mxtrain.exporting.pytorch.call import Converted, Layer, LayerSize, TorchCall, optional
from mxtrain.exporting.pytorch.names import torch_name
from mxtrain.exporting.pytorch.operators.table import converts

RECURRENT = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn_tanh": "nn.RNN", "rnn_relu": "nn.RNN"}
PACKED = ("_rnn_param_concat", "Concat", "concat", "Reshape", "reshape", "Dropout")
"""Operators that make MXNet's flat vector of parameters of its arrays."""


@converts("SequenceMask")
def sequence_mask(call: TorchCall) -> Converted:
    if not call.flag("use_sequence_length"):
        return call.x()
    axis, rank = call.axis(default=0), call.rank()
    time, row = ["1"] * rank, ["1"] * rank
    time[axis] = row[1 - axis] = "-1"
    position = f"torch.arange({call.x()}.shape[{axis}], device={call.x()}.device).reshape({', '.join(time)})"
    inside = f"{position} < {call.x(1)}.reshape({', '.join(row)})"
    return f"{call.x()}.masked_fill(~({inside}), {call.number_of('value')})"


@converts("SequenceReverse")
def sequence_reverse(call: TorchCall) -> Converted:
    if not call.flag("use_sequence_length"):
        return f"{call.x()}.flip(0)"
    return f"{call.helper('reverse_sequence')}({call.x()}, {call.ints(1)})"


@converts("SequenceLast")
def sequence_last(call: TorchCall) -> Converted:
    axis = call.axis(default=0)
    if not call.flag("use_sequence_length"):
        return f"{call.x()}.select({axis}, -1)"
    x = f"{call.x()}.transpose(0, 1)" if axis else call.x()
    return f"{x}[{call.ints(1)} - 1, torch.arange({x}.shape[1], device={call.x()}.device)]"


@converts("_mxtrain_cross_entropy")
def cross_entropy(call: TorchCall) -> Converted:
    made = f"{call.helper('cross_entropy_of_tokens')}({call.x()}, {call.x(1)})"
    return [f"{made}[0]", f"{made}[1]"]


@converts("RNN")
def recurrent(call: TorchCall) -> Converted:
    """Gates, their order and both biases are those of PyTorch."""
    mode, units, layers = call.text("mode"), call.integer("state_size"), call.integer("num_layers", 1)
    if (
        mode not in RECURRENT
        or call.integer("projection_size")
        or call.flag("use_sequence_length")
        or call.text("lstm_state_clip_min")
    ):
        raise call.unsupported("with a projection, lengths or clipped states")
    parameters: Dict[str, Entry] = {}
    for entry, name in packed_parameters(call, call.entries[1]).items():
        own = name.rpartition(".")[2]
        # Layers of mxtrain have one layer and direction, and do not number them.
        parameters[torch_name(own if own[:1] in "lr" else f"l0_{own}")] = entry
    per_layer = (2 if call.flag("bidirectional") else 1) * 4
    if len(parameters) != per_layer * layers or not all(
        re.match(r"(weight|bias)_[ih]h_l\d", one) for one in parameters
    ):
        raise call.unsupported("whose parameters are one vector")
    options = optional(
        num_layers=(LayerSize("num_layers", layers), 1),
        bidirectional=(call.flag("bidirectional"), False),
        nonlinearity=("relu" if mode == "rnn_relu" else "tanh", "tanh"),
        dropout=(call.number_of("p") if layers > 1 else 0.0, 0.0),
    )
    width = call.dims()[2][0]
    code = call.construct(RECURRENT[mode], LayerSize("input_size", width), LayerSize("hidden_size", units), **options)
    states = [call.x(index) for index in (2, 3)[: 2 if mode == "lstm" else 1]]
    state = f"({', '.join(states)})" if len(states) > 1 else states[0]
    results = "{0}, ({1}, {2})" if len(states) > 1 else "{0}, {1}"
    return Layer(code, parameters, argument=f"{call.x()}, {state}", results=results)


def packed_parameters(call: TorchCall, entry: Entry) -> Dict[Entry, str]:
    """Returns the parameters of which a flat vector is made: tensor -> structural name."""
    source = call._scope.source
    node = source.graph.nodes[entry[0]]
    if entry in source.structural:
        return {entry: source.structural[entry]}
    if node["op"] not in PACKED:
        raise call.unsupported("whose parameters are computed")
    if node["op"] == "Dropout":
        call.remark("PyTorch's recurrent layers have no dropout of their weights, which the run had")
    found: Dict[Entry, str] = {}
    for inner in node["inputs"]:
        found.update(packed_parameters(call, (inner[0], inner[1])))
    return found
