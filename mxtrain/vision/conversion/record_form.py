"""Writes MXNet's RecordIO files, with boxes or with a class for each image."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, List

import numpy as np

from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.conversion.form import Form, refuse_unlisted_names, text_file
from mxtrain.vision.conversion.job import Holds
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.detection.image_list import ImageList
from mxtrain.vision.images.files import read_content
from mxtrain.vision.images.record_writer import RecordWriter, pack_record

_HEADER = 4
"""Numbers before the objects of a label: this length, that of an object, and the size of the image."""
_PREFIX = "images"


class _Records(Form):
    """Base class of records: `TRAIN.rec`, `TRAIN.idx`, likewise val and test, and the names of the classes."""

    def check(self) -> None:
        if self._links:
            raise ConfigError("images=link: records contain the images. Type images=copy.")
        refuse_unlisted_names(list(self.content.class_names), self._file("classes.txt"))

    def image(self, split: str, index: int) -> str:
        return ""

    @staticmethod
    def _file(name: str) -> str:
        """Returns the name of a file."""
        raise NotImplementedError

    def label_numbers(self, split: str, index: int) -> List[float]:
        """Returns the label of an image."""
        raise NotImplementedError

    def write(self, folder: Path, progress: WorkProgress) -> None:
        progress.begin("writing records", self.content.num_images)
        for split, images in self.content.splits.items():
            with RecordWriter(folder / self._file(f"{split}.rec")) as writer:
                progress.advance(len(writer))
                for index in range(len(writer), len(images.encoded)):
                    image = read_content(images.encoded, index)
                    try:
                        writer.write(pack_record(index, self.label_numbers(split, index), image))
                    except ValueError as error:
                        raise DataError(f"{images.encoded.name(index)}: {error}.") from error
                    progress.advance(1)
        with text_file(folder / self._file("classes.txt")) as stream:
            stream.writelines(f"{name}\n" for name in self.content.class_names)


class BoxRecordForm(_Records):
    """Records with boxes in shares of width and height, as GluonCV's RecordFileDetection and MXNet's ImageDetIter read
    them."""

    name: ClassVar[str] = "records"
    words: ClassVar[str] = "MXNet's records of images with boxes"
    holds: ClassVar[Holds] = Holds(difficult=True, clips=True)
    exact: ClassVar[str] = "shares of width and height as 32-bit floats"

    @staticmethod
    def _file(name: str) -> str:
        return name

    def check(self) -> None:
        super().check()
        if self.job.counts["empty"]:
            self.job.notes.append(
                f"{self.job.counts['empty']:,} images have no object: GluonCV and ImageDetIter refuse such records, "
                "and mxtrain reads them as background"
            )

    def option(self) -> str:
        return "image_list"

    def dataset(self, folder: Path) -> BaseDataset:
        return ImageList(root=str(folder))

    def label_numbers(self, split: str, index: int) -> List[float]:
        width, height = self.job.size(split, index)
        has_flags = self.job.counts["difficult"] > 0 and "difficult" not in self.job.drop
        label: List[float] = [_HEADER, 6 if has_flags else 5, width, height]
        for each in self.job.objects(split, index):
            shares = (np.array(each.edges) / [width, height, width, height]).tolist()
            label += [each.class_index, *shares, *([int(bool(each.flags & Flag.DIFFICULT))] * has_flags)]
        return label


class ClassRecordForm(_Records):
    """Records with a class for each image, as ImageRecordIter and ImageRecordDataset read them."""

    name: ClassVar[str] = "records"
    words: ClassVar[str] = "MXNet's records of images with classes"
    holds: ClassVar[Holds] = Holds(objects=False)

    @staticmethod
    def _file(name: str) -> str:
        return f"{_PREFIX}_{name}"

    def option(self) -> str:
        return "image_record"

    def dataset(self, folder: Path) -> BaseDataset:
        return ImageRecord(root=str(folder), prefix=_PREFIX)

    def label_numbers(self, split: str, index: int) -> List[float]:
        return [self.job.label(split, index)]
