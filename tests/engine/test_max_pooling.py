"""The gradient of max pooling goes to the maxima: of views, in graphs, loops and branches, and in inference mode."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.engine.max_pooling import has_max_pooling, inference_in_training_mode, pooled_inputs

SHAPE = (4, 8, 16)
DATA = np.random.RandomState(0).randn(*SHAPE).astype(np.float32)
EVERY = slice(None)
HEAD = np.random.RandomState(1).randn(4, 8, 8).astype(np.float32)


def pool(F, x):
    return F.Pooling(x, kernel=(2,), stride=(2,), pool_type="max")


def gradient_at_maxima(rows=EVERY):
    """The gradient of the sum of HEAD times the maxima of pairs."""
    pairs = DATA.reshape(4, 8, 8, 2)
    gradient = np.zeros_like(pairs)
    np.put_along_axis(gradient, pairs.argmax(-1)[..., None], HEAD[..., None], -1)
    kept = np.zeros_like(pairs)
    kept[rows] = gradient[rows]
    return kept.reshape(SHAPE)


def gradient_of(function, rows=EVERY, train_mode=True):
    """Returns the gradient of the sum of HEAD times the outputs. Fills memory with other numbers before."""
    nd.full((4, 8, 8), 123456789, dtype="int32").wait_to_read()
    x = nd.array(DATA.reshape(4, 128))
    x.attach_grad()
    with autograd.record(train_mode=train_mode):
        y = function(x)
    y.backward(nd.array(HEAD[rows]), train_mode=train_mode)
    return x.grad.asnumpy().reshape(SHAPE)


def copied(x):
    return nd.reshape(x, SHAPE)


VIEWS = {
    "reshape of an input": (lambda x: x.reshape(SHAPE), EVERY),
    "reshape of an output": (lambda x: (x * 1).reshape((-1, 8, 16)), EVERY),
    "slice of rows": (lambda x: copied(x)[1:3], slice(1, 3)),
    "slice from the first row": (lambda x: copied(x)[:2], slice(0, 2)),
    "index": (lambda x: nd.reshape(x, (1, *SHAPE))[0], EVERY),
    "iteration": (lambda x: next(iter(nd.reshape(x, (1, *SHAPE)))), EVERY),
    "cast to the same type": (lambda x: copied(x)[1:3].astype("float32", copy=False), slice(1, 3)),
    "slice of a view": (lambda x: x.reshape(SHAPE)[1:3], slice(1, 3)),
    "no view": (copied, EVERY),
}


class Pools(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return pool(F, x)


class PoolsInBranch(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.contrib.cond(F.ones((1,)), lambda: pool(F, x), lambda: pool(F, -x))


class PoolsInLoop(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        outputs, _ = F.contrib.foreach(lambda row, _: (pool(F, row), []), F.expand_dims(x, 1), [])
        return F.squeeze(outputs, axis=1)


HYBRID = (None, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True})


@pytest.mark.parametrize("view, rows", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("hybrid", HYBRID, ids=str)
def test_gradient_of_a_view(view, rows, hybrid):
    block = Pools()
    if hybrid is not None:
        block.hybridize(**hybrid)
    for _ in range(3):
        np.testing.assert_array_equal(gradient_of(lambda x: block(view(x)), rows), gradient_at_maxima(rows))


@pytest.mark.parametrize("kind", [PoolsInBranch, PoolsInLoop])
@pytest.mark.parametrize("hybrid", HYBRID[:3], ids=str)
def test_gradient_of_a_view_in_branches_and_loops(kind, hybrid):
    block = kind()
    if hybrid is not None:
        block.hybridize(**hybrid)
    for _ in range(3):
        found = gradient_of(lambda x: block((x * 1).reshape(SHAPE)))
        np.testing.assert_array_equal(found, gradient_at_maxima())


def test_gradient_of_a_view_of_mxnets_numpy_arrays():
    def function(x):
        view = copied(x).as_np_ndarray()[1:3]
        return mx.npx.pooling(view, kernel=(2,), stride=(2,), pool_type="max").as_nd_ndarray()

    np.testing.assert_array_equal(gradient_of(function, slice(1, 3)), gradient_at_maxima(slice(1, 3)))


def windows_of(shape, kernel):
    """The index of each window of pooling with equal kernel and stride, without the first two axes."""
    return itertools.product(*(range(0, size, kernel) for size in shape[2:]))


@pytest.mark.parametrize("shape", [(2, 3, 6), (2, 3, 6, 4), (2, 3, 4, 6, 4)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize("kind", ["max", "avg", "sum", "lp"])
@pytest.mark.parametrize("is_global", [False, True])
def test_gradient_of_pooling_of_a_view_is_that_of_its_copy(shape, kind, is_global):
    """Compares the gradient of a view with that of a copy, and of maxima with NumPy, too."""
    ndim = len(shape) - 2
    values = np.random.RandomState(2).uniform(0.1, 1, shape).astype(np.float32)
    found = []
    for view in (lambda x: x.reshape(shape), lambda x: x.reshape(shape) + 0):
        x = nd.array(values.reshape(shape[0], -1))
        x.attach_grad()
        with autograd.record():
            y = nd.Pooling(view(x), (2,) * ndim, kind, global_pool=is_global, stride=(2,) * ndim, p_value=2)
        y.backward()
        found.append(x.grad.asnumpy().reshape(shape))
    np.testing.assert_array_equal(*found)
    if kind == "max":
        expected = np.zeros_like(values)
        for row, corner in itertools.product(np.ndindex(shape[:2]), windows_of(shape, 2)):
            window = (*row, *(slice(begin, begin + 2) for begin in corner))
            part = values[row] if is_global else values[window]
            expected[row if is_global else window] = part == part.max()
        np.testing.assert_array_equal(found[0], expected)


class Norms(gluon.HybridBlock):
    """Layers that compute otherwise in training, around max pooling."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout = gluon.nn.BatchNorm(in_channels=8), gluon.nn.Dropout(0.5)

    def hybrid_forward(self, F, x):
        return self.dropout(pool(F, self.norm(x)))


