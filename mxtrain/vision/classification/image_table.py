"""Images that a table names, with any number of classes each, or with a number to predict.

Legend: N images, B batch, K classes, R rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import (
    ClassVar,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Type,
    Union,
)

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
from mxtrain.data.loading.number_targets import NumberTargets
from mxtrain.data.loading.sampling import class_labels
from mxtrain.data.recognition import IMAGES, FileTree, Recognised
from mxtrain.data.sample_weights import SETTING, WeightedDataset, require_other_column
from mxtrain.data.spec import BaseDataset, Source, Splits
from mxtrain.data.table.cells import Decimal
from mxtrain.data.table.class_sets import AUTO, USUAL_COLUMNS
from mxtrain.data.table.columns import TABLES, names_of_columns, read_columns, require_column
from mxtrain.data.table.number_columns import usual_column
from mxtrain.data.table.target_columns import TargetColumns, class_set_columns, number_columns
from mxtrain.data.table.weights import WeightedRows
from mxtrain.errors import ConfigError, DataError
from mxtrain.loss.spec import Loss
from mxtrain.model.spec import Model
from mxtrain.types import Names, OpenFraction, PathText, Range
from mxtrain.types.kinds import ClassSet, Gives, Images, Number, TargetKind
from mxtrain.vision.detection.boxed_files import find_named
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.decoding import DecodedSource, EncodedImages
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.image_checks import ImageChecks
from mxtrain.vision.images.settings import Decoding, FileAugment
from mxtrain.vision.images.transforms.base import AreaShare
from mxtrain.vision.images.volume_files import SlicedFiles, sliced
from mxtrain.vision.images.volume_settings import VolumeSettings

_IMAGE_COLUMNS = {"image", "file", "filename", "file_name", "path", "image_path", "image_name"}
"""Names of columns by which `data guess` recognises a table of images."""


def _names_an_image(files: FileTree, name: str) -> bool:
    """Returns True if the first row of a table names an image beside it."""
    row = files.first_row(name)
    image = next((row[column] for column in row if column in _IMAGE_COLUMNS), "")
    return image.lower().endswith(IMAGES) and (files.root / image).is_file()


class TargetFiles(ImageFiles):
    """Image files with a target each, which may be an array. The label of a file is its number among the targets.

    Args:
        paths: image files.
        target_N: target of each image, (N, ...).
        weight_N: weight of each image; None = all count equally.
    """

    def __init__(
        self, paths: Sequence[Union[str, Path]], target_N: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> None:
        super().__init__(paths, np.arange(len(paths)))
        self.target_N, self.weight_N = target_N, weight_N


class ListedAugment(FileAugment):
    """Random changes of training images of a table."""

    disabled: ClassVar[Mapping[str, object]] = {"flip": False, "crop_scale": [1.0, 1.0]}

    flip: Union[Literal["auto"], bool] = "auto"  # type: ignore[assignment]  # replaced by `resolved`
    """Mirror left-right with probability one half; auto = true, but false for task=regression: a number may depend on
    the side."""
    crop_scale: Union[Literal["auto"], Range[AreaShare]] = "auto"  # type: ignore[assignment]  # the same
    """Smallest and largest share of the area of a random crop of a decoded image; [1, 1] = off, the central part; auto
    = [0.25, 1], but [1, 1] for task=regression: a number may depend on all of the image."""

    def resolved(self, usual: Mapping[str, object]) -> ListedAugment:
        """Returns the settings with these values for auto, by name."""
        return self.model_copy(update={name: value for name, value in usual.items() if getattr(self, name) == "auto"})


class ImageTable(WeightedRows, VolumeSettings, DecodedDataset, WeightedDataset):
    """Images of a CSV, TSV, JSON lines or Parquet file, with any number of classes each, or a number to predict. All
    slices of a volume have its target."""

    gives: ClassVar[Gives] = Gives(Images, ClassSet, Number, usual_model="resnet")
    splits_folders: ClassVar[bool] = False
    usual_augment: ClassVar[Mapping[str, object]] = {"flip": True, "crop_scale": [0.25, 1.0]}
    """Values for auto in `augment`."""
    usual_crop: ClassVar[float] = 0.875
    """Value for auto of `central_crop`."""

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
    labels, label, classes, tags or class, or else all columns but that of the image. With task=regression the column of
    the number to predict, or a list of columns; null = the column target, label, value or score, or else the only one
    besides the image."""
    delimiter: str = AUTO
    """Text between two names of classes; auto = the one of | ; , that occurs. Lists of JSON and Parquet need none."""
    decimal: Decimal = "."
    """Decimal sign of the numbers to predict, with task=regression: "." or ","; the other one groups digits."""
    augment: ListedAugment = ListedAugment()
    central_crop: Union[Literal["auto"], AreaShare] = "auto"  # type: ignore[assignment]  # see `for_run`
    """Share of the shorter side that is kept where no random crop is taken; `predict` and `eval` do as in training;
    auto = 0.875, but 1 for task=regression."""
    test_fraction: OpenFraction = 0.0
    """Share of the training images held out for testing where there is no table of them."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(*TABLES) if _IMAGE_COLUMNS & set(files.columns(name))]
        # Images lie beside a table that is given alone.
        has_images = bool(files.images) or files.is_file and any(_names_an_image(files, name) for name in tables)
        settings = files.typed_splits(tables) if has_images else {}
        columns = files.columns(files.by_split(tables)["train"]) if settings else []
        if len(columns) < 2:
            return None
        image = next(name for name in columns if name in _IMAGE_COLUMNS)
        chosen = {**settings, **({} if image == "image" else {"image": image})}
        others = [name for name in columns if name != image]
        numbers = [name for name in others if files.holds_numbers(files.by_split(tables)["train"], name)]
        if not numbers or any(name in USUAL_COLUMNS for name in others if name not in numbers):
            return Recognised("a table of images with any number of classes", chosen, "multi_label")
        asks = () if usual_column(others) in numbers else ("dataset.label=COLUMN",)
        remark = f"COLUMN has the number to predict: {', '.join(numbers)}." if asks else ""
        return Recognised("a table of images with numbers", chosen, "regression", asks=asks, remark=remark)

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`: values for auto depend on the kind of target.

        Raises:
            ConfigError: the weights of images cannot be used.
        """
        if issubclass(target, Number) and not isinstance(self, NumberImages):
            return self.as_class(NumberImages).for_run(target, model, loss)
        dataset = super().for_run(target, model, loss)
        assert isinstance(dataset, ImageTable)
        dataset = dataset.resolved()
        for setting, column in (("dataset.image", self.image), ("dataset.label", self.label)):
            require_other_column(self, setting, [column] if isinstance(column, str) else column or [])
        if self.weight is not None and dataset.mixes:
            raise ConfigError(
                f"{SETTING}={self.weight}: dataset.augment mixes images, whose weights differ. Switch mixup and cutmix "
                "off, or leave the weights out."
            )
        return dataset

    def resolved(self) -> ImageTable:
        """Returns the dataset with values for auto that the kind of target decides."""
        crop = self.usual_crop if self.central_crop == "auto" else self.central_crop
        return self.model_copy(update={"augment": self.augment.resolved(self.usual_augment), "central_crop": crop})

    @property
    def other_columns(self) -> List[str]:
        """Returns the columns that hold no targets."""
        return [self.image, *([] if self.weight is None else [self.weight])]

    def target_columns(self, path: str) -> TargetColumns:
        """Returns the columns of the targets.

        Args:
            path: table of the training images.

        Raises:
            DataError: there are no such columns, or several could be meant.
        """
        # With the names of classes in the metadata of Parquet.
        return class_set_columns(path, self.label, self.delimiter, self.other_columns, names_classes=True)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            raise DataError("dataset.train: name the table of the training images, e.g. dataset.train=train.csv.")
        settings = {"train": self.train, "val": self.val, "test": self.test}
        paths = {name: path for name, path in settings.items() if path is not None}
        refuse_shared({name: [path] for name, path in paths.items()}, findings)
        if not self.train.endswith((".jsonl", ".jsonl.gz")):
            require_column("dataset.image", self.image, self.train, names_of_columns(self.train))
        found = self.target_columns(self.train)
        files = {
            name: call_or_report(findings, DataLocation(path), partial(self._read, path, found, findings))
            for name, path in paths.items()
        }
        if any(each is None or not len(each) for each in files.values()):
            raise NoUsableSamples(f"dataset.train={self.train}: a table has no usable image.")
        refuse_shared({name: each.paths for name, each in files.items() if each is not None}, findings)
        train = files["train"]
        assert train is not None
        dataset = self.resolved().model_copy(update={"root": self._root()})
        is_strict = not findings.keeps_going
        samples = {name: sliced(each, self.slice_axis, is_strict) for name, each in files.items() if each is not None}
        label_N, class_names = np.zeros(len(samples["train"]), np.int32), list(found.class_names)
        splits = dataset.make_splits(
            (samples["train"], label_N), samples.get("val"), samples.get("test"), class_names, findings
        )
        if not findings.keeps_going:
            self.require_some_weights({"training": splits.train, "validation": splits.val, "test": splits.test})
        return splits

    def _root(self) -> str:
        assert self.train is not None
        return str(Path(self.train).parent) if self.root is None else self.root

    def _read(self, path: str, found: TargetColumns, findings: Findings) -> TargetFiles:
        """Returns the images of a table that exist and have a known target."""
        columns = [self.image, *found.columns]
        rows, locations = read_columns(
            path,
            columns,
            header=True,
            findings=findings,
            null=found.null,
            decimal_in=found.decimal_in,
            names_classes=found.names_classes,
        )
        assert locations is not None
        target_R, kept_R = found.parse([row[1:] for row in rows], locations, findings)
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
                fact = f"{location} names '{files[index]}', as {first} does: an image has one row."
                remedy = "Put all that an image shows into one row."
                problems.append(Problem(LISTED_TWICE, location, fact, remedy))
                continue
            kept.append(index)
        findings.refuse(*problems)
        weight_N = self.read_weights(locations.take(kept_R[kept]), self.decimal, findings)
        return TargetFiles([files[index] for index in kept], target_R[kept], weight_N)

    def _make_source(self, encoded: EncodedImages) -> Source:
        crop_scale = self.augment.crop_scale
        files = encoded.files if isinstance(encoded, SlicedFiles) else encoded
        assert isinstance(files, TargetFiles) and not isinstance(crop_scale, str)  # see `resolved`
        return TargetImages(encoded, files, self.decoding(), crop_scale)


