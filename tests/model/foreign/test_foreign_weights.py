"""Weights under the names of other libraries: what is translated, what is said, and what is refused."""

import re
import sys

import numpy as np
import pytest
from foreign_files import BERT_CONFIG, bert_shapes, random_arrays, write
from running import ROOT

import mxtrain
from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.exporting.pytorch.weights import export_weights
from mxtrain.model.foreign import families
from mxtrain.model.foreign.families import densenet, mobilenet, vgg
from mxtrain.model.foreign.importing import family_of, known_families
from mxtrain.model.foreign.table import DoesNotFit
from mxtrain.model.mlp import MLP
from mxtrain.model.networks.bert import BertClassifier, BertSizes
from mxtrain.model.weights import load_weights
from mxtrain.text.networks.gpt import GptNetwork, GptSizes
from mxtrain.vision.classification.lenet import LeNet

SIZES = BertSizes(1, 8, 16, 2, 6, 0.0)


def initialised(network):
    network.initialize(mx.init.Normal(0.1))
    return network


@pytest.fixture
def classifier():
    return initialised(BertClassifier(3, 9, SIZES, prefix=""))


def values(network):
    return {name: p.data().asnumpy() for name, p in network._collect_params_with_prefix().items()}


def bert(**changes):
    arrays = random_arrays({f"bert.{name}": shape for name, shape in bert_shapes().items()})
    arrays.update(random_arrays({"bert.pooler.dense.weight": (8, 8), "bert.pooler.dense.bias": (8,)}, 1))
    return {**arrays, **changes}


def test_names_and_values_of_bert(classifier, tmp_path):
    arrays = bert(**{"bert.embeddings.position_ids": np.arange(6), "cls.seq_relationship.bias": np.zeros(2, "float32")})
    report = load_weights(classifier, write(tmp_path / "model.safetensors", arrays, BERT_CONFIG))
    found = values(classifier)
    for ours, theirs in (
        ("bert.word_embed.0.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert.encoder.position_weight", "bert.embeddings.position_embeddings.weight"),
        ("bert.encoder.layer_norm.gamma", "bert.embeddings.LayerNorm.weight"),
        (
            "bert.encoder.transformer_cells.0.attention_cell.proj_key.bias",
            "bert.encoder.layer.0.attention.self.key.bias",
        ),
        ("bert.encoder.transformer_cells.0.ffn.ffn_1.weight", "bert.encoder.layer.0.intermediate.dense.weight"),
        ("bert.pooler.weight", "bert.pooler.dense.weight"),
    ):
        assert np.array_equal(found[ours], arrays[theirs]), ours
    assert len(report.matched) == 23 and report.left == ["classifier.1.weight", "classifier.1.bias"]
    assert report.unused == ["cls.seq_relationship.bias"] and report.dropped == ["bert.embeddings.position_ids"]
    text = str(report)
    assert "of BERT of transformers, names translated for model=bert" in text and "position_ids" in text
    assert "no config.json" not in text


def test_head_beside_the_encoder_is_loaded(classifier, tmp_path):
    head = random_arrays({"classifier.weight": (3, 8), "classifier.bias": (3,)}, 2)
    report = load_weights(classifier, write(tmp_path / "model.safetensors", bert(**head)))
    assert not report.left and np.array_equal(values(classifier)["classifier.1.weight"], head["classifier.weight"])
    assert "no config.json beside it: layer norms' epsilon 1e-12, the erf form of GELU" in str(report)


def test_head_of_other_classes_starts_anew(classifier, tmp_path):
    head = random_arrays({"classifier.weight": (5, 8), "classifier.bias": (5,)}, 2)
    report = load_weights(classifier, write(tmp_path / "model.safetensors", bert(**head)))
    assert report.replaced == ["classifier.1.weight", "classifier.1.bias"]


def without(name):
    arrays = bert()
    del arrays[name]
    return arrays


