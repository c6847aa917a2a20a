"""CIFAR-10 and CIFAR-100, in their binary version."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Tuple

import numpy as np
from typing_extensions import Literal

from mxtrain.data.checking.problems import (
    CANNOT_OPEN,
    WRONG_CHECKSUM,
    DataLocation,
    DataLocations,
    Findings,
    Problem,
    call_or_report,
    refuse_labels,
)
from mxtrain.data.loading.dataset_files import exists, open_regular, read_text
from mxtrain.data.loading.official import refuse_missing, verify
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.files.regular_files import MAX_BYTES
from mxtrain.files.text_lines import split_lines
from mxtrain.types import PathText
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.memory import split_in_memory
from mxtrain.vision.images.settings import Augment

_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PIXELS = 3 * 32 * 32


class _Cifar(PublicDataset, Dataset):
    """Base class of CIFAR-10 and CIFAR-100, whose files are sequences of labels and 3 x 32 x 32 pixels."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    verify_checksum: bool = True
    """Refuse files that are not the official ones; false for your own files in the same format."""
    augment: Augment = Augment(crop_padding=4, flip=True)

    root: PathText
    option: ClassVar[str]
    folder: ClassVar[str]
    num_labels: ClassVar[int]
    train_sha1: ClassVar[Dict[str, str]]
    test_sha1: ClassVar[Dict[str, str]]

    def _label_column(self) -> int:
        """Returns the index of the byte with the label in the row of an image."""
        return 0

    def _class_names(self, root: Path) -> List[str]:
        """Returns the names of the classes."""
        raise NotImplementedError

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        root = self._find()
        class_names = self._class_names(root)
        images, labels, locations = self._read_files(root, self.train_sha1, len(class_names), findings)
        test = self._read_files(root, self.test_sha1, len(class_names), findings)
        return split_in_memory(self, images, labels, class_names, MemorySource(*test), locations)

    def _find(self) -> Path:
        """Returns the folder that contains the files.

        Raises:
            DataError: a file is missing.
        """
        configured = Path(self.root)
        names = [*self.train_sha1, *self.test_sha1]
        root, missing = configured, names
        for root in (configured / self.folder, configured):
            missing = [name for name in names if not exists(root / name)]
            if not missing:
                return root
            if len(missing) < len(names):  # some files are there, so this is the folder
                break
        remark = f"Unpack the binary version; its folder '{self.folder}' may stay."
        refuse_missing(self.option, root, missing, _HOME, remark)

    def _read_files(
        self, root: Path, files: Dict[str, str], num_classes: int, findings: Findings
    ) -> Tuple[np.ndarray, np.ndarray, DataLocations]:
        """Reads some files. Returns images (N, 3, 32, 32), labels (N,) and the source location of each image.

        Args:
            root: folder of the files.
            files: name -> SHA-1 of the official file.
            num_classes: number of classes.
            findings: collects the problems.
        """
        tables, valid = [], []
        for name, checksum in files.items():
            path = str(root / name)
            table = self._read_table(Path(path), checksum, findings)
            locations = DataLocations([path], np.arange(len(table)), are_records=True)
            sentence = f"'{path}' holds the label {{label}}; allowed are 0 to {num_classes - 1}."
            valid.append(refuse_labels(findings, table[:, self._label_column()], num_classes, locations, sentence))
            tables.append(table if len(valid[-1]) == len(table) else table[valid[-1]])
        label_N = np.concatenate([table[:, self._label_column()] for table in tables])
        image_NCHW = np.concatenate([table[:, self.num_labels :] for table in tables]).reshape(-1, 3, 32, 32)
        file_N = np.repeat(np.arange(len(tables)), list(map(len, tables)))
        paths = [str(root / name) for name in files]
        return image_NCHW, label_N, DataLocations(paths, np.concatenate(valid), file_N, are_records=True)

    def _read_table(self, path: Path, checksum: str, findings: Findings) -> np.ndarray:
        """Returns the bytes of a file, with a row for each image. Of a truncated file, the complete images are
        returned."""
        row = self.num_labels + _PIXELS
        with open_regular(path) as (file, size):
            if not size or size % row or size > MAX_BYTES:
                findings.refuse(
                    Problem(
                        CANNOT_OPEN,
                        DataLocation(str(path)),
                        f"'{path}' is truncated or damaged: {size} bytes are not a whole number of images of {row} "
                        f"bytes each. Fetch it again from {_HOME}.",
                    )
                )
                size = min(size, MAX_BYTES) // row * row
            content = file.read(size)
        if self.verify_checksum:
            call_or_report(
                findings, DataLocation(str(path)), lambda: verify(path, content, checksum, _HOME), WRONG_CHECKSUM
            )
        return np.frombuffer(content, np.uint8).reshape(-1, row)


class Cifar10(_Cifar):
    """50,000 small photographs for training and 10,000 for testing, 3 x 32 x 32, 10 classes.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009).
    """

    root: PathText = "data/cifar10"
    """Folder of the .bin files, or of the `cifar-10-batches-bin` that holds them; by default in the folder that
    MXTRAIN_DATA names, else in data/."""

    option: ClassVar[str] = "cifar10"
    published_as: ClassVar[str] = "cifar10"
    folder: ClassVar[str] = "cifar-10-batches-bin"
    num_labels: ClassVar[int] = 1
    train_sha1: ClassVar[Dict[str, str]] = {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    }
    test_sha1: ClassVar[Dict[str, str]] = {"test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c"}

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        if not files.named("data_batch_1.bin"):
            return None
        return Recognised("CIFAR-10's binary files", {"root": files.typed()}, "classification", Certainty.SURE)

    def _class_names(self, root: Path) -> List[str]:
        return ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class Cifar100(_Cifar):
    """50,000 small photographs for training and 10,000 for testing, 3 x 32 x 32, 100 classes in 20 groups.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009).
    """

    root: PathText = "data/cifar100"
    """Folder of the .bin files, or of the `cifar-100-binary` that holds them; by default in the folder that
    MXTRAIN_DATA names, else in data/."""
    labels: Literal["fine", "coarse"] = "fine"
    """fine = 100 classes, coarse = 20."""

    option: ClassVar[str] = "cifar100"
    published_as: ClassVar[str] = "cifar100"
    folder: ClassVar[str] = "cifar-100-binary"
    num_labels: ClassVar[int] = 2
    train_sha1: ClassVar[Dict[str, str]] = {"train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"}
    test_sha1: ClassVar[Dict[str, str]] = {"test.bin": "8fb6623e830365ff53cf14adec797474f5478006"}

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        if not files.named("train.bin") or not files.named("fine_label_names.txt"):
            return None
        return Recognised("CIFAR-100's binary files", {"root": files.typed()}, "classification", Certainty.SURE)

    def _label_column(self) -> int:
        return 0 if self.labels == "coarse" else 1  # the coarse label comes first

    def _class_names(self, root: Path) -> List[str]:
        count = 20 if self.labels == "coarse" else 100
        path = root / f"{self.labels}_label_names.txt"  # comes with the official files
        names = list(filter(None, split_lines(read_text(path)))) if path.is_file() else []
        return names if len(names) == count else [f"class {label}" for label in range(count)]
