"""Code of PyTorch that is generated from networks: classes, names and windows, without PyTorch."""

from __future__ import annotations

import time
from typing import Any, Dict, Mapping

import numpy as np
import pytest
from mxnet.gluon import nn

from mxtrain.engine.backend import mx
from mxtrain.exporting.graph import Input, ProbedGraph, Unsupported
from mxtrain.exporting.pytorch.source import ModuleSource
from mxtrain.model.graph.trace import symbol_of

PROBES = [{"batch": 5, "height": 17}, {"batch": 11, "height": 28}, {"batch": 23, "height": 21}]
BCHW = ("batch", 3, 8, 8)


def source_of(network: Any, dims: Any = BCHW) -> ModuleSource:
    """The code of a network with weights of MXNet's initializer."""
    network.initialize()
    network(mx.nd.zeros([{"batch": 2, "height": 17}.get(dim, dim) for dim in dims]))
    symbol, recorder = symbol_of(network, training=False)
    names = {one.name: name for name, one in network._collect_params_with_prefix().items()}
    parameters = {name: one.data().asnumpy() for name, one in network.collect_params().items()}
    graph = ProbedGraph(symbol, parameters, {"data": Input(dims)}, PROBES)
    return ModuleSource(graph, names, {path: type(one).__name__ for path, one in recorder.called.items()})


def of_symbol(symbol: Any, dims: Any, parameters: Mapping[str, np.ndarray]) -> str:
    """The body of `forward`, or the layers, of a graph without blocks."""
    source = ModuleSource(
        ProbedGraph(symbol, parameters, {"x": Input(dims)}, PROBES), {name: name for name in parameters}, {}
    )
    return source.code.partition("super().__init__()\n")[2]


