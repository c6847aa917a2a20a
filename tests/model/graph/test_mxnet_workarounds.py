"""Operators whose gradient MXNet computes wrongly are mended, or refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.custom import CustomModel
from mxtrain.model.graph import mxnet_workarounds
from mxtrain.model.graph.mxnet_workarounds import refuse_wrong, replace_wrong_layers
from mxtrain.model.mlp import MLP
from mxtrain.model.prepare import prepare_network
from mxtrain.vision.classification.lenet import LeNet


def selu_gradient(x):
    return 1.0507009873554805 * np.where(x > 0, 1, 1.6732632423543772 * np.exp(x))


class Calls(gluon.HybridBlock):
    """Calls an operator itself."""

    def __init__(self, kind, reads_shape=False, hybrid=False):
        super().__init__()
        self._kind, self._reads_shape = kind, reads_shape
        self.inner = Inner(kind)
        if hybrid:
            self.inner.hybridize()
        self.output = gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        if self._reads_shape:
            x = x.reshape((x.shape[0], -1))
        return self.output(self.inner(x))


def recurrent(**options):
    """A network of two dense layers around a recurrent one, over the rows of an image."""

    class Recurrent(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.layer, self.output = gluon.rnn.LSTM(4, layout="NTC", **options), gluon.nn.Dense(3)

        def hybrid_forward(self, F, x):
            return self.output(self.layer(F.reshape(x, shape=(0, -3, -1))))

    return CustomModel(target=Recurrent)


def test_recurrent_layers_with_ignored_arguments_are_refused():
    with pytest.raises(ConfigError, match="layer 'layer' calls RNN with several layers and dropout, which MXNet"):
        build(recurrent(num_layers=2, dropout=0.1))
    build(recurrent(num_layers=2))
    build(recurrent(dropout=0.1))
    with pytest.raises(ConfigError, match="RNN with use_sequence_length, which MXNet does not look at"):
        refuse_wrong([("layer", "RNN", {"use_sequence_length": "True", "num_layers": "1"})])


class Inner(gluon.HybridBlock):
    def __init__(self, kind):
        super().__init__()
        self._kind = kind

    def hybrid_forward(self, F, x):
        made = F.LeakyReLU(F.Flatten(x), act_type=self._kind)
        return made[0] if self._kind == "rrelu" and isinstance(made, list) else made


def build(model):
    return prepare_network(model, num_classes=3, input_shape=(1, 12, 12), seed=0).network


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        MLP(activation="selu", hidden=[4]),
        LeNet(activation="selu", channels=[4], hidden=8),
        CustomModel(target=lambda: sequential(gluon.nn.Flatten(), gluon.nn.SELU(), gluon.nn.Dense(3))),
    ],
    ids=["mlp", "lenet", "user"],
)
def test_selu_has_its_own_gradient(model, hybrid):
    """In our networks and in a user's, at every layer."""
    network = build(model)
    layers = [block for block in all_blocks(network) if isinstance(block, gluon.nn.SELU)]
    assert layers
    for layer in layers:
        if hybrid:
            layer.hybridize(static_alloc=True)
        x = nd.array([-6, -3, -1, -0.1, 0.1, 1, 3])
        x.attach_grad()
        with autograd.record():
            y = layer(x)
        y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), selu_gradient(x.asnumpy()), rtol=1e-5)
        np.testing.assert_allclose(y.asnumpy(), nd.LeakyReLU(x, act_type="selu").asnumpy(), rtol=1e-5)


WRONG_CALLS = [
    ("selu", "gluon.nn.SELU", {}),
    ("selu", "gluon.nn.SELU", {"reads_shape": True}),
    ("selu", "gluon.nn.SELU", {"reads_shape": True, "hybrid": True}),
    ("rrelu", "act_type='leaky'", {}),
    ("rrelu", "act_type='leaky'", {"reads_shape": True}),
]


@pytest.mark.parametrize("kind, words, options", WRONG_CALLS)
def test_a_network_that_calls_a_wrong_operator_is_refused(kind, words, options):
    """Also where its code needs real arrays, so that it cannot be traced."""
    with pytest.raises(ConfigError, match=f"(?s)LeakyReLU.act_type='{kind}'.*{words}"):
        build(CustomModel(target=lambda: Calls(kind, **options)))
    build(CustomModel(target=lambda: Calls("elu", **options)))