class NumberImages(NumberTargets, ImageTable):
    """The images of `ImageTable` with a number or several to predict, for task=regression."""

    gives: ClassVar[Gives] = Gives(Images, Number)
    usual_augment: ClassVar[Mapping[str, object]] = {"flip": False, "crop_scale": [1.0, 1.0]}
    usual_crop: ClassVar[float] = 1.0

    @property
    def target_names(self) -> Sequence[str]:
        return self.label if isinstance(self.label, list) else ()

    @property
    def target_column(self) -> str:
        """See `NamedTarget`."""
        return self.label if isinstance(self.label, str) else ""

    def target_columns(self, path: str) -> TargetColumns:
        """See `ImageTable.target_columns`: columns of numbers."""
        return number_columns(path, self.label, self.decimal, self.other_columns)


class HasTargets(Protocol):
    """Targets (N, ...) and weights (N,) of files or records, by number; None = all count equally."""

    target_N: np.ndarray
    weight_N: Optional[np.ndarray]


class TargetImages(DecodedSource):
    """Source of images with a target each. The label of an image, or of a slice, is the number of its file or
    record."""

    def __init__(
        self, encoded: EncodedImages, files: HasTargets, decoding: Decoding, crop_scale: Sequence[float] = (1.0, 1.0)
    ) -> None:
        """Stores the settings; no image is read yet.

        Args:
            encoded: the files, or the slices of their volumes.
            files: the files or records, with their targets.
            decoding, crop_scale: see `DecodedSource`.
        """
        super().__init__(encoded, decoding, crop_scale=crop_scale)
        self._files, self._file_N = files, class_labels(encoded)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """Decodes images (B, C, H, W), and returns them with their targets (B, ...); see `Source.fetch`."""
        image_BCHW, number_B = super().fetch(index_B, seed=seed, epoch=epoch, train=train)
        return image_BCHW, self._files.target_N[number_B]

    def target(self, index: int) -> np.ndarray:
        """Returns the target of an image."""
        target: np.ndarray = self._files.target_N[self._file_N[index]]
        return target

    def read_labels(self) -> np.ndarray:
        """Returns the target of each image, (N, ...)."""
        target_N: np.ndarray = self._files.target_N[self._file_N]
        return target_N

    def read_weights(self) -> Optional[np.ndarray]:
        """Returns the weight of each image; None = all count equally."""
        weight_N = self._files.weight_N
        return None if weight_N is None else weight_N[self._file_N]

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return TargetChecks(self)


class TargetChecks(ImageChecks):
    """Checks of encoded images with a set of classes each, or with a number."""

    _source: TargetImages

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        checked, target = super().check(index), self._source.target(index)
        classes = np.flatnonzero(target).tolist() if target.dtype.kind == "i" else []
        return Checked(checked.problems, checked.digest, classes)
