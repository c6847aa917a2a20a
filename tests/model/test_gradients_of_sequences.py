"""Recurrent layers and cells, Gluon's losses, our own operators: gradients against finite differences in float64."""

import numpy as np
import pytest
from gradients import IN_FLOAT32, Case, wrong

from mxtrain.engine.backend import gluon, native_operators, nd
from mxtrain.model.networks import fused

rnn, loss, contrib = gluon.rnn, gluon.loss, gluon.contrib


class Fused(gluon.Block):
    """A fused recurrent layer with its states, which are differentiated, too."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, data, *states):
        return self.layer(data, list(states))


class Unrolled(gluon.Block):
    """A cell over a few steps."""

    def __init__(self, cell, length=3):
        super().__init__()
        self.cell, self._length = cell, length

    def forward(self, data_NTC):
        self.cell.reset()
        begin = self.cell.begin_state(batch_size=len(data_NTC), func=nd.zeros, dtype=data_NTC.dtype)
        outputs, states = self.cell.unroll(self._length, data_NTC, begin, layout="NTC", merge_outputs=True)
        return [outputs, *states]


def sequential(*cells):
    stack = rnn.HybridSequentialRNNCell()
    for cell in cells:
        stack.add(cell)
    return stack


FUSED = {
    "RNN relu": lambda **o: rnn.RNN(4, activation="relu", **o),
    "RNN tanh": lambda **o: rnn.RNN(4, activation="tanh", **o),
    "LSTM": lambda **o: rnn.LSTM(4, **o),
    "GRU": lambda **o: rnn.GRU(4, **o),
}
CELLS = {
    "RNNCell tanh": lambda: rnn.RNNCell(4),
    "RNNCell relu": lambda: rnn.RNNCell(4, activation="relu"),
    "LSTMCell": lambda: rnn.LSTMCell(4),
    "GRUCell": lambda: rnn.GRUCell(4),
    "LSTMPCell": lambda: contrib.rnn.LSTMPCell(4, 3),
    "SequentialRNNCell": lambda: sequential(rnn.LSTMCell(4), rnn.GRUCell(3)),
    "ResidualCell": lambda: rnn.ResidualCell(rnn.GRUCell(3)),
    "BidirectionalCell": lambda: rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.GRUCell(2)),
}
DRAWING_CELLS = {
    "DropoutCell": lambda: sequential(rnn.LSTMCell(4), rnn.DropoutCell(0.5)),
    "ZoneoutCell": lambda: rnn.ZoneoutCell(rnn.GRUCell(4), 0.3, 0.3),
    "VariationalDropoutCell": lambda: contrib.rnn.VariationalDropoutCell(rnn.GRUCell(4), 0.3, 0.3, 0.3),
}
CONVOLUTION_CELLS = {
    f"Conv{ndim}D{kind}Cell": (ndim, getattr(contrib.rnn, f"Conv{ndim}D{kind}Cell"))
    for ndim in (1, 2, 3)
    for kind in ("RNN", "LSTM", "GRU")
}
EDGE = {1: (4,), 2: (4, 3), 3: (3, 3, 2)}
RECURRENT = [
    *(
        Case(
            f"{name} {options}",
            lambda make=make, o=options: Fused(make(**o)),
            [
                (3, 2, 3) if options.get("layout") != "NTC" else (2, 3, 3),
                *[(options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1), 2, 4)]
                * (2 if name == "LSTM" else 1),
            ],
            step=1e-3 if name == "RNN relu" else 1e-5,
            tolerance={"float32": 5e-4, "float64": 5e-4 if name == "RNN relu" else 1e-6},
        )
        for name, make in FUSED.items()
        for options in (
            {},
            {"num_layers": 2},
            {"bidirectional": True},
            {"num_layers": 2, "bidirectional": True},
            {"layout": "NTC"},
        )
    ),
    *(Case(name, lambda make=make: Unrolled(make()), [(2, 3, 3)]) for name, make in CELLS.items()),
    *(
        Case(
            name,
            lambda make=make: Unrolled(make()),
            [(2, 3, 3)],
            draws=True,
            step=1e-2,
            tolerance={"float32": 2e-3, "float64": 1e-4},
        )
        for name, make in DRAWING_CELLS.items()
    ),
    *(
        Case(
            name,
            lambda ndim=ndim, make=make: Unrolled(make((2, *EDGE[ndim]), 3, 3, 3, i2h_pad=(1,) * ndim), 2),
            [(2, 2, 2, *EDGE[ndim])],
        )
        for name, (ndim, make) in CONVOLUTION_CELLS.items()
    ),
]

CLASSES = np.array([2, 0, 1])
SIGNS = np.sign(np.random.RandomState(0).randn(3, 4))
ONES = (SIGNS + 1) / 2
SHARES = np.random.RandomState(0).dirichlet(np.ones(4), 3)


def weighted(x):
    return loss.SigmoidBCELoss()(x, nd.array(ONES, dtype=x.dtype), None, nd.array([[2, 1, 3, 1]] * 3, dtype=x.dtype))


def of_sigmoid(x):
    return loss.SigmoidBCELoss(from_sigmoid=True)(nd.sigmoid(x), nd.array(ONES, dtype=x.dtype))


def of_log_softmax(x):
    return loss.SoftmaxCELoss(from_logits=True)(nd.log_softmax(x), nd.array(CLASSES))


LOSSES = [
    Case("L2Loss", lambda: loss.L2Loss(), [(3, 4), (3, 4)]),
    Case("L1Loss", lambda: loss.L1Loss(), [(3, 4), (3, 4)]),
    Case("HuberLoss", lambda: loss.HuberLoss(0.6), [(3, 4), (3, 4)]),
    Case("SigmoidBCELoss", lambda: loss.SigmoidBCELoss(), [(3, 4), ONES]),
    Case("SigmoidBCELoss pos_weight", lambda: weighted, [(3, 4)]),
    Case("SigmoidBCELoss of sigmoid", lambda: of_sigmoid, [(3, 4)]),
    Case("SoftmaxCELoss", lambda: loss.SoftmaxCELoss(), [(3, 4), CLASSES]),
    Case("SoftmaxCELoss dense", lambda: loss.SoftmaxCELoss(sparse_label=False), [(3, 4), SHARES]),
    Case("SoftmaxCELoss axis", lambda: loss.SoftmaxCELoss(axis=1), [(3, 4, 2), np.array([[2, 0], [1, 1], [3, 0]])]),
    Case(
        "SoftmaxCELoss weighted",
        lambda: loss.SoftmaxCELoss(weight=0.5),
        [(3, 4), CLASSES, np.array([[1.0], [0.0], [2.0]])],
    ),
    Case("SoftmaxCELoss of log softmax", lambda: of_log_softmax, [(3, 4)]),
    Case("KLDivLoss", lambda: loss.KLDivLoss(from_logits=False), [(3, 4), SHARES]),
    Case("KLDivLoss of log softmax", lambda: loss.KLDivLoss(), [(3, 4), SHARES]),
    Case("HingeLoss", lambda: loss.HingeLoss(0.9), [(3, 4), SIGNS]),
    Case("SquaredHingeLoss", lambda: loss.SquaredHingeLoss(0.9), [(3, 4), SIGNS]),
    Case("LogisticLoss", lambda: loss.LogisticLoss(), [(3, 4), SIGNS]),
    Case("LogisticLoss binary", lambda: loss.LogisticLoss(label_format="binary"), [(3, 4), ONES]),
    Case("TripletLoss", lambda: loss.TripletLoss(), [(3, 4), (3, 4), (3, 4)]),
    Case("PoissonNLLLoss", lambda: loss.PoissonNLLLoss(), [(3, 4), SHARES * 4]),
    Case(
        "CosineEmbeddingLoss", lambda: loss.CosineEmbeddingLoss(), [(3, 4), (3, 4), np.array([1, -1, 1])], **IN_FLOAT32
    ),
    Case("SDMLLoss", lambda: lambda x, y: loss.SDMLLoss()(x, y), [(3, 4), (3, 4)], **IN_FLOAT32),
    Case("CTCLoss", lambda: loss.CTCLoss(), [(2, 6, 4), np.array([[1, 2], [0, -1]])], **IN_FLOAT32),
]

NORMED = [(3, 2, 8), (3, 2, 8), (8,), (8,)]
OWN = [
    Case("own norm", lambda: lambda x, r, g, b: fused.norm(nd, x, r, g, b, 0.0, 1e-5), NORMED),
    Case(
        "own norm with dropout",
        lambda: lambda x, r, g, b: fused.norm(nd, x, r, g, b, 0.4, 1e-5),
        NORMED,
        draws=True,
        step=1e-3,
        tolerance={"float32": 5e-3, "float64": 1e-6},
    ),
    Case("own attention", lambda: lambda x: fused.attention(nd, x, nd.array([4, 2]), 2, 0.0), [(4, 2, 12)]),
    Case("own attention, one token", lambda: lambda x: fused.attention(nd, x, nd.array([1, 0]), 2, 0.0), [(4, 2, 12)]),
]


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_gradient_of_our_own_operator_is_that_of_the_value(case):
    assert wrong(case) == {}


@pytest.mark.zoo_cases(
    "RNN relu {'num_layers': 2}",
    "RNN relu {'bidirectional': True}",
    "RNN relu {'num_layers': 2, 'bidirectional': True}",
    "RNN tanh {'num_layers': 2, 'bidirectional': True}",
    "LSTM {'num_layers': 2, 'bidirectional': True}",
    "GRU {'num_layers': 2, 'bidirectional': True}",
    "GRUCell",
    "SequentialRNNCell",
    "BidirectionalCell",
    "DropoutCell",
    "ZoneoutCell",
    "VariationalDropoutCell",
)
@pytest.mark.parametrize("case", [*RECURRENT, *LOSSES], ids=lambda case: case.name)
def test_gradient_is_that_of_the_value(case):
    assert wrong(case) == {}
