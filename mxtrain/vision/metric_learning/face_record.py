"""Dataset of insightface: RecordIO files of faces, `train.rec`, `train.idx` and `property`.

Source: insightface, recognition/arcface_torch/dataset.py (`MXFaceDataset`) and src/data/face2rec2.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import LABEL_RANGE, STRICT, DataLocation, Findings
from mxtrain.data.loading.dataset_files import read_text, suggest_existing
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.text_numbers import parse_integer
from mxtrain.types import PathText
from mxtrain.types.kinds import ClassIndex, Gives, Images
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.settings import FileAugment
from mxtrain.vision.images.transforms.base import AreaShare
from mxtrain.vision.kinds import Identity
from mxtrain.vision.metric_learning.verification_pairs import open_pairs

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import EncodedImages

HEADER_KEY = 0
"""Key of the record that says which keys are those of images."""


class FaceRecordFile(RecordFile):
    """Images of a .rec file of insightface, as `EncodedImages`.

    Record 0 is a header, whose label is (number of the first identity record, number behind the last one): images have
    the numbers from 1 to the first of these. Without such a header, all records are images. A label may be a list,
    whose first entry is the identity.
    """

    advice: ClassVar[str] = "Copy train.rec and train.idx again."

    def __init__(self, path: Path, num_classes: int = 0, findings: Findings = STRICT) -> None:
        super().__init__(path, num_classes, findings)
        self._choose_images()

    def _use_keys(self, keys: Sequence[str]) -> None:
        numbers = [parse_integer(key) for key in keys]
        if None in numbers:
            raise DataError(f"'{self.path.with_suffix('.idx')}': the key '{keys[numbers.index(None)]}' is no number.")
        self._key_N = np.array(numbers, np.int64)

    def _choose_images(self) -> None:
        """Leaves the header and the records of identities out, and sorts images by key."""
        order_N = np.argsort(self._key_N, kind="stable")
        (header,) = np.nonzero(self._key_N == HEADER_KEY)
        if len(header):
            try:
                numbers = self.read_numbers(int(header[0]))
            except LoaderError as error:
                raise DataError(str(error)) from error
            if len(numbers) >= 2:
                end = numbers[0]
                is_image_N = (self._key_N[order_N] > HEADER_KEY) & (self._key_N[order_N] < end)
                if not is_image_N.sum() == end - 1:
                    raise DataError(
                        f"'{self.path}': its header says that records 1 to {end - 1:g} are images, and "
                        f"{is_image_N.sum()} of them are in its .idx. Copy both files again."
                    )
                order_N = order_N[is_image_N]
        self._key_N, self.offset_N = self._key_N[order_N], self.offset_N[order_N]
        if not len(order_N):
            raise DataError(f"'{self.path}' holds no images, only a header. {self.advice}")

    def location(self, index: int) -> DataLocation:
        """Returns the file and the number of the record."""
        return DataLocation(str(self.path), record=int(self._key_N[index]))

    def name(self, index: int) -> str:
        """Returns file and position of a record."""
        return f"Record {self._key_N[index]} of '{self.path}' (byte {self.offset_N[index]})"

    def _find_label(self, index: int) -> int:
        return self._identity(index, self.read_numbers(index))

    def read(self, index: int) -> Tuple[bytes, int]:
        image, numbers = self.read_image_and_numbers(index)
        return image, self._identity(index, numbers)

    def _identity(self, index: int, numbers: np.ndarray) -> int:
        """Returns the first number of a label, which is the identity.

        Raises:
            LoaderError: it is no number of an identity.
        """
        value = float(numbers[0]) if len(numbers) else -1.0
        most = self.num_classes or MAX_IDENTITIES
        if not 0 <= value < most or value != int(value):  # also true for NaN
            raise LoaderError(
                f"{self.name(index)} has the identity {value:g}; allowed is 0 to {most - 1}.", "", LABEL_RANGE
            )
        return int(value)


MAX_IDENTITIES = 1 << 24
"""Limit on the number of identities without a `property` file: float32 labels are exact below it."""


class FaceRecord(DecodedDataset):
    """`root/train.rec`, `train.idx` and `property` (identities, height, width), as insightface packs faces.

    Validation images are held out of the training images, or are the pairs of `verification`. Class names are the
    numbers of the identities.
    """

    gives: ClassVar[Gives] = Gives(Images, Identity, ClassIndex, usual_model="iresnet")

    root: PathText = "data/face_record"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    verification: Optional[PathText] = None
    """Pairs that are the validation split: a `.bin` file of insightface such as lfw.bin, or a table with the columns
    first, second and same. A relative path that does not exist is looked for in root. null: validation images are held
    out of the training images."""
    augment: FileAugment = FileAugment(flip=True)
    central_crop: AreaShare = 1.0
    """Share of the shorter side that is kept; faces are aligned, so all of it."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        if not files.has("train.rec", "train.idx", "property"):
            return None
        return Recognised("faces as insightface packs them", {"root": files.typed()}, "metric_learning", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = Path(self.root)
        path = root / "train.rec"
        if not os.path.lexists(path):
            raise DataError(
                f"dataset=face_record: there is no file '{path}'.{suggest_existing(path)} The folder holds train.rec, "
                "train.idx and property, as insightface packs them. Name yours with dataset.root=FOLDER."
            )
        if not os.path.lexists(path.with_suffix(".idx")):
            raise DataError(
                f"dataset=face_record: there is no file '{path.with_suffix('.idx')}', which says which records are "
                "images. Copy it beside the other."
            )
        declared = self._read_property(root / "property")
        records = FaceRecordFile(path, declared[0] if declared else 0, findings)
        label_N = records.read_labels()
        num_classes = records.num_classes = declared[0] if declared else int(label_N.max()) + 1
        if num_classes < 2:
            raise DataError(f"'{path}' has a single identity; at least two are needed to learn to tell them apart.")
        val = open_pairs(self._verification_path(root), "", findings) if self.verification else None
        dataset = self
        if declared and self.image_size == "auto":
            dataset = self.model_copy(update={"image_size": list(declared[1:])})
        names = [str(identity) for identity in range(num_classes)]
        return dataset.make_splits((records, label_N), val, None, names, findings)

    def _choose_statistics(
        self, encoded: EncodedImages, in_train: np.ndarray
    ) -> Tuple[Sequence[float], Sequence[float]]:
        """Returns insightface's scale, (pixel - 127.5) / 128, where the settings are auto."""
        channels = self.decoded_shape()[0]
        usual = ([0.5] * channels, [128 / 255] * channels)
        mean, std = (auto if isinstance(value, str) else value for value, auto in zip((self.mean, self.std), usual))
        return mean, std

    def _verification_path(self, root: Path) -> str:
        assert self.verification is not None
        inside = root / self.verification
        return self.verification if os.path.lexists(self.verification) else str(inside)

    def _read_property(self, path: Path) -> List[int]:
        """Returns number of identities, height and width; empty if there is no such file."""
        if not os.path.lexists(path):
            return []
        text = read_text(path).strip()
        numbers = [parse_integer(part, 1, MAX_IDENTITIES) for part in text.split(",")]
        if len(numbers) != 3 or None in numbers:
            raise DataError(
                f"'{path}' holds '{text[:50]}'; it must hold the number of identities, height and width, such as "
                "85742,112,112."
            )
        return [number for number in numbers if number is not None]
