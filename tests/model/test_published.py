"""Weights by name: found in the cache of GluonCV, or downloaded into it."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import zipfile
from pathlib import Path
from typing import Dict, Iterator

import numpy as np
import pytest
from http_server import FaultyServer, serving

from mxtrain.errors import ConfigError, WeightsError
from mxtrain.model import published, weights_files
from mxtrain.model.published import published_sha1
from mxtrain.model.weights_files import find_weights
from mxtrain.text.bert import Bert
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.detection.networks.gluoncv_detectors import CLASSES_OF_WEIGHTS
from mxtrain.vision.detection.yolo3 import YOLO3
from mxtrain.vision.pose.simple_pose import SimplePose

NAME = "resnet18_v1"
CONTENT = bytes(range(200)) * 50


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    with serving() as server:
        monkeypatch.setenv("MXNET_GLUON_REPO", server.url)
        yield server


def publish(server: FaultyServer, monkeypatch: pytest.MonkeyPatch, content: bytes) -> Dict[str, str]:
    """Publishes a stand-in under the name of a network; returns its checksum, file and address."""
    sha1 = hashlib.sha1(content).hexdigest()
    for module in (published, weights_files):
        monkeypatch.setattr(module, "published_sha1", lambda library: {NAME: sha1})
    file, path = f"{NAME}-{sha1[:8]}.params", f"/gluon/models/{NAME}-{sha1[:8]}.zip"
    server.files[path] = zipped(file, content)
    return {"sha1": sha1, "file": file, "path": path}


@pytest.mark.slow
def test_table_equals_gluoncv() -> None:
    GluonCV().build(3, (3, 64, 64))  # silences what GluonCV says when it is imported
    from gluoncv.model_zoo import model_store

    assert published_sha1("gluoncv") == model_store._model_sha1


def test_table_of_texts_equals_gluonnlp() -> None:
    found = importlib.util.find_spec("gluonnlp")
    if found is None or found.origin is None:
        pytest.skip("gluonnlp is not installed")
    files = ("bert.py", "transformer.py")
    source = "".join((Path(found.origin).parent / "model" / file).read_text("utf-8") for file in files)
    pairs = {name: sha1 for sha1, name in re.findall(r"'([0-9a-f]{40})',\s+'([\w.]+)'", source)}
    assert len(pairs) > 20 and published_sha1("gluonnlp").items() <= pairs.items()


@pytest.mark.slow
def test_weights_are_downloaded_once_and_found_by_gluoncv(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = publish(server, monkeypatch, CONTENT)
    server.faults[there["path"]].append("break")
    for weights in ("pretrained", f"gluoncv:{NAME}"):
        path = find_weights(weights, f"gluoncv:{NAME}")
        assert path == tmp_path / "home" / "models" / there["file"] and path.read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == [there["path"]] * 2
    from gluoncv.model_zoo import model_store

    monkeypatch.setitem(model_store._model_sha1, NAME, there["sha1"])
    assert model_store.get_model_file(NAME) == str(path)
    assert weights_files.cached_weights() == [there["file"]]


def test_a_damaged_file_of_the_cache_is_downloaded_again(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(server, monkeypatch, CONTENT)
    path = find_weights("pretrained", f"gluoncv:{NAME}")
    path.write_bytes(CONTENT[:-1])
    assert find_weights("pretrained", f"gluoncv:{NAME}").read_bytes() == CONTENT
    assert "another SHA-1" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        zipped("other.params", CONTENT),
        b"<html>no such page</html>",
        zipped(f"{NAME}-e0a34f10.params", CONTENT + b"x"),
    ],
    ids=["other name", "web page", "other bytes"],
)
def test_wrong_files_are_removed(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    there = publish(server, monkeypatch, CONTENT)
    server.files[there["path"]] = content.replace(b"e0a34f10", there["sha1"][:8].encode())
    with pytest.raises(WeightsError, match="It was removed") as raised:
        find_weights("pretrained", f"gluoncv:{NAME}")
    assert there["sha1"] in str(raised.value)
    assert [path.suffix for path in (tmp_path / "home" / "models").iterdir()] == [".lock"]


def test_missing_network_names_files_and_their_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9")
    with pytest.raises(WeightsError) as raised:
        find_weights("pretrained", f"gluoncv:{NAME}")
    sha1 = published_sha1("gluoncv")[NAME]
    for said in (
        f"{NAME}-{sha1[:8]}.params",
        sha1,
        f"gluon/models/{NAME}-{sha1[:8]}.zip",
        f"'{tmp_path}/models'",
        "MXNET_GLUON_REPO=URL",
        "model.weights=PATH",
    ):
        assert said in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "model, given, said",
    [
        (GluonCV, {"name": "resnet18_v1", "weights": "gluoncv:resnet18_v"}, "Did you mean 'resnet18_v2'"),
        (GluonCV, {"name": "shufflenet_v1", "weights": "pretrained"}, "publishes no weights of 'shufflenet_v1'"),
        (YOLO3, {"name": "yolo3_darknet53", "weights": "pretrained"}, "yolo3_darknet53_voc, yolo3_darknet53_coco"),
        (Bert, {"weights": "pretrained"}, "publish no weights of this network"),
    ],
)
def test_networks_without_published_weights_are_refused(model, given, said) -> None:
    with pytest.raises((ConfigError, ValueError), match=said):
        model(**given)


def test_networks_know_their_published_weights() -> None:
    assert Bert(size="base", weights="pretrained").published_name.startswith("gluonnlp:bert_12_768_12_")
    assert SimplePose(name="simple_pose_resnet18_v1b_coco", weights="pretrained").published_name in {
        f"gluoncv:{name}" for name in published_sha1("gluoncv")
    }
    model = YOLO3(name="yolo3_darknet53", weights="gluoncv:yolo3_darknet53_voc")
    assert model.classes_in_weights == CLASSES_OF_WEIGHTS["voc"]
    assert find_weights("weights/own.params", "gluoncv:resnet18_v1") == Path("weights/own.params")


@pytest.mark.slow
def test_a_network_of_gluoncvs_starts_from_its_weights(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepare
) -> None:
    """The weights are GluonCV's own file; the head is for other classes, so it is new."""
    import mxnet as mx

    GluonCV().build(3, (3, 64, 64))
    from gluoncv.model_zoo import get_model

    theirs = get_model(NAME, pretrained=False, classes=1000)
    theirs.initialize(mx.init.Xavier())
    theirs(mx.nd.zeros((1, 3, 64, 64)))
    theirs.save_parameters(str(tmp_path / "saved"))
    publish(server, monkeypatch, (tmp_path / "saved").read_bytes())
    ours = prepare(GluonCV(name=NAME, weights="pretrained"), 7, (3, 64, 64))
    x = mx.nd.random.normal(shape=(2, 3, 64, 64))
    np.testing.assert_allclose(ours.features(x).asnumpy(), theirs.features(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert ours.output.weight.shape[0] == 7
