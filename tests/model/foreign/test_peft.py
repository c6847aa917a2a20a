"""Adapters of Hugging Face PEFT: read as the start of `model.lora`, and written by `export RUN for=peft`."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from foreign_files import write
from running import train_here

from mxtrain.checkpoint.ndarray_file import canonical_sha256
from mxtrain.cli import main
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.exporting.pytorch.peft import export_adapter
from mxtrain.model.foreign.peft import patterns_of, read_adapter
from mxtrain.model.foreign.safetensors_file import read_safetensors
from mxtrain.model.lora import Lora
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import prepare_network
from mxtrain.text.bert import Bert
from mxtrain.text.language_modeling.gpt import Gpt

LARGEST = 1e-5
BERT = {"num_layers": 1, "units": 8, "hidden_size": 16, "num_heads": 2, "max_length": 16, "dropout": 0.0}
GPT2 = {"num_layers": 1, "units": 8, "num_heads": 2, "max_length": 16, "gelu": "tanh", "dropout": 0.0}
SETTINGS = {
    "bert_lora": {"rank": 2, "alpha": 6, "layers": ["*.proj_query", "*.proj_value"]},
    "bert_biases": {"rank": 2, "alpha": 6, "layers": ["bert.*"]},
    "gpt2_lora": {"rank": 3, "alpha": 5, "layers": ["*.qkv", "*.projection", "*.ffn_2"]},
    "gpt2_rslora": {"rank": 4, "alpha": 10, "layers": ["*.ffn_1"]},
}
FACTS = {"step": 3, "dataset": "Text"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder of files that peft and transformers wrote, see make_peft_files.py."""
    folder = tmp_path_factory.mktemp("peft")
    with tarfile.open(Path(__file__).with_name("peft_files.tar.xz")) as archive:
        archive.extractall(folder)
    return folder


def described(files, name, **changes):
    kind = name.partition("_")[0]
    lora = Lora(**{**SETTINGS[name], "adapter": str(files / name), **changes})
    return (Bert if kind == "bert" else Gpt)(**(BERT if kind == "bert" else GPT2), weights=str(files / kind), lora=lora)


def prepared(model, length=6, classes=3):
    shape = ((length,), (length,), ()) if isinstance(model, Bert) else ((length,), (length,))
    network = model.build_text(classes, shape, 12)
    return prepare_network(model, num_classes=classes, input_shape=shape, seed=3, network=network, output_shapes=[])


def outputs_of(network, tokens, is_bert):
    """Logits of BERT, or for GPT the negative log-likelihoods of each token of the vocabulary."""
    tokens = nd.array(tokens)
    if is_bert:
        return network(tokens, nd.zeros_like(tokens), nd.array([tokens.shape[1]] * len(tokens))).asnumpy()
    return np.stack([network(tokens, nd.full(tokens.shape, one)).asnumpy() for one in range(12)], axis=-1)


def expected_outputs(files, name):
    with np.load(files / "outputs.npz") as arrays:
        tokens, logits = arrays["tokens"], arrays[name]
    if name.startswith("bert"):
        return tokens, logits
    return tokens, np.log(np.exp(logits).sum(axis=-1, keepdims=True)) - logits


def arrays_of(network):
    return {name: one.data().asnumpy() for name, one in distinct_parameters(network).items()}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_outputs_are_those_of_peft(files, name):
    found = prepared(described(files, name))
    tokens, expected = expected_outputs(files, name)
    outputs = outputs_of(found.network, tokens, name.startswith("bert"))
    assert np.abs(outputs - expected).max() < LARGEST
    assert np.abs(expected).max() > 0.1
    assert f"adapter of PEFT: additions to {len(found.additions.layers)} layers" in str(found.weights_report)


