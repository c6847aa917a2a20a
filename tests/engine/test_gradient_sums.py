"""Gradients of arrays with grad_req="add" are added up by all operators, imperative and in graphs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.engine.gradient_sums import OVERWRITES, with_copied_inputs

SPLIT = np.linspace(-1, 1, 12).reshape(3, 4)
OPERATORS = {
    "clip": lambda F, x: F.clip(x, -0.5, 0.5),
    "method clip": lambda F, x: x.clip(-0.5, 0.5),
    "reverse": lambda F, x: F.reverse(x, axis=0),
    "flip": lambda F, x: F.flip(x, axis=0),
    "split_v2": lambda F, x: F.split_v2(x, (1, 3), axis=1)[1],
    "cumsum": lambda F, x: F.cumsum(x, axis=1),
    "mean": lambda F, x: F.mean(x, axis=1),
    "method mean": lambda F, x: x.mean(axis=1),
    "mean by name": lambda F, x: F.mean(data=x, axis=1),
    "moments": lambda F, x: F.moments(x, axes=(1,))[1],
    "boolean_mask": lambda F, x: F.contrib.boolean_mask(x, F.ones((3,))),
    "sum of two": lambda F, x: x + x * 2,
    "branch": lambda F, x: F.contrib.cond(F.ones((1,)), lambda: F.clip(x, -0.5, 0.5), lambda: x),
}


class Reads(gluon.HybridBlock):
    """Applies a function to its parameter, as own networks do."""

    def __init__(self, function):
        super().__init__()
        self._function = function
        self.weight = self.params.get("weight", shape=(3, 4))

    def hybrid_forward(self, F, x, weight):
        return F.sum(self._function(F, weight)) * F.sum(x)


@pytest.mark.parametrize("hybrid", [None, {}, {"static_alloc": True, "static_shape": True}], ids=str)
@pytest.mark.parametrize("function", OPERATORS.values(), ids=OPERATORS)
def test_gradients_of_two_batches_are_added_up(function, hybrid):
    found = {}
    for grad_req in ("write", "add"):
        block = Reads(function)
        block.initialize()
        block.weight.set_data(nd.array(SPLIT))
        block.weight.grad_req = grad_req
        if hybrid is not None:
            block.hybridize(**hybrid)
        for _ in range(2):
            with autograd.record():
                y = block(nd.ones((2,)))
            y.backward()
        found[grad_req] = block.weight.grad().asnumpy()
    assert np.abs(found["write"]).max() > 0
    np.testing.assert_allclose(found["add"], 2 * found["write"], rtol=1e-5)


DEFORMABLE = {"kernel": (2, 2), "num_filter": 2, "no_bias": True}
TRANSFORMER = {"target_shape": (3, 3), "transform_type": "affine", "sampler_type": "bilinear"}
SAMPLERS = {
    "DeformableConvolution": (
        lambda F, *a: F.contrib.DeformableConvolution(*a, **DEFORMABLE),
        [(1, 2, 3, 3), (1, 8, 2, 2), (2, 2, 2, 2)],
    ),
    "SpatialTransformer": (lambda F, *a: F.SpatialTransformer(*a, **TRANSFORMER), [(1, 2, 3, 3), (1, 6)]),
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("function, shapes", SAMPLERS.values(), ids=SAMPLERS)
def test_gradients_of_all_inputs_are_added_up(function, shapes, hybrid):
    rng = np.random.RandomState(0)
    arrays = [nd.array(rng.uniform(0.1, 0.4, shape)) for shape in shapes]
    graph = nd.CachedOp(function(mx.sym, *map(mx.sym.var, "abc"[: len(shapes)])))
    found = {}
    for grad_req in ("write", "add"):
        for array in arrays:
            array.attach_grad(grad_req)
        for _ in range(2):
            with autograd.record():
                y = graph(*arrays) if hybrid else function(nd, *arrays)
            y.backward()
        found[grad_req] = [array.grad.asnumpy() for array in arrays]
    for one, both in zip(found["write"], found["add"]):
        np.testing.assert_allclose(both, 2 * one, rtol=1e-4, atol=1e-5)


SUMS = {
    "sum": lambda F, x, y: x + y,
    "function of the sum": lambda F, x, y: F.exp(x + y),
    "sum with another operator": lambda F, x, y: x + y * 1,
    "sum of three": lambda F, x, y: x + y + x,
    "inputs": lambda F, x, y: F.Group([x, y]),
    "an input": lambda F, x, y: F.Group([F.exp(x), y]),
    "an input that is read, too": lambda F, x, y: F.Group([x * y, y]),
}


@pytest.mark.parametrize("computed", ["neither", "first", "both"])
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}], ids=str)
@pytest.mark.parametrize("function", SUMS.values(), ids=SUMS)
def test_gradients_of_graphs_with_sums_or_inputs_as_outputs(function, flags, computed):
    """Against a finite difference of the sum of all outputs; x and y are parameters or results of operators."""
    graph = nd.CachedOp(function(mx.sym, mx.sym.var("x"), mx.sym.var("y")), list(flags.items()))
    rng = np.random.RandomState(0)
    arrays = [nd.array(rng.uniform(-1, 1, (3, 4))) for _ in range(2)]

    def total(x, y):
        x, y = x if computed == "neither" else x * 1, y * 1 if computed == "both" else y
        outputs = graph(x, y)
        return sum(output.sum() for output in (outputs if isinstance(outputs, list) else [outputs]))

    step = 1e-2
    slopes = [
        float(
            (
                total(*(a + step * (n == number) for n, a in enumerate(arrays)))
                - total(*(a - step * (n == number) for n, a in enumerate(arrays)))
            ).asscalar()
        )
        / (2 * step)
        for number in (0, 1)
    ]
    for array in arrays:
        array.attach_grad("add")
    for count in (1, 2):
        with autograd.record():
            y = total(*arrays)
        y.backward()
        found = [float(array.grad.sum().asscalar()) for array in arrays]
        np.testing.assert_allclose(found, np.multiply(slopes, count), rtol=1e-3)


def test_only_inputs_of_such_operators_are_copied_in_graphs():
    """`with_copied_inputs` finds operators by these names; inputs and outputs keep their order."""
    x, y, z = (mx.sym.var(name) for name in "xyz")
    named = [
        mx.sym.clip(y, 0, 1),
        mx.sym.flip(y, axis=0),
        mx.sym.split_v2(y, (1,), axis=0),
        mx.sym.cumsum(y, axis=0),
        mx.sym.mean(y),
        mx.sym.moments(y, axes=(0,)),
        y + y,
        mx.sym.mean(y + y),
        y,
    ]
    for symbol in named:
        graph = mx.sym.Group([mx.sym.exp(x), *symbol, mx.sym.exp(y) + mx.sym.exp(z)])
        changed = mx.sym.load_json(with_copied_inputs(json.loads(graph.tojson())))
        assert changed.list_inputs() == graph.list_inputs() == ["x", "y", "z"]
        assert len(changed.list_outputs()) == len(graph.list_outputs())
        nodes = json.loads(changed.tojson())["nodes"]
        assert {node["op"] for node in nodes} - {"null"} - {"exp", "_copy"} <= set(OVERWRITES)
        (copy,) = (node for node in nodes if node["op"] == "_copy")
        assert nodes[copy["inputs"][0][0]]["name"] == "y"
    assert with_copied_inputs(json.loads((mx.sym.exp(x) * 2).tojson())) is None
    second = nd.CachedOp(mx.sym.split(x, num_outputs=2, axis=1)[1] + y)
    np.testing.assert_array_equal(second(nd.array([[1, 2]]), nd.array([[4]])).asnumpy(), [[6]])


def test_only_arrays_with_a_gradient_are_copied(monkeypatch):
    copies = []
    identity = nd.identity
    monkeypatch.setattr(nd, "identity", lambda array: copies.append(array) or identity(array))
    x, leaf = nd.ones((2, 2)), nd.ones((2, 2))
    leaf.attach_grad()
    nd.mean(leaf)
    with autograd.record():
        nd.mean(x)
        nd.clip(leaf * 2, 0, 1)
    assert not copies
    with autograd.record():
        nd.mean(leaf)
    assert len(copies) == 1
