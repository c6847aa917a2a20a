"""The result of a graph in inference does not depend on earlier contents of its memory."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.model.networks.bilstm import BiLSTMLayer

STATIC = (("static_alloc", True), ("static_shape", True))


def test_inference_of_recurrent_graphs_has_the_same_bits_each_time_one_is_built() -> None:
    block = BiLSTMLayer(8, 8)
    block.initialize(mx.init.Xavier())
    x_TBI, length_B = nd.array(np.random.RandomState(0).randn(12, 24, 8)), nd.full((24,), 9)
    expected = block(x_TBI, length_B).asnumpy()  # without a graph MXNet says whether gradients are needed
    for number in range(40):
        others = [nd.ones((1 + number * size,)) for size in range(1, 4)]  # graphs lie elsewhere
        block.hybridize(static_alloc=True, static_shape=True)
        assert block(x_TBI, length_B).asnumpy().tobytes() == expected.tobytes(), number
        del others


def test_graphs_that_recur_still_train_as_before() -> None:
    block = BiLSTMLayer(8, 8)
    block.initialize(mx.init.Xavier())
    x_TBI, length_B = nd.array(np.random.RandomState(0).randn(12, 24, 8)), nd.full((24,), 9)
    found = []
    for _ in range(2):
        with autograd.record():
            y_TBU = block(x_TBI, length_B)
        y_TBU.backward()
        arrays = [y_TBU, *(parameter.grad() for parameter in block.collect_params().values())]
        found.append([array.asnumpy().tobytes() for array in arrays])
        block.hybridize(static_alloc=True, static_shape=True)
        block(x_TBI, length_B)
    assert found[0] == found[1]


def test_only_graphs_that_recur_infer_without_static_shapes() -> None:
    x = mx.sym.var("x")
    recurrent = mx.sym.RNN(x, *map(mx.sym.var, "whc"), state_size=2, num_layers=1, mode="lstm")
    assert mx.nd.CachedOp(mx.sym.exp(x), STATIC)._inference is None
    assert mx.nd.CachedOp(recurrent, STATIC)._inference is not None
    assert mx.nd.CachedOp(recurrent, STATIC[:1])._inference is None


def rounded(x: mx.sym.Symbol) -> mx.sym.Symbol:
    return mx.sym.amp_cast(mx.sym.amp_cast(x, dtype="float16"), dtype="float32")


@pytest.mark.parametrize("train_mode", [True, False])
@pytest.mark.parametrize("kind", ["sum", "pooling", "norm"])
def test_graphs_that_are_changed_keep_the_casts_of_amp(kind: str, train_mode: bool) -> None:
    """By default, Symbol.tojson leaves them out."""
    x, y = mx.sym.var("x"), mx.sym.var("y")
    third = nd.full((2, 1, 4), 1 / 3)
    arrays, changed = [third], 0.0
    if kind == "sum":
        symbol, arrays, changed = mx.sym.elemwise_add(x, y) + rounded(x), [third, third], 2 / 3
    elif kind == "pooling":
        symbol, changed = mx.sym.Pooling(x, kernel=(1,), pool_type="max") + rounded(x), 1 / 3
    else:
        fused = mx.sym.contrib.BatchNormWithReLU.__wrapped__(mx.sym.BlockGrad(x), *map(mx.sym.var, "abcd"))
        symbol, arrays = rounded(x) + 0 * fused, [third, *(nd.ones(1) for _ in range(4))]
    third.attach_grad()
    operator = mx.nd.CachedOp(symbol)
    with autograd.record(train_mode=train_mode):
        result = operator(*arrays)
    np.testing.assert_allclose(result.asnumpy(), changed + float(np.float16(1 / 3)), rtol=1e-6)
