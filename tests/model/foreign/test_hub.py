"""`model.weights=hf:ORG/NAME`: in the cache, in a folder, downloaded from a mirror; and folders of weights."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from foreign_files import content_of
from http_server import serving
from running import ROOT
from waiting import wait_until

from mxtrain.errors import WeightsError
from mxtrain.model import published, weights_files
from mxtrain.model.foreign import hub
from mxtrain.model.foreign.hub import cache_folder, find_on_hub
from mxtrain.model.mlp import MLP
from mxtrain.model.published import parse_hub_name, require_published
from mxtrain.model.weights_files import find_weights
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES

NAME = "hf:org/net"
CONTENT = content_of({"x": np.arange(50_000, dtype="float32")})
COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = "/org/net/resolve/main"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a repository in an empty cache; without another endpoint than one that refuses."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "home" / "hub" / "models--org--net"


@pytest.fixture
def server(cache, monkeypatch):
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"{server.url}/")
        yield server


def laid_out(cache, files, revision="main"):
    """Files in a snapshot as huggingface_hub lays them out: links to blobs."""
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for number, (name, content) in enumerate(files.items()):
        (cache / "blobs" / f"b{number}").write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/b{number}")
    (cache / "refs").mkdir()
    (cache / "refs" / revision).write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize("weights, revision", [(NAME, "main"), (f"{NAME}@v1", "v1"), (f"{NAME}@{COMMIT}", "main")])
def test_cache_of_huggingface_hub_is_read(cache, weights, revision):
    snapshot = laid_out(cache, {"model.safetensors": CONTENT, "config.json": b"{}"}, revision)
    assert find_weights(weights, "") == snapshot / "model.safetensors"
    with pytest.raises(WeightsError, match=f"model.safetensors is not in '{cache}'"):
        find_weights(f"{NAME}@other", "")


def test_folders_of_the_cache(monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value, folder in (
        ("", "", "/home/me/.cache/huggingface/hub"),
        ("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"),
        ("HF_HOME", "~/hf", "/home/me/hf/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
        ("HF_HUB_CACHE", "$XDG_CACHE_HOME/hub", "/xdg/hub"),
    ):
        if name:
            monkeypatch.setenv(name, value)
        assert str(cache_folder()) == folder


def test_files_of_an_index_must_all_be_there(cache):
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    snapshot = laid_out(cache, {"model.safetensors.index.json": index, "one.safetensors": CONTENT})
    with pytest.raises(WeightsError, match="is not in"):
        find_on_hub(NAME)
    (snapshot / "two.safetensors").write_bytes(CONTENT)
    assert find_on_hub(NAME) == snapshot / "model.safetensors.index.json"


def test_endpoint_may_be_a_folder(cache, tmp_path, monkeypatch):
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("HF_ENDPOINT", str(tmp_path / "mirror"))
    with pytest.raises(WeightsError, match=r"is a folder, and '.*mirror/org/net' does not exist in it"):
        find_on_hub(NAME)
    folder = tmp_path / "mirror" / "org" / "net"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(CONTENT)
    assert find_on_hub(NAME) == find_on_hub(f"{NAME}@main") == folder / "model.safetensors"
    with pytest.raises(WeightsError, match="is a folder, which has no revisions. Leave out @v1, or name a server"):
        find_on_hub(f"{NAME}@v1")
    monkeypatch.setenv("HF_ENDPOINT", "hf-mirror.com")
    with pytest.raises(WeightsError, match=r"HF_ENDPOINT=hf-mirror.com is no folder, and no URL, .*=https://hf-mirror"):
        find_on_hub(NAME)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "~/mirror/")
    assert find_on_hub(NAME) == folder / "model.safetensors"


@pytest.mark.parametrize(
    "content, folder",
    [
        (f" {COMMIT}\n".encode(), COMMIT),
        *((text.encode(), text) for text in (".", "..", "../../other", "a/b")),
        (b"\xff", "main"),
    ],
)
def test_references_of_the_cache(cache, content, folder):
    """References of other programs may end in a line break. Damaged ones do not lead out of the cache."""
    laid_out(cache, {})
    (cache / "refs" / "main").write_bytes(content)
    weights = cache / "snapshots" / folder / "model.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(CONTENT)
    if folder in (COMMIT, "main"):
        assert find_on_hub(NAME) == weights
    else:
        with pytest.raises(WeightsError, match="is not in .* and cannot be downloaded"):
            find_on_hub(NAME)


def test_a_folder_of_weights(tmp_path):
    with pytest.raises(WeightsError, match=f"the folder '{tmp_path}' has no model.safetensors"):
        find_weights(str(tmp_path), "")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="has pytorch_model.bin, a pickle, which is never loaded"):
        find_weights(str(tmp_path), "")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "one.safetensors").write_bytes(CONTENT)
    with pytest.raises(WeightsError, match="has no two.safetensors, which its model.safetensors.index.json lists"):
        find_weights(str(tmp_path), "")
    (tmp_path / "model.safetensors").write_bytes(CONTENT)
    assert find_weights(str(tmp_path), "") == tmp_path / "model.safetensors"


@pytest.mark.slow
def test_a_mirror_is_downloaded_once(server, cache):
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    server.files = {f"{URL}/model.safetensors": CONTENT, f"{URL}/config.json": b"{}"}
    server.head[f"{URL}/model.safetensors"] = (302, {"X-Repo-Commit": COMMIT, "X-Linked-ETag": f'"{sha256}"'})
    server.faults[f"{URL}/model.safetensors"].append("break")
    path = find_weights(NAME, "")
    assert path == cache / "snapshots" / COMMIT / "model.safetensors" and path.read_bytes() == CONTENT
    assert path.with_name("config.json").read_bytes() == b"{}"
    assert (cache / "refs" / "main").read_text() == COMMIT
    requests = len(server.requests)
    assert find_weights(NAME, "") == path and len(server.requests) == requests == 3


def test_other_bytes_than_the_hub_names_are_removed(server, cache):
    server.files[f"{URL}/model.safetensors"] = CONTENT
    server.head[f"{URL}/model.safetensors"] = (200, {"X-Repo-Commit": COMMIT, "X-Linked-ETag": f'"{"0" * 64}"'})
    with pytest.raises(WeightsError, match="the file has the sha256 .* It was removed"):
        find_on_hub(NAME)
    assert [path.name for path in (cache / "snapshots" / COMMIT).iterdir()] == ["model.safetensors.lock"]
    assert not (cache / "refs").exists()


def test_a_mirror_of_plain_files_and_an_index(server, cache):
    shards = {"a": "one.safetensors", "b": "two.safetensors"}
    index = json.dumps({"weight_map": shards}).encode()
    names = {"model.safetensors.index.json": index, "one.safetensors": CONTENT, "two.safetensors": CONTENT}
    server.files = {f"{URL}/{name}": content for name, content in names.items()}
    path = find_on_hub(NAME)
    assert path == cache / "snapshots" / "main" / "model.safetensors.index.json"
    assert path.with_name("two.safetensors").read_bytes() == CONTENT and not path.with_name("config.json").exists()
    assert [path for path, _ in server.requests] == [f"{URL}/{name}" for name in names]


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "two.safetensors"])
def test_files_of_an_index_are_checked_by_their_headers(server, cache, name):
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    server.files = {f"{URL}/{shard}": CONTENT for shard in ("one.safetensors", "two.safetensors")}
    server.files[f"{URL}/model.safetensors.index.json"] = index
    server.head[f"{URL}/{name}"] = (200, {"X-Linked-ETag": f'"{"0" * 64}"'})
    with pytest.raises(WeightsError, match=f"{name}: the file has the sha256 .* It was removed"):
        find_on_hub(NAME)


@pytest.mark.parametrize(
    "name, said",
    [
        ("model.safetensors", "is damaged or no safetensors file: its header claims"),
        ("config.json", "is not config.json"),
        ("model.safetensors.index.json", "is not model.safetensors.index.json"),
    ],
)
def test_pages_in_place_of_files_are_removed(server, cache, name, said):
    server.files = {f"{URL}/{name}": b"<html>Please log in</html>"}
    if name == "config.json":
        server.files[f"{URL}/model.safetensors"] = CONTENT
    with pytest.raises(WeightsError, match=f"{name}: the file {said}.* It was removed"):
        find_on_hub(NAME)
    server.files = {f"{URL}/model.safetensors": CONTENT}
    assert find_on_hub(NAME).read_bytes() == CONTENT


def test_branches_with_a_slash(server, cache):
    server.files = {"/org/net/resolve/refs%2Fpr%2F1/model.safetensors": CONTENT}
    path = find_on_hub(f"{NAME}@refs/pr/1")
    assert path == cache / "snapshots" / "refs--pr--1" / "model.safetensors"
    server.files = {}
    assert find_on_hub(f"{NAME}@refs/pr/1") == path


def test_files_of_two_commits_are_not_mixed(server, cache):
    server.files = {f"{URL}/model.safetensors": CONTENT, f"{URL}/config.json": b"{}"}
    for name, commit in (("model.safetensors", COMMIT), ("config.json", COMMIT[::-1])):
        server.head[f"{URL}/{name}"] = (200, {"X-Repo-Commit": commit})
    with pytest.raises(WeightsError, match="config.json: the repository has changed during the download"):
        find_on_hub(NAME)
    assert not cache.exists()
    server.head[f"{URL}/config.json"] = (200, {"X-Repo-Commit": "of this mirror"})
    assert find_on_hub(NAME) == cache / "snapshots" / COMMIT / "model.safetensors"


def test_a_reference_that_cannot_be_written(server, cache):
    server.files = {f"{URL}/model.safetensors": CONTENT}
    server.head[f"{URL}/model.safetensors"] = (200, {"X-Repo-Commit": COMMIT})
    cache.mkdir(parents=True)
    (cache / "refs").write_text("")
    with pytest.raises(WeightsError, match=r"'.*refs.*' cannot be written: .*another cache by HF_HUB_CACHE=FOLDER"):
        find_on_hub(NAME)
    (cache / "refs").unlink()
    assert find_on_hub(NAME).read_bytes() == CONTENT and len(server.requests) == 1


def test_a_full_disk(server, cache, small_disk, monkeypatch):
    server.files = {f"{URL}/model.safetensors": CONTENT, f"{URL}/config.json": b"{}"}
    disk = small_disk("100k")
    monkeypatch.setenv("HF_HUB_CACHE", str(disk))
    with pytest.raises(WeightsError, match=r"the file has [\d,]+ bytes, but '.*' has room for") as raised:
        find_on_hub(NAME)
    assert raised.value.exit_code == 2
    assert {path.suffix for path in disk.rglob("*.*") if path.is_file()} == {".lock", ".json"}


def test_a_read_only_cache(server, cache, small_disk, monkeypatch):
    server.files = {f"{URL}/model.safetensors": CONTENT}
    disk = small_disk("1m")
    monkeypatch.setenv("HF_HUB_CACHE", str(disk))
    part = disk / "models--org--net" / "snapshots" / "main" / "model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1000])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(WeightsError, match="cannot be written: the file system is read-only") as raised:
        find_on_hub(NAME)
    assert raised.value.exit_code == 2 and part.read_bytes() == CONTENT[:1000]


def started():
    """Another process that looks for the weights, and prints their path."""
    script = f"from mxtrain.model.foreign.hub import find_on_hub; print(find_on_hub({NAME!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_download_is_continued_by_two_processes(server, cache):
    server.files = {f"{URL}/model.safetensors": CONTENT, f"{URL}/config.json": b"{}"}
    server.faults[f"{URL}/model.safetensors"].append("stall")
    killed = started()
    part = cache / "snapshots" / "main" / "model.safetensors.part"
    assert server.stalled.wait(30)
    wait_until(lambda: part.exists() and part.stat().st_size >= len(CONTENT) // 4, 30)
    assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    arrived = part.stat().st_size
    processes = [started(), started()]
    paths = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert paths == [str(part.with_suffix(""))] * 2 and part.with_suffix("").read_bytes() == CONTENT
    path = f"{URL}/model.safetensors"
    assert [one for one in server.requests if one[0] == path] == [(path, ""), (path, f"bytes={arrived}-")]
    assert not part.exists()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_renamed_repositories_are_followed(server, cache, status):
    old = "/old/net/resolve/main/model.safetensors"
    server.files = {f"{URL}/model.safetensors": CONTENT, old: CONTENT}
    server.head[old] = (status, {"Location": f"{URL}/model.safetensors"})
    server.head[f"{URL}/model.safetensors"] = (200, {"X-Repo-Commit": COMMIT})
    assert find_on_hub("hf:old/net").parent.name == COMMIT


def test_redirections_end_and_stay_on_the_server(server, cache):
    server.head["/old/net/resolve/v/model.safetensors"] = (307, {"Location": "/old/net/resolve/v/model.safetensors"})
    with pytest.raises(WeightsError, match="5 redirections in a row"):
        find_on_hub("hf:old/net@v")
    # Files of other servers are followed by the download only: the headers of the Hub are in the first answer.
    for location in ("//127.0.0.1:9/file", "http://127.0.0.1:9/file"):
        server.head["/old/net/resolve/w/model.safetensors"] = (302, {"Location": location, "X-Repo-Commit": COMMIT})
        server.files["/old/net/resolve/w/model.safetensors"] = CONTENT
        assert find_on_hub("hf:old/net@w").parent.name == COMMIT
        (cache.parent / "models--old--net" / "refs" / "w").unlink()


@pytest.mark.parametrize(
    "head, said",
    [
        ({}, r"it has no model.safetensors\."),
        ({f"{URL}/pytorch_model.bin": (200, {})}, "only pytorch_model.bin, a pickle, which is never loaded"),
        ({f"{URL}/model.safetensors": (401, {})}, "401 Unauthorized: it does not exist, or only with a token"),
        ({f"{URL}/model.safetensors": (403, {})}, "403 Forbidden: it does not exist, or only with a token"),
        ({f"{URL}/model.safetensors": (418, {})}, r"418 I'm a Teapot\. Download"),
        ({f"{URL}/model.safetensors": (503, {})}, "503 Service Unavailable"),
    ],
)
def test_refusals_say_where_to_put_the_files(server, cache, head, said):
    server.head = head
    with pytest.raises(WeightsError, match=said) as raised:
        find_on_hub(NAME)
    for part in (
        str(cache),
        "Download config.json and model.safetensors of org/net",
        "model.weights=FOLDER",
        "HF_ENDPOINT=URL",
    ):
        assert part in str(raised.value)
    assert raised.value.exit_code == 2 and not cache.exists()


def test_without_a_network(cache, monkeypatch):
    with pytest.raises(WeightsError, match=r"/model.safetensors: no connection \(Connection refused\)\."):
        find_on_hub(NAME)
    for value in ("1", "on", "Yes", "TRUE"):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        with pytest.raises(WeightsError, match="HF_HUB_OFFLINE forbids downloads"):
            find_on_hub(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(WeightsError, match="no connection"):
        find_on_hub(NAME)


@pytest.mark.parametrize(
    "endpoint, url", [("", "https://huggingface.co"), ("https://hf-mirror.com//", "https://hf-mirror.com")]
)
def test_endpoints(cache, monkeypatch, endpoint, url):
    asked = []
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(hub, "_headers", asked.append)
    with pytest.raises(WeightsError, match=f": {url}/org/net/resolve/main: it has no model.safetensors"):
        find_on_hub(NAME)
    assert asked[0] == f"{url}/org/net/resolve/main/model.safetensors"


@pytest.mark.parametrize(
    "weights",
    [
        *("hf:", "hf:a/b/c", "hf:../x", "hf:a b/c", "hf:org/net@", "hf:org/..", "hf:org/net@../x"),
        *(f"hf:{first}org/net" for first in "._-"),
        *(f"hf:org/{first}net" for first in "._-"),
        *(f"hf:org/net@{first}v1" for first in "._-/"),
        *("hf:o..g/net", "hf:org/n..t", "hf:org/net@v/../x", "hf:org--net", "hf:a/b--c@v"),
    ],
)
def test_other_names_are_refused(weights):
    with pytest.raises(ValueError, match=re.escape(f"weights={weights} is no name of the Hugging Face Hub")):
        MLP(weights=weights)


def test_names_are_split():
    assert parse_hub_name("hf:gpt2") == ("gpt2", "main") and require_published("hf:gpt2", "") == "hf:gpt2"
    assert parse_hub_name("hf:timm/resnet50.gluon_in1k@refs/pr/1") == ("timm/resnet50.gluon_in1k", "refs/pr/1")
    for repository in ("o/N", "1.o-g_2/3.N-e_t"):
        for revision in ("V", "1.0-rc_2", "v--1"):
            assert parse_hub_name(f"hf:{repository}@{revision}") == (repository, revision)


def test_a_failing_server_of_gluon_names_the_same_weights_of_timm(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9")
    sha1 = dict.fromkeys(("resnet50_v1d", "resnet50_v1"), "0" * 40)
    for module in (published, weights_files):
        monkeypatch.setattr(module, "published_sha1", lambda library: sha1)
    with pytest.raises(WeightsError, match="type model.name=resnet50_v1d model.weights=hf:timm/resnet50d.gluon_in1k"):
        find_weights("pretrained", "gluoncv:resnet50_v1d")
    with pytest.raises(WeightsError) as raised:
        find_weights("pretrained", "gluoncv:resnet50_v1")
    assert "timm" not in str(raised.value)
    assert not weights_files.name_in_timm("gluonnlp", "resnet50_v1d")


@pytest.mark.slow
def test_timm_calls_these_files_after_networks_of_gluoncv():
    """Its weights cannot be downloaded here; the file that they came from has the name of GluonCV's network."""
    models = pytest.importorskip("timm").models
    named = {name: weights_files.name_in_timm("gluoncv", name) for name in CLASSIFICATION_NAMES}
    named = {name: said.rpartition("timm/")[2].rstrip(".") for name, said in named.items() if said}
    assert len(named) == 20 and named["se_resnext101_64x4d"] == "seresnext101_64x4d.gluon_in1k"
    for ours, theirs in named.items():
        found = models.get_pretrained_cfg(theirs)
        assert f"/gluon_{ours.replace('se_', 'se')}-" in found.url and found.hf_hub_id == f"timm/{theirs}"
