"""RecordIO files of images with a class or several, of `python -m mxtrain.vision.images.make_record` or MXNet's
im2rec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, List, Optional, Type

import numpy as np

from mxtrain.data.checking.problems import LABEL_RANGE, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_text, refuse_shared
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import BaseDataset, Source, Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.loss.spec import Loss
from mxtrain.model.spec import Model
from mxtrain.types import PathText
from mxtrain.types.kinds import ClassIndex, ClassSet, Gives, Images, TargetKind
from mxtrain.vision.classification.class_set_records import ClassSetRecords, LabelForm
from mxtrain.vision.classification.image_table import TargetImages
from mxtrain.vision.detection.boxed_classes import first_twice
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.record_file import RecordFile, first_labels, may_be_indices, may_be_vector


class ImageRecord(DecodedDataset):
    """`root/PREFIX_train.rec`, and beside it `_val.rec`, `_test.rec`, an .idx for each, and `_classes.txt`, if they
    exist.

    Missing splits are held out of the training records. Without `_classes.txt`, class names are numbers. In both cases
    all labels are read first. With task=multi_label each record has any number of classes.
    """

    gives: ClassVar[Gives] = Gives(Images, ClassIndex, ClassSet, usual_model="resnet")
    record_kind: ClassVar[Type[RecordFile]] = RecordFile

    root: PathText = "data/image_record"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    prefix: str = "images"
    """Beginning of the file names; '' = train.rec, val.rec, test.rec and classes.txt."""
    label_form: LabelForm = "auto"
    """Labels of several numbers, with task=multi_label: vector = 0 or 1 for each class; indices = a list of the
    indices of the classes from 0, of any length; auto = the form that the labels allow, which is logged."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        records = [name for name in files.find("train.rec") if "/" not in name]
        labels = first_labels(files.root / records[0]) if records and not files.has("property") else []
        if not labels:
            return None
        prefix = records[0][: -len("_train.rec")] if records[0] != "train.rec" else ""
        settings = {"root": files.folder, "prefix": prefix}
        if all(len(numbers) == 1 for numbers in labels):
            return Recognised("MXNet's records of images with classes", settings, "classification", Certainty.SURE)
        if not all(may_be_vector(numbers) or may_be_indices(numbers) for numbers in labels):
            return None
        return Recognised("MXNet's records of images with any number of classes", settings, "multi_label")

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`.

        Raises:
            ConfigError: the form of labels is given for a task with one class each.
        """
        if issubclass(target, ClassSet):
            return self if isinstance(self, ClassSetImages) else self.as_class(ClassSetImages)
        if self.label_form != "auto":
            raise ConfigError(
                f"dataset.label_form={self.label_form} is read by task=multi_label. Type it, or leave the form out."
            )
        return self

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        train_path = self._path("train.rec")
        if not os.path.lexists(train_path):
            raise DataError(
                f"dataset=image_record: there is no file '{train_path}'. Make it from a folder of images with\n"
                f"    python -m mxtrain.vision.images.make_record FOLDER {self.root}/{self.prefix or 'images'}\n"
                "or name yours with dataset.root=FOLDER dataset.prefix=NAME (for NAME_train.rec; '' for train.rec)."
            )
        class_names = self._read_class_names()
        train = self._open_records(train_path, class_names, findings)
        val, test = (
            self._open_records(path, class_names, findings) if os.path.lexists(path) else None
            for path in (self._path("val.rec"), self._path("test.rec"))
        )
        refuse_shared(
            {
                part: [records.path]
                for part, records in (("train", train), ("val", val), ("test", test))
                if records is not None
            },
            findings,
        )
        return self.read_labels(class_names, train, val, test, findings)

    def read_labels(
        self,
        class_names: Optional[List[str]],
        train: RecordFile,
        val: Optional[RecordFile],
        test: Optional[RecordFile],
        findings: Findings,
    ) -> Splits:
        """Returns the splits of the records, with the labels that are needed before the first sample."""
        holds_out = val is None or self.division.fold is not None or (test is None and self.test_fraction > 0)
        needs_labels = class_names is None or holds_out  # labels are read from all records, which takes time
        label_N = train.read_labels() if needs_labels else np.empty(0, np.int32)
        if class_names is None:
            class_names = [str(label) for label in range(int(label_N.max()) + 1)]
            _warn_of_first_label(train.path, int(label_N.min()), findings)
            for records in (train, val, test):
                if records is not None:
                    records.num_classes = len(class_names)
        if len(class_names) < 2:
            raise DataError(f"'{train.path}' has a single class; at least two are needed to learn to tell them apart.")
        return self.make_splits((train, label_N), val, test, class_names, findings)

    def _path(self, ending: str) -> Path:
        """Returns the path of the file whose name ends so, e.g. with `train.rec`."""
        return Path(self.root) / (f"{self.prefix}_{ending}" if self.prefix else ending)

    def _open_records(self, path: Path, class_names: Optional[List[str]], findings: Findings) -> RecordFile:
        return self.record_kind(path, len(class_names or ()), findings)

    def _read_class_names(self) -> Optional[List[str]]:
        """Returns the names in `classes.txt`; None if the file does not exist."""
        path = self._path("classes.txt")
        if not os.path.lexists(path):
            return None
        names = [line.strip(BLANKS) for line in split_lines(read_text(path)) if line.strip()]
        duplicate = first_twice(names)
        if duplicate is not None:
            raise DataError(f"'{path}' names the class '{duplicate}' twice. Give each class a name of its own.")
        return names


class ClassSetImages(ImageRecord):
    """The records of `ImageRecord` with any number of classes each, for task=multi_label."""

    gives: ClassVar[Gives] = Gives(Images, ClassSet, usual_model="resnet")
    record_kind: ClassVar[Type[RecordFile]] = ClassSetRecords

    def read_labels(
        self,
        class_names: Optional[List[str]],
        train: RecordFile,
        val: Optional[RecordFile],
        test: Optional[RecordFile],
        findings: Findings,
    ) -> Splits:
        """See `ImageRecord.read_labels`: all labels are read."""
        assert isinstance(train, ClassSetRecords)
        found = train.recognise_labels(self.label_form, len(class_names or ()))
        if found.num_classes < 2:
            raise DataError(f"'{train.path}' has a single class, and task=multi_label needs at least two.")
        for records in (train, val, test):
            if isinstance(records, ClassSetRecords):
                records.read_sets(found)
        if class_names is None:
            class_names = [str(label) for label in range(found.num_classes)]
            if found.form == "indices":
                _warn_of_first_label(train.path, int(train.target_N.any(axis=0).argmax()), findings)
        return self.make_splits((train, np.zeros(len(train), np.int32)), val, test, class_names, findings)

    def _make_source(self, encoded: EncodedImages) -> Source:
        assert isinstance(encoded, ClassSetRecords)
        return TargetImages(encoded, encoded, self.decoding(), self.augment.crop_scale)


def _warn_of_first_label(path: Path, smallest: int, findings: Findings) -> None:
    """Warns of labels that do not begin at 0: the network would have classes without images."""
    if smallest:
        fact = f"'{path}': the smallest label is {smallest}, and classes count from 0: class 0 has no image."
        remedy = "Write the records with labels from 0, or name all classes in the file that ends in classes.txt."
        findings.warn(Problem(LABEL_RANGE, DataLocation(str(path)), fact, remedy))
