"""Statistics of batch norms with fixed scale and shift: they follow the data unless they are frozen themselves.

Expected values are computed with NumPy: after one step with momentum 0.9 the mean is 0.1 times the mean of the batch.
"""

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.batch_norms import let_statistics_move
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.parameters import freeze, is_trained

nn = gluon.nn
BATCH = np.random.default_rng(0).normal(3, 2, (6, 4, 5, 5)).astype("float32")


class OwnNorm(gluon.HybridBlock):
    """Calls the operator itself."""

    def __init__(self, operator="BatchNorm", **options):
        super().__init__()
        self.operator, self.options = operator, options
        for name, kind in (("gamma", "One"), ("beta", "Zero"), ("moving_mean", "Zero"), ("moving_var", "One")):
            learns = name in ("gamma", "beta")
            given = {"shape": (4,), "init": getattr(mx.init, kind)(), "differentiable": learns}
            setattr(self, name, self.params.get(name, grad_req="write" if learns else "null", **given))

    def hybrid_forward(self, F, x, gamma, beta, moving_mean, moving_var):
        operator = F.BatchNorm if self.operator == "BatchNorm" else getattr(F.contrib, self.operator)
        return operator(x, gamma, beta, moving_mean, moving_var, momentum=0.9, **self.options)


def symbol_block():
    data = mx.sym.var("data", dtype="float32")
    y = mx.sym.BatchNorm(data, momentum=0.9, fix_gamma=False, name="norm")
    return gluon.SymbolBlock(y, [data])


NORMS = {
    "fixed": lambda: nn.BatchNorm(scale=False, center=False),
    "plain": nn.BatchNorm,
    "relu": nn.BatchNormReLU,
    "synchronised": lambda: gluon.contrib.nn.SyncBatchNorm(num_devices=1),
    "own": lambda: OwnNorm(fix_gamma=False),
    "own relu": lambda: OwnNorm("BatchNormWithReLU", fix_gamma=False),
    "own synchronised": lambda: OwnNorm("SyncBatchNorm", fix_gamma=False, key="own", ndev=1),
    "symbol": symbol_block,
}


def network_of(norm, null=()):
    """The norm is the first layer, so nothing before it has a gradient."""
    network = nn.HybridSequential()
    network.add(norm, nn.Flatten(), nn.Dense(2, in_units=100))
    network.initialize()
    network(nd.array(BATCH))
    for name, parameter in network.collect_params().items():
        if name.endswith("_mean"):  # Gluon draws those of a SymbolBlock
            parameter.set_data(nd.zeros(4))
        if name.endswith(("_var", "gamma")):
            parameter.set_data(nd.ones(4))
        if name.endswith("beta"):
            parameter.set_data(nd.zeros(4))
        if name.endswith(tuple(null)):
            parameter.grad_req = "null"
    return network


def step(network):
    """Returns the names of scale and shift that an optimizer may change, and the statistics after a training step."""
    network.hybridize(static_alloc=True)
    with autograd.record():
        loss = network(nd.array(BATCH)).square().sum()
    loss.backward()
    values = {parameter.name: parameter.data().asnumpy() for parameter in network.collect_params().values()}
    (mean,) = (value for name, value in values.items() if name.endswith("_mean"))
    (variance,) = (value for name, value in values.items() if name.endswith("_var"))
    trained = {parameter.name for parameter in network.collect_params().values() if is_trained(parameter)}
    return {name for name in trained if name.endswith(("gamma", "beta"))}, mean, variance


@pytest.mark.parametrize("kind", NORMS)
def test_statistics_of_norms_without_gradient_follow_the_data(kind) -> None:
    network = network_of(NORMS[kind](), null=("gamma", "beta"))
    let_statistics_move(network, (4, 5, 5))
    learned, mean, variance = step(network)
    assert not learned
    np.testing.assert_allclose(mean, 0.1 * BATCH.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * BATCH.var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "own", "symbol"])
def test_one_learned_parameter_suffices(kind) -> None:
    network = network_of(NORMS[kind](), null=("beta",))
    let_statistics_move(network, (4, 5, 5))
    learned, mean, _ = step(network)
    assert len(learned) == 1 and mean[0] != 0
    assert all(p.grad_req == "null" for p in network.collect_params().values() if p.name.endswith("beta"))


