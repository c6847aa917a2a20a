"""LoRA: W x + b + (alpha / r) B A x, computed with NumPy; and the parameters that are trained."""

import numpy as np
import pytest

import mxtrain
from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli import main
from mxtrain.engine.backend import autograd, gluon, native_operators, nd
from mxtrain.engine.native import Library
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.model.custom import GivenModel
from mxtrain.model.lora import Lora, merge
from mxtrain.model.mlp import MLP
from mxtrain.model.networks import bert, lora
from mxtrain.model.networks.lora import LoraDense, LoraSelfAttention, add_lora, add_to, linear_maps
from mxtrain.model.parameters import distinct_parameters, train_only
from mxtrain.model.prepare import prepare_network
from mxtrain.text.bert import Bert
from mxtrain.text.language_modeling.gpt import Gpt
from mxtrain.training.network import describe_additions
from tests.support.running import train_here

RNG = np.random.default_rng(0)
NO_OPERATORS = Library(None, "a test")
DENSE = {"flat": {"flatten": True}, "last axis": {"flatten": False}, "no bias": {"use_bias": False}}


def arrays_of(network):
    return {name: one.data().asnumpy() for name, one in distinct_parameters(network).items()}


def randomise(network, dtype="float32"):
    """Fill all matrices, so that B is not 0."""
    network.cast(dtype)
    for one in network.collect_params().values():
        one.set_data(nd.array(RNG.normal(0, 0.5, one.shape), dtype=dtype))


def adapted(block, dtype="float32", **settings):
    for one in linear_maps(block).values():
        add_to(one, Lora(**settings))
    block.initialize()
    randomise(block, dtype)
    return block


@pytest.mark.parametrize("options", DENSE.values(), ids=list(DENSE))
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_forward_of_a_dense_layer(options, is_hybrid):
    block = adapted(gluon.nn.Dense(5, in_units=12, activation="tanh", **options), rank=2, alpha=3)
    if is_hybrid:
        block.hybridize()
    x = RNG.normal(size=(4, 3, 4) if options.get("flatten", True) else (4, 3, 12)).astype("float32")
    values = arrays_of(block)
    rows = x.reshape(4, 12) if options.get("flatten", True) else x
    total = rows @ values["weight"].T + values.get("bias", 0)
    total = total + 3 / 2 * (rows @ values["lora_a"].T) @ values["lora_b"].T
    np.testing.assert_allclose(block(nd.array(x)).asnumpy(), np.tanh(total), rtol=1e-5, atol=1e-5)
    assert type(block) is LoraDense


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("names", [("query", "value"), ("key",)])
def test_forward_of_self_attention(is_native, names, monkeypatch):
    for module in (bert, lora):
        monkeypatch.setattr(module, "native_operators", lambda: Library("x", "") if is_native else NO_OPERATORS)
    block = bert.SelfAttention(6, 2, 0.0)
    maps = linear_maps(block)
    assert list(maps) == ["proj_query", "proj_key", "proj_value"]
    for name in names:
        add_to(maps[f"proj_{name}"], Lora(rank=2, alpha=5))
    block.initialize()
    randomise(block)
    x, values = RNG.normal(size=(3, 2, 6)).astype("float32"), arrays_of(block)
    found = block.project(nd, nd.array(x), {name: one.data() for name, one in block._reg_params.items()}).asnumpy()
    parts = []
    for name in ("query", "key", "value"):
        part = x @ values[f"proj_{name}.weight"].T + values[f"proj_{name}.bias"]
        if name in names:
            part = part + 5 / 2 * x @ values[f"proj_{name}.lora_a"].T @ values[f"proj_{name}.lora_b"].T
        parts.append(part)
    by_head = np.concatenate([part.reshape(3, 2, 2, 3) for part in parts], axis=3).reshape(3, 2, 18)
    np.testing.assert_allclose(found, np.concatenate(parts, axis=2) if is_native else by_head, rtol=1e-4, atol=1e-5)
    assert type(block) is LoraSelfAttention