class Unit(nn.HybridBlock):
    """A residual unit."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(
            nn.Conv2D(channels, 3, stride, 1, use_bias=False), nn.BatchNorm(momentum=0.8), nn.Activation("relu")
        )
        self.shortcut = nn.Conv2D(channels, 1, stride)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Activation(self.body(x) + self.shortcut(x), act_type="relu")


class Twice(nn.HybridBlock):
    """Calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dense(3, in_units=3, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.layer(F.tanh(self.layer(x)))


class Tied(nn.HybridBlock):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(3, in_units=3, use_bias=False, prefix="shared_")
        self.second = nn.Dense(3, in_units=3, use_bias=False, params=self.first.params)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.second(F.tanh(self.first(x)))


def test_a_chain_is_one_sequential_with_the_names_of_gluon() -> None:
    network = nn.HybridSequential()
    features = nn.HybridSequential()
    features.add(nn.Conv2D(4, (3, 5), padding=(1, 2)), nn.BatchNorm(epsilon=1e-3), nn.LeakyReLU(0.1))
    features.add(nn.Dropout(0), nn.MaxPool2D(), nn.GlobalAvgPool2D(), nn.Flatten())
    network.add(features, nn.Dense(7, activation="relu"))
    source = source_of(network)
    assert (
        source.code
        == '''import torch
from torch import nn


class Network(nn.Module):
    """The network, from normalised inputs to its outputs."""

    def __init__(self):
        super().__init__()
        self.layer0 = nn.Sequential(
            nn.Conv2d(3, 4, kernel_size=(3, 5), stride=1, padding=(1, 2)),
            nn.BatchNorm2d(4, eps=0.001),
            nn.LeakyReLU(0.1),
            nn.Identity(),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.layer1 = nn.Sequential(nn.Linear(4, 7), nn.ReLU())

    def forward(self, x):
        x = self.layer0(x)
        return self.layer1(x)
'''
    )
    assert source.names["0.1.gamma"] == "layer0.1.weight"
    assert source.names["1.weight"] == "layer1.0.weight"
    assert [*source.extra] == ["layer0.1.num_batches_tracked"]


def test_blocks_that_differ_in_numbers_share_a_class_with_these_as_arguments() -> None:
    network = nn.HybridSequential()
    network.add(Unit(4, 1), Unit(4, 2), Unit(6, 2))
    source = source_of(network)
    assert source.code.count("class ") == 2
    assert "class Unit(nn.Module):" in source.code and "`0`, and 2 more" in source.code
    assert "def __init__(self, in_channels, out_channels, stride):" in source.code
    assert "nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)," in source.code
    assert "nn.BatchNorm2d(out_channels, momentum=0.2)," in source.code  # MXNet's momentum is the part that is kept
    assert (
        "self.layer0 = Unit(3, 4, 1)\n        self.layer1 = Unit(4, 4, 2)\n        self.layer2 = Unit(4, 6, 2)"
        in source.code
    )
    assert "y = self.body(x)\n        x = self.shortcut(x)\n        y = y + x\n        return F.relu(y)" in source.code
    assert source.names["2.shortcut.bias"] == "layer2.shortcut.bias"


def test_a_layer_that_is_called_twice_has_one_weight() -> None:
    source = source_of(Twice(), ("batch", 3))
    assert source.code.count("nn.Parameter(") == 2 and "nn.Linear" not in source.code
    assert source.code.count("F.linear(x, self.layer_weight, self.layer_bias)") == 2
    assert source.names == {"layer.weight": "layer_weight", "layer.bias": "layer_bias"}


def test_layers_with_one_weight_have_it_once() -> None:
    source = source_of(Tied(), ("batch", 3))
    assert source.code.count("nn.Parameter(") == 1
    assert len(source.names) == 1


class Halves(nn.HybridBlock):
    """Returns an output of an operator that another operator of the block reads as well."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        first, second = F.split(x, num_outputs=2)
        return second, F.tanh(second) + first


class Product(nn.HybridBlock):
    """Reads both outputs of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        second, total = self.halves(x)
        return second * total


def test_a_block_returns_each_tensor_that_is_read_outside_of_it() -> None:
    code = source_of(Product(), ("batch", 4)).code
    assert "z = torch.tanh(y)\n        z = z + x\n        return y, z\n" in code
    assert "x, y = self.halves(x)\n        return x * y\n" in code


def test_an_operator_without_conversion_is_named_with_its_layer() -> None:
    with mx.AttrScope(__layer__="features.3"):
        symbol = mx.sym.shape_array(mx.sym.var("x"))
    with pytest.raises(
        Unsupported, match=r"operator shape_array \(.*, in layer 'features.3'\) has no conversion to PyTorch"
    ):
        of_symbol(symbol, BCHW, {})


X = mx.sym.var("x")
POOLS: Dict[str, Any] = {
    "nn.MaxPool2d(kernel_size=3, stride=2, padding=1)": {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)},
    "nn.MaxPool2d(kernel_size=3, stride=2, padding=1, ceil_mode=True)": {
        "kernel": (3, 3),
        "stride": (2, 2),
        "pad": (1, 1),
        "pooling_convention": "full",
    },
    # A window may begin behind the padding, which PyTorch drops.
    "F.max_pool2d(F.pad(x, (1, 3, 1, 3), value=-3.4028234663852886e+38), (3, 3), (3, 3))": {
        "kernel": (3, 3),
        "stride": (3, 3),
        "pad": (1, 1),
        "pooling_convention": "full",
    },
    # PyTorch refuses padding of more than half a window.
    "F.max_pool2d(F.pad(x, (2, 2, 2, 2), value=-3.4028234663852886e+38), (3, 3), (1, 1))": {
        "kernel": (3, 3),
        "pad": (2, 2),
    },
    "nn.AvgPool2d(kernel_size=2, stride=2, padding=1, count_include_pad=False)": {
        "kernel": (2, 2),
        "stride": (2, 2),
        "pad": (1, 1),
        "pool_type": "avg",
        "count_include_pad": False,
    },
    "mean_pool(x, (2, 2), (2, 2), (1, 1), (1, 1), count_padding=True)": {
        "kernel": (2, 2),
        "stride": (2, 2),
        "pad": (1, 1),
        "pool_type": "avg",
        "pooling_convention": "full",
    },
    "nn.AvgPool2d(kernel_size=2, stride=2, ceil_mode=True)": {
        "kernel": (2, 2),
        "stride": (2, 2),
        "pool_type": "avg",
        "pooling_convention": "full",
    },
}


