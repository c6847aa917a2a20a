"""Public datasets by name: where their files are published, their checksums, and the folders they are unpacked to.

Sources of the checksums: MXNET is mxnet 1.9.1, gluon/data/vision/datasets.py; GLUONNLP is gluonnlp 0.10.0,
data/corpora/wikitext.py; GLUONCV is gluon-cv, scripts/datasets/{pascal_voc,mscoco,ade20k}.py; TORCHAUDIO is
pytorch/audio, torchaudio/datasets/librispeech.py; D2L is "Dive into Deep Learning", section on MovieLens; GROUPLENS are
the .md5 files beside the archives.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Dict, Sequence, Tuple
from urllib.parse import urlsplit

from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError, DownloadError
from mxtrain.files.download.archives import move_into, unpacked
from mxtrain.files.download.transfer import HASHES, fetch, verify_checksum
from mxtrain.files.regular_files import is_remote
from mxtrain.model.published import repository
from mxtrain.types import PathText

MIRROR = "MXTRAIN_DATA_URL"
"""The variable that names a server with all files, each at DATASET/FILE, such as voc2007/VOCtest_06-Nov-2007.tar."""
DOWNLOADS = ".download"
"""Folder inside a dataset's folder for files whose download is not finished."""


@dataclass(frozen=True)
class PublicFile:
    """A published file, an archive as a rule.

    Attributes:
        url: its address; a relative one is on MXNet's server, or on that of MXNET_GLUON_REPO.
        checksum: MD5, SHA-1 or SHA-256, by its length.
        takes: path in the archive of the folder that is unpacked; empty: the file is no archive and stays as it is.
        target: path of that in the dataset's folder; empty: `takes`, or the file's name.
        last: path in the dataset's folder that exists when everything does; empty: `target`.
    """

    url: str
    checksum: str
    takes: str = ""
    target: str = ""
    last: str = ""

    @property
    def name(self) -> str:
        """Returns the file's name."""
        return urlsplit(self.url).path.rpartition("/")[2]