@pytest.mark.parametrize("make", [lambda: gluon.nn.Dense(3, in_units=4), lambda: bert.SelfAttention(4, 2, 0.0)])
def test_gradients_of_both_matrices_are_those_of_differences(make, monkeypatch):
    for module in (bert, lora):
        monkeypatch.setattr(module, "native_operators", lambda: NO_OPERATORS)
    block = adapted(make(), "float64", rank=2, alpha=4)
    inputs = [nd.array(RNG.normal(size=(3, 2, 4)), dtype="float64"), nd.zeros((4, 3, 3), dtype="float64")]
    inputs = inputs[:1] if isinstance(block, gluon.nn.Dense) else inputs
    if len(inputs) == 1:
        inputs[0] = inputs[0].reshape((6, 4))

    def loss():
        return (block(*inputs) ** 2).sum()

    with autograd.record():
        value = loss()
    value.backward()
    for name, one in block.collect_params().items():
        if "lora" not in name:
            continue
        array, index = one.data().asnumpy(), (1, 0)
        found = one.grad().asnumpy()[index]
        sides = []
        for step in (1e-5, -1e-5):
            moved = array.copy()
            moved[index] += step
            one.set_data(nd.array(moved, dtype="float64"))
            sides.append(loss().asscalar())
        one.set_data(nd.array(array, dtype="float64"))
        assert found == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6) and found != 0, name


def built(model, shape=((8,), (8,), ()), classes=3, **arguments):
    """A network of texts of eight tokens."""
    network = model.build_text(classes, shape, 20)
    return prepare_network(
        model, num_classes=classes, input_shape=shape, seed=3, network=network, output_shapes=[], **arguments
    )


SMALL = {"num_layers": 1, "units": 8, "hidden_size": 16, "num_heads": 2, "dropout": 0.0}
TOKENS = [nd.array(RNG.integers(0, 20, (4, 8))), nd.zeros((4, 8)), nd.array([8, 3, 5, 1])]


