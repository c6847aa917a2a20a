"""Every family against the network of PyTorch with random weights: outputs of all layers, from the files that the
libraries themselves write."""

from __future__ import annotations

import numpy as np
import pytest
from layerwise import differences, randomised

from mxtrain.engine.backend import mx
from mxtrain.model.foreign.families import vgg
from mxtrain.model.foreign.importing import family_of, import_foreign
from mxtrain.model.networks.bert import BertClassifier, BertNetwork, BertSizes, BertTagger, Head
from mxtrain.model.prepare import prepare_network
from mxtrain.text.networks.gpt import GptNetwork, GptSizes
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.classification.resnet import ResNet

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
LARGEST = 1e-5
GROWN = 3e-5
"""For timm's MobileNetV2, whose rounding grows steadily over 53 layers, to 5e-6 before the last batch norm."""

ZOO = pytest.mark.zoo
IMAGES = [
    ("timm", "resnet18", GluonCV(name="resnet18_v1"), 64),
    pytest.param("timm", "resnet34", GluonCV(name="resnet34_v1b"), 64, marks=ZOO),
    pytest.param("timm", "resnet50", ResNet(depth=50, stem="large"), 64, marks=ZOO),
    pytest.param("timm", "resnet50", GluonCV(name="resnet50_v1b"), 64, marks=ZOO),
    pytest.param("timm", "resnet50c", GluonCV(name="resnet50_v1c"), 64, marks=ZOO),
    ("timm", "resnet50d", GluonCV(name="resnet50_v1d"), 65),
    pytest.param("timm", "resnet50s", GluonCV(name="resnet50_v1s"), 64, marks=ZOO),
    ("torchvision", "resnet18", ResNet(depth=18, stem="large"), 64),
    ("timm", "seresnext50_32x4d", GluonCV(name="se_resnext50_32x4d"), 64),
    pytest.param("timm", "resnext50_32x4d", GluonCV(name="resnext50_32x4d"), 64, marks=ZOO),
    pytest.param("torchvision", "resnet101", GluonCV(name="resnet101_v1b"), 64, marks=ZOO),
    pytest.param("torchvision", "vgg11", GluonCV(name="vgg11"), 224, marks=ZOO),
    ("torchvision", "vgg11", GluonCV(name="vgg11"), 64),
    pytest.param("torchvision", "vgg16_bn", GluonCV(name="vgg16_bn"), 224, marks=ZOO),
    pytest.param("timm", "vgg11_bn", GluonCV(name="vgg11_bn"), 224, marks=ZOO),
    ("timm", "vgg11_bn", GluonCV(name="vgg11_bn"), 64),
    pytest.param("timm", "vgg13", GluonCV(name="vgg13"), 224, marks=ZOO),
    ("torchvision", "densenet121", GluonCV(name="densenet121"), 224),
    ("torchvision", "mobilenet_v2", GluonCV(name="mobilenetv2_1.0"), 64),
    ("timm", "mobilenetv2_100", GluonCV(name="mobilenetv2_1.0"), 64),
    pytest.param("timm", "densenet169", GluonCV(name="densenet169"), 224, marks=ZOO),
]


