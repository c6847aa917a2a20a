"""MNIST and Fashion-MNIST in IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import ClassVar, Dict, List, Literal, Optional, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    MISSING_COUNTERPART,
    WRONG_CHECKSUM,
    DataLocation,
    DataLocations,
    Findings,
    NoUsableSamples,
    Problem,
    call_or_report,
    refuse_labels,
)
from mxtrain.data.loading.dataset_files import exists, open_regular
from mxtrain.data.loading.official import refuse_missing, verify
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.memory import split_in_memory
from mxtrain.vision.images.settings import Augment

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IMAGE_MAGIC, _LABEL_MAGIC = 0x803, 0x801
_MAX_COMPRESSION = 1033
"""Largest ratio of unpacked to packed bytes: deflate can encode 258 bytes in two bits."""


class Mnist(PublicDataset, Dataset):
    """60,000 handwritten digits for training and 10,000 for testing, 1 x 28 x 28.

    Source: LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition" (1998).
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText = "data/mnist"
    """Folder of the four official files, as they are or unpacked; by default in the folder that MXTRAIN_DATA names,
    else in data/."""
    verify_checksum: bool = True
    """Refuse files whose content is not the official one; false for your own files in the same format."""
    augment: Augment = Augment(crop_padding=2)

    option: ClassVar[str] = "mnist"
    published_as: ClassVar[str] = "mnist"
    home: ClassVar[str] = "http://yann.lecun.com/exdb/mnist/"
    class_names: ClassVar[List[str]] = [str(digit) for digit in range(10)]
    # MD5 of the unpacked content, so that repacked files are accepted.
    md5: ClassVar[Dict[str, str]] = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = {name.removesuffix(".gz").replace(".", "-") for name in files.top}
        if not {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"} <= names:
            return None
        return Recognised("MNIST's IDX files", {"root": files.typed()}, "classification", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        paths = self._find()
        train = self._read_pair(paths[0], paths[1], findings)
        test = self._read_pair(paths[2], paths[3], findings)
        if train is None or test is None:
            raise NoUsableSamples(f"'{self.root}' holds damaged files.")
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DataError(f"'{paths[0]}' and '{paths[2]}' hold images of different sizes; they must agree.")
        images, labels, locations = train
        return split_in_memory(self, images, labels, self.class_names, MemorySource(*test), locations)

    def _find(self) -> List[Path]:
        """Returns the paths of the four files, in the order of `_FILES`.

        Raises:
            DataError: a file is missing.
        """
        root = Path(self.root)
        candidates = [[root / name, root / f"{name}.gz"] for name in _FILES]
        missing = [str(pair[1].name) for pair in candidates if not any(map(exists, pair))]
        if missing:
            refuse_missing(self.option, root, missing, self.home, "They may stay gzipped.")
        return [next(path for path in pair if exists(path)) for pair in candidates]

    def _read_pair(
        self, image_path: Path, label_path: Path, findings: Findings
    ) -> Optional[Tuple[np.ndarray, np.ndarray, DataLocations]]:
        """Reads images (N, 1, H, W) and their labels (N,), and the source location of each image; None if a file is
        damaged and `findings` continues."""
        image_NHW = self._read(image_path, _IMAGE_MAGIC, "images", findings)
        label_N = self._read(label_path, _LABEL_MAGIC, "labels", findings)
        if image_NHW is None or label_N is None:
            return None
        count = min(len(image_NHW), len(label_N))
        if len(image_NHW) != len(label_N):
            findings.refuse(
                Problem(
                    MISSING_COUNTERPART,
                    DataLocation(str(image_path), record=count),
                    f"'{image_path}' holds {len(image_NHW)} images but '{label_path}' {len(label_N)} labels; "
                    "they must agree.",
                )
            )
        num_classes = len(self.class_names)
        sentence = f"'{label_path}' holds the label {{label}}; allowed are 0 to {num_classes - 1}."
        label_places = DataLocations([str(label_path)], np.arange(count), are_records=True)
        valid = refuse_labels(findings, label_N[:count], num_classes, label_places, sentence)
        if len(valid) < len(image_NHW):
            image_NHW, label_N = image_NHW[valid], label_N[valid]
        return image_NHW[:, None], label_N, DataLocations([str(image_path)], valid, are_records=True)

    def _read(self, path: Path, magic: int, kind: str, findings: Findings) -> Optional[np.ndarray]:
        """Reads a file and verifies its checksum; arguments as in `parse_idx`. None if it is damaged and `findings`
        continues."""

        def read() -> Tuple[bytes, np.ndarray]:
            content = _read_content(path, magic, kind)
            return content, parse_idx(content, path, magic, kind)

        location = DataLocation(str(path))
        result = call_or_report(findings, location, read)
        if result is None:
            return None
        content, array = result
        if self.verify_checksum:
            checksum = self.md5[path.name[:-3] if path.suffix == ".gz" else path.name]
            call_or_report(findings, location, lambda: verify(path, content, checksum, self.home), WRONG_CHECKSUM)
        return array


class FashionMnist(Mnist):
    """60,000 images of clothing for training and 10,000 for testing, 1 x 28 x 28.

    Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017).
    """

    root: PathText = "data/fashion_mnist"
    augment: Augment = Augment(crop_padding=2, flip=True)

    option: ClassVar[str] = "fashion_mnist"
    published_as: ClassVar[str] = "fashion_mnist"
    home: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist"
    class_names: ClassVar[List[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]
    md5: ClassVar[Dict[str, str]] = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }


def parse_idx(content: bytes, path: Path, magic: int, kind: str) -> np.ndarray:
    """Parses an unpacked IDX file.

    Args:
        content: content of the file.
        path: path of the file, for messages.
        magic: number at the start of the file; its last byte is the number of dimensions.
        kind: kind of the content, for messages: `images` or `labels`.

    Returns:
        The array, uint8, (N, H, W) or (N,); read-only.

    Raises:
        DataError: the file starts with another number, or is shorter or longer than its header says.
    """
    num_dims = magic & 0xFF
    header = 4 * (1 + num_dims)
    found_magic = struct.unpack(">I", content[:4])[0] if len(content) >= 4 else None
    if found_magic != magic or len(content) < header:
        begin = content[:4].hex() or "nothing"
        raise DataError(
            f"'{path}' is not an IDX file of {kind}: it must begin with the bytes {magic:08x}, not {begin}. "
            "A download that failed often leaves a web page under this name: fetch the file again."
        )
    shape, expected = _shape_and_size(content, num_dims)
    if len(content) != expected or 0 in shape[1:]:
        raise DataError(
            f"'{path}' is truncated or damaged: its header says {shape[0]} {kind}, which take {expected} bytes, but it "
            f"holds {len(content)}. Fetch the file again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _shape_and_size(head: bytes, num_dims: int) -> Tuple[Tuple[int, ...], int]:
    """Reads the shape of the array and the size of the unpacked file in bytes from the header."""
    shape = struct.unpack_from(f">{num_dims}I", head, 4)
    return shape, 4 * (1 + num_dims) + math.prod(shape)


def _read_content(path: Path, magic: int, kind: str) -> bytes:
    """Returns the unpacked file. Reads no more than its header and its size allow, so that a wrong file stops early.

    Raises:
        DataError: the file cannot be read or unpacked, or is too small for the size in its header.
    """
    num_dims = magic & 0xFF
    header = 4 * (1 + num_dims)
    is_packed = path.suffix == ".gz"
    with open_regular(path) as (file, size):
        try:
            stream = gzip.GzipFile(fileobj=file) if is_packed else file
            head = stream.read(header)
            if len(head) < header or int.from_bytes(head[:4], "big") != magic:
                return head  # the caller rejects it
            shape, expected = _shape_and_size(head, num_dims)
            if is_packed and expected > size * _MAX_COMPRESSION:
                raise DataError(
                    f"'{path}' is truncated or damaged: its header says {shape[0]} {kind}, which take {expected} "
                    f"bytes, more than can be in {size} packed ones. Fetch the file again."
                )
            return head + stream.read((expected if is_packed else min(expected, size)) - header + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"'{path}' is truncated or not gzipped ({error}). Fetch the file again.") from error