@pytest.mark.parametrize("hybrid", HYBRID, ids=str)
def test_gradient_in_inference_mode(hybrid):
    """Statistics do not change, and nothing is dropped, as in inference."""
    block = Norms()
    block.initialize()
    block.norm.running_var.set_data(nd.full((8,), 4 - 1e-5))
    if hybrid is not None:
        block.hybridize(**hybrid)
    for _ in range(2):
        found = gradient_of(lambda x: block(copied(x)), train_mode=False)
        np.testing.assert_allclose(found, gradient_at_maxima() / 2, rtol=1e-5)
    np.testing.assert_allclose(block.norm.running_var.data().asnumpy(), 4 - 1e-5)
    with autograd.record(train_mode=False):
        recorded = block(nd.array(DATA))
    np.testing.assert_array_equal(recorded.asnumpy(), block(nd.array(DATA)).asnumpy())


def changed(symbol, op, attribute):
    """The attribute of all nodes of an operator, after the change; MXNet accepts the changed graph."""
    graph = inference_in_training_mode(json.loads(symbol.tojson()))
    mx.sym.load_json(graph)
    return [node["attrs"].get(attribute) for node in json.loads(graph)["nodes"] if node["op"] == op]


def test_graphs_in_training_mode_compute_inference():
    x = mx.sym.var("x")
    contrib = mx.sym.contrib
    norms = {"BatchNorm": mx.sym, "_contrib_SyncBatchNorm": contrib}
    for op, module in norms.items():
        options = {"key": "a", "ndev": 1} if "Sync" in op else {}
        norm = getattr(module, op.replace("_contrib_", ""))(x, *map(mx.sym.var, "abcd"), **options)
        assert changed(norm, op, "use_global_stats") == ["True"]
    recurrent = mx.sym.RNN(x, *map(mx.sym.var, "whc"), state_size=2, num_layers=2, mode="lstm", p=0.5)
    assert changed(recurrent, "RNN", "p") == ["0"]
    assert changed(mx.sym.Dropout(mx.sym.Dropout(x, p=0.5), p=0.5, mode="always"), "Dropout", "p") == ["0", "0.5"]


def test_inference_of_branches_in_training_mode():
    x = mx.sym.var("x")
    branch = mx.sym.contrib.cond(mx.sym.sum(x) > 0, lambda: mx.sym.Dropout(x, p=0.5), lambda: x)
    assert '"p": "0"' in inference_in_training_mode(json.loads(branch.tojson()))


def test_max_pooling_in_a_branch_is_found():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    branch = mx.sym.contrib.cond(mx.sym.sum(y) > 0, lambda: pool(mx.sym, x), lambda: x)
    graph = json.loads(branch.tojson())
    inputs = [node["name"] for node in graph["nodes"] if node["op"] == "null"]
    assert has_max_pooling(graph) and "x" in [inputs[position] for position in pooled_inputs(graph)]


def test_training_of_a_graph_with_max_pooling_keeps_dropout():
    graph = nd.CachedOp(mx.sym.Dropout(pool(mx.sym, mx.sym.var("x")), p=0.9))
    with autograd.record():
        assert not graph(nd.array(np.abs(DATA) + 1)).asnumpy().all()
    other = nd.CachedOp(mx.sym.exp(mx.sym.var("x")))
    with autograd.record(train_mode=False):
        other(nd.ones(3))
    assert graph._recorded_inference is None and other._recorded_inference is None


def test_only_inputs_that_max_pooling_reads_are_copied():
    x, y, z = (mx.sym.var(name) for name in "xyz")
    read = mx.sym.Pooling(y, kernel=(2,))
    average = mx.sym.Pooling(z, kernel=(2,), pool_type="avg")
    graph = json.loads((pool(mx.sym, mx.sym.exp(x)) + read + average).tojson())
    inputs = [node["name"] for node in graph["nodes"] if node["op"] == "null"]
    assert [inputs[position] for position in pooled_inputs(graph)] == ["y"]


def test_other_pooling_reads_its_input_directly(monkeypatch):
    """A copy costs time, so nothing is copied for averages, or if nothing is recorded."""
    copies = []
    monkeypatch.setattr(nd, "identity", lambda array: copies.append(array) or array)
    x = nd.array(DATA)
    graph = nd.CachedOp(pool(mx.sym, mx.sym.var("x")))
    pool(nd, x)
    graph(x)
    assert graph._recorded_inference is None
    with autograd.record():
        nd.Pooling(x, (2,), "avg")
        nd.Pooling(x, kernel=(2,), pool_type="sum")
    assert not copies
    with autograd.record():
        nd.Pooling(x, (2,))
        graph(x)
    assert len(copies) == 2
