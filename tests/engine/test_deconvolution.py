"""Deconvolution with a weight that other operators compute equals MXNet's own with a parameter."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError

OPTIONS = {
    "line": ((2, 4, 6), {"kernel": (3,), "num_filter": 3}),
    "line, stride": ((2, 4, 6), {"kernel": (4,), "stride": (3,), "pad": (1,), "num_filter": 3}),
    "image": ((2, 4, 5, 3), {"kernel": (3, 2), "num_filter": 3, "no_bias": False}),
    "adj": ((2, 4, 5, 3), {"kernel": (3, 3), "stride": (3, 2), "adj": (1, 0), "pad": (2, 1), "num_filter": 3}),
    "groups": ((2, 4, 5, 3), {"kernel": (3, 3), "stride": (2, 2), "num_group": 2, "num_filter": 6, "no_bias": False}),
    "dilate": ((2, 4, 5, 4), {"kernel": (3, 2), "dilate": (2, 1), "stride": (2, 1), "pad": (1, 0), "num_filter": 3}),
    "pad beyond the kernel": ((2, 4, 5, 5), {"kernel": (1, 2), "pad": (1, 2), "num_filter": 3}),
    "volume": ((2, 4, 3, 2, 3), {"kernel": (2, 2, 2), "stride": (2, 1, 2), "num_filter": 3}),
}


def gradients(shape, options, compute, flags):
    """Returns the output, and the gradients of input, weight and bias; `compute` makes the weight from a parameter."""
    rng = np.random.RandomState(0)
    channels, groups = shape[1], options.get("num_group", 1)
    weight = (channels, options["num_filter"] // groups, *options["kernel"])
    bias = [] if options.get("no_bias", True) else [(options["num_filter"],)]
    arrays = [nd.array(rng.uniform(-1, 1, size)) for size in (shape, weight, *bias)]
    for array in arrays:
        array.attach_grad()

    def call(F, x, w, *b):
        return F.Deconvolution(x, compute(F, w), *b, **options)

    if flags is not None:
        graph = nd.CachedOp(call(mx.sym, *map(mx.sym.var, "xwb"[: len(arrays)])), list(flags.items()))
    with autograd.record():
        y = call(nd, *arrays) if flags is None else graph(*arrays)
        head = nd.array(rng.uniform(-1, 1, y.shape))
    y.backward(head)
    return [y.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


@pytest.mark.parametrize("flags", [None, {}, {"static_alloc": True, "static_shape": True}], ids=str)
@pytest.mark.parametrize("shape, options", OPTIONS.values(), ids=OPTIONS)
def test_weight_that_operators_compute(shape, options, flags):
    expected = gradients(shape, options, lambda F, w: w, None)
    found = gradients(shape, options, lambda F, w: 2 * (w / 2), flags)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_block_with_a_normalised_weight():
    """Each filter has length 1, so the weight's gradient is orthogonal to the weight."""

    class Normalised(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(2, 3, 3, 3), init=mx.init.Normal(1))

        def hybrid_forward(self, F, x, weight):
            weight = F.broadcast_div(weight, F.norm(weight, axis=(1, 2, 3), keepdims=True))
            return F.Deconvolution(x, weight, kernel=(3, 3), num_filter=3, name="fwd")

    block = Normalised()
    block.initialize()
    for hybrid in (False, True):
        block.hybridize(hybrid)
        with autograd.record():
            y = (block(nd.ones((1, 2, 4, 4))) ** 2).sum()
        y.backward()
        weight, gradient = (array.asnumpy().reshape(2, -1) for array in (block.weight.data(), block.weight.grad()))
        assert np.abs(gradient).max() > 1
        np.testing.assert_allclose((weight * gradient).sum(1), 0, atol=1e-3)


def test_other_weights_use_the_operator():
    """Parameters, constants and calls that nothing records."""
    x, weight = nd.ones((1, 2, 4)), nd.ones((2, 3, 2))

    def operators(*arrays):
        y = nd.Deconvolution(*arrays, kernel=(2,), num_filter=3)
        return autograd.get_symbol(y).tojson().count('"op": "Deconvolution"')

    x.attach_grad()
    with autograd.record():
        assert operators(x, weight * 1) == operators(x, weight) == operators(x, weight) == 1
        weight.attach_grad()
        assert operators(x, weight) == 1 and operators(x, weight * 1) == 0
        computed = weight * 1
    nd.Deconvolution(x, computed, kernel=(2,), num_filter=3, target_shape=(5,)).wait_to_read()
    with autograd.record(), pytest.raises(ConfigError, match="Use pad and adj instead of target_shape"):
        nd.Deconvolution(x, weight * 1, kernel=(2,), num_filter=3, target_shape=(5,))
    graph = mx.sym.Deconvolution(mx.sym.var("x"), mx.sym.var("w"), kernel=(2,), num_filter=3)
    assert '"op": "Deconvolution"' in graph.tojson()
    named = mx.sym.Deconvolution(mx.sym.var("x"), mx.sym.var("w") * 2, kernel=(2,), num_filter=3, name="fwd")
    assert named.list_outputs() == ["fwd_output"]
