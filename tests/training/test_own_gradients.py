"""`verify` compares the gradients of users' own blocks with finite differences, and names the block that is wrong."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import mxtrain
from mxtrain.cli.verify import show_own_gradients
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.parallel.differences import Difference, OwnGradients, Verification, WrongGradient
from mxtrain.parallel.objective import Objective
from mxtrain.terminal.console import open_console
from mxtrain.training import own_gradients
from mxtrain.training.own_gradients import compare_own_gradients, is_own
from mxtrain.types import Batch


class WrongSquare(autograd.Function):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, head):
        return self._factor * self.saved_tensors[0] * head


class Squared(gluon.Block):
    """The square of a dense layer's output, with a gradient that is `factor` / 2 times the right one."""

    def __init__(self, factor):
        super().__init__()
        self.dense, self._factor = gluon.nn.Dense(6, in_units=8), factor

    def forward(self, x):
        return WrongSquare(self._factor)(self.dense(x))


class Outer(gluon.Block):
    def __init__(self, inner, units=6):
        super().__init__()
        self.inner, self.output = inner, gluon.nn.Dense(3, in_units=units)

    def forward(self, x):
        return self.output(self.inner(x).reshape((x.shape[0], -1)))


class Function(gluon.Block):
    """A function of its input, with a parameter that nothing reads, whose gradient is added up."""

    def __init__(self, function):
        super().__init__()
        self._function = function
        self.unread = self.params.get("unread", shape=(2, 2), grad_req="add")

    def forward(self, x):
        return self._function(x)


class OwnLoss(gluon.Block):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def forward(self, outputs, target):
        return WrongSquare(self._factor)(outputs - target.expand_dims(1)).sum(axis=1)


def compare(make, loss=None, x=None, units=6):
    """Compares a network that `make` builds around an inner block."""
    values = np.random.RandomState(0).randn(6, 8) if x is None else x
    sides = []
    for dtype in ("float64", "float32"):
        mx.random.seed(3)
        network = Outer(make(), units)
        network.initialize(mx.init.Xavier())
        network.cast(dtype)
        sides.append(Objective(network, loss or gluon.loss.SoftmaxCELoss(), None, values.shape[1:], len(values)))
    return compare_own_gradients(*sides, Batch((nd.array(values),), (nd.array([0, 1, 2, 0, 1, 2]),), len(values)))


def pooled(x):
    return nd.Pooling(x.reshape((x.shape[0], 2, 4)), kernel=(2,), stride=(2,), pool_type="max")


def test_wrong_gradient_of_an_own_function_is_found_and_the_innermost_block_named():
    found = compare(lambda: Squared(3.0))
    (wrong,) = found.wrong
    assert (wrong.layer, wrong.kind, wrong.dtype) == ("inner", "Squared", "float64")
    assert wrong.error == pytest.approx(1 / 3, rel=0.2) and not compare(lambda: Squared(2.0)).wrong
    assert compare(lambda: Squared(2.0)).checked == ["", "inner"]


def test_wrong_gradient_of_an_own_loss_is_found():
    (wrong,) = compare(lambda: Squared(2.0), OwnLoss(4.0)).wrong
    assert (wrong.layer, wrong.kind, wrong.tensor) == ("(loss)", "OwnLoss", "input 0")
    assert not compare(lambda: Squared(2.0), OwnLoss(2.0)).wrong


def test_wrong_gradient_in_float32_alone_is_found(monkeypatch):
    """Max pooling of a view, with MXNet's own operator."""
    assert not compare(lambda: Function(pooled), units=4).wrong
    monkeypatch.setattr(nd, "Pooling", nd.Pooling.__wrapped__)
    nd.full((4, 2, 2), 123456789, dtype="int32").wait_to_read()
    (wrong,) = compare(lambda: Function(pooled), units=4).wrong
    assert (wrong.layer, wrong.kind, wrong.tensor, wrong.dtype) == ("inner", "Function", "input 0", "float32")


RIGHT = {
    "kink at the input": (nd.relu, np.zeros((6, 8))),
    "ties of a maximum": (lambda x: nd.maximum(x, 0 * x), np.zeros((6, 8))),
    "jumps": (lambda x: nd.round(x), np.full((6, 8), 0.5)),
    "computed in float32": (lambda x: nd.LeakyReLU(x, act_type="gelu"), None),
    "class indices": (lambda x: nd.one_hot(x, 3).sum(axis=2).astype(x.dtype), np.arange(48).reshape(6, 8) % 3),
    "random": (lambda x: nd.Dropout(x, p=0.5), None),
}


@pytest.mark.parametrize("function, x", RIGHT.values(), ids=RIGHT)
def test_right_gradients_pass(function, x):
    found = compare(lambda: Function(function), x=x, units=8)
    assert not found.wrong and found.checked == ["", "inner"]


def test_gradients_that_differ_on_purpose_are_not_compared():
    found = compare(lambda: Function(lambda x: x * nd.BlockGrad(x)), units=8)
    assert not found.wrong and not found.checked
    assert found.remarks == [
        "gradient of 'the network' not compared: it calls BlockGrad",
        "gradient of 'inner' not compared: it calls BlockGrad",
    ]


def test_at_most_three_blocks_of_a_class_are_compared():
    def make():
        stack = gluon.nn.Sequential()
        for _ in range(5):
            stack.add(Function(nd.tanh))
        return stack

    assert compare(make, units=8).checked == ["", "inner.2", "inner.3", "inner.4"]


