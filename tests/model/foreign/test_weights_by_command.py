"""`mxtrain model.weights=...` as it is typed: from a server with the Hub's paths, and from a folder."""

import hashlib
import json
import re

import numpy as np
import pytest
from foreign_files import BERT_CONFIG, bert_shapes, content_of, random_arrays, write
from http_server import serving
from old_files import write_photos
from running import status, train_here

from mxtrain.engine.backend import mx
from mxtrain.model.foreign.table import NORM_ROLES
from mxtrain.vision.classification.gluoncv import GluonCV

pytestmark = pytest.mark.slow
FAST = ("model.param_groups=[{pattern: fc.*, lr_mult: 10.0}]", "dataset.batch_size=4", "debug=fast")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server with the Hub's paths. Gluon's server does not answer, and all caches are empty."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HF_HOME", "MXNET_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9")
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def of_timm(name):
    """Random arrays of a network of GluonCV under the names of timm."""
    network = GluonCV(name=name).build(1000, (3, 64, 64))
    network.initialize(mx.init.Xavier())
    network(mx.nd.zeros((1, 3, 64, 64)))
    roles = {ours: theirs for theirs, ours in NORM_ROLES.items() if theirs not in ("gamma", "beta")}
    arrays = {}
    for path, parameter in network._collect_params_with_prefix().items():
        layer, _, role = path.rpartition(".")
        arrays[f"{layer}.{roles.get(role, role)}"] = parameter.data().asnumpy()
        if role == "running_mean":
            arrays[f"{layer}.num_batches_tracked"] = np.array(7)
    return arrays


def test_the_command_for_a_failing_server_of_gluon_trains(hub, tmp_path):
    write_photos(tmp_path / "photos")
    photos = ("experiment=fine_tune", f"dataset.root={tmp_path / 'photos'}", "dataset.image_size=[64,64]")
    run = tmp_path / "run"
    said = train_here(run, *photos, "model.name=resnet18_v1b", "model.weights=pretrained", exit_code=2)
    assert "Traceback" not in said and not run.exists()
    overrides = re.search(r"type (model\.name=\S+) (model\.weights=hf:timm/\S+)\.\n", said).groups()
    content = content_of(of_timm("resnet18_v1b"))
    folder = "/timm/resnet18.gluon_in1k/resolve/main"
    hub.files = {f"{folder}/model.safetensors": content, f"{folder}/config.json": b'{"architecture": "resnet18"}'}
    headers = {"X-Repo-Commit": COMMIT, "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
    hub.head[f"{folder}/model.safetensors"] = (200, headers)
    said = train_here(run, *photos, *overrides, *FAST)
    path = tmp_path / "HF_HOME/hub/models--timm--resnet18.gluon_in1k/snapshots" / COMMIT / "model.safetensors"
    assert f"100 arrays loaded from {path}" in said and "2 replaced by fresh ones" in said
    assert "of ResNet of torchvision and timm, names translated" in said and "num_batches_tracked" in said
    assert status(run)["state"] == "finished" and status(run)["step"] > 1


def test_a_folder_of_transformers_trains(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words), "utf-8")
    arrays = random_arrays({f"bert.{name}": shape for name, shape in bert_shapes(length=64).items()})
    arrays.update(random_arrays({"bert.pooler.dense.weight": (8, 8), "bert.pooler.dense.bias": (8,)}))
    arrays["cls.seq_relationship.weight"] = np.zeros((2, 8), "float32")
    write(folder / "model.safetensors", arrays, BERT_CONFIG)
    sizes = ("num_layers=1", "units=8", "hidden_size=16", "num_heads=2", "max_length=64")
    said = train_here(
        tmp_path / "run",
        *("model=bert", f"model.weights={folder}", f"dataset.vocab={folder / 'vocab.txt'}"),
        *(f"model.{size}" for size in sizes),
        "debug=fast",
    )
    assert f"23 arrays loaded from {folder / 'model.safetensors'}" in said
    assert "1 in the file but not in the network, not used: cls.seq_relationship.weight" in said
    assert status(tmp_path / "run")["state"] == "finished"


SHAPES = {"features.1.weight": (3, 64), "features.1.bias": (3,), "output.weight": (10, 3), "output.bias": (10,)}
"""Arrays of `model=mlp model.hidden=[3]` for digits."""


def test_damage_ends_with_a_sentence_before_anything_is_written(tmp_path):
    arrays = random_arrays(SHAPES)
    overlap = {"output.bias": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}
    outside, missing = ({"weight_map": {"output.bias": name}} for name in ("../x.safetensors", "two.safetensors"))
    index = "model.safetensors.index.json"
    cases = (
        ("model.safetensors", content_of(arrays)[:-1], "is damaged or no safetensors file: 'output.bias' lies at"),
        ("model.safetensors", content_of(arrays, overlap), "begins at 0, within 'output.bias', which ends at 40"),
        ("model.safetensors", content_of({"output.bias": arrays["output.bias"]}), "Only 1 of the network's 4 arrays"),
        ("model.safetensors", content_of(random_arrays({"patch.weight": (3, 3)})), "Nothing in the weights file"),
        (
            "model.safetensors",
            content_of({**arrays, "features.1.weight": np.ones((3, 5), "f4")}),
            "has the shape (3, 64)",
        ),
        (index, json.dumps(outside).encode(), "it names the file '../x.safetensors', which is not beside it"),
        (index, json.dumps(missing).encode(), "has no two.safetensors, which its model.safetensors.index.json lists"),
    )
    for number, (name, content, said) in enumerate(cases):
        folder, run = tmp_path / f"weights{number}", tmp_path / f"run{number}"
        folder.mkdir()
        (folder / name).write_bytes(content)
        output = train_here(run, "model=mlp", "model.hidden=[3]", f"model.weights={folder}", exit_code=2)
        assert said in output.splitlines()[-1] and "Traceback" not in output and not run.exists(), output


def test_bfloat16_trains(tmp_path):
    arrays = random_arrays(SHAPES)
    header, data = {}, b""
    for name, array in arrays.items():
        half = (array.view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape)}
        header[name]["data_offsets"] = [len(data), len(data) + len(half)]
        data += half
    (tmp_path / "model.safetensors").write_bytes(content_of({}, header, data))
    run = ("model=mlp", "model.hidden=[3]", f"model.weights={tmp_path / 'model.safetensors'}", "debug=fast")
    assert "4 arrays loaded from" in train_here(tmp_path / "run", *run)
