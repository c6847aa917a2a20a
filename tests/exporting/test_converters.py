"""Converters against MXNet: operators that the networks of the contract do not have in every form."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import onnxruntime
import pytest

from mxtrain.engine.backend import mx
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Input, OnnxGraph, ShapeNotExpressible, Unsupported, evaluate
from mxtrain.exporting.standalone import relative_error

X = mx.sym.var("x")


def error_of(symbol: Any, dims: Any, parameters: Dict[str, np.ndarray], x: Any = None) -> float:
    """The largest relative error of ONNX Runtime against MXNet, for a batch that no probe has."""
    probes = [{"batch": 5, "length": 13}, {"batch": 11, "length": 9}, {"batch": 23, "length": 6}]
    graph = OnnxGraph(symbol, parameters, {"x": Input(dims)}, probes, CONVERTERS)
    names = [f"y{number}" for number in range(len(symbol.list_outputs()))]
    session = onnxruntime.InferenceSession(graph.model(names, {}).SerializeToString())
    sizes = {"batch": 3, "length": 7}
    if x is None:
        x = np.random.default_rng(0).normal(size=[sizes.get(dim, dim) for dim in dims]).astype(np.float32)
    found = session.run(names, {"x": x})
    expected = evaluate(symbol, {**parameters, "x": x})
    return max(map(relative_error, found, expected))


@pytest.mark.parametrize("mode, gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)])
def test_recurrent_layers_in_both_directions(mode: str, gates: int) -> None:
    units, width, layers = 3, 4, 2
    size = 2 * gates * units * (width + units + 2) + 2 * gates * units * (2 * units + units + 2)
    draw = np.random.default_rng(1)
    parameters = {"w": draw.normal(size=size).astype(np.float32) * 0.5}
    state = mx.sym.zeros(shape=(2 * layers, 3, units))
    states = {"state": state, **({"state_cell": state} if mode == "lstm" else {})}
    symbol = mx.sym.RNN(
        X,
        mx.sym.var("w"),
        **states,
        state_size=units,
        num_layers=layers,
        bidirectional=True,
        mode=mode,
        state_outputs=True,
    )
    x = draw.normal(size=(7, 3, width)).astype(np.float32)
    graph = OnnxGraph(symbol, parameters, {"x": Input((7, 3, width))}, [{}], CONVERTERS)
    names = [f"y{number}" for number in range(len(symbol.list_outputs()))]
    session = onnxruntime.InferenceSession(graph.model(names, {}).SerializeToString())
    for one, other in zip(session.run(names, {"x": x}), evaluate(symbol, {**parameters, "x": x})):
        assert relative_error(one, other) < 1e-5


CASES = {
    "reshape codes": (mx.sym.reshape(X, shape=(0, -4, 2, -1, -2)), ("batch", 6, "length")),
    "reshape merges": (mx.sym.reshape(X, shape=(-3, 0)), ("batch", "length", 4)),
    "arange like": (
        mx.sym.broadcast_add(X, mx.sym.reshape(mx.sym.contrib.arange_like(X, axis=1), shape=(1, -1))),
        ("batch", "length"),
    ),
    "slice backwards": (mx.sym.slice(X, begin=(None, None), end=(None, None), step=(1, -2)), ("batch", "length")),
    "pooling, full": (
        mx.sym.Pooling(
            X, kernel=(3, 3), stride=(2, 2), pool_type="avg", pooling_convention="full", count_include_pad=False
        ),
        ("batch", 2, 8, 8),
    ),
    "adaptive pooling": (mx.sym.contrib.AdaptiveAvgPooling2D(X, output_size=(3, 5)), ("batch", 2, 7, 8)),
    "pick": (mx.sym.pick(X, mx.sym.argmax(X, axis=1), axis=1), ("batch", "length")),
    "elu": (mx.sym.LeakyReLU(X, act_type="gelu") + mx.sym.LeakyReLU(X, act_type="elu"), ("batch", 4)),
    "norm": (mx.sym.L2Normalization(X, mode="channel"), ("batch", 4, "length")),
    "dot of many axes": (mx.sym.dot(mx.sym.transpose(X, axes=(2, 1, 0)), X), ("batch", 4, 3)),
    "comparison": (mx.sym.broadcast_greater(X, mx.sym.mean(X, axis=1, keepdims=True)) * (X != 0), ("batch", 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    symbol, dims = CASES[name]
    assert error_of(symbol, dims, {}) < 1e-5


def test_batch_norm_with_fixed_gamma_ignores_the_array() -> None:
    symbol = mx.sym.BatchNorm(X, fix_gamma=True, name="n")
    values = {"n_gamma": 7.0, "n_beta": 0.5, "n_moving_mean": 0.2, "n_moving_var": 2.0}
    parameters = {name: np.full(4, value, np.float32) for name, value in values.items()}
    # MXNet itself writes 1 into gamma, so each side has its own copy.
    assert error_of(symbol, ("batch", 4, 3, 3), parameters) < 1e-5


def test_suppression_is_within_each_class() -> None:
    """Two boxes of one class cover each other, and the same box of another class stays."""
    box = [0.0, 0.0, 10.0, 10.0]
    rows = [[0, 0.9, *box], [0, 0.8, 0, 0, 10, 9], [1, 0.7, *box], [0, 0.6, 20, 20, 30, 30], [1, 0.001, 50, 50, 60, 60]]
    x = np.array([rows, rows[::-1]], np.float32)
    options = {"overlap_thresh": 0.5, "valid_thresh": 0.01, "topk": 5, "coord_start": 2, "score_index": 1}
    by_class = mx.sym.contrib.box_nms(X, id_index=0, **options)
    assert error_of(by_class, ("batch", 5, 6), {}, x) == 0
    assert error_of(mx.sym.contrib.box_nms(X, **options), ("batch", 5, 6), {}, x) == 0
    kept = evaluate(by_class, {"x": x})[0][0, :, 1]
    np.testing.assert_allclose(kept, [0.9, 0.7, 0.6, -1, -1])  # the case is what its name says


def test_operator_without_conversion_is_named_with_its_layer() -> None:
    with mx.AttrScope(__layer__="features.3"):
        symbol = mx.sym.arcsin(X, name="odd")
    with pytest.raises(Unsupported, match=r"operator arcsin \(odd, in layer 'features.3'\).*Replace the layer"):
        error_of(symbol, ("batch", 4), {})


def test_network_of_one_length_takes_no_other() -> None:
    symbol = mx.sym.FullyConnected(X, num_hidden=2, name="d", no_bias=True)
    with pytest.raises(ShapeNotExpressible):
        error_of(symbol, ("batch", "length"), {"d_weight": np.ones((2, 13), np.float32)})