@pytest.mark.slow
@pytest.mark.parametrize("is_native", [True, False])
def test_bert_starts_as_its_base_and_merges_to_it(is_native, monkeypatch):
    if not is_native:
        for module in (bert, lora):
            monkeypatch.setattr(module, "native_operators", lambda: NO_OPERATORS)
    elif native_operators().path is None:
        pytest.skip(native_operators().why)
    settings = Lora(rank=3, alpha=7)
    base = built(Bert(**SMALL)).network
    network = built(Bert(**SMALL, lora=settings)).network
    np.testing.assert_array_equal(network(*TOKENS).asnumpy(), base(*TOKENS).asnumpy())
    before = arrays_of(base)
    assert all(np.array_equal(before[name], array) for name, array in arrays_of(network).items() if name in before)
    randomise(network)
    merged = merge(arrays_of(network), settings)
    assert merged.keys() == before.keys()
    for name, one in distinct_parameters(base).items():
        one.set_data(nd.array(merged[name]))
    expected = base(*TOKENS).asnumpy()
    np.testing.assert_allclose(network(*TOKENS).asnumpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_gpt_merges_as_well():
    settings = Lora(rank=2, layers=["*.qkv", "*.ffn_2"])
    sizes = {"num_layers": 1, "units": 8, "num_heads": 2, "dropout": 0.0}
    base, network = (built(Gpt(**sizes, **more), ((8,), (8,))).network for more in ({}, {"lora": settings}))
    added = [name for name in arrays_of(network) if "lora" in name]
    assert added == [f"layers.0.{layer}.lora_{matrix}" for layer in ("qkv", "ffn_2") for matrix in "ab"]
    randomise(network)
    merged = merge(arrays_of(network), settings)
    for name, one in distinct_parameters(base).items():
        one.set_data(nd.array(merged[name]))
    expected = base(*TOKENS[:2]).asnumpy()
    np.testing.assert_allclose(network(*TOKENS[:2]).asnumpy(), expected, rtol=1e-4)


def test_only_additions_are_trained_and_the_base_has_no_gradients():
    prepared = built(Bert(**SMALL, lora=Lora(rank=3, layers=["*.proj_query", "*.ffn_1"], train=["classifier.*"])))
    parameters = distinct_parameters(prepared.network)
    trained = {name for name, one in parameters.items() if one.grad_req != "null"}
    layers = [f"bert.encoder.transformer_cells.0.{layer}" for layer in ("attention_cell.proj_query", "ffn.ffn_1")]
    assert prepared.additions.layers == layers
    added = {f"{layer}.lora_{matrix}" for layer in layers for matrix in "ab"}
    assert trained == {*added, "classifier.1.weight", "classifier.1.bias"}
    assert all(parameters[name]._grad is None for name in parameters if name not in trained)
    first = parameters[f"{layers[1]}.lora_a"].data().asnumpy()
    assert first.shape == (3, 8) and parameters[f"{layers[1]}.lora_b"].shape == (16, 3)
    assert 0.2 < np.abs(first).max() <= 8**-0.5 and not parameters[f"{layers[1]}.lora_b"].data().asnumpy().any()


def test_additions_that_are_frozen_do_not_count_as_trained():
    settings = {"lora": Lora(rank=1, layers=["*.proj_query", "*.ffn_1"], train=["classifier.*"])}
    said = describe_additions(built(Bert(**SMALL, **settings)))
    assert "2 dense layers; 67 of" in said and "model.freeze" not in said
    said = describe_additions(built(Bert(**SMALL, **settings, freeze=["*.ffn_1.*"])))
    assert "2 dense layers; 43 of" in said and said.endswith("; model.freeze matches 2 matrices of additions")


def test_all_layers_but_those_that_are_trained_themselves_get_an_addition():
    layers = built(Bert(**SMALL, lora=Lora(rank=1, train=["classifier.*"]))).additions.layers
    assert len(layers) == 6 + 1 and layers[-1] == "bert.pooler"


@pytest.mark.slow
def test_a_head_that_the_weights_do_not_have_is_trained(tmp_path):
    built(Bert(**SMALL)).network.save_parameters(str(tmp_path / "three.params"))
    model = Bert(**SMALL, lora=Lora(rank=1), weights=str(tmp_path / "three.params"))
    prepared = built(model, classes=4)
    added = set(prepared.additions.parameters)
    assert set(prepared.additions.trained) - added == {"classifier.1.weight", "classifier.1.bias"}
    assert "classifier.1" not in prepared.additions.layers


def test_batch_norms_of_the_base_stay(prepare):
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.Dense(4, in_units=4), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(2, in_units=4))
    block.initialize()
    model = GivenModel(given_as="model", object="Block", lora=Lora(rank=1)).with_object(block)
    network = prepare(model, 2, (4,))
    before = arrays_of(network)
    with autograd.record():
        value = (network(nd.random.normal(3, 1, (8, 4))) ** 2).sum()
    value.backward()
    nd.waitall()
    assert all(np.array_equal(array, before[name]) for name, array in arrays_of(network).items())
    assert type(block[0]) is gluon.nn.Dense  # the user's block is not changed


def test_layers_that_share_a_weight_get_none(prepare):
    block = gluon.nn.HybridSequential()
    first = gluon.nn.Dense(4, in_units=4)
    block.add(first, gluon.nn.Dense(4, in_units=4, params=first.params), gluon.nn.Dense(4, in_units=4))
    assert list(linear_maps(block)) == ["2"]
    assert list(linear_maps(gluon.nn.Dense(4, in_units=4))) == [""]


def test_dropout_is_applied_to_the_inputs_of_additions_only():
    block = adapted(gluon.nn.Dense(3, in_units=64), rank=2, alpha=2, dropout=0.5)
    values, x = arrays_of(block), nd.ones((1, 64))
    block.lora_a.set_data(nd.ones((2, 64)))
    block.lora_b.set_data(nd.ones((3, 2)))
    with autograd.train_mode():
        found = block(x).asnumpy()
    added = found - (values["weight"].sum(axis=1) + values["bias"])
    # Each of 64 ones is 0 or 2, in a sum that both rows of A see.
    np.testing.assert_allclose(added % 4, 0, atol=1e-3)
    assert 60 < added[0, 0] < 196 and added[0, 0] != 128
    np.testing.assert_allclose(block(x).asnumpy() - found + added, 128, rtol=1e-5)