def _idx(folder: str, sums: Sequence[str]) -> Tuple[PublicFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(PublicFile(f"gluon/dataset/{folder}/{name}-ubyte.gz", sha1) for name, sha1 in zip(names, sums))


def _voc(year: str, archive: str, sha1: str, split: str) -> PublicFile:
    folder = f"VOCdevkit/VOC{year}"
    url = f"http://host.robots.ox.ac.uk/pascal/VOC/voc{year}/{archive}.tar"
    return PublicFile(url, sha1, folder, last=f"{folder}/ImageSets/Main/{split}.txt")


def _movielens(name: str, checksum: str) -> Dict[str, Tuple[PublicFile, ...]]:
    url = f"https://files.grouplens.org/datasets/movielens/ml-{name}.zip"
    folder = {"10m": "ml-10M100K"}.get(name, f"ml-{name}")
    return {f"movielens-{name}": (PublicFile(url, checksum, folder, target=f"ml-{name}"),)}


def _librispeech(part: str, sha256: str) -> Dict[str, Tuple[PublicFile, ...]]:
    url = f"https://www.openslr.org/resources/12/{part}.tar.gz"
    return {f"librispeech-{part}": (PublicFile(url, sha256, f"LibriSpeech/{part}", target=part),)}


PUBLIC_FILES: Dict[str, Tuple[PublicFile, ...]] = {
    "mnist": _idx(
        "mnist",
        (  # MXNET
            "6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d",
            "2a80914081dc54586dbdf242f9805a6b8d2a15fc",
            "c3a25af1f52dad7f726cce8cacb138654b760d48",
            "763e7fa3757d93b0cdec073cef058b2004252c17",
        ),
    ),
    "fashion_mnist": _idx(
        "fashion-mnist",
        (  # MXNET
            "0cf37b0d40ed5169c6b3aba31069a9770ac9043d",
            "236021d52f1e40852b06a4c3008d8de8aef1e40b",
            "626ed6a7c06dd17c0eec72fa3be1740f146a2863",
            "17f9ab60e7257a1620f4ad76bbbaf857c3920701",
        ),
    ),
    "cifar10": (
        PublicFile(  # MXNET
            "gluon/dataset/cifar10/cifar-10-binary.tar.gz",
            "fab780a1e191a7eda0f345501ccd62d20f7ed891",
            "cifar-10-batches-bin",
        ),
    ),
    "cifar100": (
        PublicFile(  # MXNET
            "gluon/dataset/cifar100/cifar-100-binary.tar.gz",
            "a0bb982c76b83111308126cc779a992fa506b90b",
            "cifar-100-binary",
        ),
    ),
    "voc2007": (  # GLUONCV
        _voc("2007", "VOCtrainval_06-Nov-2007", "34ed68851bce2a36e2a223fa52c661d592c66b3c", "trainval"),
        _voc("2007", "VOCtest_06-Nov-2007", "41a8d6e12baa5ab18ee7f8f8029b9e11805b4ef1", "test"),
    ),
    "voc2012": (  # GLUONCV
        _voc("2012", "VOCtrainval_11-May-2012", "4e443f8a2eca6b1dac8a6c57641b67dd40621a49", "trainval"),
    ),
    "coco": (  # GLUONCV
        PublicFile(
            "http://images.cocodataset.org/annotations/annotations_trainval2017.zip",
            "8551ee4bb5860311e79dace7e79cb91e432e78b3",
            "annotations",
            last="annotations/instances_val2017.json",
        ),
        PublicFile(
            "http://images.cocodataset.org/zips/val2017.zip", "4950dc9d00dbe1c933ee0170f5797584351d2a41", "val2017"
        ),
        PublicFile(
            "http://images.cocodataset.org/zips/train2017.zip", "10ad623668ab00c62c096f0ed636d6aff41faca5", "train2017"
        ),
    ),
    "ade20k": (
        PublicFile(  # GLUONCV
            "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
            "219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
            "ADEChallengeData2016",
        ),
    ),
    "wikitext-2": (
        PublicFile(  # GLUONNLP
            "gluon/dataset/wikitext-2/wikitext-2-v1.zip",
            "3c914d17d80b1459be871a5039ac23e752a53cbe",
            "wikitext-2",
        ),
    ),
    "wikitext-103": (
        PublicFile(  # GLUONNLP
            "gluon/dataset/wikitext-103/wikitext-103-v1.zip",
            "0aec09a7537b58d4bb65362fee27650eeaba625a",
            "wikitext-103",
        ),
    ),
    **_movielens("100k", "cd4dcac4241c8a4ad7badc7ca635da8a69dddb83"),  # D2L
    **_movielens("1m", "c4d9eecfca2ab87c1945afe126590906"),  # GROUPLENS, as the next ones
    **_movielens("10m", "ce571fd55effeba0271552578f2648bd"),
    **_movielens("20m", "cd245b17a1ae2cc31bb14903e1204af3"),
    **_movielens("25m", "6b51fb2759a8657d3bfcbfc42b592ada"),
    # TORCHAUDIO
    **_librispeech("dev-clean", "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3"),
    **_librispeech("dev-other", "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365"),
    **_librispeech("test-clean", "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23"),
    **_librispeech("test-other", "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29"),
    **_librispeech("train-clean-100", "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2"),
    **_librispeech("train-clean-360", "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf"),
    **_librispeech("train-other-500", "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2"),
}
"""Name -> the files that it consists of."""


class PublicDataset(BaseDataset):
    """Base of datasets that can be downloaded into `root`."""

    published_as: ClassVar[str] = ""
    """Name of the dataset in `PUBLIC_FILES`; empty if it has several."""

    root: PathText
    download: bool = False
    """Download the published files that are not in `root`."""

    @property
    def public_names(self) -> Sequence[str]:
        """Returns the names in `PUBLIC_FILES` of what the settings read."""
        return [self.published_as]

    def fetch(self) -> None:
        """Downloads missing files if `download` is set.

        Raises:
            DataError: it cannot be downloaded; the message says how to put it there.
        """
        if self.download and is_remote(self.root):
            raise ConfigError("dataset.download=true: files are downloaded into local folders only. Leave it out.")
        for name in self.public_names if self.download else ():
            fetch_public(name, Path(self.root))


def fetch_public(name: str, root: Path) -> None:
    """Downloads the files of a public dataset that are not there, and unpacks them.

    Args:
        name: in `PUBLIC_FILES`.
        root: the dataset's folder; it is made if it is missing.

    Raises:
        DataError: one cannot be downloaded; the message says how to put it there.
    """
    for file in PUBLIC_FILES[name]:
        target = root / (file.target or file.takes or file.name)
        last = root / file.last if file.last else target
        if last.exists():
            continue
        url = _address(name, file)
        try:
            fetch(url, root / DOWNLOADS / file.name, last.exists, partial(_put, file, target, last))
        except DownloadError as error:
            advice = f"unpack its folder {file.takes} to '{target}'" if file.takes else f"put it into '{root}'"
            raise DataError(
                f"dataset.download=true: {error}. Download {file.name} ({HASHES[len(file.checksum)]} {file.checksum}) "
                f"elsewhere and {advice}; or name a server that has {name}/{file.name} by {MIRROR}=URL."
            ) from error


def _address(name: str, file: PublicFile) -> str:
    mirror = os.environ.get(MIRROR)
    if mirror:
        return f"{mirror.rstrip('/')}/{name}/{file.name}"
    return file.url if urlsplit(file.url).scheme else repository() + file.url


def _put(file: PublicFile, target: Path, last: Path, arrived: Path) -> None:
    verify_checksum(arrived, file.checksum)
    if not file.takes:
        os.replace(arrived, target)
        return
    with unpacked(arrived, file.takes) as folder:
        os.sync()  # before `last` exists
        move_into(folder, target, last)