@pytest.mark.parametrize(
    "pool", [{"pool_size": 3, "strides": 2}, {"pool_size": 5, "strides": 3, "padding": 1}], ids=str
)
@pytest.mark.parametrize("ndim, size", [(1, 8), (2, 8), (3, 7)])
def test_average_pooling_gradient_is_right_for_windows_over_the_edge(ndim, size, pool):
    """In float32, too, where oneDNN computes it, on layers of Gluon's and of networks made with them."""
    make = getattr(gluon.nn, f"AvgPool{ndim}D")
    found = {}
    for dtype in ("float32", "float64"):
        layer, as_it_is = make(ceil_mode=True, **pool), make(ceil_mode=True, **pool)
        replace_wrong_layers(layer)
        x = nd.array(np.random.RandomState(0).randn(2, 4, *(size,) * ndim), dtype=dtype)
        x.attach_grad()
        with autograd.record():
            y = layer(x)
        y.backward(nd.array(np.random.RandomState(1).randn(*y.shape), dtype=dtype))
        found[dtype] = y.asnumpy(), x.grad.asnumpy()
        np.testing.assert_allclose(y.asnumpy(), as_it_is(x).asnumpy(), rtol=1e-5, atol=1e-6)
    for low, high in zip(*found.values()):
        np.testing.assert_allclose(low, high, rtol=1e-5, atol=1e-6)


class Pools(gluon.HybridBlock):
    """Calls average pooling itself."""

    def __init__(self, **options):
        super().__init__()
        self._options = options
        self.output = gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.output(F.Pooling(x, pool_type="avg", kernel=(3, 3), stride=(2, 2), **self._options))


def test_a_network_that_calls_such_average_pooling_is_refused():
    with pytest.raises(ConfigError, match="window hangs over the edge. Add count_include_pad=False"):
        build(CustomModel(target=lambda: Pools(pooling_convention="full")))
    for options in ({}, {"pooling_convention": "full", "count_include_pad": False}, {"pad": (1, 1)}):
        build(CustomModel(target=lambda options=options: Pools(**options)))


def sequential(*layers):
    network = gluon.nn.HybridSequential()
    network.add(*layers)
    return network


def all_blocks(block):
    yield block
    for child in block._children.values():
        yield from all_blocks(child)


class OwnDropout(gluon.HybridBlock):
    """Dropout as networks of users call it, in two ways."""

    def hybrid_forward(self, F, x):
        return F.Dropout(F.Dropout(x, p=0.5), 0.5, "training", (1,), False)


def test_dropout_equals_mxnet_on_gpus():
    """Its draw follows the seed; cuDNN's does not. On a CPU there is but one."""
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dropout(0.5), gluon.nn.Dropout(0.5, axes=(1,)), gluon.nn.Dropout(0), OwnDropout())
    mx.random.seed(3)
    with autograd.record():
        found = network[:2](nd.ones((4, 5))).asnumpy()
    assert 0 < (found == 0).sum() < 20 and set(found.ravel().tolist()) <= {0.0, 2.0, 4.0}
    nodes = json.loads(network(mx.sym.Variable("x")).tojson())["nodes"]
    attributes = [node["attrs"] for node in nodes if node["op"] == "Dropout"]
    assert [(one["cudnn_off"], one.get("axes", "()")) for one in attributes] == [("True", "()"), ("True", "(1,)")] * 2
    with autograd.record():
        x = nd.ones((4, 5))
        x.attach_grad()
        recorded = autograd.get_symbol(OwnDropout()(x)).tojson()
    assert recorded.count('"cudnn_off": "True"') == 2


def test_no_network_of_ours_calls_mxnets_dropout_by_itself():
    folder = Path(mxnet_workarounds.__file__).parents[1]
    calling = {path.name for path in folder.rglob("*.py") if "F.Dropout(" in path.read_text(encoding="utf-8")}
    assert calling == {"mxnet_workarounds.py"}