def test_blocks_of_libraries_are_not_compared():
    assert not is_own(gluon.nn.Dense(2)) and is_own(gluon.nn.Lambda("relu")) and is_own(Squared(2.0))
    dense = Objective(gluon.nn.Dense(2), gluon.loss.L2Loss(), None, (2,), 1)
    assert compare_own_gradients(dense, dense, Batch((), (), 0)) == OwnGradients()


def test_a_wrong_gradient_fails_and_is_printed(capsys):
    wrong = [
        WrongGradient("inner", "Squared", "input 0", 0.5, "float64"),
        WrongGradient("", "Net", "w", 1.0, "float32"),
    ]
    assert not Verification([Difference("a")], 1e-6, 3, own=OwnGradients(["inner"], wrong)).passed
    assert Verification([Difference("a")], 1e-6, 3, own=OwnGradients(["inner"])).passed
    show_own_gradients(open_console(sys.stdout), OwnGradients(["inner"], wrong))
    assert capsys.readouterr().out.splitlines() == [
        "WRONG gradient in float64: layer 'inner', a Squared: the gradient of 'input 0' differs from "
        "finite differences by 5.0e-01 of its length",
        "WRONG gradient in float32: the network itself, a Net: the gradient of 'w' differs from "
        "its gradient in float64 by 1.0e+00 of its length",
    ]
    for checked, text in ((["a"], "1 own layer agrees"), (["a", "b"], "2 own layers agree")):
        show_own_gradients(open_console(sys.stdout), OwnGradients(checked))
        assert capsys.readouterr().out == f"gradients of {text} with finite differences\n"
    show_own_gradients(open_console(sys.stdout), OwnGradients())
    assert not capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("factor, passed", [(2.0, True), (2.2, False)])
def test_verify_compares_own_blocks(factor, passed):
    x = np.random.RandomState(0).randn(40, 8).astype(np.float32)
    y = np.arange(40) % 3
    found = mxtrain.verify("dataset.batch_size=8", model=Outer(Squared(factor)), dataset=(x, y), steps=1)
    assert found.passed == passed
    assert [(one.layer, one.kind) for one in found.own.wrong] == ([] if passed else [("inner", "Squared")])


def build_operator(function):
    block = Function(function)
    block.initialize()
    block.cast("float64")
    return block


def comparison_of(function, *arrays):
    call = own_gradients.RecordedCall("layer", build_operator(function), list(arrays))
    return own_gradients.BlockComparison(call, build_operator(function))


def test_integers_are_not_cast_or_varied() -> None:
    ids, values = nd.array([1, 2], dtype="int32"), nd.array([1, 2], dtype="float64")
    assert own_gradients._arrays([ids, (values, [ids])]) == [values]
    copies = own_gradients._copied([ids, (values,)], "float32")
    assert (copies[0].dtype, copies[1][0].dtype) == (np.int32, np.float32)
    assert set(own_gradients.BlockRun(build_operator(lambda x: x), [ids]).varied) == {"unread"}


def test_frozen_and_sparse_parameters_are_not_varied() -> None:
    block = Function(lambda x: x)
    block.frozen = block.params.get("frozen", shape=(2,), grad_req="null")
    block.sparse = block.params.get("sparse", shape=(2, 2), grad_stype="row_sparse")
    block.initialize()
    assert set(own_gradients.BlockRun(block, [nd.ones(2, dtype="float64")]).varied) == {"input 0", "unread"}


def test_gradients_of_unread_arrays_are_0() -> None:
    run = own_gradients.BlockRun(build_operator(lambda x: x * 1), [nd.ones(2, dtype="float64")])
    run.varied["unread"].grad[:] = 5
    found = run.gradients([np.array([2.0, 3.0])])
    assert found["unread"].tolist() == [[0, 0], [0, 0]] and found["input 0"].tolist() == [2, 3]


def test_a_block_that_draws_gets_the_same_numbers_each_time() -> None:
    run = own_gradients.BlockRun(build_operator(lambda x: nd.Dropout(x, p=0.5)), [nd.ones(200, dtype="float64")])
    first, again, other = (run.outputs(seed)[0].asnumpy() for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


def test_few_tensors_are_compared() -> None:
    comparison, most = comparison_of(lambda x: x, nd.ones(2, dtype="float64")), own_gradients.NUM_TENSORS
    inputs, weights = ([f"{kind} {number}" for number in range(most + 3)] for kind in ("input", "weight"))
    assert comparison._drawn(inputs + weights) == inputs[:most]
    drawn = comparison._drawn(inputs[:1] + weights)
    assert len(drawn) == len(set(drawn)) == most and drawn[0] == "input 0"
    assert list(comparison._directions(np.zeros((0, 2)))) == []


def test_wider_step_is_used_at_a_kink() -> None:
    """A kink of 1e-6: slopes of 1.1 and 0.9 at the first step, 1.001 and 0.999 at the second."""
    comparison = comparison_of(lambda x: x + nd.abs(nd.clip(x, -1e-6, 1e-6)), nd.zeros(1, dtype="float64"))
    slope = comparison._conclusive_slope(comparison._exact.varied["input 0"], np.ones(1), 1e-9)
    assert slope == pytest.approx(comparison._heads[0].item(), rel=1e-6)
    comparison = comparison_of(nd.abs, nd.zeros(1, dtype="float64"))
    assert comparison._conclusive_slope(comparison._exact.varied["input 0"], np.ones(1), 1e-9) is None
