"""The backward pass behind operators whose gradient is 0 does not end the process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.engine.gradient_sums import with_copied_arrays
from mxtrain.engine.zero_gradients import COMPARISONS, ZERO_GRADIENTS, is_result

ONES = nd.ones((2, 3))
CALLS = {
    "one_hot": lambda op, x: op(x, depth=3),
    "where": lambda op, x: op(condition=x, x=nd.ones(x.shape), y=nd.zeros(x.shape)),
    "pick": lambda op, x: op(nd.ones((2, 4, 5)), x),
    "choose_element_0index": lambda op, x: op(nd.ones((2, 4, 5)), x),
    "gather_nd": lambda op, x: op(nd.ones((3, 3, 2)), indices=x),
    "scatter_nd": lambda op, x: op(nd.ones(4), x, (3, 3)),
    "broadcast_like": lambda op, x: op(nd.ones((1, 4)), x),
    "reshape_like": lambda op, x: op(nd.ones((4, 2)), x),
}


def call(path, x):
    """Calls an operator with x, of shape (2, 4), as its input whose gradient is 0."""
    operator = nd
    for name in path.split("."):
        operator = getattr(operator, name)
    if path in CALLS:
        return CALLS[path](operator, x)
    if path.startswith("_internal.") and path.endswith("_scalar"):
        return operator(x, scalar=0.5)
    is_pair = path.startswith("broadcast_") or path.partition("._")[2] in COMPARISONS
    has_two = path.endswith(("_uniform", "_normal", "_gamma", "_negative_binomial"))
    return operator(x, nd.ones(x.shape)) if is_pair or has_two else operator(x)


@pytest.mark.parametrize("path", ZERO_GRADIENTS)
def test_gradient_behind_a_layer_and_an_elementwise_operator(path):
    """The gradient is 0, and the recorded operator reads a sum, whose backward pass computes that of the others."""
    dense = gluon.nn.Dense(4, in_units=3)
    dense.initialize(mx.init.Constant(0.1))
    with autograd.record():
        y = call(path, nd.abs(dense(ONES)))
        y = y[0] if isinstance(y, list) else y
    nodes = json.loads(autograd.get_symbol(y).tojson())["nodes"]
    assert "add_n" in {node["op"] for node in nodes}
    dense.weight.grad()[:] = 7
    y.backward()
    np.testing.assert_array_equal(dense.weight.grad().asnumpy(), 0)


def test_methods_and_comparisons_of_arrays():
    dense = gluon.nn.Dense(4, in_units=3)
    dense.initialize()
    methods = {
        "round": lambda x: x.round(),
        "argmax": lambda x: x.argmax(axis=1),
        "greater": lambda x: x > 0.5,
        "less": lambda x: 0.5 > x,
        "equal": lambda x: x == x,
        "and": lambda x: nd.logical_and(x, x),
        "random": lambda x: nd.random.normal(x, x),
        "keyword": lambda x: nd.round(data=x),
    }
    for name, method in methods.items():
        with autograd.record():
            y = method(nd.sigmoid(dense(ONES)))
        y.backward()
        assert not dense.weight.grad().asnumpy().any(), name


def test_straight_through_estimator_of_an_own_block():
    """The rounded gate passes the gradient of its sigmoid."""
    gate, x = nd.array([[0.4, -0.3, 1.1]]), nd.array([[2.0, 3.0, 4.0]])
    gate.attach_grad()
    with autograd.record():
        p = nd.sigmoid(gate * 1)
        y = (nd.round(p) - nd.BlockGrad(p) + p) * x
    y.backward()
    p = 1 / (1 + np.exp(-gate.asnumpy()))
    np.testing.assert_allclose(y.asnumpy(), np.round(p) * x.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(gate.grad.asnumpy(), p * (1 - p) * x.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", ["SequenceMask", "SequenceLast", "SequenceReverse"])
def test_gradient_of_lengths_that_operators_compute(name, hybrid):
    """MXNet does not write it, so that it was what the memory held before."""

    def call(F, x, lengths):
        return getattr(F, name)(x, lengths * 2, use_sequence_length=True)

    x, lengths = nd.ones((3, 2, 4)), nd.ones(2)
    graph = nd.CachedOp(call(mx.sym, mx.sym.var("x"), mx.sym.var("lengths")))
    for array in (x, lengths):
        array.attach_grad()
    for _ in range(3):
        nd.full((2,), 12345.0).wait_to_read()
        with autograd.record():
            y = graph(x, lengths) if hybrid else call(nd, x, lengths)
        y.backward()
        assert x.grad.asnumpy().any() and not lengths.grad.asnumpy().any()
    symbol = getattr(mx.sym, name)(mx.sym.var("x"), mx.sym.var("lengths"), use_sequence_length=True)
    assert "BlockGrad" not in symbol.tojson()


def test_only_results_are_copied_while_autograd_records():
    leaf, x = nd.ones((2, 4)), nd.ones((2, 4))
    leaf.attach_grad()
    sparse = x.tostype("row_sparse")
    copies = []

    def read(operator, *arrays, **named):
        copies.clear()
        return with_copied_arrays(
            operator, autograd, lambda array: copies.append(array) or array, is_result, named.pop("only", None)
        )(*arrays, **named)

    read(nd.identity, x)
    assert not copies
    with autograd.record():
        for arguments, named, expected in (
            ((x,), {}, 1),
            ((leaf,), {}, 0),
            ((sparse,), {}, 0),
            ((), {"data": x}, 1),
            ((x,), {"out": nd.ones((2, 4))}, 1),
            ((x,), {"only": (0, "data")}, 1),
            ((), {"data": x, "only": (0, "data")}, 1),
            ((x,), {"only": (1, "rhs")}, 0),
            ((), {"data": x, "only": (1, "rhs")}, 0),
        ):
            read(nd.identity, *arguments, **named)
            assert len(copies) == expected, (arguments, named)
