"""Batch norm fused with ReLU: the same bits as in two operators, and statistics that readers wait for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.engine.fused_norms import FUSED, separated

BATCH = np.random.default_rng(0).normal(3, 2, (6, 4, 5, 5)).astype("float32")
FUSED_IN = {module: module.contrib.BatchNormWithReLU.__wrapped__ for module in (mx.nd, mx.sym)}


def from_a_file(**options):
    """A network as an export of another program has it."""
    x = mx.sym.var("data", dtype="float32")
    symbol = FUSED_IN[mx.sym](x, name="norm", fix_gamma=False, momentum=0.9, eps=1e-3, **options)
    assert FUSED in symbol.tojson()
    return gluon.SymbolBlock(symbol, [x])


def prepared(block, hybrid):
    block.initialize()
    block(nd.array(BATCH))
    for name, parameter in block.collect_params().items():
        parameter.set_data(nd.full(4, 0.5 if name.endswith("beta") else 1 - name.endswith("_mean")))
    if hybrid:
        block.hybridize(static_alloc=True, static_shape=True)
    return block


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("make", [lambda: gluon.nn.BatchNormReLU(epsilon=1e-3), from_a_file], ids=["layer", "file"])
def test_statistics_and_gradients_after_a_step(make, hybrid) -> None:
    """No operator in between makes the readers wait; 30 times, since the fault depends on threads."""
    mean, variance = BATCH.mean((0, 2, 3)), BATCH.var((0, 2, 3))
    for _ in range(30):
        block = prepared(make(), hybrid)
        x = nd.array(BATCH)
        x.attach_grad()
        with autograd.record():
            output = block(x)
            loss = (output * output).sum()
        loss.backward()
        values = {name: parameter.data().asnumpy() for name, parameter in block.collect_params().items()}
        (moving_mean,) = (value for name, value in values.items() if name.endswith("_mean"))
        np.testing.assert_allclose(moving_mean, 0.1 * mean, rtol=1e-4)
        (moving_variance,) = (value for name, value in values.items() if name.endswith("_var"))
        np.testing.assert_allclose(moving_variance, 0.9 + 0.1 * variance, rtol=1e-4)
    if hybrid:
        assert FUSED not in block._cached_op._sym.tojson()
    normal = (BATCH - mean[:, None, None]) / np.sqrt(variance + 1e-3)[:, None, None]
    expected = np.maximum(normal + 0.5, 0)
    np.testing.assert_allclose(output.asnumpy(), expected, rtol=1e-3, atol=1e-5)
    (shift,) = (p.grad().asnumpy() for name, p in block.collect_params().items() if name.endswith("beta"))
    np.testing.assert_allclose(shift, 2 * expected.sum((0, 2, 3)), rtol=1e-3)


@pytest.mark.parametrize("training", [False, True])
def test_the_bits_match_the_fused_operator(training) -> None:
    arrays = [nd.array(BATCH), *(nd.array(row) for row in np.random.default_rng(1).uniform(0.5, 2, (4, 4)))]
    outputs = []
    for function in (FUSED_IN[mx.nd], mx.nd.contrib.BatchNormWithReLU):
        with autograd.record(train_mode=training):
            outputs.append(function(*(array.copy() for array in arrays), fix_gamma=False).asnumpy())
    assert outputs[0].tobytes() == outputs[1].tobytes() and (outputs[0] == 0).any()


@pytest.mark.parametrize("shown", [True, 1, "True"])
def test_mean_and_variance_are_outputs(shown) -> None:
    arrays = [nd.array(BATCH), *(nd.ones(4) for _ in range(4))]
    with autograd.train_mode():
        outputs = mx.nd.contrib.BatchNormWithReLU(*arrays, output_mean_var=shown)
    assert len(outputs) == 3 and outputs[0].asnumpy().min() == 0
    np.testing.assert_allclose(outputs[1].asnumpy(), BATCH.mean((0, 2, 3)), rtol=1e-4)
    assert len(mx.sym.contrib.BatchNormWithReLU(*map(mx.sym.var, "xabcd"), output_mean_var=shown)) == 3


def test_graphs_read_the_same_values() -> None:
    """Consumers before and behind a second norm, heads of all kinds, and names and attributes of the nodes."""
    x, *rest = map(mx.sym.var, "xabcd")
    with mx.AttrScope(__layer__="0"):
        first = FUSED_IN[mx.sym](x, *rest, name="first", output_mean_var=True, fix_gamma=False)
    second = FUSED_IN[mx.sym](mx.sym.exp(-first[0]), *map(mx.sym.var, "efgh"), name="second", fix_gamma=False)
    symbol = mx.sym.Group([first[1], second + first[0], first[2]])
    graph = separated(json.loads(symbol.tojson()))
    changed = mx.sym.load_json(json.dumps(graph))
    assert FUSED not in changed.tojson() and changed.list_arguments() == symbol.list_arguments()
    assert changed.list_auxiliary_states() == symbol.list_auxiliary_states()
    nodes = {node["name"]: node for node in graph["nodes"]}
    assert nodes["first_relu"]["attrs"] == {"__layer__": "0", "act_type": "relu"}
    assert nodes["second_relu"]["attrs"] == {"act_type": "relu"} and nodes["second"]["op"] == "BatchNorm"
    values = {name: nd.array(row) for name, row in zip("abcdefgh", np.random.default_rng(2).uniform(0.5, 2, (8, 4)))}
    outputs = []
    for graph in (symbol, changed):
        given = {name: value.copy() for name, value in values.items()}
        auxiliary = {name: given.pop(name) for name in graph.list_auxiliary_states()}
        executor = graph.bind(mx.cpu(), {"x": nd.array(BATCH), **given}, aux_states=auxiliary)
        outputs.append([output.asnumpy() for output in executor.forward(is_train=True)])
    for one, other in zip(*outputs):
        np.testing.assert_array_equal(one, other)


def test_branches_are_changed_too() -> None:
    x, *rest = map(mx.sym.var, "xabcd")
    branch = mx.sym.contrib.cond(mx.sym.sum(x) > 0, lambda: FUSED_IN[mx.sym](x, *rest), lambda: x)
    assert FUSED in branch.tojson()
    changed = json.dumps(separated(json.loads(branch.tojson())))
    assert FUSED not in changed and mx.sym.load_json(changed).list_inputs() == branch.list_inputs()
