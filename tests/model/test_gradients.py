"""Layers and operators that mxtrain computes itself or calls in another way than MXNet does, against finite differences
in float64: in training and in prediction, in both precisions, imperative and hybridized.

`scripts/operators` compares all operators of MXNet, which no code of mxtrain changes.
"""

import itertools

import pytest
from gradients import Case, wrong

from mxtrain.engine.backend import gluon, native_operators, nd
from mxtrain.model.networks import fused

nn, rnn = gluon.nn, gluon.rnn
IMAGE = {1: (2, 4, 7), 2: (2, 4, 7, 6), 3: (2, 4, 5, 6, 4)}
NORMED = [(3, 2, 8), (3, 2, 8), (8,), (8,)]
DRAWS = {"draws": True, "step": 1e-3, "tolerance": {"float32": 5e-3, "float64": 1e-6}}
OWN = [
    Case("own norm", lambda: lambda x, r, g, b: fused.norm(nd, x, r, g, b, 0.0, 1e-5), NORMED),
    Case("own norm with dropout", lambda: lambda x, r, g, b: fused.norm(nd, x, r, g, b, 0.4, 1e-5), NORMED, **DRAWS),
    Case("own attention", lambda: lambda x: fused.attention(nd, x, nd.array([4, 2]), 2, 0.0), [(4, 2, 12)]),
    Case("own attention, one token", lambda: lambda x: fused.attention(nd, x, nd.array([1, 0]), 2, 0.0), [(4, 2, 12)]),
]
OPERATORS = {
    "where": lambda x: nd.where(x > 0, x, 3 * x),
    "split": lambda x: nd.split(x, 2, axis=1),
    "mean": lambda x: nd.mean(x, axis=0),
    "pick": lambda x: nd.pick(x, nd.array([1, 7, 3])),
    "gather_nd": lambda x: nd.gather_nd(x, nd.array([[0, 2, 0], [1, 3, 1]])),
    "add_n": lambda x: nd.add_n(x, x * x, x),
}


class Fused(gluon.Block):
    """A fused recurrent layer with its states, which are differentiated, too."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, data, *states):
        return self.layer(data, list(states))


def pooling_cases():
    for ndim, kind in itertools.product(IMAGE, ("Max", "Avg")):
        for window, ceil, pad in itertools.product((2, 3), (False, True), (0, 1)):
            if pad and window == 2:
                continue  # a window would lie in the padding alone
            for include in (True, False) if kind == "Avg" and pad else (None,):
                options = {"pool_size": window, "strides": 2, "padding": pad, "ceil_mode": ceil}
                if include is not None:
                    options["count_include_pad"] = include
                make = getattr(nn, f"{kind}Pool{ndim}D")
                yield Case(
                    f"{kind}Pool{ndim}D {list(options.values())}", lambda make=make, o=options: make(**o), [IMAGE[ndim]]
                )
        yield Case(f"Global{kind}Pool{ndim}D", getattr(nn, f"Global{kind}Pool{ndim}D"), [IMAGE[ndim]])
    yield Case("AvgPool2D of 16 channels", lambda: nn.AvgPool2D(3, 2, 1), [(2, 16, 6, 6)])
    yield Case("MaxPool2D of 16 channels", lambda: nn.MaxPool2D(3, 2, 1), [(2, 16, 6, 6)])


CASES = [
    *(Case(name, lambda function=function: function, [(3, 8)]) for name, function in OPERATORS.items()),
    Case("SELU", lambda: nn.SELU(), [(3, 8)]),
    *pooling_cases(),
    Case("BatchNorm train", lambda: nn.BatchNorm(), [(3, 4, 3, 4)]),
    Case("BatchNorm predict", lambda: nn.BatchNorm(), [(3, 4, 3, 4)], train=False),
    Case("BatchNormReLU", lambda: nn.BatchNormReLU(), [(3, 4, 3, 2)]),
    Case("Conv2DTranspose", lambda: nn.Conv2DTranspose(6, 3, (2, 2), (1, 1), (1, 1)), [IMAGE[2]]),
    Case("LSTM", lambda: Fused(rnn.LSTM(4)), [(3, 2, 3), (1, 2, 4), (1, 2, 4)]),
    Case("GRU", lambda: Fused(rnn.GRU(4, layout="NTC")), [(2, 3, 3), (1, 2, 4)]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradient_equals_finite_differences(case):
    assert wrong(case) == {}


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_gradient_of_own_operator_equals_finite_differences(case):
    assert wrong(case) == {}


@pytest.mark.parametrize("name", ["SELU", "AvgPool2D [3, 2, 0, True]"])
def test_mended_operators_are_wrong_in_mxnet(name):
    """Otherwise the table could not fail."""
    (case,) = [case for case in CASES if case.name == name]
    assert wrong(case, mend=False) and not wrong(case)