@pytest.mark.parametrize("kind", [kind for kind in NORMS if not kind.startswith("own")])
def test_frozen_statistics_stay(kind) -> None:
    network = network_of(NORMS[kind]())
    freeze(network, ["0.*"])
    let_statistics_move(network, (4, 5, 5))
    learned, mean, variance = step(network)
    assert not learned and not mean.any() and (variance == 1).all()
    with autograd.train_mode():  # normalises by the statistics (0, 1)
        output = network[0](nd.array(BATCH)).asnumpy()
    expected = np.maximum(BATCH, 0) if kind == "relu" else BATCH
    np.testing.assert_allclose(output, expected / np.sqrt(1 + 1e-3), rtol=1e-3)


def test_frozen_statistics_of_a_network_that_calls_the_operator() -> None:
    network = OwnNorm(fix_gamma=False)
    network.initialize()
    freeze(network, ["*"])
    with pytest.raises(ConfigError, match="the code of the network calls BatchNorm itself"):
        let_statistics_move(network, (4, 5, 5))


def test_norms_of_a_network_that_cannot_be_traced() -> None:
    class Plain(gluon.Block):
        """Its own parameter without a gradient might belong to a norm that its code calls."""

        def __init__(self):
            super().__init__()
            self.inner, self.own = symbol_block(), self.params.get("own", grad_req="null", shape=(1,))

        def forward(self, x):
            return self.inner(x) * float(x.asnumpy().mean())

    network = Plain()
    network.initialize()
    network(nd.array(BATCH))
    for parameter in network.inner.collect_params().values():
        parameter.grad_req = "null"
    let_statistics_move(network, (4, 5, 5))
    (shift,) = (one for one in network.inner.collect_params().values() if one.name.endswith("beta"))
    assert shift.grad_req == "write" and not is_trained(shift)


def test_statistics_of_a_network_of_several_inputs_follow_the_data() -> None:
    class Sum(OwnNorm):
        def hybrid_forward(self, F, x, y, **arrays):
            return super().hybrid_forward(F, x + y, **arrays)

    network = Sum(fix_gamma=False)
    network.initialize()
    for parameter in (network.gamma, network.beta):
        parameter.grad_req = "null"
    let_statistics_move(network, ((4, 5, 5), (4, 5, 5)))
    assert network.beta.grad_req == "write" and not is_trained(network.beta)


def test_norm_with_deferred_shape() -> None:
    norm = nn.BatchNorm(scale=False, center=False)
    norm.initialize()
    let_statistics_move(norm, (4, 5, 5))
    with autograd.record():
        norm(nd.array(BATCH)).sum().backward()
    np.testing.assert_allclose(norm.running_mean.data().asnumpy(), 0.1 * BATCH.mean((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "symbol"])
def test_statistics_are_frozen_by_themselves_but_not_one_of_them(kind) -> None:
    for patterns, is_frozen in ((["*mean", "*var"], True), (["*mean"], False)):
        network = network_of(NORMS[kind]())
        freeze(network, patterns)
        let_statistics_move(network, (4, 5, 5))
        learned, mean, variance = step(network)
        assert len(learned) == 2 and (not mean.any(), (variance == 1).all()) == (is_frozen, is_frozen)


@pytest.mark.parametrize(
    "options,is_refused",
    [
        ({}, True),
        ({"use_global_stats": True}, False),
        ({"use_global_stats": 1}, False),
    ],
)
def test_frozen_statistics_of_an_own_call(options, is_refused) -> None:
    network = network_of(OwnNorm(fix_gamma=False, **options))
    freeze(network, ["0.*"])
    if is_refused:
        with pytest.raises(ConfigError, match="layer '0' calls BatchNorm itself.*use_global_stats=True"):
            let_statistics_move(network, (4, 5, 5))
    else:
        let_statistics_move(network, (4, 5, 5))
        assert not step(network)[1].any()


def test_gluoncv_network_that_begins_with_a_fixed_norm(prepare) -> None:
    """GluonCV's second ResNets normalise their input without scale and shift."""
    from mxtrain.vision.classification.gluoncv import GluonCV

    network = prepare(GluonCV(name="cifar_resnet20_v2"), input_shape=(3, 32, 32))
    norm = next(block for _, block in blocks_by_path(network) if isinstance(block, nn.BatchNorm))
    assert norm.beta.grad_req == "write" and not is_trained(norm.beta) and not is_trained(norm.gamma)
