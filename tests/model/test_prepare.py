"""Initialisation, misfits, freezing and parameter groups."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.custom import CustomModel, GivenModel
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.graph.trace import trace
from mxtrain.model.mlp import MLP
from mxtrain.model.parameters import distinct_parameters, parameter_multipliers, require_trained
from mxtrain.model.prepare import initialize, prepare_network
from mxtrain.model.spec import Model, ParamGroup
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet

ROOT = Path(__file__).resolve().parents[2]


def values(network):
    return {name: p.data().asnumpy().copy() for name, p in distinct_parameters(network).items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["xavier", "msra", "orthogonal", "normal", "default"])
def test_values_depend_on_seed_and_name_only(init, prepare):
    model = ResNet(depth=8, init=init)
    first = values(prepare(model, seed=5))
    mx.random.seed(99)
    np.random.seed(99)
    nd.random.normal(shape=(3,))
    prepare(LeNet())  # another network in between, so other counters in names
    assert same(first, values(prepare(model, seed=5)))
    other = values(prepare(model, seed=6))
    assert not any(np.array_equal(first[name], other[name]) for name in first if name.endswith("weight"))


def test_values_are_the_same_for_any_order_of_construction():
    def build(names):
        network = gluon.nn.HybridBlock()
        made = {name: gluon.nn.Dense(4, in_units=4) for name in names}
        for name in sorted(made):
            setattr(network, name, made[name])
        initialize(network, "xavier", 3, mx.cpu())
        return values(network)

    assert same(build(["a", "b", "c"]), build(["c", "b", "a"]))


@pytest.mark.slow
def test_values_are_the_same_on_every_device_and_for_any_number_of_threads(prepare, tmp_path):
    expected = values(prepare(LeNet(), seed=1))
    network = prepare_network(LeNet(), num_classes=10, input_shape=(3, 32, 32), seed=1, device=mx.cpu(3)).network
    assert {p.list_ctx()[0] for p in network.collect_params().values()} == {mx.cpu(3)}
    assert same(expected, values(network))
    program = (
        "import sys; from mxtrain.vision.classification.lenet import LeNet\n"
        "from mxtrain.model.prepare import prepare_network\n"
        "net = prepare_network(LeNet(), num_classes=10, input_shape=(3, 32, 32), seed=1).network\n"
        "net.save_parameters(sys.argv[1])"
    )
    path = str(tmp_path / "net.params")
    environment = {"OMP_NUM_THREADS": "2", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, path], check=True, cwd=ROOT, env=environment)
    assert same(expected, {name: value.asnumpy() for name, value in nd.load(path).items()})


def test_numpy_random_state_is_unchanged(prepare):
    np.random.seed(4)
    expected = np.random.rand()
    np.random.seed(4)
    prepare(LeNet(init="orthogonal"))
    assert np.random.rand() == expected


def test_msra_has_he_variance(prepare):
    weight = values(prepare(MLP(hidden=[512], init="msra"), input_shape=(3, 32, 32)))["features.1.weight"]
    assert weight.std() == pytest.approx(np.sqrt(2 / 3072), rel=0.02)


def test_shared_parameters_are_initialised_once():
    first = gluon.nn.Dense(3, in_units=3)
    for order in ((0, 1), (1, 0)):
        network = gluon.nn.HybridSequential()
        pair = [first, gluon.nn.Dense(3, in_units=3, params=first.params)]
        network.add(*(pair[i] for i in order))
        initialize(network, "xavier", 0, mx.cpu())
        assert np.array_equal(*(layer.weight.data().asnumpy() for layer in network))


def test_distinct_parameters_are_enough_for_a_file(tmp_path):
    def build():
        network = gluon.nn.HybridSequential()
        first = gluon.nn.Dense(3, in_units=3)
        network.add(first, gluon.nn.Dense(3, in_units=3, params=first.params), gluon.nn.Dense(3, in_units=3))
        return network

    source, other = build(), build()
    initialize(source, "xavier", 0, mx.cpu())
    parameters = distinct_parameters(source)
    assert list(parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    nd.save(str(tmp_path / "net.params"), {name: parameter.data() for name, parameter in parameters.items()})
    other.load_parameters(str(tmp_path / "net.params"))
    assert same(values(source), values(other))


@pytest.mark.slow
def test_a_network_that_cannot_take_its_input_names_layer_shape_and_remedy(prepare):
    with pytest.raises(ConfigError) as caught:
        prepare(GluonCV(name="densenet121"))
    text = str(caught.value)
    assert "cannot take samples of 3x32x32: layer 'features.13' (Pooling) is the first that fails" in text
    assert "given 1024x1x1" in text and "kernel size (7) exceeds input" in text
    assert "dataset.image_size=[224,224]" in text
    assert "/src/" not in text
    prepare(GluonCV(name="densenet121"), 10, (3, 224, 224))  # the remedy works


def test_network_that_shrinks_its_input_to_zero_is_refused(prepare):
    with pytest.raises(ConfigError, match=r"layer 'features.\d+' \((Convolution|Pooling)\) is the first that fails"):
        prepare(GluonCV(name="alexnet"))


def test_a_block_given_in_python_keeps_its_values():
    """On several devices, too; parameters without values start from `init`."""
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.Dense(3, in_units=4), gluon.nn.Dense(2))
    block[0].initialize(mx.init.Normal(1.0), ctx=[mx.cpu(1), mx.cpu(2)])
    block[1].initialize()
    before = {name: p.list_data()[0].asnumpy() for name, p in block[0]._collect_params_with_prefix("0").items()}
    model = GivenModel(given_as="model", object="Block", init="xavier").with_object(block)
    found = values(prepare_network(model, num_classes=2, input_shape=(4,), seed=0).network)
    assert all(np.array_equal(found[name], value) for name, value in before.items()) and before["0.weight"].any()
    assert np.abs(found["1.weight"]).max() > 0.1 and block[1].weight._data is None


class OnArrays(Model):
    """A network that reads shapes while it runs, so that it cannot be traced."""

    units: int = 10
    fails: bool = False

    def build(self, num_classes, input_shape):
        units, fails = self.units, self.fails

        class Reads(gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                with self.name_scope():
                    self.norm = gluon.nn.BatchNorm()
                    self.inner = gluon.nn.Dense(units)

            def hybrid_forward(self, F, x):
                if fails and x.shape[0] == 1:
                    raise RuntimeError("no such luck")
                return self.inner(self.norm(x).reshape((x.shape[0], -1)))

        return Reads()


@pytest.mark.slow
def test_networks_that_cannot_be_traced_are_run_instead(prepare):
    first, second = prepare(OnArrays(), seed=1), prepare(OnArrays(), seed=1)
    assert first.inner.weight.shape == (10, 3 * 32 * 32)
    assert same(values(first), values(second)) and values(first)["inner.weight"].any()
    assert not values(first)["norm.running_mean"].any()


def test_a_failure_while_running_names_the_layer(prepare):
    with pytest.raises(ConfigError, match="one sample of 3x32x32, in the network itself, .*3x32x32: no such luck"):
        prepare(OnArrays(fails=True))


def test_an_output_of_another_size_is_refused(prepare):
    with pytest.raises(ConfigError, match=r"\(batch, 10\).*returns 1: 1x9"):
        prepare(OnArrays(units=9))


@pytest.mark.parametrize(
    "units, said",
    [
        ([2_000_000_000], "features.1.weight' would be 2000000000x64, which is 128,000,000,000 numbers"),
        ([30_000_000], "parameters, which with their gradients take 16.76 GiB; this process may have 1 GiB"),
    ],
)
def test_a_network_that_is_too_large_is_refused_before_it_is_made(prepare, monkeypatch, units, said):
    monkeypatch.setattr("mxtrain.model.prepare.usable_memory", lambda: 2**30)
    monkeypatch.setattr("mxtrain.model.prepare.initialize", lambda *arguments: pytest.fail("it was made"))
    with pytest.raises(ConfigError, match=said):
        prepare_network(MLP(hidden=units), num_classes=10, input_shape=(1, 8, 8), seed=0)


def no_return(num_classes):
    gluon.nn.Dense(num_classes)


def raises(num_classes):
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    "function, said",
    [
        (no_return, "must return a gluon.HybridBlock, and returned None. Does it end without `return`"),
        (raises, r"raises failed: RuntimeError: out of order \(.*test_prepare.py:\d+\)"),
        (lambda: [1], r"must return a gluon.HybridBlock, and returned \[1\]"),
    ],
)
def test_a_users_function_that_makes_no_network(function, said):
    with pytest.raises(ConfigError, match=said):
        CustomModel(target=function).build(10, (1, 8, 8))


def test_unused_parameter_is_named():
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(3))
    network.unused = gluon.nn.Dense(3)
    network._children["unused"] = network._children.pop("unused")
    network.hybrid_forward = lambda F, x: network[0](x)
    with pytest.raises(ConfigError, match="'unused.weight' is not known because nothing uses it"):
        infer_shapes(network, (4,))


def test_preparing_changes_no_global_state(prepare):
    network = prepare(LeNet())
    assert "forward" not in vars(network) and all(p._var is None for p in network.collect_params().values())
    network.hybridize()
    network(nd.zeros((1, 3, 32, 32)))
    before = {name: p._var for name, p in network.collect_params().items()}
    trace(network, (3, 32, 32))
    assert before == {name: p._var for name, p in network.collect_params().items()}
    assert "__layer__" not in network._cached_graph[1].tojson()


def one_step(network):
    """The names of what a training step changes."""
    before = values(network)
    network.hybridize()
    trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        loss = (network(nd.random.normal(shape=(4, 3, 32, 32))) ** 2).sum()
    loss.backward()
    trainer.step(1)
    after = values(network)
    return {name for name in before if not np.array_equal(before[name], after[name])}


def test_frozen_parameters_stay(prepare):
    assert one_step(prepare(LeNet(freeze=["features.*"]))) == {"output.weight", "output.bias"}


def test_frozen_statistics_stay_though_the_layers_before_learn(prepare):
    changed = one_step(prepare(LeNet(freeze=["features.1.*"])))
    assert "features.0.weight" in changed and "features.4.running_mean" in changed
    assert not any(name.startswith("features.1.") for name in changed)


def test_statistics_change_if_only_weights_are_frozen(prepare):
    changed = one_step(prepare(LeNet(freeze=["features.1.gamma", "features.1.beta"])))
    assert {"features.1.running_mean", "features.1.running_var"} <= changed


def test_frozen_features_are_the_same_in_training(prepare):
    network = prepare(LeNet(freeze=["features.*"], dropout=0.0))
    data = nd.random.normal(shape=(4, 3, 32, 32))
    with autograd.train_mode():
        trained = network(data).asnumpy()
    np.testing.assert_allclose(trained, network(data).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model,key",
    [
        (LeNet(freeze=["featurs.*"]), "model.freeze"),
        (LeNet(param_groups=[ParamGroup(pattern="head.*", lr_mult=2.0)]), "model.param_groups"),
    ],
)
def test_pattern_without_a_match_is_refused(model, key, prepare):
    with pytest.raises(ConfigError, match=f"{key}: the pattern '(featurs|head).\\*' matches no parameter.*Names are"):
        prepare(model)


def test_a_network_without_trained_parameters_is_refused(prepare):
    said = r"model.freeze=\[features.\*,\*.weight,\*.bias\] freezes all \d+ .* such as 'output.bias'"
    with pytest.raises(ConfigError, match=said):
        prepare(LeNet(freeze=["features.*", "*.weight", "*.bias"]))
    fixed = gluon.nn.Dense(3)
    fixed.collect_params().setattr("grad_req", "null")
    with pytest.raises(ConfigError, match="have grad_req='null' or lr_mult=0.* such as 'bias'"):
        require_trained(fixed, [])
    fixed.bias.grad_req = "write"
    require_trained(fixed, ["weight"])
    with pytest.raises(ConfigError, match="the network has no parameters"):
        require_trained(gluon.nn.Flatten(), [])


def test_a_misspelt_pattern_names_the_nearest(prepare):
    with pytest.raises(ConfigError, match=r"output\.weight"):
        prepare(LeNet(freeze=["ouput.weight"]))


def test_multipliers(prepare):
    groups = [
        ParamGroup(pattern="output.*", lr_mult=10.0, wd_mult=2.0),
        ParamGroup(pattern="*.bias", lr_mult=3.0),
        ParamGroup(pattern="features.0.*", lr_mult=0.0),
    ]
    model = LeNet(param_groups=groups)
    found = parameter_multipliers(model, prepare(model))
    assert found["features.0.weight"] == (0.0, 1.0)
    assert found["features.3.weight"] == (1.0, 1.0)
    assert found["features.1.gamma"] == found["features.1.beta"] == (1.0, 0.0)
    assert found["features.15.bias"] == (3.0, 0.0)
    assert found["output.weight"] == (10.0, 2.0)
    assert found["output.bias"] == (3.0, 2.0)  # wd_mult of the first group, lr_mult of the second
    assert set(found) == set(values(prepare(model)))


def test_weight_decay_of_norm_and_bias_can_be_enabled(prepare):
    model = LeNet(no_decay_norm_and_bias=False)
    assert set(parameter_multipliers(model, prepare(model)).values()) == {(1.0, 1.0)}