@pytest.mark.parametrize("name", ["bert_lora", "gpt2_lora"])
def test_an_exported_adapter_has_the_arrays_of_the_one_that_was_read(files, name, tmp_path):
    model = described(files, name)
    arrays = arrays_of(prepared(model).network)
    task = "classification" if name.startswith("bert") else "language_modeling"
    export_adapter(arrays, model, task, ["a", "b", "c"], tmp_path / "out", FACTS)
    ours, theirs = (
        read_safetensors(folder / "adapter_model.safetensors") for folder in (tmp_path / "out", files / name)
    )
    assert {key: value for key, value in ours.items() if "pooler" not in key}.keys() == theirs.keys()
    for key, array in theirs.items():
        np.testing.assert_array_equal(ours[key], array)
    ours, theirs = (
        json.loads((folder / "adapter_config.json").read_text()) for folder in (tmp_path / "out", files / name)
    )
    for key in ("peft_type", "task_type", "r", "lora_alpha", "fan_in_fan_out", "bias"):
        assert ours[key] == theirs[key], key
    assert canonical_sha256(arrays) == canonical_sha256(
        arrays_of(prepared(described(files, name, adapter=str(tmp_path / "out"))).network)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and peft
@pytest.mark.parametrize("name", list(SETTINGS))
def test_peft_computes_the_outputs_of_an_exported_adapter(files, name, tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    is_bert = name.startswith("bert")
    lora = {**SETTINGS[name], "layers": SETTINGS[name]["layers"] if name != "bert_biases" else ["*.ffn_*"]}
    model = described(files, name).model_copy(update={"lora": Lora(**lora)})
    network = prepared(model).network
    rng = np.random.default_rng(1)
    for key, one in distinct_parameters(network).items():
        if "lora" in key or "classifier" in key:
            one.set_data(nd.array(rng.normal(0, 0.3, one.shape)))
    task = "classification" if is_bert else "language_modeling"
    export_adapter(arrays_of(network), model, task, ["a", "b", "c"], tmp_path / "out", FACTS)
    tokens, _ = expected_outputs(files, name)
    if is_bert:
        base = transformers.BertForSequenceClassification.from_pretrained(files / "bert", num_labels=3)
    else:
        base = transformers.GPT2LMHeadModel.from_pretrained(files / "gpt2")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    if not is_bert:
        expected = np.log(np.exp(expected).sum(axis=-1, keepdims=True)) - expected
    assert np.abs(outputs_of(network, tokens, is_bert) - expected).max() < LARGEST
    assert np.abs(expected - expected_outputs(files, name)[1]).max() > 1e-3


def test_settings_of_another_adapter_are_refused_before_data_are_read(files):
    with pytest.raises(WeightsError, match=r"Type model.lora.rank=2 model.lora.alpha=6\.$"):
        described(files, "bert_lora", rank=3).require_files()
    with pytest.raises(WeightsError, match=r"Type model.lora.rank=4 model.lora.alpha=10\.$"):
        described(files, "gpt2_rslora", alpha=5).require_files()
    described(files, "gpt2_rslora").require_files()


@pytest.mark.parametrize(
    "layers,said",
    [
        (["*"], r"additions to 2 layers, .*=\[\*\] to 7. Type 'model.lora.layers=\[\*.proj_query,\*.proj_value\]'"),
        (["*.proj_query"], r"to 1. Type 'model.lora.layers=\[\*.proj_query,\*.proj_value\]'"),
    ],
)
def test_other_layers_are_refused(files, layers, said):
    with pytest.raises(WeightsError, match=said):
        prepared(described(files, "bert_lora", layers=layers))


def test_a_head_for_another_number_of_classes_starts_anew(files):
    found = prepared(described(files, "bert_lora"), classes=4)
    assert "2 of the adapter not used, for another number of classes: classifier.1.bias" in str(found.weights_report)
    assert "classifier.1.weight" in found.additions.trained


@pytest.fixture
def written(tmp_path):
    """Writes an adapter for one layer of BERT; `change` replaces settings and arrays."""

    def write_adapter(config=(), arrays=(), name="adapter_model.safetensors"):
        layer = "base_model.model.bert.encoder.layer.0.attention.self.query"
        content = {
            f"{layer}.lora_A.weight": np.ones((2, 8), "float32"),
            f"{layer}.lora_B.weight": np.ones((8, 2), "float32"),
            **dict(arrays),
        }
        write(tmp_path / name, {key: array for key, array in content.items() if array is not None})
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, **dict(config)}
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
        return tmp_path

    return write_adapter


@pytest.mark.parametrize(
    "config,said",
    [
        ({"peft_type": "IA3"}, "says peft_type=IA3; LORA is read"),
        ({"r": 0}, "says r=0 and lora_alpha=6"),
        ({"r": True}, "says r=True"),
        ({"lora_alpha": "6"}, "lora_alpha=6. r is a positive integer"),
        ({"lora_alpha": float("inf")}, "lora_alpha=inf"),
        ({"use_dora": True}, "says use_dora=True, with which PEFT computes something else"),
        ({"lora_bias": True}, "says lora_bias=True"),
        ({"init_lora_weights": "pissa_niter_4"}, "says init_lora_weights=pissa_niter_4"),
        ({"rank_pattern": {"query": 4}}, r"says rank_pattern=\{'query': 4\}"),
        ({"alpha_pattern": {"query": 4}}, r"says alpha_pattern=\{'query': 4\}"),
        ({"setting_of_a_later_version": 1}, "says setting_of_a_later_version=1"),
    ],
)
def test_other_kinds_of_adapters_are_refused(written, config, said):
    with pytest.raises(WeightsError, match=said):
        read_adapter(written(config))


def test_settings_without_an_effect_are_read(written):
    adapter = read_adapter(written({"rank_pattern": {"query": 2}, "use_dora": False, "init_lora_weights": "gaussian"}))
    assert (adapter.rank, adapter.alpha, adapter.base) == (2, 6.0, "")


@pytest.mark.parametrize(
    "arrays,said",
    [
        ({"base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight": None}, "'.*query.lora_b' is .*"),
        (
            {"base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight": np.ones((3, 8), "float32")},
            r"'.*query.lora_a' is \(2, 8\) there, and \(3, 8\) in the file",
        ),
        ({"base_model.model.bert.other.lora_A.weight": np.ones(2, "float32")}, "1 of its arrays have no place"),
        (
            {"base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight": np.full((2, 8), np.nan, "f4")},
            "not finite in '.*query.lora_a'",
        ),
        (
            {"base_model.model.bert.encoder.layer.7.attention.self.query.lora_A.weight": np.ones((2, 8), "float32")},
            "has no layers .*7.attention_cell.proj_query",
        ),
    ],
)
def test_damaged_adapters_are_refused(files, written, arrays, said):
    folder = written(arrays=arrays)
    with pytest.raises(WeightsError, match=said):
        prepared(described(files, "bert_lora", layers=["*.proj_query"], adapter=str(folder)))


def test_missing_files_are_named(written, tmp_path):
    with pytest.raises(WeightsError, match="there is no such folder"):
        read_adapter(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="has no adapter_config.json"):
        read_adapter(tmp_path / "empty")
    folder = written(name="other.safetensors")
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        read_adapter(folder)
    (folder / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match="adapter_model.bin, a pickle, which is never loaded"):
        read_adapter(folder)


def test_an_adapter_needs_a_rank_and_weights(files):
    with pytest.raises(ValueError, match="has no effect without a rank. Type the r and lora_alpha"):
        Lora(adapter="x")
    with pytest.raises(ValueError, match="Name their file by model.weights="):
        Bert(lora=Lora(rank=1, adapter="x"))


def test_a_folder_of_an_adapter_is_no_network(files):
    model = described(files, "bert_lora").model_copy(update={"weights": str(files / "bert_lora")})
    with pytest.raises(WeightsError, match="holds an adapter of PEFT. Type model.lora.adapter="):
        model.require_files()


def test_patterns_match_no_other_layers():
    names = ["a.0.query.weight", "a.1.query.weight", "b.0.weight", "b.1.weight"]
    assert patterns_of(["a.0.query", "a.1.query"], names) == ["*.query"]
    assert patterns_of(["a.1.query"], names) == ["a.1.query"]
    assert patterns_of(["b.0"], names) == ["b.0"]
    assert patterns_of(["a.1.query"]) == ["*.query"]


def test_inspect_prints_the_settings(files, capsys):
    assert main(["inspect", str(files / "gpt2_lora/adapter_model.safetensors")]) == 0
    said = capsys.readouterr().out
    assert "additions of rank 3 to 3 layers; it seems to be GPT-2 of transformers" in said
    assert "model.lora.rank=3 model.lora.alpha=5 'model.lora.layers=[*.ffn_2,*.projection,*.qkv]'" in said
    assert "model.weights=gpt2 " in said


@pytest.mark.parametrize(
    "change,said",
    [
        ({"lora": Lora()}, "was trained without model.lora"),
        ({"weights": "gone.params"}, "model.weights=gone.params is no file of one"),
        ({"weights": None}, "model.weights=None is no file of one"),
    ],
)
def test_runs_that_are_no_adapter(files, tmp_path, change, said):
    model = described(files, "bert_lora")
    with pytest.raises(ConfigError, match=said):
        export_adapter({}, model.model_copy(update=change), "classification", [], tmp_path / "out", FACTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name,train,said",
    [
        ("bert.pooler.bias", [], "'bert.pooler.bias' is frozen in the run, and differs"),
        ("bert.encoder.transformer_cells.0.attention_cell.proj_query.bias", ["*query.bias"], "beside an addition"),
        ("bert.word_embed.0.weight", ["*.word_embed.*"], "a layer with two uses"),
    ],
)
def test_what_peft_cannot_add_is_refused(files, tmp_path, name, train, said):
    model = described(files, "bert_lora", adapter=None, train=train)
    arrays = arrays_of(prepared(model).network)
    arrays[name] = arrays[name] + 1
    with pytest.raises((ConfigError, WeightsError), match=said):
        export_adapter(arrays, model, "classification", [], tmp_path / "out", FACTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["decoder.0.weight", "decoder.2.gamma", "decoder.3.bias"])
def test_the_head_of_masked_texts_is_no_module_to_save(files, tmp_path, name):
    """PEFT would save `cls` with a copy of the embeddings, which its output layer shares."""
    plain = read_safetensors(files / "bert/model.safetensors")
    arrays, head = {f"bert.{key}": array for key, array in plain.items()}, "cls.predictions"
    arrays[f"{head}.bias"] = np.ones(12, np.float32)
    for layer, shape in (("dense", (8, 8)), ("LayerNorm", (8,))):
        arrays[f"{head}.transform.{layer}.weight"] = np.full(shape, 0.1, np.float32)
        arrays[f"{head}.transform.{layer}.bias"] = np.zeros(8, np.float32)
    path = write(tmp_path / "model.safetensors", arrays, json.loads((files / "bert/config.json").read_text()))
    model = described(files, "bert_lora", adapter=None, train=["decoder.*"])
    model = model.model_copy(update={"weights": str(path)})
    shape = ((6,), (6,), (), (2,))
    network = model.build_text(12, shape, 12)
    ready = prepare_network(model, num_classes=12, input_shape=shape, seed=3, network=network, output_shapes=[])
    ours = arrays_of(ready.network)
    export_adapter(ours, model, "masked_language_modeling", [], tmp_path / "same", FACTS)
    assert json.loads((tmp_path / "same/adapter_config.json").read_text())["modules_to_save"] is None
    ours[name] = ours[name] + 1
    with pytest.raises(ConfigError, match=f"'{name}' was trained itself, beside an addition or in a layer with two"):
        export_adapter(ours, model, "masked_language_modeling", [], tmp_path / "out", FACTS)
    assert not (tmp_path / "out").exists()


def test_a_norm_that_was_trained_itself_is_saved_whole(files, tmp_path):
    norm = "bert.encoder.transformer_cells.0.layer_norm"
    model = described(files, "bert_lora", adapter=None, train=[f"{norm}.gamma"])
    arrays = arrays_of(prepared(model).network)
    arrays[f"{norm}.gamma"] = arrays[f"{norm}.gamma"] + 1
    export_adapter(arrays, model, "classification", [], tmp_path / "out", FACTS)
    theirs = "bert.encoder.layer.0.attention.output.LayerNorm"
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["modules_to_save"] == [theirs, "classifier"]
    found = read_safetensors(tmp_path / "out/adapter_model.safetensors")
    np.testing.assert_array_equal(found[f"base_model.model.{theirs}.weight"], arrays[f"{norm}.gamma"])
    np.testing.assert_array_equal(found[f"base_model.model.{theirs}.bias"], arrays[f"{norm}.beta"])


def test_the_card_of_a_regression_names_the_number_of_outputs(files, tmp_path):
    """transformers would otherwise build a head of two outputs, into which the adapter does not fit."""
    model = described(files, "bert_lora", adapter=None)
    arrays = arrays_of(prepared(model, classes=1).network)
    export_adapter(arrays, model, "regression", [], tmp_path / "out", FACTS)
    assert "SequenceClassification.from_pretrained(" in (tmp_path / "out/README.md").read_text()
    assert ", num_labels=1)" in (tmp_path / "out/README.md").read_text()


@pytest.mark.slow
def test_a_run_starts_from_an_adapter_resumes_without_it_and_is_written_as_one(files, tmp_path, capsys):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    rows = [f"{'xyz'[row % 3]},{' '.join('abcdefg'[(row * step) % 7] for step in (1, 2, 3))}" for row in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    shutil.copytree(files / "bert_lora", tmp_path / "adapter")
    common = (
        "dataset=text",
        f"dataset.train={tmp_path}/train.csv",
        "dataset.sentence=text",
        f"dataset.vocab={tmp_path}/vocab.txt",
        "dataset.max_length=8",
        "dataset.batch_size=10",
        "model=bert",
        *(f"model.{name}={value}" for name, value in BERT.items()),
        f"model.weights={files / 'bert'}",
        f"model.lora.adapter={tmp_path / 'adapter'}",
        "model.lora.rank=2",
        "model.lora.layers=[*.proj_query,*.proj_value]",
        "trainer.max_epochs=1",
    )
    said = train_here(tmp_path / "run", *common, exit_code=2)
    assert "Type model.lora.rank=2 model.lora.alpha=6." in said and not (tmp_path / "run").exists()
    said = train_here(tmp_path / "run", *common, "model.lora.alpha=6", "trainer.max_steps=2", exit_code=75)
    assert "adapter of PEFT: additions to 2 layers" in said
    shutil.rmtree(tmp_path / "adapter")
    train_here(tmp_path / "run", *common, "model.lora.alpha=6")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "for=peft"]) == 0
    assert "trained themselves: classifier" in capsys.readouterr().out
    adapter = read_adapter(tmp_path / "run/export")
    assert adapter.arrays.keys() == read_adapter(files / "bert_lora").arrays.keys()
    assert any(
        np.abs(array - read_adapter(files / "bert_lora").arrays[name]).max() > 1e-4
        for name, array in adapter.arrays.items()
    )
