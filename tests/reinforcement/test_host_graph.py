"""Networks of dense layers by NumPy: what MXNet computes, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest

from mxtrain.amp.spec import BFloat16
from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.model.parameters import distinct_parameters
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data
from mxtrain.reinforcement.host_graph import HostGraph, build_host_graph, trace_host_graph
from mxtrain.reinforcement.networks import ActorCriticNetwork, ActorCriticSizes
from mxtrain.reinforcement.policy import Actions

nn = gluon.nn


def drawn(network: gluon.Block, shape: Any) -> gluon.Block:
    mx.random.seed(1)  # tests before this one have drawn, too
    network.initialize(mx.init.Normal(0.4))
    network(nd.zeros((1, *shape)))
    rng = np.random.RandomState(1)
    for parameter in network.collect_params().values():
        parameter.set_data(nd.array(0.5 + rng.rand(*parameter.shape)) * (2 * (parameter.data() > 0) - 1))
    return network


def on_host(network: gluon.Block) -> Optional[HostGraph]:
    parameters = distinct_parameters(network)
    found = trace_host_graph(network, {parameter.name: name for name, parameter in parameters.items()})
    if found is not None:
        found.set_parameters({name: parameters[name].data().asnumpy() for name in found.parameters})
    return found


def policy(
    activation: str = "tanh", shape: Any = (5,), shared: bool = False, normalize: bool = False, size: int = 0
) -> gluon.Block:
    actions = Actions(size=size) if size else Actions(3)
    sizes = ActorCriticSizes([7, 6], activation, shared, 0.1, normalize)
    return drawn(ActorCriticNetwork(actions, shape, sizes), shape)


@pytest.mark.parametrize(
    "options",
    [
        *({"activation": name} for name in ("relu", "tanh", "sigmoid", "softrelu", "softsign", "swish")),
        {"shared": True},
        {"normalize": True},
        {"size": 2},
        {"size": 2, "shared": True, "normalize": True},
        {"shape": (2, 3)},
    ],
)
def test_a_policy_by_numpy_is_the_network(options: Dict[str, Any]) -> None:
    network = policy(**options)
    found = on_host(network)
    assert found is not None, "it is made of what NumPy computes"
    shape = options.get("shape", (5,))
    for rows in (1, 8, 33):
        observation = np.random.RandomState(rows).randn(rows, *shape).astype(np.float32)
        output = found(observation)
        assert output.dtype == np.float32
        np.testing.assert_allclose(output, network(nd.array(observation)).asnumpy(), rtol=2e-5, atol=2e-6)


def test_extremes_match_the_network() -> None:
    for name in ("sigmoid", "softrelu", "swish"):
        network = policy(name)
        observation = np.full((2, 5), 300, np.float32) * np.array([[1], [-1]], np.float32)
        found = on_host(network)
        assert found is not None
        wanted = network(nd.array(observation)).asnumpy()  # sums of terms as large as the largest of them
        np.testing.assert_allclose(found(observation), wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def test_host_network_keeps_its_parameters_until_set() -> None:
    network = drawn(nn.Dense(2, in_units=3), (3,))
    found, data = on_host(network), np.ones((1, 3), np.float32)
    assert found is not None
    before = found(data)
    network.weight.set_data(nd.zeros((2, 3)))
    np.testing.assert_array_equal(found(data), before)
    found.set_parameters({"weight": np.zeros((2, 3), np.float32), "bias": np.array([1, 2], np.float32)})
    assert found(data).tolist() == [[1, 2]]


class Reading(gluon.HybridBlock):
    """Its code needs real arrays."""

    def hybrid_forward(self, F, x):
        return x * x.shape[0]


class Two(gluon.HybridBlock):
    """Returns two arrays."""

    def hybrid_forward(self, F, x):
        return x, x + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2D(2, 3),
        lambda: nn.Dense(2, flatten=False),
        Reading,
        Two,
        nn.GELU,
        nn.BatchNorm,
        lambda: nn.HybridLambda(lambda F, x: F.split(x, num_outputs=2)[1]),
    ],
    ids=["convolution", "dense of the last axis", "real arrays", "two", "gelu", "norm", "second of two"],
)
def test_other_networks_are_for_mxnet(make: Callable[[], gluon.Block]) -> None:
    network = make()
    network.initialize()
    network(nd.zeros((1, 4, 6, 6)))
    assert on_host(network) is None


def test_network_of_two_replicas_runs_with_its_values() -> None:
    network = drawn(nn.Dense(3, in_units=5), (5,))
    network.hybridize()
    strategy = Data(devices="cpu:2").build(
        Objective(network, SoftmaxCrossEntropy().build(3, True), Meter({}, 3), (5,), 8), 1
    )
    found = build_host_graph(strategy)
    assert found is not None
    found.set_parameters({name: strategy.values[name].asnumpy() for name in found.parameters})
    observation = np.random.RandomState(0).randn(4, 5).astype(np.float32)
    (wanted,) = strategy.predict((nd.array(observation),))
    np.testing.assert_allclose(found(observation), wanted.asnumpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": Layout([[mx.cpu(0), mx.cpu(1)]])},
        {"layout": Layout([[mx.gpu(0)]])},
        {"rows": {"weight": None}},
        {"precision": BFloat16()},
        {"input_shape": ((5,), (5,))},
        {"predict_shape": ((5,), (5,))},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_placements_that_numpy_does_not_support_are_left_to_mxnet(changed: Dict[str, Any]) -> None:
    objective = Objective(drawn(nn.Dense(3, in_units=5), (5,)), None, None, (5,), 8)  # type: ignore[arg-type]
    parts: Dict[str, Any] = {"layout": Layout([[mx.cpu(0)]]), "rows": {}}
    assert build_host_graph(SimpleNamespace(objective=objective, **parts)) is not None
    parts.update((name, value) for name, value in changed.items() if name in parts)
    objective = replace(objective, **{name: value for name, value in changed.items() if name not in parts})
    assert build_host_graph(SimpleNamespace(objective=objective, **parts)) is None
