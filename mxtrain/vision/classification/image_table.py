"""Images that a table names, with any number of classes each.

Legend: N images, B batch, K classes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.checks import Checked, Checks
from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import FileId, as_posix, refuse_shared
from mxtrain.data.recognition import FileTree, Recognised
from mxtrain.data.spec import Source, Splits
from mxtrain.data.table.class_sets import AUTO, SetColumns, find_set_columns, parse_sets
from mxtrain.data.table.columns import ListColumn, names_of_columns, read_columns, require_column
from mxtrain.errors import DataError
from mxtrain.types import Names, OpenFraction, PathText
from mxtrain.types.kinds import ClassSet, Gives, Images
from mxtrain.vision.detection.boxed_files import find_named
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.decoding import DecodedSource, EncodedImages
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.image_checks import ImageChecks

_IMAGE_COLUMNS = {"image", "file", "filename", "file_name", "path", "image_path", "image_name"}
"""Names of columns by which `data guess` recognises a table of images."""


class LabelledFiles(ImageFiles):
    """Image files with the classes of each. The label of a file is its number among `set_NK`.

    Args:
        paths: image files.
        set_NK: 1 for each class of an image, otherwise 0.
    """

    def __init__(self, paths: Sequence[Union[str, Path]], set_NK: np.ndarray) -> None:
        super().__init__(paths, np.arange(len(paths)))
        self.set_NK = set_NK


class ImageTable(DecodedDataset):
    """Images of a CSV, TSV, JSON lines or Parquet file, with any number of classes each."""

    gives: ClassVar[Gives] = Gives(Images, ClassSet, usual_model="resnet")

    train: Optional[PathText] = None
    """Table of the training images."""
    val: Optional[PathText] = None
    """Table of the validation images; null = val_fraction of the training images."""
    test: Optional[PathText] = None
    """Table of the test images; null = test_fraction of the training images."""
    root: Optional[PathText] = None  # type: ignore[assignment]  # its default is the folder of the table
    """Folder that the paths of images are relative to; null = that of the training table."""
    image: str = "image"
    """Column of the image file."""
    label: Annotated[Union[None, str, Names], pydantic.Field(union_mode="left_to_right")] = None
    """Column with the names of the classes, or a list of columns of 0 and 1, one for each class; null = the column
    labels, label, classes, tags or class, or else all columns but that of the image."""
    delimiter: str = AUTO
    """Text between two names of classes; auto = the one of | ; , that occurs. Lists of JSON and Parquet need none."""
    test_fraction: OpenFraction = 0.0
    """Share of the training images held out for testing where there is no table of them."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(".csv", ".tsv", ".jsonl") if _IMAGE_COLUMNS & set(files.columns(name))]
        settings = files.typed_splits(tables) if files.images else {}
        columns = files.columns(files.by_split(tables)["train"]) if settings else []
        if len(columns) < 2:
            return None
        image = next(name for name in columns if name in _IMAGE_COLUMNS)
        chosen = {} if image == "image" else {"image": image}
        return Recognised("a table of images with any number of classes", {**settings, **chosen}, "multi_label")

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            raise DataError("dataset.train: name the table of the training images, e.g. dataset.train=train.csv.")
        settings = {"train": self.train, "val": self.val, "test": self.test}
        paths = {name: path for name, path in settings.items() if path is not None}
        refuse_shared({name: [path] for name, path in paths.items()}, findings)
        if not self.train.endswith((".jsonl", ".jsonl.gz")):
            require_column("dataset.image", self.image, self.train, names_of_columns(self.train))
        found = find_set_columns(self.train, self.label, self.delimiter, [self.image])
        files = {
            name: call_or_report(findings, DataLocation(path), partial(self._read, path, found, findings))
            for name, path in paths.items()
        }
        if any(each is None or not len(each) for each in files.values()):
            raise NoUsableSamples(f"dataset.train={self.train}: a table has no usable image.")
        refuse_shared({name: each.paths for name, each in files.items() if each is not None}, findings)
        train = files["train"]
        assert train is not None
        return self.model_copy(update={"root": self._root()}).make_splits(
            (train, np.zeros(len(train), np.int32)),
            files.get("val"),
            files.get("test"),
            list(found.class_names),
            findings,
        )

    def _root(self) -> str:
        assert self.train is not None
        return str(Path(self.train).parent) if self.root is None else self.root

    def _read(self, path: str, found: SetColumns, findings: Findings) -> LabelledFiles:
        """Returns the images of a table that exist and have known classes."""
        columns = [self.image, *map(ListColumn, found.columns)]
        rows, locations = read_columns(path, columns, header=True, findings=findings)
        assert locations is not None
        set_RK, kept_R = parse_sets(found, [row[1:] for row in rows], locations, findings)
        names = [as_posix(rows[row][0].strip()) for row in kept_R.tolist()]
        files, ids = find_named(Path(self._root()), names)
        earlier: Dict[FileId, DataLocation] = {}
        kept: List[int] = []
        problems: List[Problem] = []
        for index, row in enumerate(kept_R.tolist()):
            location, identity = locations[row], ids[index]
            if identity is None or not names[index]:
                fact = f"{location} names '{rows[row][0]:.200}', and there is no file '{files[index]:.300}'."
                remedy = "Add it, remove the row, or name the folder of the images with dataset.root=FOLDER."
                problems.append(Problem(MISSING_COUNTERPART, location, fact, remedy))
                continue
            first = earlier.setdefault(identity, location)
            if first is not location:
                fact = f"{location} names '{files[index]}', as {first} does: an image has one set of classes."
                remedy = "Put all classes of an image into one row."
                problems.append(Problem(LISTED_TWICE, location, fact, remedy))
                continue
            kept.append(index)
        findings.refuse(*problems)
        return LabelledFiles([files[index] for index in kept], set_RK[kept])

    def _make_source(self, encoded: EncodedImages) -> Source:
        assert isinstance(encoded, LabelledFiles)
        return ClassSetImages(encoded, self.decoding(), crop_scale=self.augment.crop_scale)


class ClassSetImages(DecodedSource):
    """Source of image files with any number of classes each."""

    encoded: LabelledFiles

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """Decodes images (B, C, H, W), and returns them with their classes (B, K); see `Source.fetch`."""
        image_BCHW, number_B = super().fetch(index_B, seed=seed, epoch=epoch, train=train)
        return image_BCHW, self.encoded.set_NK[number_B]

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return ClassSetChecks(self)


class ClassSetChecks(ImageChecks):
    """Checks of encoded images with any number of classes each."""

    _source: ClassSetImages

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        checked = super().check(index)
        classes = np.flatnonzero(self._source.encoded.set_NK[index]).tolist()
        return Checked(checked.problems, checked.digest, classes)
