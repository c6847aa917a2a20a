"""Detection dataset of lists of images with boxes, or of RecordIO files with them, in the formats of MXNet and GluonCV.

Legend: R boxes, D columns of `boxes.Column`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import ClassVar, Dict, List, Literal, Mapping, Optional, Union

import numpy as np

from mxtrain.data.checking.problems import DataLocation, Findings, call_or_report
from mxtrain.data.loading.dataset_files import exists, refuse_shared
from mxtrain.data.loading.split_folders import parse_name
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import NORMALIZED_TOLERANCE, TOLERANCE, refuse_wrong_boxes
from mxtrain.vision.detection.boxed_classes import ClassNames, choose_class_names
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit
from mxtrain.vision.detection.list_file import ListedBoxes, read_list, read_records
from mxtrain.vision.images.record_file import first_labels, hold_boxes

_LAYOUT = "It must hold train.lst or train.rec, or what dataset.train_list names."
_MIN_LABEL = 2
"""Numbers in the label of an image without objects: the lengths of the header and of an object."""
_MAX_NORMALIZED = 1.5
"""Coordinates are in pixels if one is larger. Normalized coordinates are at most 1, apart from annotation errors."""


class ImageList(BoxedFiles):
    """`root/train.lst` with a line for each image, or `root/train.rec` with a record; val and test beside.

    A line is `INDEX A B ... class left top right bottom ... PATH` with tabs; see `list_file`.
    """

    option: ClassVar[str] = "dataset=image_list"

    root: PathText = "data/image_list"
    train_list: str = "auto"
    """File of the training images in `root`, .lst or .rec; auto = train.rec or train.lst."""
    val_list: Optional[str] = "auto"
    """File of the validation images; auto = val.rec or val.lst if it exists; None = `val_fraction` of the training
    images.
    """
    test_list: Optional[str] = "auto"
    """File of the test images; auto = test.rec or test.lst if it exists; None = no test split."""
    images: str = ""
    """Folder in `root` that paths in .lst files are relative to."""
    normalized: Union[Literal["auto"], bool] = "auto"
    """If true, coordinates are shares of width and height, otherwise pixels; auto = shares if none is above 1.5."""
    classes: ClassNames = []
    """Names in the order of their numbers; empty = the lines of `root/classes.txt`, or else the numbers."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        lists = [
            name for name in files.find(".lst", ".rec") if "/" not in name and parse_name(name[:-4]) == ("", "train")
        ]
        listed = next((name for name in lists if _has_boxes(files, name)), None)
        if listed is None:
            return None
        settings = {"root": files.folder}
        return Recognised("MXNet's lists or records of images with boxes", settings, "detection", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = self.require_root(_LAYOUT)
        names = choose_class_names(self.classes, root)
        listed: Dict[str, ListedBoxes] = {}
        for split, setting in (("train", self.train_list), ("val", self.val_list), ("test", self.test_list)):
            path = self._path(root, split, setting)
            if path is None:
                continue
            read = (
                functools.partial(read_records, path, findings)
                if path.suffix.lower() == ".rec"
                else (functools.partial(read_list, path, root / self.images, findings))
            )
            boxes = call_or_report(findings, DataLocation(str(path)), read)
            if boxes is not None:
                listed[split] = boxes
        refuse_shared({split: [boxes.path] for split, boxes in listed.items()}, findings)
        if not names:
            names = _numbered_names(listed)
        is_normalized = self._is_normalized(listed)
        splits = {split: self._split(boxes, len(names), is_normalized, findings) for split, boxes in listed.items()}
        return self.make_splits(splits, names, range(len(names)), findings)

    def _path(self, root: Path, split: str, setting: Optional[str]) -> Optional[Path]:
        """Returns the path of the list of a split; None if there is none.

        Raises:
            DataError: the configured list, or that of the training split, does not exist.
        """
        if setting is None:
            return None
        if setting != "auto":
            path = root / setting
            if not exists(path):
                names = sorted(file.name for ending in ("lst", "rec") for file in root.glob(f"*.{ending}"))
                hint = f"{did_you_mean(setting, names)} There are: {', '.join(names)}." if names else ""
                raise DataError(f"dataset.{split}_list={setting}: there is no file '{path}'.{hint}")
            return path
        existing = [path for path in (root / f"{split}.rec", root / f"{split}.lst") if exists(path)]
        if not existing and split == "train":
            raise DataError(
                f"{self.option}: '{root}' holds no train.lst or train.rec. Name yours with dataset.train_list=FILE."
            )
        return existing[0] if existing else None

    def _is_normalized(self, listed: Mapping[str, ListedBoxes]) -> bool:
        """Returns True if the coordinates of all lists are relative to width and height."""
        if self.normalized != "auto":
            return self.normalized
        edges = np.concatenate([boxes.object_R6[:, 1:5].ravel() for boxes in listed.values()] or [np.zeros(0)])
        return bool(np.nan_to_num(edges, nan=0.0).max(initial=0.0) <= _MAX_NORMALIZED)

    def _split(
        self, listed: ListedBoxes, num_classes: int, is_normalized: bool, findings: Findings
    ) -> Optional[BoxedSplit]:
        """Builds a split from the images of a list and their valid boxes; None without images."""
        is_kept_R = listed.refuse_classes(num_classes, findings)
        edge_R4 = listed.object_R6[:, 1:5]
        size_R2 = np.full((len(edge_R4), 2), 1.0 if is_normalized else np.nan)
        tolerance = NORMALIZED_TOLERANCE if is_normalized else TOLERANCE
        is_kept_R &= refuse_wrong_boxes(edge_R4, size_R2, listed, findings, self.mends, tolerance)
        if self.normalized == "auto" and not is_normalized:
            is_kept_R &= listed.refuse_normalized(findings)
        return listed.split(is_kept_R, is_normalized)


def _numbered_names(listed: Mapping[str, ListedBoxes]) -> List[str]:
    """Returns class names from the numbers of classes in the training list: "0", "1" and so on."""
    train = listed.get("train")
    class_R = np.zeros(0) if train is None else train.object_R6[:, 0]
    valid_R = class_R[(class_R >= 0) & (class_R < 1 << 20)]
    return [str(number) for number in range(int(valid_R.max(initial=0)) + 1)]


def _has_boxes(files: FileTree, name: str) -> bool:
    """Returns True if the first label of a list, or one of the first of a .rec file, has a header and objects, not
    classes."""
    if name.endswith(".rec"):
        return hold_boxes(first_labels(files.root / name))
    lines = files.lines(name, 1)
    return bool(lines) and lines[0].count("\t") > _MIN_LABEL