def network_of(library, name, side):
    torch.manual_seed(0)
    if library == "timm":
        network = pytest.importorskip("timm").create_model(name, pretrained=False)
    else:
        network = getattr(pytest.importorskip("torchvision").models, name)()
    if "vgg" in name and side != 224:
        take_smaller_images(network, side // 32)
    return randomised(network)


def take_smaller_images(network, side):
    """Lets the first dense layer of a VGG read fewer positions: those of 224x224 pixels are 400 MB of weights."""
    if hasattr(network, "pre_logits"):
        network.pre_logits.input_kernel_size = side
        network.pre_logits.fc1 = torch.nn.Conv2d(512, 4096, side)
    else:
        network.avgpool = torch.nn.Identity()
        network.classifier[0] = torch.nn.Linear(512 * side * side, 4096)


@pytest.mark.parametrize("library, name, model, side", IMAGES, ids=lambda value: getattr(value, "name", None))
def test_networks_of_images(library, name, model, side, tmp_path, record_property, monkeypatch):
    theirs = network_of(library, name, side)
    monkeypatch.setattr(vgg, "SIDE", side // 32)
    path = tmp_path / "model.safetensors"
    pytest.importorskip("safetensors.torch").save_file(theirs.state_dict(), path)
    network = prepare_network(model, num_classes=1000, input_shape=(3, side, side), seed=1).network
    image = np.random.RandomState(0).standard_normal((2, 3, side, side)).astype("float32")
    # Gluon's dense layers of VGG include their ReLU.
    skip = ("classifier.0", "classifier.3", "pre_logits.fc1", "pre_logits.fc2") if "vgg" in name else ()
    found, report = differences(theirs, network, path, [image], lambda one: one(torch.tensor(image)), skip=skip)
    if "mobilenet" in name:
        del found["output"]
    alone = {key: value for key, value in found.items() if key.endswith(" alone")}
    found = {key: value for key, value in found.items() if key not in alone}
    record_property("largest", max(found.values()))
    record_property("alone", max(alone.values()))
    assert len(alone) > 7 and max(alone.values()) < LARGEST, alone
    largest = GROWN if name == "mobilenetv2_100" else LARGEST
    assert max(found.values()) < largest, {name: value for name, value in found.items() if value >= largest}
    if "mobilenet" in name:  # whose output layer has no bias in Gluon
        assert report.left == ["output.0.weight"] and [one.split(".")[0] for one in report.unused] == ["classifier"] * 2
    else:
        assert not report.left and not report.unused and not report.replaced
    settings = import_foreign(path, network).hint.split("is ")[-1].rstrip(".")
    assert isinstance(model, ResNet) or settings.replace("v1b", "v1") == f"model.name={model.name}".replace("v1b", "v1")


def described(library, name):
    """Names and shapes of the arrays of a network, without memory for them."""
    with torch.device("meta"):
        if library == "timm":
            return pytest.importorskip("timm").create_model(name, pretrained=False).state_dict()
        return getattr(pytest.importorskip("torchvision").models, name)().state_dict()


WITHOUT_NETWORK = [
    *(("timm", name) for name in ("efficientnet_b0", "mobilenetv1_100", "mobilenetv3_large_100", "mobilenetv3_rw")),
    *(("torchvision", name) for name in ("efficientnet_b0", "mobilenet_v3_small")),
]


def test_networks_that_gluon_lacks_are_recognised():
    """Also narrow and wide ones of known families: no network is named that would refuse their weights."""
    for library, name in WITHOUT_NETWORK:
        arrays = described(library, name)
        assert family_of(arrays, {}).name == "EfficientNet, MobileNetV1 or MobileNetV3 of torchvision and timm", name
    for library, name in (("torchvision", "wide_resnet50_2"), ("timm", "mobilenetv2_050"), ("timm", "resnet26")):
        arrays = described(library, name)
        assert family_of(arrays, {}).settings(arrays, {}) == "", name


V, B, T = 50, 3, 7
RANDOM = np.random.RandomState(0)
TOKEN = RANDOM.randint(5, V, (B, T))
TYPE = RANDOM.randint(0, 2, (B, T))
LENGTH = np.array([7, 4, 5])
MASK = (np.arange(T) < LENGTH[:, None]).astype("int64")
POSITION = np.arange(T)[None].repeat(B, 0)
SIZES = BertSizes(2, 32, 64, 4, 20, 0.0)
ROBERTA_SIZES = SIZES._replace(epsilon=1e-5)
CELLS = {f"encoder.layer.{number}": f"encoder.transformer_cells.{number}" for number in range(2)}
OURS = ("bert.", "bert.")


def config_of(name, **changes):
    config = getattr(pytest.importorskip("transformers"), name)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return config(**{"vocab_size": V, "max_position_embeddings": 20, **sizes, **changes})


def roberta(**changes):
    options = {"max_position_embeddings": 22, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
    return config_of("RobertaConfig", **{**options, **changes})


def distilbert(**changes):
    return config_of("DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64, **changes)


def cells(theirs="", ours=""):
    return {f"{theirs}{name}": f"{ours}{block}" for name, block in CELLS.items()}


def distil_cells(theirs, ours):
    return {f"{theirs}transformer.layer.{n}": f"{ours}encoder.transformer_cells.{n}" for n in range(2)}


def bert_inputs(one):
    return one(input_ids=torch.tensor(TOKEN), token_type_ids=torch.tensor(TYPE), attention_mask=torch.tensor(MASK))


def padded_inputs(one):
    ids = torch.tensor(np.where(MASK == 1, TOKEN, 1))
    return one(input_ids=ids, attention_mask=torch.tensor(MASK))


def classifier(sizes=SIZES):
    return BertClassifier(3, V, sizes, prefix="")


def masked(sizes=SIZES):
    return BertNetwork(V, sizes, Head.MASKED, prefix="bert_")


def next_log_probabilities(one):
    scores = torch.log_softmax(one(input_ids=torch.tensor(TOKEN)).logits, -1)
    return -scores.gather(-1, torch.tensor(np.roll(TOKEN, 1, 1))[..., None])[..., 0]


POOLER = {"bert.pooler": "bert.pooler"}
# class of transformers, configuration, our network, call, our further inputs, pairs of layers, layers left out
TEXTS = [
    ("BertForSequenceClassification", lambda: config_of("BertConfig", num_labels=3), classifier, bert_inputs, [],
     {**cells(*OURS), **POOLER}, ["bert.pooler.dense"]),
    ("BertForTokenClassification", lambda: config_of("BertConfig", num_labels=3),
     lambda: BertTagger(3, V, SIZES, prefix=""), bert_inputs, [], cells(*OURS), []),
    ("BertForQuestionAnswering", lambda: config_of("BertConfig"), lambda: BertTagger(2, V, SIZES, prefix=""),
     lambda one: torch.stack([bert_inputs(one).start_logits, bert_inputs(one).end_logits], -1), [], cells(*OURS), []),
    ("BertForMaskedLM", lambda: config_of("BertConfig"), masked, bert_inputs, [POSITION], cells("bert."), []),
    ("RobertaForSequenceClassification", lambda: roberta(num_labels=3), lambda: classifier(ROBERTA_SIZES),
     padded_inputs, [], cells("roberta.", "bert."), ["classifier.dense"]),
    ("RobertaForMaskedLM", roberta, lambda: masked(ROBERTA_SIZES), padded_inputs, [POSITION], cells("roberta."), []),
    ("DistilBertForMaskedLM", distilbert, masked, padded_inputs, [POSITION], distil_cells("distilbert.", ""), []),
    ("DistilBertModel", distilbert, lambda: BertNetwork(V, SIZES, Head.TOKENS, prefix="bert_"),
     lambda one: padded_inputs(one).last_hidden_state, [], distil_cells("", ""), []),
    ("GPT2LMHeadModel", lambda: config_of("GPT2Config", n_positions=20, n_embd=32, n_layer=2, n_head=4,
                                          bos_token_id=0, eos_token_id=0),
     lambda: GptNetwork(V, T, GptSizes(2, 32, 4, 20, 0.0, "tanh"), 1, prefix=""), next_log_probabilities,
     [], {f"transformer.h.{number}": f"layers.{number}" for number in range(2)}, []),
]  # fmt: skip


@pytest.mark.parametrize("name, config, build, call, more_inputs, pairs, skip", TEXTS, ids=[case[0] for case in TEXTS])
def test_networks_of_texts(name, config, build, call, more_inputs, pairs, skip, tmp_path, record_property):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = randomised(getattr(transformers, name)(config()))
    theirs.save_pretrained(tmp_path)
    network = build()
    network.initialize(mx.init.Normal(0.3))
    is_gpt = "GPT2" in name
    inputs = [TOKEN, np.roll(TOKEN, 1, 1)] if is_gpt else [TOKEN, TYPE, LENGTH, *more_inputs]

    def run(one):
        output = call(one)
        return getattr(output, "logits", output)

    arrays = [array.astype("float32") for array in inputs]
    path = tmp_path / "model.safetensors"
    found, report = differences(
        theirs, network, path, arrays, run, more=pairs, skip=skip, keep_BT=None if is_gpt else MASK
    )
    record_property("largest", max(found.values()))
    assert max(found.values()) < LARGEST, {name: value for name, value in found.items() if value >= LARGEST}
    assert len(found) > 10 and not report.left and not report.unused
