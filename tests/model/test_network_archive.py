"""Archives of networks: read in one pass, with the weights of the last epoch alone."""

import io
import os
import tarfile
import tracemalloc
import zipfile

import pytest

from mxtrain.files.download import archives
from mxtrain.files.download.transfer import WrongContent
from mxtrain.model import network_archive
from mxtrain.model.network_archive import read_archive, take_weights

MB = 1 << 20


def write(path, contents):
    """Writes an archive of files, name -> content."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in contents.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["model.tar.gz", "model.zip"])
def test_graph_settings_and_weights_take_one_pass(tmp_path, monkeypatch, name):
    passes = []
    entries = archives._entries
    monkeypatch.setattr(archives, "_entries", lambda file: passes.append(file) or entries(file))
    contents = {"net-symbol.json": b"g", "hyperparams.json": b"h", "readme.json": b"r", "net-0003.params": b"w"}
    path = write(tmp_path / name, contents)
    assert read_archive(path).texts == {"net-symbol.json": b"g", "hyperparams.json": b"h"}
    assert take_weights(path) == b"w" and len(passes) == 1
    assert take_weights(path) == b"w" and len(passes) == 2, "large arrays are not kept"


def test_changed_archives_are_read_again(tmp_path):
    path = write(tmp_path / "a.zip", {"net-symbol.json": b"old"})
    assert read_archive(path).texts == {"net-symbol.json": b"old"}
    write(path, {"net-symbol.json": b"newer"})
    assert read_archive(path).texts == {"net-symbol.json": b"newer"}
    size = path.stat().st_size
    write(path, {"net-symbol.json": b"third"})
    os.utime(path, ns=(0, 1))
    assert path.stat().st_size == size and read_archive(path).texts == {"net-symbol.json": b"third"}


@pytest.mark.parametrize(
    "names, last",
    [
        (["net-0001", "net-0012", "net-0003"], "net-0012"),
        (["net-10000", "net-9999"], "net-10000"),
        (["a-0002", "b-0002"], "b-0002"),
        (["weights"], "weights"),
        (["net-0001", "weights"], "net-0001"),
    ],
)
def test_weights_are_those_of_the_last_epoch(tmp_path, names, last):
    path = write(tmp_path / "a.tar.gz", {f"{name}.params": name.encode() for name in names})
    assert take_weights(path) == last.encode()


def test_epochs_are_not_in_memory_together(tmp_path):
    path = write(tmp_path / "a.tar.gz", {f"net-000{number}.params": bytes(8 * MB) for number in range(3)})
    tracemalloc.start()
    try:
        read_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 14 * MB
    finally:
        tracemalloc.stop()


def test_texts_together_are_limited_and_weights_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(network_archive, "MAX_TEXT_BYTES", 10)
    texts = {"a-symbol.json": b"123456", "b-symbol.json": b"1234"}
    assert len(read_archive(write(tmp_path / "a.tar.gz", {**texts, "net-0001.params": bytes(99)})).texts) == 2
    with pytest.raises(WrongContent, match="unpacks to more bytes than it may"):
        read_archive(write(tmp_path / "b.tar.gz", {**texts, "c-symbol.json": b"1"}))


def test_archives_without_weights_are_refused(tmp_path):
    with pytest.raises(WrongContent, match="without a .params file"):
        take_weights(write(tmp_path / "a.tar.gz", {"net-symbol.json": b"g"}))
