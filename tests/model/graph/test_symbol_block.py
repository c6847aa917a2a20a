"""Batch norms of a part of a network that is known by its graph alone."""

import warnings

import numpy as np
import pytest

from mxtrain.model.graph.symbol_block import keep_statistics, norms_of
from mxtrain.model.parameters import freeze, parameter_multipliers
from mxtrain.parallel.engine_dependency import can_add_dependencies, written_together


@pytest.fixture
def network():
    """Two norms, the second of which has no arguments."""
    from mxtrain.engine.backend import gluon, mx

    x = mx.sym.var("data")
    x = mx.sym.Convolution(x, num_filter=4, kernel=(1, 1), name="conv0")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm0")
    x = mx.sym.BatchNorm(mx.sym.Activation(x, act_type="relu"), name="norm1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = gluon.SymbolBlock(x, mx.sym.var("data"))
    block.infer_shape(mx.nd.zeros((2, 3, 4, 4)))
    for name, parameter in block.collect_params().items():
        parameter.initialize(init=mx.init.One() if name.endswith(("gamma", "var")) else mx.init.Normal(0.5))
    return block


def moved(network):
    """Runs it once as in training: the parameters that changed by that."""
    from mxtrain.engine.backend import autograd, nd

    before = {name: p.data().asnumpy() for name, p in network.collect_params().items()}
    network.hybridize()
    image = nd.array(np.random.RandomState(0).randn(2, 3, 4, 4))
    image.attach_grad()
    with autograd.record():
        output = network(image)
    output.backward()  # which is when statistics move on a CPU
    nd.waitall()
    return {name for name, p in network.collect_params().items() if (p.data().asnumpy() != before[name]).any()}


def test_norms_and_their_parameters_are_found(network):
    assert norms_of(network) == [
        [f"norm{number}_{role}" for role in ("gamma", "beta", "moving_mean", "moving_var")] for number in (0, 1)
    ]
    assert written_together(network) == {
        f"norm{number}_moving_{role}": f"norm{number}_gamma" for number in (0, 1) for role in ("mean", "var")
    }
    assert can_add_dependencies(network)


def test_frozen_norms_keep_their_statistics(network):
    assert moved(network) == {f"norm{number}_moving_{role}" for number in (0, 1) for role in ("mean", "var")}
    keep_statistics(network, {"norm1_moving_mean", "norm1_moving_var", "norm0_moving_mean"})
    assert moved(network) == {"norm0_moving_mean", "norm0_moving_var"}


def test_frozen_parameters_do_not_change(network):
    freeze(network, ["*"])
    assert moved(network) == set()


def test_norms_and_biases_have_no_weight_decay(network):
    from mxtrain.model.spec import Model

    decays = {name.rpartition(".")[2]: decay for name, (_, decay) in parameter_multipliers(Model(), network).items()}
    assert {name for name, decay in decays.items() if decay} == {"conv0_weight"}
