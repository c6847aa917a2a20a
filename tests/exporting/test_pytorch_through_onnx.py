"""Networks that onnx2torch makes of their ONNX graph."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Dict

import numpy as np
import pytest

from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError
from mxtrain.exporting.graph import Input, Unsupported, evaluate
from mxtrain.exporting.pytorch.through_onnx import NETWORK_ONNX, GraphConversion, OnnxSource, source_through_onnx

PROBES = [{"batch": 5}, {"batch": 11}, {"batch": 23}]
REASON = Unsupported("export: the operator Flip (flip0, in layer 'a') has no conversion to PyTorch. Replace it.")
draw = np.random.default_rng(3)
ARRAYS: Dict[str, np.ndarray] = {
    name: draw.uniform(0.5, 1, shape).astype(np.float32)
    for name, shape in {
        "weight": (4, 4),
        "bias": (4,),
        "gamma": (4,),
        "beta": (4,),
        "mean": (4,),
        "variance": (4,),
        "scale": (1, 4),
    }.items()
}
ARRAYS["scale"] *= -1
ARRAYS["beta"][:] = ARRAYS["bias"][:] = 0  # equal arrays are told apart


def symbol_of(name: str) -> Any:
    """Small graphs; "shared": a weight that two layers read."""
    x, weight, bias, scale = map(mx.sym.var, ("x", "weight", "bias", "scale"))
    dense = mx.sym.FullyConnected(x, weight, bias, num_hidden=4, flatten=False)
    statistics = [mx.sym.var(one) for one in ("gamma", "beta", "mean", "variance")]
    return {
        "blocked": lambda: mx.sym.broadcast_mul(dense, mx.sym.BlockGrad(dense)),
        "frozen": lambda: mx.sym.BatchNorm(dense, *statistics, fix_gamma=False, use_global_stats=True, momentum=0.7),
        "fixed": lambda: mx.sym.BatchNorm(dense, *statistics, fix_gamma=True),
        "shared": lambda: mx.sym.FullyConnected(mx.sym.tanh(dense), weight, bias, num_hidden=4, flatten=False),
        "lost": lambda: mx.sym.broadcast_mul(dense, mx.sym.exp(scale)),
        "changed": lambda: mx.sym.broadcast_mul(dense, mx.sym.abs(scale)),
    }[name]()


def converted(name: str) -> GraphConversion:
    return GraphConversion().convert(symbol_of(name), ARRAYS, {"x": Input(("batch", 4))}, PROBES)


def source_of(name: str) -> OnnxSource:
    structural = {one: one for one in ARRAYS}
    return source_through_onnx(symbol_of(name), ARRAYS, {"x": Input(("batch", 4))}, PROBES, structural, REASON)


def test_missing_onnx2torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(ConfigError, match=r"the operator Flip .* Its ONNX graph needs the package onnx2torch") as error:
        source_of("blocked")
    assert "pip install 'torch>=2' 'onnx2torch>=1.5.15,<2'" in str(error.value)


def test_weights_stay_whole_and_stopped_gradients_are_named() -> None:
    conversion = converted("blocked")
    tensors = {tensor.name for tensor in conversion.model.graph.initializer}
    assert {"weight", "bias"} <= tensors and "weight_T" not in tensors
    (name,) = conversion.modules(conversion.detached)
    assert next(node.op_type for node in conversion.model.graph.node if node.name == name) == "Identity"
    assert conversion.frozen == []


def test_frozen_batch_normalisations_are_named_and_keep_their_momentum() -> None:
    conversion = converted("frozen")
    (name,) = conversion.modules(conversion.frozen)
    node = next(node for node in conversion.model.graph.node if node.name == name)
    assert node.op_type == "BatchNormalization"
    assert {one.name: one.f for one in node.attribute}["momentum"] == pytest.approx(0.7)
    assert converted("fixed").frozen == []


BOXES: Any = {"x": Input(("batch", 6, 6))}


def boxes_symbol() -> Any:
    """Suppressed boxes, which converters for onnxruntime write with operators that onnx2torch has not."""
    x = mx.sym.var("x")
    options = {"id_index": 0, "score_index": 1, "coord_start": 2, "topk": 5}
    row_B = mx.sym.reshape(mx.sym.slice(x, begin=(None, 0, 2), end=(None, 1, 3)), shape=(-1,)) * 10 - 5
    return mx.sym.Group([mx.sym.contrib.box_nms(x, **options), x >= 3, x <= 3, mx.sym.take(x, row_B)])


def boxes() -> np.ndarray:
    draw = np.random.default_rng(0)
    row_BN6 = draw.uniform(0, 4, (5, 6, 6)).astype(np.float32)
    row_BN6[..., 0] = draw.integers(0, 3, (5, 6))
    row_BN6[..., 1] /= 4
    row_BN6[..., 4:] += row_BN6[..., 2:4]
    row_BN6[0, 0], row_BN6[1, 2] = 3, -1  # an empty row
    return row_BN6


def test_graph_without_operators_that_onnx2torch_lacks() -> None:
    import onnxruntime

    model = GraphConversion().convert(boxes_symbol(), {}, BOXES, PROBES).model
    assert not {node.op_type for node in model.graph.node} & {"OneHot", "GatherND", "GreaterOrEqual", "LessOrEqual"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(session.run(None, {"x": boxes()}), evaluate(boxes_symbol(), {"x": boxes()})):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_boxes_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    onnx2torch = pytest.importorskip("onnx2torch")
    network = onnx2torch.convert(GraphConversion().convert(boxes_symbol(), {}, BOXES, PROBES).model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx2torch indexes tensors with lists
        found = network(torch.tensor(boxes()))
    for one, other in zip(found, evaluate(boxes_symbol(), {"x": boxes()})):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name, trained", [("blocked", 2), ("frozen", 4), ("fixed", 3), ("shared", 2)])
def test_network_computes_and_learns_as_mxnet(name: str, trained: int, tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    from mxtrain.exporting.pytorch.proof import load_module

    source = source_of(name)
    (tmp_path / "model.py").write_text(source.code)
    (tmp_path / NETWORK_ONNX).write_bytes(source.model.SerializeToString())
    network = load_module(tmp_path / "model.py").Network().train()
    state = {path: ARRAYS[own] for own, path in source.names.items()}
    network.load_state_dict({key: torch.tensor(one) for key, one in {**source.extra, **state}.items()})
    parameters = {path: one for path, one in network.named_parameters() if one.requires_grad}
    assert len(parameters) == trained
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = network(torch.tensor(x))
    found.square().sum().backward()
    values = {key: mx.nd.array(value) for key, value in {**ARRAYS, "x": x}.items()}
    symbol = symbol_of(name)
    for one in symbol.list_arguments():
        values[one].attach_grad()
    with mx.autograd.record():
        expected = mx.nd.CachedOp(symbol)(*(values[one] for one in symbol.list_inputs()))
        loss = mx.nd.square(expected).sum()
    loss.backward()
    np.testing.assert_allclose(found.detach().numpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
    for own, path in source.names.items():
        if path in parameters:
            gradient = values[own].grad.asnumpy()
            np.testing.assert_allclose(parameters[path].grad.numpy(), gradient, rtol=1e-4, atol=1e-5)
    assert {own for own, path in source.names.items() if path in parameters} >= {"weight", "bias"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lost", "changed"])
def test_parameter_that_is_no_tensor_of_the_graph_is_refused(name: str) -> None:
    pytest.importorskip("onnx2torch")
    with pytest.raises(Unsupported, match="Flip .* and in its ONNX graph scale is no tensor that could be trained"):
        source_of(name)


@pytest.mark.slow
def test_operators_of_neither_keep_the_first_reason() -> None:
    pytest.importorskip("onnx2torch")
    x = mx.sym.var("x")
    inputs: Any = {"x": Input(("batch", 4, 4, 4))}
    with pytest.raises(Unsupported, match="^export: the operator Flip .* Replace it"):
        source_through_onnx(mx.sym.Correlation(x, x), {}, inputs, PROBES, {}, REASON)
    with pytest.raises(Unsupported, match="Flip .* and onnx2torch does not convert its ONNX graph: .*SpaceToDepth"):
        source_through_onnx(mx.sym.space_to_depth(x, block_size=2), {}, inputs, PROBES, {}, REASON)
