"""Public datasets by name: stand-ins of their files on a server on loopback, opened as the published ones would be."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import pytest
from http_server import FaultyServer, serving
from PIL import Image

from mxtrain.data.loading.public_files import PUBLIC_FILES, PublicDataset, fetch_public
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.recommendation.movielens import MovieLens
from mxtrain.speech.librispeech import LibriSpeech
from mxtrain.text.language_modeling.wikitext import WikiText
from mxtrain.vision.classification.cifar import Cifar100
from mxtrain.vision.classification.mnist import FashionMnist
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.voc import Voc, VocInstances
from mxtrain.vision.segmentation.ade20k import Ade20k
from mxtrain.vision.segmentation.voc_segmentation import VocSegmentation

Files = Mapping[str, bytes]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with serving() as server:
        monkeypatch.setenv("MXTRAIN_DATA_URL", server.url)
        yield server


def packed(files: Files, is_zip: bool) -> bytes:
    stream = io.BytesIO()
    if is_zip:
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return stream.getvalue()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def publish(server: FaultyServer, monkeypatch: pytest.MonkeyPatch, name: str, *contents: bytes) -> None:
    """Serves stand-ins of the files of a dataset, whose checksums take the place of the published ones."""
    files = PUBLIC_FILES[name]
    assert len(files) == len(contents)
    changed = tuple(replace(file, checksum=hashlib.sha1(one).hexdigest()) for file, one in zip(files, contents))
    monkeypatch.setitem(PUBLIC_FILES, name, changed)
    server.files.update({f"/{name}/{file.name}": content for file, content in zip(files, contents)})


def image(ending: str, size: Tuple[int, int] = (32, 24)) -> bytes:
    stream = io.BytesIO()
    Image.new("L" if ending == "PNG" else "RGB", size, 1).save(stream, ending)
    return stream.getvalue()


def idx(shape: Tuple[int, ...]) -> bytes:
    return gzip.compress(struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape) + bytes(int(np.prod(shape))))


def voc(year: str, split: str, names: List[str]) -> bytes:
    top = f"VOCdevkit/VOC{year}"
    box = "<object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    xml = f"<annotation><size><width>32</width><height>24</height><depth>3</depth></size>{box}</annotation>"
    files: Dict[str, bytes] = {}
    for name in names:
        files[f"{top}/JPEGImages/{name}.jpg"] = image("JPEG")
        files[f"{top}/Annotations/{name}.xml"] = xml.encode()
    for part in ["train", "val", "trainval"] if split == "trainval" else [split]:
        listed = {"train": names[:1], "val": names[1:]}.get(part, names)
        files[f"{top}/ImageSets/Main/{part}.txt"] = "\n".join(listed).encode()
    return packed(files, is_zip=False)


def mnist_like() -> List[bytes]:
    return [idx((20, 28, 28)), idx((20,)), idx((5, 28, 28)), idx((5,))]


def movielens() -> List[bytes]:
    rows = "".join(f"{user}\t{item}\t3\t{item}\n" for user in range(1, 5) for item in range(user, 9 + user))
    return [packed({"ml-100k/u.data": rows.encode(), "ml-100k/README": b""}, is_zip=True)]


def wikitext() -> List[bytes]:
    names = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
    text = b" = Title = \n\n some words of text \n" * 60
    return [packed({f"wikitext-2/{name}": text for name in names}, is_zip=True)]


def cifar() -> List[bytes]:
    rows = bytes((2 + 3072) * 20)
    return [packed({"cifar-100-binary/train.bin": rows, "cifar-100-binary/test.bin": rows}, is_zip=False)]


@pytest.mark.parametrize(
    "name, contents, build",
    [
        ("fashion_mnist", mnist_like, lambda root: FashionMnist(root=root, download=True, verify_checksum=False)),
        ("cifar100", cifar, lambda root: Cifar100(root=root, download=True, verify_checksum=False)),
        ("movielens-100k", movielens, lambda root: MovieLens(root=root, download=True, version="100k", negatives=1)),
        ("wikitext-2", wikitext, lambda root: WikiText(root=root, download=True)),
        (
            "voc2007",
            lambda: [voc("2007", "trainval", ["a", "b"]), voc("2007", "test", ["c"])],
            lambda root: Voc(root=root, download=True, test_split="test"),
        ),
    ],
    ids=["fashion_mnist", "cifar100", "movielens", "wikitext", "voc"],
)
def test_a_dataset_is_downloaded_unpacked_and_opened(
    server: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    contents: Callable[[], List[bytes]],
    build: Callable[[str], PublicDataset],
) -> None:
    publish(server, monkeypatch, name, *contents())
    dataset = build(str(tmp_path / "data"))
    opened: List[Splits] = [dataset.open(), dataset.open()]
    assert len(opened[0].train) > 0 and len(opened[0].val) > 0
    assert len(server.requests) == len(PUBLIC_FILES[name]), "what is there is not downloaded again"
    assert all(one.suffix == ".lock" for one in (tmp_path / "data" / ".download").iterdir())
    with pytest.raises(DataError):
        build(str(tmp_path / "other")).model_copy(update={"download": False}).open()
    assert len(server.requests) == len(PUBLIC_FILES[name])


@pytest.mark.parametrize("name", [name for name in PUBLIC_FILES if PUBLIC_FILES[name][0].takes])
def test_archives_are_unpacked_into_dataset_folders(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    files = PUBLIC_FILES[name]
    inside = [f"{file.takes}/{Path(file.last).relative_to(file.takes) if file.last else 'a/file'}" for file in files]
    publish(
        server,
        monkeypatch,
        name,
        *(
            packed({inner: b"1", "elsewhere/file": b"2"}, file.name.endswith("zip"))
            for file, inner in zip(files, inside)
        ),
    )
    fetch_public(name, tmp_path)
    assert all((tmp_path / (file.last or file.target or file.takes)).exists() for file in files)
    assert not (tmp_path / "elsewhere").exists()


def test_the_table_is_well_formed() -> None:
    for name, files in PUBLIC_FILES.items():
        assert len({file.name for file in files}) == len(files), name
        for file in files:
            assert len(file.checksum) in (32, 40, 64) and int(file.checksum, 16) > 0
            assert not file.last or file.last.startswith(file.target or file.takes)


@pytest.mark.parametrize(
    "dataset, names",
    [
        (Voc(), ["voc2007"]),
        (Voc(train_split=["2007/trainval", "VOC2012/trainval"]), ["voc2007", "voc2012"]),
        (VocInstances(), ["voc2012"]),
        (VocSegmentation(), ["voc2012"]),
        (Coco(), ["coco"]),
        (Ade20k(), ["ade20k"]),
        (LibriSpeech(test=None, val="dev-other"), ["librispeech-train-clean-100", "librispeech-dev-other"]),
        (WikiText(version="103"), ["wikitext-103"]),
        (MovieLens(version="20m"), ["movielens-20m"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PublicDataset) else "",
)
def test_settings_choose_public_files(dataset: Any, names: List[str]) -> None:
    assert list(dataset.public_names) == names and set(names) <= set(PUBLIC_FILES)


def test_missing_network_names_files_and_their_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MXTRAIN_DATA_URL", "http://127.0.0.1:9/mirror/")
    with pytest.raises(DataError) as raised:
        Cifar100(root=str(tmp_path), download=True).open()
    for said in (
        "http://127.0.0.1:9/mirror/cifar100/cifar-100-binary.tar.gz",
        "Connection refused",
        f"sha1 {PUBLIC_FILES['cifar100'][0].checksum}",
        f"to '{tmp_path}/cifar-100-binary'",
        "MXTRAIN_DATA_URL=URL",
    ):
        assert said in str(raised.value)
    monkeypatch.delenv("MXTRAIN_DATA_URL")
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/gluon_repo")
    with pytest.raises(DataError, match="http://127.0.0.1:9/gluon_repo/gluon/dataset/cifar100/cifar-100-binary.tar.gz"):
        Cifar100(root=str(tmp_path), download=True).open()


def test_wrong_checksum_leaves_no_files(server: FaultyServer, tmp_path: Path) -> None:
    server.files["/ade20k/ADEChallengeData2016.zip"] = packed({"ADEChallengeData2016/a": b""}, is_zip=True)
    with pytest.raises(DataError, match="has the sha1"):
        Ade20k(root=str(tmp_path), download=True).open()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".download", "ADEChallengeData2016.zip.lock"]