REFUSED = {
    "epsilon": (
        bert(),
        {"layer_norm_eps": 1e-5},
        "epsilon 1e-05, and those of the network 1e-12. Type model.layer_norm_eps=1e-05",
    ),
    "epsilon of none": (bert(), {"layer_norm_eps": 1e-5, "num_attention_heads": 2}, "Type model.layer_norm_eps=1e-05"),
    "heads": (
        bert(),
        {"num_attention_heads": 4},
        "num_attention_heads=4, and the network has 2 heads. Type model.num_heads=4",
    ),
    "default heads": (bert(), {"hidden_act": "gelu"}, "num_attention_heads=12, and the network has 2 heads"),
    "activation": (bert(), {**BERT_CONFIG, "hidden_act": "relu"}, "hidden_act=relu; the network computes gelu"),
    "positions": (bert(), {**BERT_CONFIG, "position_embedding_type": "relative_key"}, "relative positions"),
    "config": (bert(), [1], "config.json, which describes the weights, holds no object"),
    "untied": (
        bert(**{"cls.predictions.decoder.weight": np.zeros((9, 8), "float32")}),
        BERT_CONFIG,
        "'cls.predictions.decoder.weight' and 'embeddings.word_embeddings.weight' differ",
    ),
    "missing": (
        without("bert.encoder.layer.0.output.dense.bias"),
        BERT_CONFIG,
        "1 arrays the network needs, and are not in the file, such as bert.encoder.transformer_cells.0.ffn.ffn_2.bias. "
        "The network of the file is model=bert model.num_layers=1 model.units=8 model.hidden_size=16 model.num_heads=2 "
        "model.max_length=6.",
    ),
    "more": (
        bert(**{"bert.encoder.layer.0.adapter.weight": np.zeros(3, "float32")}),
        BERT_CONFIG,
        "1 arrays are in the file, and have no place in the network, such as bert.encoder.layer.0.adapter.weight",
    ),
    "shape": (
        bert(**{"bert.embeddings.word_embeddings.weight": np.zeros((7, 8), "float32")}),
        BERT_CONFIG,
        "'bert.word_embed.0.weight' has the shape (9, 8)",
    ),
    "not finite": (
        bert(**{"bert.pooler.dense.bias": np.full(8, np.inf, "float32")}),
        BERT_CONFIG,
        "not finite in 'bert.pooler.bias'",
    ),
}


@pytest.mark.parametrize("arrays, config, said", REFUSED.values(), ids=REFUSED)
def test_what_would_compute_something_else_is_refused(arrays, config, said, classifier, tmp_path):
    before = values(classifier)
    with pytest.raises(WeightsError, match=re.escape(said)) as raised:
        load_weights(classifier, write(tmp_path / "model.safetensors", arrays, config))
    assert raised.value.exit_code == 2
    assert all(np.array_equal(before[name], value) for name, value in values(classifier).items())


def test_damaged_config_is_named(classifier, tmp_path):
    path = write(tmp_path / "model.safetensors", bert())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="config.json, which describes the weights, cannot be read: is not JSON"):
        load_weights(classifier, path)


def test_the_needed_network_is_named(tmp_path, prepare):
    path = write(tmp_path / "model.safetensors", bert(), BERT_CONFIG)
    with pytest.raises(
        WeightsError, match=r"of BERT of transformers, and the network is none that takes them \(model=bert\)"
    ):
        load_weights(prepare(MLP()), path)


def test_other_architectures_name_the_nearest_family(tmp_path, prepare):
    arrays = random_arrays({"encoder.layer.0.attention.self.query.weight": (8, 8), "patch_embed.weight": (3, 3)})
    path = write(tmp_path / "model.safetensors", arrays)
    with pytest.raises(WeightsError, match="The nearest is (RoBERTa|BERT) of transformers, which has 50% of its names"):
        load_weights(prepare(MLP()), path)
    with pytest.raises(WeightsError, match="names can be translated .*ResNet of torchvision and timm.*; VGG") as raised:
        load_weights(prepare(MLP()), write(path, random_arrays({"patch_embed.weight": (3, 3)})))
    assert "nearest" not in str(raised.value)


def test_our_own_names_are_read_as_they_are(tmp_path, prepare):
    source, other = prepare(MLP(), seed=1), prepare(MLP(), seed=2)
    report = load_weights(other, write(tmp_path / "own.safetensors", values(source)))
    assert not report.left and not report.unused and not report.remarks
    assert all(np.array_equal(values(source)[name], value) for name, value in values(other).items())


def roberta(length):
    arrays = random_arrays({f"roberta.{n}": s for n, s in bert_shapes(length=length, types=1).items()})
    head = {"classifier.dense.weight": (8, 8), "classifier.dense.bias": (8,), "classifier.out_proj.weight": (3, 8)}
    return {**arrays, **random_arrays({**head, "classifier.out_proj.bias": (3,)}, 1)}


