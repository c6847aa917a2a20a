"""Classification dataset of RecordIO files, made by `python -m mxtrain.vision.images.make_record` or MXNet's im2rec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Optional

import numpy as np

from mxtrain.data.checking.problems import LABEL_RANGE, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_text, refuse_shared
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.types import PathText
from mxtrain.vision.detection.boxed_classes import first_twice
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.record_file import RecordFile, first_label_length


class ImageRecord(DecodedDataset):
    """`root/PREFIX_train.rec`, and beside it `_val.rec`, `_test.rec`, an .idx for each, and `_classes.txt`, if they
    exist.

    Missing splits are held out of the training records. Without `_classes.txt`, class names are numbers. In both cases
    all labels are read first.
    """

    root: PathText = "data/image_record"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    prefix: str = "images"
    """Beginning of the file names; '' = train.rec, val.rec, test.rec and classes.txt."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        records = [name for name in files.find("train.rec") if "/" not in name]
        if not records or files.has("property") or first_label_length(files.root / records[0]) != 1:
            return None
        prefix = records[0][: -len("_train.rec")] if records[0] != "train.rec" else ""
        settings = {"root": files.folder, "prefix": prefix}
        return Recognised("MXNet's records of images with classes", settings, "classification", Certainty.SURE)

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
        train = RecordFile(train_path, len(class_names or ()), findings)
        val, test = (self._open_split(name, class_names, findings) for name in ("val.rec", "test.rec"))
        refuse_shared(
            {
                part: [records.path]
                for part, records in (("train", train), ("val", val), ("test", test))
                if records is not None
            },
            findings,
        )
        holds_out = val is None or self.division.fold is not None or (test is None and self.test_fraction > 0)
        needs_labels = class_names is None or holds_out  # labels are read from all records, which takes time
        label_N = train.read_labels() if needs_labels else np.empty(0, np.int32)
        if class_names is None:
            class_names = [str(label) for label in range(int(label_N.max()) + 1)]
            _warn_of_first_label(train_path, int(label_N.min()), findings)
            for records in (train, val, test):
                if records is not None:
                    records.num_classes = len(class_names)
        if len(class_names) < 2:
            raise DataError(f"'{train_path}' has a single class; at least two are needed to learn to tell them apart.")
        return self.make_splits((train, label_N), val, test, class_names, findings)

    def _path(self, ending: str) -> Path:
        """Returns the path of the file whose name ends so, e.g. with `train.rec`."""
        return Path(self.root) / (f"{self.prefix}_{ending}" if self.prefix else ending)

    def _open_split(self, ending: str, class_names: Optional[List[str]], findings: Findings) -> Optional[RecordFile]:
        path = self._path(ending)
        return RecordFile(path, len(class_names or ()), findings) if os.path.lexists(path) else None

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


def _warn_of_first_label(path: Path, smallest: int, findings: Findings) -> None:
    """Warns of labels that do not begin at 0: the network would have classes without images."""
    if smallest:
        fact = f"'{path}': the smallest label is {smallest}, and classes count from 0: class 0 has no image."
        remedy = "Write the records with labels from 0, or name all classes in the file that ends in classes.txt."
        findings.warn(Problem(LABEL_RANGE, DataLocation(str(path)), fact, remedy))