def test_dropout_of_self_attention(monkeypatch):
    for module in (bert, lora):
        monkeypatch.setattr(module, "native_operators", lambda: NO_OPERATORS)
    block = adapted(bert.SelfAttention(8, 2, 0.0), rank=2, dropout=0.5)
    inputs = nd.array(RNG.normal(size=(3, 2, 8))), nd.zeros((4, 3, 3))
    with autograd.train_mode():
        first, second = (block(*inputs).asnumpy() for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(*(block(*inputs).asnumpy() for _ in range(2)))


def test_statistics_are_never_trained():
    """Neither because a pattern matches them nor because the weights do not have them."""
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(2, in_units=2), gluon.nn.BatchNorm(in_channels=2))
    learned = ["0.weight", "0.bias", "1.gamma", "1.beta"]
    by_pattern = add_lora(network, Lora(rank=1, train=["1.*"]), [], learned).trained
    assert set(by_pattern) == {"0.lora_a", "0.lora_b", "1.gamma", "1.beta"}
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(2, in_units=2), gluon.nn.BatchNorm(in_channels=2))
    fresh = ["1.gamma", "1.running_mean"]
    assert set(add_lora(network, Lora(rank=1), fresh, learned).trained) == {"0.lora_a", "0.lora_b", "1.gamma"}


def test_a_shared_parameter_is_trained_under_all_of_its_names():
    network = gluon.nn.HybridSequential()
    first = gluon.nn.Dense(2, in_units=2)
    network.add(first, gluon.nn.Dense(2, in_units=2, params=first.params), gluon.nn.Dense(2, in_units=2))
    network.initialize()
    train_only(network, ["0.weight"])
    assert [one.grad_req for one in (first.weight, network[1].weight, network[2].weight)] == ["write", "write", "null"]
    assert first.weight.lr_mult == 1


def test_no_gradient_of_the_base_is_ever_allocated(monkeypatch):
    allocated, original = set(), gluon.Parameter._init_grad

    def record(self):
        if self.grad_req != "null" and len(self.shape) > 1:
            allocated.add(self.name)
        original(self)

    monkeypatch.setattr(gluon.Parameter, "_init_grad", record)
    prepared = built(Bert(**SMALL, lora=Lora(rank=1)))
    found = {name for name, one in distinct_parameters(prepared.network).items() if one.name in allocated}
    assert found == set(prepared.additions.parameters)


def test_merge():
    values = {
        "x.weight": np.ones((2, 3), "float32"),
        "x.lora_a": np.full((1, 3), 2, "float32"),
        "x.lora_b": np.full((2, 1), 3, "float32"),
        "y.bias": np.ones(2, "float32"),
    }
    merged = merge(values, Lora(rank=1, alpha=0.5))
    assert merged.keys() == {"x.weight", "y.bias"} and merged["x.weight"].dtype == np.float32
    assert (merged["x.weight"] == 4).all() and (values["x.weight"] == 1).all()
    assert merge(values, Lora()) == values
    for name, wrong in (("x.lora_b", np.ones((3, 1))), ("x.weight", None), ("x.lora_b", None)):
        damaged = {**values, name: wrong}
        damaged = {key: array for key, array in damaged.items() if array is not None}
        with pytest.raises(WeightsError, match="'x.lora_a' is no addition of rank 1 to 'x.weight'"):
            merge(damaged, Lora(rank=1))