def test_roberta_is_told_apart_by_its_config(tmp_path):
    network = initialised(BertClassifier(3, 9, SIZES._replace(epsilon=1e-5), prefix=""))
    arrays, config = roberta(8), {**BERT_CONFIG, "model_type": "roberta", "layer_norm_eps": 1e-5}
    report = load_weights(network, write(tmp_path / "model.safetensors", arrays, config))
    found = values(network)
    assert not report.left and "RoBERTa" in str(report)
    assert np.array_equal(
        found["bert.encoder.position_weight"], arrays["roberta.embeddings.position_embeddings.weight"][2:]
    )
    types = found["bert.token_type_embed.0.weight"]
    assert np.array_equal(types[0], types[1]) and np.array_equal(
        found["bert.pooler.weight"], arrays["classifier.dense.weight"]
    )
    assert (
        family_of(arrays, {"model_type": "camembert"}).name == family_of(arrays, {}).name == "RoBERTa of transformers"
    )
    assert family_of(bert(), {}).name == family_of(bert(), {"model_type": "bert"}).name == "BERT of transformers"


def test_dense_layers_of_gpt2_are_transposed(tmp_path):
    network = initialised(GptNetwork(9, 4, GptSizes(1, 8, 2, 6, 0.0), 1, prefix=""))
    shapes = {"wte.weight": (9, 8), "wpe.weight": (6, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    for name, shape in {
        "attn.c_attn": (8, 24),
        "attn.c_proj": (8, 8),
        "mlp.c_fc": (8, 32),
        "mlp.c_proj": (32, 8),
    }.items():
        shapes.update({f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[1:]})
    for name in ("ln_1", "ln_2"):
        shapes.update({f"h.0.{name}.weight": (8,), f"h.0.{name}.bias": (8,)})
    arrays = random_arrays({**shapes, "h.0.attn.bias": (1, 1, 6, 6)})
    config = {"model_type": "gpt2", "n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    path = write(tmp_path / "model.safetensors", arrays, config)
    report = load_weights(network, path)
    assert not report.left and report.dropped == ["h.0.attn.bias"]
    assert np.array_equal(values(network)["layers.0.qkv.weight"], arrays["h.0.attn.c_attn.weight"].T)
    for changes, said in (
        ({"activation_function": "relu"}, "activation_function=relu"),
        (
            {"activation_function": "gelu"},
            "of the erf form, and that of the network of the tanh form. Type model.gelu=erf",
        ),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06, and the network has 1e-05"),
        ({"n_head": 4}, "n_head=4, and the network has 2 heads. Type model.num_heads=4"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ):
        write(path, arrays, {**config, **changes})
        with pytest.raises(WeightsError, match=said):
            load_weights(network, path)
    write(path, {**arrays, "lm_head.weight": np.zeros((9, 8), "float32")}, config)
    with pytest.raises(WeightsError, match="'lm_head.weight' and 'wte.weight' differ"):
        load_weights(network, path)


def test_families_are_found_in_their_folder():
    assert {"BERT of transformers", "VGG of torchvision and timm"} < {family.name for family in known_families()}
    assert len({family.name for family in known_families()}) == len(known_families())


@pytest.fixture
def own_family(tmp_path, monkeypatch):
    """The example of the page on weights as a module beside the families."""
    page = (ROOT / "docs/start/foreign-weights.md").read_text("utf-8")
    (tmp_path / "own_digits.py").write_text(re.search(r"^```python\n(.*?)^```", page, re.M | re.S)[1], "utf-8")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    known_families.cache_clear()
    yield
    known_families.cache_clear()
    sys.modules.pop("mxtrain.model.foreign.families.own_digits", None)


def test_a_family_is_one_module(own_family, tmp_path, prepare):
    network = prepare(MLP(hidden=[5]), num_classes=3, input_shape=(4,))
    shapes = {"first.weight": (5, 4), "first.bias": (5,), "second.weight": (3, 5), "second.bias": (3,)}
    arrays = random_arrays(shapes)
    path = write(tmp_path / "model.safetensors", arrays)
    assert mxtrain.inspect(path).command == f"model=mlp model.hidden=[5] model.weights={path}"
    report = load_weights(network, path)
    assert not report.left and not report.unused and "of our network for digits" in str(report)
    assert np.array_equal(values(network)["features.1.weight"], arrays["first.weight"])
    assert np.array_equal(values(network)["output.bias"], arrays["second.bias"])
    with pytest.raises(WeightsError, match=r"fit the network: .* of the file is model=mlp model.hidden=\[5\]"):
        load_weights(prepare(MLP(hidden=[6]), num_classes=3, input_shape=(4,)), path)


WITHOUT_TABLE = [
    ("blocks.4.1.conv_pw.weight",),
    ("blocks.1.0.conv_pwl.weight", "blocks.4.1.conv_pw.weight", "blocks.2.0.se.conv_reduce.weight"),
    ("features.4.block.2.fc1.weight",),
    ("features.1.0.block.1.fc1.weight",),
]


@pytest.mark.parametrize("names", WITHOUT_TABLE)
def test_families_without_a_table_say_why(names, tmp_path, prepare):
    path = write(tmp_path / "model.safetensors", named(*names))
    said = "Gluon and GluonCV have no EfficientNet, .* type model=onnx model.file=FILE.onnx"
    with pytest.raises(WeightsError, match=f"is of EfficientNet, .* timm, and cannot be used. {said}"):
        load_weights(prepare(MLP()), path)
    found = mxtrain.inspect(path)
    assert found.seems.startswith("EfficientNet") and re.match(said, found.remarks[0]) and not found.command
    plain = named("blocks.1.0.conv_pwl.weight", "blocks.4.1.conv_pw.weight")
    assert family_of(plain, {}).name == "MobileNetV2 of torchvision and timm"


def test_files_without_a_network_say_so(tmp_path, prepare):
    path = write(tmp_path / "model.safetensors", resnext_names((3, 4, 6, 3), 128, 128))
    sentence = "No network of Gluon, GluonCV or mxtrain has the layers of the file."
    with pytest.raises(WeightsError, match=rf"is none that takes them \(GluonCV's .*\)\. {sentence}"):
        load_weights(prepare(MLP()), path)
    found = mxtrain.inspect(path)
    assert not found.command and found.remarks[-1] == sentence


def test_inspect_names_family_and_settings(tmp_path):
    path = write(tmp_path / "model.safetensors", bert(), BERT_CONFIG)
    found = mxtrain.inspect(path)
    assert found.kind == "safetensors, 23 arrays" and found.seems == "BERT of transformers" and not found.remarks
    assert found.command == (
        "model=bert model.num_layers=1 model.units=8 model.hidden_size=16 model.num_heads=2 model.max_length=6 "
        f"model.weights={path}"
    )
    assert mxtrain.compose(*found.command.split())["model"]["units"] == 8
    (tmp_path / "config.json").unlink()
    # Arrays that are known and not needed, such as position_ids, are not counted.
    write(path, {**bert(), "bert.embeddings.position_ids": np.arange(6), "bert.x": np.zeros(1, "float32")})
    assert mxtrain.inspect(path).remarks == [
        "No config.json is beside it, so what names do not tell is not compared.",
        "1 arrays have no place in our network, such as 'bert.x'.",
    ]
    found = mxtrain.inspect(write(path, {"x": np.zeros(1, "float32")}))
    assert not found.seems and found.command == f"model=OPTION model.weights={path}"
    assert found.remarks[0].startswith("It is not of an architecture whose names can be translated (BERT of")
    path.write_bytes(b"abc")
    with pytest.raises(ConfigError, match="is damaged or no safetensors file: it has 3 bytes"):
        mxtrain.inspect(path)


def sized(units, layers, length, hidden=None, **config):
    shapes = bert_shapes(3, units, hidden or 4 * units, 1, length, config.pop("types", 2))
    last = {f"encoder.layer.{layers - 1}.output.dense.weight": (1, 1)}
    return {name: np.broadcast_to(np.float32(0), shape) for name, shape in {**shapes, **last}.items()}


def bert_settings(layers, units, heads, length=512, more=""):
    return (
        f"model=bert model.num_layers={layers} model.units={units} model.hidden_size={4 * units} "
        f"model.num_heads={heads} model.max_length={length}{more}"
    )


SETTINGS = [
    (sized(768, 12, 512), {}, bert_settings(12, 768, 12)),
    (sized(1024, 24, 512), {"num_attention_heads": 16}, bert_settings(24, 1024, 16)),
    (sized(768, 12, 512), {"num_attention_heads": 6}, bert_settings(12, 768, 6)),
    (sized(768, 12, 514, types=1), {}, bert_settings(12, 768, 12, 512, " model.layer_norm_eps=1e-05")),
    (sized(768, 12, 512), {"layer_norm_eps": 1e-6}, bert_settings(12, 768, 12, 512, " model.layer_norm_eps=1e-06")),
]


@pytest.mark.parametrize("arrays, config, settings", SETTINGS)
def test_settings_of_encoders(arrays, config, settings):
    assert family_of(arrays, config).settings(arrays, config) == settings
    description = mxtrain.compose(*settings.split())
    assert description["model"]["_target_"] == "mxtrain.text.bert.Bert"


def gpt_arrays(units, layers, length):
    shapes = {"wte.weight": (3, units), "wpe.weight": (length, units), "h.0.attn.c_attn.weight": (1, 1)}
    return random_arrays({**shapes, f"h.{layers - 1}.ln_1.weight": (1,)})


def gpt_settings(layers, units, heads):
    return f"model=gpt model.num_layers={layers} model.units={units} model.num_heads={heads} model.max_length=1024"


@pytest.mark.parametrize(
    "arrays, config, settings",
    [
        (gpt_arrays(768, 12, 1024), {}, gpt_settings(12, 768, 12)),
        (gpt_arrays(1600, 48, 1024), {"n_head": 25}, gpt_settings(48, 1600, 25)),
        (
            gpt_arrays(768, 6, 1024),
            {"activation_function": "gelu"},
            gpt_settings(6, 768, 12) + " model.gelu=erf",
        ),
    ],
)
def test_settings_of_gpt2(arrays, config, settings):
    assert family_of(arrays, config).settings(arrays, config) == settings
    assert mxtrain.compose(*settings.split())["model"]["gelu"] == (
        "erf" if config.get("activation_function") else "tanh"
    )


def named(*names):
    return dict.fromkeys(names, np.zeros((64, 3, 1, 1), "float32"))


def resnet_names(counts, *more):
    blocks = [f"layer{stage}.{b}.conv1.weight" for stage, count in enumerate(counts, 1) for b in range(count)]
    return named(*blocks, *more)


@pytest.mark.parametrize(
    "arrays, settings",
    [
        (resnet_names((2, 2, 2, 2)), "resnet18_v1b"),
        (resnet_names((3, 4, 6, 3)), "resnet34_v1b"),
        (resnet_names((3, 4, 6, 3), "layer1.0.conv3.weight"), "resnet50_v1b"),
        (resnet_names((3, 8, 36, 3), "layer1.0.conv3.weight", "conv1.0.weight", "conv1.6.weight"), "resnet152_v1s"),
        (
            resnet_names(
                (3, 4, 23, 3),
                "layer1.0.conv3.weight",
                "conv1.0.weight",
                "conv1.6.weight",
                "layer2.0.downsample.2.weight",
            ),
            "resnet101_v1e",
        ),
    ],
)
def test_settings_of_resnets(arrays, settings):
    assert family_of(arrays, {}).settings(arrays, {}) == f"model.name={settings}"


def resnext_names(counts, channels, of_a_group, *more):
    names = resnet_names(counts, "layer1.0.conv3.weight", *more)
    return {**names, "layer1.0.conv2.weight": np.zeros((channels, of_a_group, 3, 3), "float32")}


@pytest.mark.parametrize(
    "counts, channels, of_a_group, more, settings",
    [
        ((3, 4, 6, 3), 128, 4, (), "model.name=resnext50_32x4d"),
        ((3, 4, 23, 3), 256, 4, ("layer1.0.se.fc1.weight",), "model.name=se_resnext101_64x4d"),
        ((3, 4, 6, 3), 64, 64, (), "model.name=resnet50_v1b"),
        ((3, 4, 6, 3), 64, 64, ("layer1.0.se.fc1.weight",), ""),
        ((3, 4, 6, 3), 128, 128, (), ""),
        ((3, 4, 23, 3), 256, 8, (), ""),
        ((3, 4, 6, 3), 128, 4, ("conv1.6.weight", "conv1.0.weight"), ""),
        ((2, 2, 2, 3), 64, 64, (), ""),
    ],
)
def test_settings_of_resnexts(counts, channels, of_a_group, more, settings):
    arrays = resnext_names(counts, channels, of_a_group, *more)
    assert family_of(arrays, {}).settings(arrays, {}) == settings


def test_strides_and_architectures_of_resnets_are_compared():
    family = family_of(resnet_names((2, 2, 2, 2)), {})
    bottleneck = resnet_names((3, 4, 6, 3), "layer1.0.conv3.weight")
    gluoncv, v1, own = family.tables
    network = SymbolLike("resnetv10_stage1_conv0_bias")
    with pytest.raises(DoesNotFit, match="stride of a bottleneck .* Type model.name=resnet50_v1b, which computes"):
        v1.check(bottleneck, network, {})
    assert v1.check(resnet_names((2, 2, 2, 2)), network, {}) == gluoncv.check(bottleneck, network, {})
    with pytest.raises(DoesNotFit, match="stride of a bottleneck"):
        v1.check(resnext_names((3, 4, 6, 3), 64, 64), network, {})
    assert v1.check(resnext_names((3, 4, 6, 3), 128, 4), network, {"architecture": "seresnext50_32x4d"}) == []
    for name in ("resnetaa50", "resnet50t", "resnet26d", "resnext50d_32x4d", "resnext101_32x8d", "xresnext50_32x4d"):
        with pytest.raises(DoesNotFit, match=f"config.json says architecture={name}, which computes more"):
            own.check(bottleneck, network, {"architecture": name})
    for name in ("resnet50", "resnet101d", "resnet50.gluon_in1k", "resnext101_64x4d.gluon_in1k", "resnext101_32x4d"):
        assert gluoncv.check(bottleneck, network, {"architecture": name}) == []


@pytest.mark.parametrize(
    "module, known, others",
    [
        (densenet, ("", "densenet121.ra_in1k", "tv_densenet121"), ("densenetblur121d", "my_densenet121")),
        (vgg, ("", "vgg16_bn.tv_in1k", "vgg11"), ("repvgg_a2", "vgg16_x")),
        (mobilenet, ("", "mobilenetv2_100.ra_in1k"), ("efficientnet_b0", "my_mobilenetv2_100")),
    ],
)
def test_architectures_of_other_families_are_compared(module, known, others):
    check = module.FAMILY.tables[0].check
    for name in known:
        check({}, SymbolLike(), {"architecture": name})
    for name in others:
        with pytest.raises(DoesNotFit, match=f"config.json says architecture={name}, which computes more"):
            check({}, SymbolLike(), {"architecture": name})


@pytest.mark.parametrize("counts, depth", [((6, 12, 24, 16), 121), ((6, 12, 48, 32), 201), ((1, 1, 1, 1), 121)])
def test_settings_of_densenets(counts, depth):
    names = [f"features.denseblock{b}.denselayer{n + 1}" for b, count in enumerate(counts, 1) for n in range(count)]
    arrays = {f"{name}.conv{number}.weight": np.zeros(1) for name in names for number in (1, 2)}
    assert family_of(arrays, {}).settings(arrays, {}) == f"model.name=densenet{depth}"


def test_arguments_of_timm_are_compared():
    check = mobilenet.FAMILY.tables[0].check
    check({}, SymbolLike(), {"model_args": {"num_classes": 5, "in_chans": 3, "img_size": None, "global_pool": "avg"}})
    for key, value in (("global_pool", "max"), ("act_layer", "relu"), ("avg", "global_pool")):
        with pytest.raises(DoesNotFit, match=f"model_args.{key}={value}, with which timm computes something else"):
            check({}, SymbolLike(), {"model_args": {key: value}})


class SymbolLike:
    """A network with these full names of parameters in `features`, and no blocks."""

    def __init__(self, *names):
        self.features = self
        self.collect_params = lambda: dict.fromkeys(names)

    def __iter__(self):
        return iter(())


def test_exported_safetensors_come_back(tmp_path, prepare):
    model = LeNet(channels=[4], hidden=8, batch_norm=True)
    source, other = prepare(model, seed=1), prepare(model, seed=2)
    export_weights(values(source), tmp_path / "out", {"model": "lenet", "step": 1, "dataset": "x"})
    report = load_weights(other, tmp_path / "out" / "model.safetensors")
    assert not report.left and not report.unused and "running_mean" in "".join(report.matched)
    assert all(np.array_equal(values(source)[name], value) for name, value in values(other).items())
