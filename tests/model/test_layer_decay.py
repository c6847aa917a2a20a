"""Learning rates that fall from the last layer to the first, and frozen batch norms."""

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.errors import ConfigError
from mxtrain.model.custom import GivenModel
from mxtrain.model.layer_decay import decay_rates
from mxtrain.model.parameters import distinct_parameters, parameter_multipliers
from mxtrain.model.prepare import prepare_network
from mxtrain.model.spec import ParamGroup
from mxtrain.text.bert import Bert
from mxtrain.vision.classification.lenet import LeNet

TEXTS = ((8,), (8,), ())


def test_layers_of_bert():
    groups = [ParamGroup(pattern="classifier.*", lr_mult=10.0)]
    sizes = {"num_layers": 2, "units": 8, "hidden_size": 16, "num_heads": 2}
    model = Bert(**sizes, layer_decay=0.5, freeze=["*.1.layer_norm.*"], param_groups=groups)
    network = model.build_text(3, TEXTS, 5000)  # a large table, of one number only
    network = prepare_network(
        model, num_classes=3, input_shape=TEXTS, seed=0, network=network, output_shapes=[]
    ).network
    rates = {name: rate for name, (rate, _) in parameter_multipliers(model, network).items()}
    cells = "bert.encoder.transformer_cells"
    expected = {
        "bert.word_embed.0.weight": 0.125,
        "bert.encoder.position_weight": 0.125,
        "bert.encoder.layer_norm.gamma": 0.125,
        f"{cells}.0.attention_cell.proj_query.weight": 0.25,
        f"{cells}.0.ffn.ffn_2.bias": 0.25,
        f"{cells}.1.proj.weight": 0.5,
        f"{cells}.1.layer_norm.gamma": 0.0,
        "bert.pooler.weight": 1.0,
        "classifier.1.weight": 10.0,
    }
    assert {name: rates[name] for name in expected} == expected


def test_layers_of_features_and_output(prepare):
    """The layers are numbered 0, 1, 3, ... by what has parameters."""
    network = prepare(LeNet(layer_decay=0.9))
    rates = {name: one.lr_mult for name, one in distinct_parameters(network).items()}
    numbers = sorted({int(name.split(".")[1]) for name in rates if name.startswith("features.")})
    assert len(numbers) > 4 and rates["output.weight"] == 1
    for name, rate in rates.items():
        if name.startswith("features."):
            layer = numbers.index(int(name.split(".")[1]))
            assert rate == pytest.approx(0.9 ** (len(numbers) - layer)), name


def test_the_largest_container_has_the_layers(prepare):
    network = gluon.nn.HybridSequential()
    for units in (2, 9):
        inner = gluon.nn.HybridSequential()
        inner.add(gluon.nn.Dense(units), gluon.nn.Dense(units))
        network.add(inner)
    whole = gluon.nn.HybridSequential()
    whole.register_child(network[0], "stem")
    whole.register_child(network[1], "body")
    whole.register_child(gluon.nn.Dense(2), "head")
    whole.initialize()
    model = GivenModel(given_as="model", object="Block", layer_decay=0.5).with_object(whole)
    rates = {name: one.lr_mult for name, one in distinct_parameters(prepare(model, 2, (4,))).items()}
    weights = {name: rate for name, rate in rates.items() if name.endswith("weight")}
    assert weights == {
        "stem.0.weight": 0.125,
        "stem.1.weight": 0.125,
        "body.0.weight": 0.25,
        "body.1.weight": 0.5,
        "head.weight": 1.0,
    }


def test_a_backbone_before_a_head_has_the_layers():
    network, backbone = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
    for _ in range(3):
        backbone.add(gluon.nn.Dense(9, in_units=9))
    network.add(backbone, gluon.nn.Dense(1, in_units=9))
    network.initialize()
    assert decay_rates(network, (9,), 0.5) == {
        **{f"0.{layer}.{name}": layer + 1 for layer in range(3) for name in ("weight", "bias")},
        "1.weight": 4,
        "1.bias": 4,
    }


def test_scale_of_norms_with_fixed_statistics_is_frozen_as_well(prepare):
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.BatchNorm(in_channels=4, use_global_stats=True), gluon.nn.Dense(2, in_units=4))
    network.initialize()
    model = GivenModel(given_as="model", object="Block", freeze_batch_norm=True).with_object(network)
    parameters = distinct_parameters(prepare(model, 2, (4,)))
    assert [name for name, one in parameters.items() if one.grad_req != "null"] == ["1.weight", "1.bias"]


def test_networks_without_numbered_layers_are_refused(prepare):
    dense = gluon.nn.Dense(2, in_units=4)
    dense.initialize()
    model = GivenModel(given_as="model", object="Block", layer_decay=0.9).with_object(dense)
    with pytest.raises(ConfigError, match="model.layer_decay=0.9: the network has no container of numbered layers"):
        prepare(model, 2, (4,))


@pytest.mark.parametrize("decay", [0, 1, 1.1])
def test_decay_is_between_0_and_1(decay):
    with pytest.raises(ValueError, match="greater than 0|less than 1"):
        LeNet(layer_decay=decay)


@pytest.mark.parametrize("setting,learned", [(True, set()), ("statistics", {"gamma", "beta"})])
def test_frozen_batch_norms(setting, learned, prepare):
    network = prepare(LeNet(channels=[2, 2], hidden=8, freeze_batch_norm=setting, dropout=0.0))
    parameters = distinct_parameters(network)
    before = {name: one.data().asnumpy() for name, one in parameters.items()}
    x = nd.random.normal(3, 2, (4, 3, 32, 32))
    with autograd.record():
        value = (network(x) ** 2).sum()
    value.backward()
    nd.waitall()
    norms = {name.rpartition(".")[0] for name in parameters if name.endswith("running_mean")}
    assert len(norms) > 3
    for name, one in parameters.items():
        np.testing.assert_array_equal(one.data().asnumpy(), before[name])
        layer, _, role = name.rpartition(".")
        assert (one.grad_req != "null") == (role in learned if layer in norms else True), name
    with autograd.train_mode():
        trained = network(x).asnumpy()
    np.testing.assert_allclose(trained, network(x).asnumpy(), rtol=1e-4, atol=1e-4)


def test_networks_without_batch_norms_are_refused(prepare):
    with pytest.raises(ConfigError, match="model.freeze_batch_norm: the network has no batch norm"):
        prepare(LeNet(batch_norm=False, freeze_batch_norm=True))