@pytest.mark.parametrize(
    "settings,said",
    [
        (
            {"layers": ["*.proj_qery"]},
            r"model.lora.layers: the pattern '\*.proj_qery' matches no .* mean \*.proj_query",
        ),
        ({"layers": ["zz"]}, r"model.lora.layers: the pattern 'zz' .* Names are like bert.encoder.transformer_cells.0"),
        ({"train": ["*.gama"]}, r"model.lora.train: the pattern '\*.gama' matches no parameter .* mean \*.gamma"),
        ({"layers": ["classifier.*"], "train": ["classifier.*"]}, "all of these layers are trained themselves"),
    ],
)
def test_wrong_patterns(settings, said):
    with pytest.raises(ConfigError, match=said):
        built(Bert(**SMALL, lora=Lora(rank=1, **settings)))


@pytest.mark.parametrize(
    "settings,said",
    [
        ({"rank": 0}, "greater than 0"),
        ({"alpha": 3}, "alpha has no effect without a rank"),
        ({"rank": 1, "layers": []}, "layers is empty"),
        ({"rank": 1, "alpha": 0}, "greater than 0"),
        ({"rank": 1, "dropout": 1.0}, "less than 1"),
    ],
)
def test_wrong_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        Lora(**settings)


def test_networks_without_dense_layers_are_refused(prepare):
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Conv2D(2, 3, in_channels=3), gluon.nn.GlobalAvgPool2D(), gluon.nn.Flatten())
    network.initialize()
    model = GivenModel(given_as="model", object="Block", lora=Lora(rank=1)).with_object(network)
    with pytest.raises(ConfigError, match="the network has no dense layer with a weight of its own"):
        prepare(model, 2)


def test_a_file_with_additions_is_refused(prepare, tmp_path):
    prepare(MLP(lora=Lora(rank=2))).save_parameters(str(tmp_path / "lora.params"))
    for settings in ({}, {"lora": Lora(rank=2)}):
        with pytest.raises(WeightsError, match=r"is of a run with model.lora.*features.1.lora_a.*for=safetensors"):
            prepare(MLP(weights=str(tmp_path / "lora.params"), **settings))


COMMON = (
    "model=mlp",
    "trainer.monitor=val/loss",
    "trainer.max_epochs=2",
    "dataset.batch_size=100",
    "optimizer=adam",
    "trainer.clip_global_norm=1",
)


@pytest.mark.slow
def test_a_run_keeps_the_bits_of_its_base_and_resumes_and_is_evaluated_merged(tmp_path, capsys):
    train_here(tmp_path / "base", *COMMON, "trainer.max_steps=5", exit_code=75)
    base = open_checkpoint(tmp_path / "base", which="last")
    weights = f"model.weights={base.path / 'model.params'}"
    common = (*COMMON, weights, "model.lora.rank=2", "model.lora.layers=[features.*]", "model.lora.train=[output.*]")
    train_here(tmp_path / "whole", *common)
    train_here(tmp_path / "parts", *common, "trainer.max_steps=7", exit_code=75)
    train_here(tmp_path / "parts", *common)
    whole, parts = (open_checkpoint(tmp_path / run, which="last") for run in ("whole", "parts"))
    before, after = base.arrays("model"), whole.arrays("model")
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"output.weight", "output.bias"}
    assert after["features.1.lora_b"].any()
    assert all(array.tobytes() == parts.arrays("model")[name].tobytes() for name, array in after.items())
    trained = {"features.1", "features.3", "output"}
    assert {name.rpartition(":")[0].rpartition(".")[0] for name in whole.arrays("optimizer")} == trained
    assert not any("features.1.weight" in name for name in whole.arrays("optimizer"))
    values = mxtrain.load(tmp_path / "whole", which="last").evaluate(split="val")
    assert values["loss"] == pytest.approx(whole.metric, rel=1e-5)
    run, other = str(tmp_path / "whole"), str(tmp_path / "parts")
    train_here(tmp_path / "student", *COMMON, f"distillation.teacher={run}", "trainer.max_steps=1", exit_code=75)
    assert main(["average", run, other, "soup=uniform"]) == 2
    assert "was trained with model.lora, and the mean of two factors is not that of" in capsys.readouterr().err
