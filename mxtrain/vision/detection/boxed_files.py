"""Base class of detection datasets whose images are files or records.

Legend: N images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import LISTED_TWICE, STRICT, DataLocation, Findings, NoUsableSamples, Problem
from mxtrain.data.loading.dataset_files import FileId, exists, id_of, normalize_name, walk
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits, samples_per_step
from mxtrain.types import BatchSize, Positive, shapes_of
from mxtrain.types.kinds import TargetKind
from mxtrain.vision.detection.box_augment import BoxAugment
from mxtrain.vision.detection.box_faults import refuse_unusable_split
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed import BoxedDataset
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.signature import BoxSplits
from mxtrain.vision.images.annotated_images import AnnotatedImages
from mxtrain.vision.images.decoding import EncodedImages, known_statistics
from mxtrain.vision.images.files import EXTENSIONS
from mxtrain.vision.images.settings import Decoding, as_window, window_setting
from mxtrain.vision.images.sizes import ImageSize, refuse_large_batch
from mxtrain.vision.images.transforms.chain import Annotations
from mxtrain.vision.segmentation.mask_pairs import refuse_shared_images

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model


def squares(sizes: object) -> object:
    """Converts each number in a list of image sizes to [number, number]."""
    if isinstance(sizes, list):
        return [[size, size] if isinstance(size, int) and not isinstance(size, bool) else size for size in sizes]
    return sizes


@dataclass(frozen=True)
class BoxedSplit:
    """Images of a split with their boxes.

    Attributes:
        encoded: the images.
        ids: device and inode of each file, which identify a file with several names; empty for records.
        table: boxes of the images.
    """

    encoded: EncodedImages
    ids: Sequence[FileId]
    table: BoxTable

    @property
    def images(self) -> Sequence[str]:
        """Returns the file of each image; empty for records."""
        return [self.encoded.location(index).file for index in range(len(self.ids))]

    def __len__(self) -> int:
        return len(self.encoded)

    def open(
        self, decoding: Decoding, mean: Sequence[float], augment: BoxAugment, mends: bool, class_names: Sequence[str]
    ) -> BoxedImages:
        """Returns the source of the split; arguments as in `BoxedImages`."""
        return BoxedImages(self.encoded, self.table, decoding, mean, augment, mends=mends, class_names=class_names)


class BoxedFiles(BoxedDataset, AnnotatedImages):  # the order matters: BoxedDataset reads samples
    """Base class of datasets of files: images of any size, and the boxes in them.

    In training the network receives random parts of images, resized to `image_size`; in evaluation and prediction,
    whole images.
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    wrong_boxes: Literal["refuse", "mend"] = "refuse"
    """Treatment of invalid boxes and masks: refuse = training does not start; mend = boxes that exceed their image are
    clipped, inverted and non-finite ones are dropped."""
    image_sizes: Annotated[List[ImageSize], pydantic.BeforeValidator(squares)] = []
    """Image sizes in training, of which one is chosen at random for each batch: numbers or [height, width], e.g.
    [320,352,384]. Empty: `image_size`, which evaluation and prediction always use."""
    image_sizes_interval: Positive = 10
    """Number of consecutive batches with the same size."""
    augment: BoxAugment = BoxAugment()  # type: ignore[assignment]  # of its own annotations
    """Random augmentation of images and boxes in training."""
    largest_batch: ClassVar[int] = 16
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 16, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 16

    remedy_if_shared: ClassVar[str] = "Move it out of one of them."

    @pydantic.model_validator(mode="after")
    def _check_sizes(self) -> BoxedFiles:
        for size in self.image_sizes:
            refuse_large_batch("image_sizes", size, self.channels, samples_per_step(self))
        return self

    @property
    def mends(self) -> bool:
        """Returns True if wrong boxes are mended."""
        return self.wrong_boxes == "mend"

    def crowd_remedy(self) -> str:
        """Names the setting to type if all boxes of a class are crowd regions."""
        return "Mark them as objects in the file."

    def decoding(self) -> Decoding:
        """Returns the settings by which image files become samples."""
        return Decoding(self.cut_shape(), window=as_window(self.window), fit=self.fit)

    def decoded_as(self, decoding: Decoding) -> BoxedFiles:
        """Returns this dataset with the image size, `fit` and window of a decoding."""
        update = {"window": window_setting(decoding.window)}
        return super().decoded_as(decoding).model_copy(update=update)  # type: ignore[return-value]

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BoxedFiles:
        """Returns this dataset with `image_size=auto` replaced by the size that the model was published for, if
        known."""
        side = None if model is None else model.usual_side
        dataset = super().for_run(target, model, loss)
        assert isinstance(dataset, BoxedFiles)
        if self.image_size != "auto" or side is None:
            return dataset
        return dataset.model_copy(update={"image_size": [side, side]})

    def scaled(self, source: Samples, signature: Signature) -> Sequence[Tuple[Samples, Signature]]:
        """Returns the source and the signature for each of `image_sizes`; see `BaseDataset.scaled`."""
        if not self.image_sizes:
            return ()
        channels = shapes_of(signature.shape)[0][0]
        assert isinstance(source, BoxedImages)
        return [(source.resized_to(size), replace(signature, shape=(channels, *size))) for size in self.image_sizes]

    def annotations(self, signature: Signature) -> Annotations:
        return self.annotation_class(self.augment.min_visible)

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Returns the options of the loader, in training with `image_sizes_interval`."""
        options = super().loader_options(train)
        return {**options, "scale_interval": self.image_sizes_interval} if train else options

    def make_splits(
        self,
        splits: Mapping[str, Optional[BoxedSplit]],
        class_names: Sequence[str],
        category_ids: Sequence[int],
        findings: Findings = STRICT,
    ) -> Splits:
        """Builds the splits from their images and boxes. A missing validation split is held out of the training images.

        Args:
            splits: "train", and "val" and "test" if there are any.
            class_names: name of each class.
            category_ids: number of each class in the files of the dataset.
            findings: collects the problems.

        Raises:
            DataError: a split is empty, or shares an image with another one.
            NoUsableSamples: there is no training split.
        """
        train, val, test = (splits.get(split) for split in ("train", "val", "test"))
        if train is None:
            raise NoUsableSamples(f"{self.option}: nothing is left to train on.")
        fitted = self.fitted_to(train.encoded, findings)
        if fitted is not self:
            return fitted.make_splits(splits, class_names, category_ids, findings)
        has_val = val is not None
        val = self.division.own_validation(val)
        for name, split in (("train", train), ("val", val), ("test", test)):
            if split is not None:
                location = DataLocation(split.encoded.location(0).file if len(split) else "")
                rows = split.table.row_RD
                refuse_unusable_split(name, rows, class_names, location, self.option, self.crowd_remedy(), findings)
        parts, (mean, std) = self.hold_out(train, val, test, has_val, findings)
        sources: List[Optional[BoxedImages]] = [
            None if split is None else split.open(self.decoding(), mean, self.augment, self.mends, class_names)
            for split in (train, val, test)
        ]
        if val is None:
            assert sources[0] is not None
            held_out = [sources[0].take(part.tolist()) for part in parts]
            sources = [*held_out[:2], sources[2] or (held_out[2] if len(held_out[2]) else None)]
        train_source, val_source, test_source = sources
        assert train_source is not None and val_source is not None
        refuse_empty(f"{self.option} in '{self.root}'", len(train_source), len(val_source), self.val_fraction)
        return BoxSplits(
            train_source,
            val_source,
            test_source,
            class_names,
            self.cut_shape(),
            mean,
            std,
            self.decoding(),
            category_ids=category_ids,
        )

    def hold_out(
        self,
        train: BoxedSplit,
        val: Optional[BoxedSplit],
        test: Optional[BoxedSplit],
        has_val: bool,
        findings: Findings,
    ) -> Tuple[Sequence[np.ndarray], Tuple[Sequence[float], Sequence[float]]]:
        """Holds out training images for validation and testing if these splits do not exist. Returns the indices of
        each part, and the mean and standard deviation of the remaining training images.

        Args:
            train, val, test: the splits; None: there is none.
            has_val: True if the dataset has a validation split, even if it is not used, as with folds.
            findings: collects images that belong to two splits, or twice to one.

        Raises:
            DataError: splits share an image, or one has an image twice.
        """
        refuse_shared_images({"train": train, "val": val, "test": test}, self.remedy_if_shared, findings)
        for split in (train, val, test):
            refuse_twice(split, findings)
        # Test images are only held out together with validation images.
        parts = self.division.divide(np.zeros(len(train), np.int32), has_val, has_val or bool(test))
        if findings.keeps_going:  # `data check` reads the images later, and continues after unreadable ones
            return parts, known_statistics(self.cut_shape()[0])
        return parts, self._statistics(train, parts[0])

    def _statistics(self, train: BoxedSplit, in_train: np.ndarray) -> Tuple[Sequence[float], Sequence[float]]:
        source = BoxedImages(train.encoded, None, self.decoding(), self.known_mean())
        return self.measure_statistics(source, in_train)


def find_named(folder: Path, names: Sequence[str]) -> Tuple[List[str], List[Optional[FileId]]]:
    """Returns the path and the identity of each named file; the identity is None if there is no such file.

    The folder is listed once, which is faster than a look-up of each file. Accented letters may be composed in the name
    and decomposed in the file system, or vice versa.
    """
    ids = {str(path): file_id for path, file_id in walk(folder, EXTENSIONS)} if folder.is_dir() else {}
    path_of = {normalize_name(path): path for path in ids if not path.isascii()}
    paths = [str(folder / name) for name in names]
    paths = [path if path in ids else path_of.get(normalize_name(path), path) for path in paths]
    return paths, [ids[path] if path in ids else id_of(path) if exists(path) else None for path in paths]


def refuse_twice(split: Optional[BoxedSplit], findings: Findings) -> None:
    """Rejects images that occur twice in a split, which have different boxes each time.

    Raises:
        DataError: an image occurs twice.
    """
    seen: Dict[FileId, int] = {}
    for index, file_id in enumerate(split.ids if split else ()):
        earlier = seen.setdefault(file_id, index)
        if earlier != index:
            assert split is not None
            location, other = split.encoded.location(index), split.encoded.location(earlier)
            same = (
                f"{location} occurs twice"
                if str(location) == str(other)
                else f"{location} and {other} are the same file"
            )
            fact = f"{same}, with different boxes each time: half of the objects would be evaluated as errors."
            findings.refuse(Problem(LISTED_TWICE, location, fact, "Put all boxes of an image together."))
