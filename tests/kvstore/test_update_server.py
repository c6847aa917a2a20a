"""Updates on servers, in this process: the rules are those of a worker's own updater."""

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.kvstore.server.update_server import GroupServer
from mxtrain.kvstore.wire import FIRST_KEY, UPDATE, Group, Parameter, Request
from mxtrain.optimizer import optimizers
from mxtrain.optimizer.updater import Updater

SHAPES = {"dense.weight": (3, 4), "dense.bias": (3,), "still.weight": (2, 2)}
MULTIPLIERS = {"dense.weight": (1.0, 1.0), "dense.bias": (1.0, 0.0), "still.weight": (0.0, 1.0)}
SPECS = [
    optimizers.LARS(wd=0.1, eta=0.1),
    optimizers.LBSGD(batch_scale=2),
    optimizers.Ftrl(wd=0.1),
    optimizers.AdaDelta(wd=0.1),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_parameters_without_rate_do_not_move_on_servers(spec):
    """At a rate of 0, and with lr_mult: 0; LARS knows biases by their names."""
    parameters = [
        Parameter(name=name, shape=shape, lr_mult=MULTIPLIERS[name][0], wd_mult=MULTIPLIERS[name][1])
        for name, shape in SHAPES.items()
    ]
    group = Group(key=FIRST_KEY, compressed_key=None, dtype="float32", parameters=parameters)
    server = GroupServer(group, spec.build(4), None, 1)
    rng = np.random.RandomState(0)
    local = {name: nd.array(rng.randn(*shape)) for name, shape in SHAPES.items()}
    for name, value in local.items():
        value.copyto(server._weights[name])
    still = local["still.weight"].asnumpy()
    updater = Updater(spec.build(4), local, MULTIPLIERS)
    for rate in (0.05, 0.0, 0.08, 0.02, 0.0):
        gradients = [nd.array(rng.randn(*shape)) for shape in SHAPES.values()]
        before = {name: value.asnumpy() for name, value in server._weights.items()}
        server._apply([gradient.copy() for gradient in gradients], Request(UPDATE, 0, lr=rate))
        if rate:
            updater.update([gradient.copy() for gradient in gradients], rate)
        for name, value in server._weights.items():
            np.testing.assert_array_equal(value.asnumpy(), local[name].asnumpy() if rate else before[name])
    np.testing.assert_array_equal(server._weights["still.weight"].asnumpy(), still)
    assert np.isfinite(server._weights["dense.weight"].asnumpy()).all() and server._updates_made() == 3
