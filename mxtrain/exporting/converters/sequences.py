"""Operators of sequences of different lengths, and MXNet's fused recurrent operator, layer by layer.

Source of the order of gates: ONNX's operators LSTM (i o f c) and GRU (z r h); MXNet 1.9.1, src/operator/rnn_impl.h
(i f c o; r z n).
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall


@converts("SequenceMask")
def sequence_mask(call: OperatorCall) -> str:
    if not call.flag("use_sequence_length"):
        return call.x()
    axis, rank = call.axis(default=0), call.rank()
    time, row = [1] * rank, [1] * rank
    time[axis] = row[1 - axis] = -1
    position = call.reshape(call.range_of(call.x(), axis), *time)
    length = call.reshape(call.as_ints(1), *row)
    return call.add("Where", [call.add("Less", [position, length]), call.x(), call.constant(call.number_of("value"))])


@converts("SequenceReverse")
def sequence_reverse(call: OperatorCall) -> str:
    if not call.flag("use_sequence_length"):
        return call.add("Slice", [call.x(), call.ints(-1), call.ints(-(2**31)), call.ints(0), call.ints(-1)])
    return call.add("ReverseSequence", [call.x(), call.as_ints(1)], time_axis=0, batch_axis=1)


@converts("SequenceLast")
def sequence_last(call: OperatorCall) -> str:
    axis = call.axis(default=0)
    if not call.flag("use_sequence_length"):
        last = call.add("Slice", [call.x(), call.ints(-1), call.ints(2**31 - 1), call.ints(axis)])
        return call.squeeze(last, axis)
    x = call.x() if axis else call.transpose(call.x(), 1, 0, *range(2, call.rank()))
    position = call.add("Sub", [call.as_ints(1), call.constant(1, "int64")])
    return call.add("GatherND", [x, call.unsqueeze(position, 1)], batch_dims=1)


@converts("_mxtrain_cross_entropy")
def cross_entropy(call: OperatorCall) -> Sequence[str]:
    """Computes -log p of a class, and its mean over all classes; 0 for negative classes."""
    log_p = call.add("LogSoftmax", [call.x()], axis=-1)
    label = call.as_ints(1)
    is_counted = call.cast(call.add("GreaterOrEqual", [label, call.constant(0, "int64")]), "float32")
    # GatherElements would count a negative class from the end; `weight` sets its loss to 0 afterwards.
    position = call.unsqueeze(call.add("Max", [label, call.constant(0, "int64")]), -1)
    label_log_p = call.squeeze(call.add("GatherElements", [log_p, position], axis=-1), -1)
    mean = call.add("ReduceMean", [log_p], axes=[-1], keepdims=0)
    weight = call.add("Neg", [is_counted])
    return [call.add("Mul", [one, weight]) for one in (label_log_p, mean)]


GATES: Dict[str, Tuple[int, ...]] = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_relu": (0,), "rnn_tanh": (0,)}
"""MXNet's gates in ONNX's order."""
OPERATORS = {"lstm": "LSTM", "gru": "GRU"}


class Weights(NamedTuple):
    """Weights of one layer, both directions stacked."""

    of_input: np.ndarray
    of_state: np.ndarray
    bias: np.ndarray


def unpack(flat: np.ndarray, mode: str, units: int, width: int, layers: int, directions: int) -> List[Weights]:
    """Splits MXNet's flat vector into layers: all weights by layer and direction, then all biases.

    Args:
        flat: flat vector of all parameters.
        mode: lstm, gru, rnn_relu or rnn_tanh.
        units: of the state.
        width: of the input of the first layer.
        layers, directions: their numbers.
    """
    order, position = list(GATES[mode]), 0
    rows = len(order) * units

    def read(columns: int) -> np.ndarray:
        nonlocal position
        part = flat[position : position + rows * columns].reshape(len(order), units, columns)[order]
        position += rows * columns
        return part.reshape(rows, columns)

    inputs = [width if layer == 0 else units * directions for layer in range(layers)]
    weights = [[(read(inputs[layer]), read(units)) for _ in range(directions)] for layer in range(layers)]
    weights_by_layer = []
    for layer in weights:
        # Input and state have a bias each, as in cuDNN; ONNX has both in one vector.
        biases = [np.concatenate([read(1)[:, 0], read(1)[:, 0]]) for _ in layer]
        weights_by_layer.append(Weights(*(np.stack(list(one)) for one in (*zip(*layer), biases))))
    return weights_by_layer


@converts("RNN")
def recurrent(call: OperatorCall) -> Sequence[str]:
    mode, units, layers = call.text("mode"), call.integer("state_size"), call.integer("num_layers", 1)
    if (
        mode not in GATES
        or call.integer("projection_size")
        or call.flag("use_sequence_length")
        or call.text("lstm_state_clip_min")
    ):
        raise call.unsupported("with a projection, lengths or clipped states")
    directions = 2 if call.flag("bidirectional") else 1
    options: Dict[str, object] = {"hidden_size": units, "direction": "bidirectional" if directions == 2 else "forward"}
    if mode == "gru":
        # MXNet applies the reset gate behind the product with the state, as cuDNN does; ONNX's default applies it
        # before.
        options["linear_before_reset"] = 1
    if mode == "rnn_relu":
        options["activations"] = ["Relu"] * directions
    x, states = call.x(), [call.x(index) for index in (2, 3)[: 2 if mode == "lstm" else 1]]
    ends: List[List[str]] = []
    for number, layer in enumerate(unpack(call.value(1), mode, units, call.dims()[2][0], layers, directions)):
        begin, end = call.ints(number * directions), call.ints((number + 1) * directions)
        initial = [call.add("Slice", [state, begin, end, call.ints(0)]) if layers > 1 else state for state in states]
        weights = [call.graph.constant(one) for one in layer]
        outputs = call.add_several(OPERATORS.get(mode, "RNN"), [x, *weights, "", *initial], 1 + len(initial), **options)
        x = call.reshape(call.transpose(outputs[0], 0, 2, 1, 3), 0, 0, units * directions)
        ends.append(outputs[1:])
    return [x, *(column[0] if layers == 1 else call.add("Concat", column, axis=0) for column in zip(*ends))]