@pytest.mark.parametrize("code", POOLS)
def test_windows_of_pooling(code: str) -> None:
    assert code in of_symbol(mx.sym.Pooling(X, **POOLS[code]), ("batch", 2, 9, 9), {})


def test_sizes_are_computed_from_those_of_the_inputs() -> None:
    assert "x.reshape(-1, 24)" in of_symbol(mx.sym.reshape(X, shape=(0, -1)), ("batch", 4, 6), {})
    two = mx.sym.reshape(X, shape=(0, 0, -4, 2, -1))
    assert "x.reshape(x.shape[0], x.shape[1], 2, 3)" in of_symbol(two, ("batch", "height", 6), {})
    merged = mx.sym.reshape(mx.sym.reshape(X, shape=(-3, 0)), shape=(-1, 2, 3))
    assert "x.reshape(-1, 6)" in of_symbol(merged, ("batch", "height", 6), {})
    like = mx.sym.broadcast_like(mx.sym.ones((1, 1, 6)), X)
    assert "torch.full((1, 1, 6,), 1, dtype=torch.float32, device=x.device)" in of_symbol(
        like, ("batch", "height", 6), {}
    )


def test_code_of_many_tensors_is_written_at_once() -> None:
    """Listing all free names took 0.4 s for each tensor."""
    symbol = X
    for _ in range(30):
        symbol = mx.sym.tanh(symbol)
    begun = time.process_time()
    assert of_symbol(symbol, ("batch", 4), {}).count("torch.tanh(") == 30
    assert time.process_time() - begun < 2


def test_a_fixed_gamma_is_one_and_never_trained() -> None:
    symbol = mx.sym.BatchNorm(X, fix_gamma=True, name="n")
    parameters = {f"n_{name}": np.full(4, 7, np.float32) for name in ("gamma", "beta", "moving_mean", "moving_var")}
    source = ModuleSource(
        ProbedGraph(symbol, parameters, {"x": Input(("batch", 4, 3, 3))}, PROBES),
        {name: name for name in parameters},
        {},
    )
    # Without eps in the graph MXNet takes 1e-3.
    assert "nn.BatchNorm2d(4, eps=0.001)" in source.code
    assert 'for name in ("n.weight",):\n            self.get_parameter(name).requires_grad_(False)' in source.code
    assert source.fixed == ["n.weight"] and (source.extra["n.weight"] == 1).all() and "n_gamma" not in source.names


def test_frozen_statistics_stay_frozen_in_training() -> None:
    symbol = mx.sym.BatchNorm(X, use_global_stats=True, fix_gamma=False, eps=1e-5, name="n")
    parameters = {f"n_{name}": np.ones(4, np.float32) for name in ("gamma", "beta", "moving_mean", "moving_var")}
    graph = ProbedGraph(symbol, parameters, {"x": Input(("batch", 4))}, PROBES)
    source = ModuleSource(graph, {name: name for name in parameters}, {})
    assert "self.n = FrozenBatchNorm1d(4)" in source.code
    assert "class FrozenBatchNorm1d(nn.BatchNorm1d):" in source.code


def test_attributes_do_not_replace_methods_of_modules() -> None:
    network = nn.HybridSequential()

    class Named(nn.HybridBlock):
        """A block whose children have names of methods."""

        def __init__(self) -> None:
            super().__init__()
            self.children = nn.Dense(3, in_units=3)
            self.half = nn.Dense(3, in_units=3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.half(x) + self.children(x)

    network.add(Named())
    source = source_of(network, ("batch", 3))
    assert "self.half_ = nn.Linear(3, 3)" in source.code and "self.children_ = nn.Linear(3, 3)" in source.code
