"""Datasets of formats of annotation tools. A format reads objects, see `ObjectFormat.read`; classes of this module turn
them into boxes, instance masks, masks of classes or key points, as the task needs.

Legend: P images, R objects of a split, N objects with key points, J key points.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.checking.problems import (
    BOX_OUTSIDE,
    EMPTY_MASK,
    UNREADABLE_MASK,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
    problem_of,
)
from mxtrain.data.loading.dataset_files import open_regular
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import ConfigError, DataError, LoaderError, list_override
from mxtrain.types import Spec
from mxtrain.types.kinds import Gives, Images, TargetKind
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit
from mxtrain.vision.detection.boxes import BoxAnnotations
from mxtrain.vision.images.annotated_images import AnnotatedImages
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.transforms.chain import AugmentSettings
from mxtrain.vision.instance_segmentation.instance_images import InstanceSplit
from mxtrain.vision.instance_segmentation.mask_rows import InstanceAnnotations
from mxtrain.vision.instance_segmentation.outlines import Outline
from mxtrain.vision.kinds import Boxes, ClassMap, KeyPoints, Masks
from mxtrain.vision.objects.drawn_masks import DrawnPairs
from mxtrain.vision.objects.objects import AnnotatedImage, AnnotationSet, FlatObjects, outline_of
from mxtrain.vision.pose.key_point_files import MEND_POINTS, KeyPointFiles, KeyPointSplit, are_outside, usual_sigmas
from mxtrain.vision.pose.key_point_images import PosedObjects
from mxtrain.vision.pose.key_points import KeyPointSet, left_right_pairs
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)

BACKGROUND = "background"
"""Name of the class of pixels that belong to no object, in masks that are drawn from outlines."""
IGNORED_VALUE = 255
"""Value of ignored regions in drawn masks."""
MAX_DRAWN_CLASSES = 254
_JPEG, _HEAD_BYTES = b"\xff\xd8", 1 << 16
"""First bytes of a JPEG, and number of bytes in which its orientation and size usually are: its pixels are not read."""


if TYPE_CHECKING:
    _Base = AnnotatedImages
else:
    _Base = Spec  # fields of the other base class of a dataset, such as `augment`, would be overridden otherwise


class ObjectFormat(_Base):
    """Base class of formats. A format is a subclass with `read`, and a dataset `class Name(NameFormat, ObjectBoxes)`.

    Further targets need nothing: with another task the dataset is of a class that has the format and one of
    `ObjectInstances`, `ObjectMasks` and `ObjectKeyPoints`.
    """

    gives: ClassVar[Gives] = Gives(Images, Boxes, Masks, ClassMap, KeyPoints)
    reads_outlines: ClassVar[bool]
    """True if `read` is to return the shapes of objects; set by the kind of the dataset."""
    reads_points: ClassVar[bool]
    """True if `read` is to return key points."""
    remedy_if_shared: ClassVar[str] = "Move it out of one of them."
    """Remedy for images that are in two splits, for messages."""
    kinds: ClassVar[Mapping[Type[TargetKind], type]] = {}
    """Class of the dataset for each kind of targets other than boxes; set below."""

    def read(self, findings: Findings) -> AnnotationSet:
        """Reads the annotations of all splits. Classes and lines are checked here; boxes are checked by the caller.

        Args:
            findings: collects the problems.

        Raises:
            DataError: the files do not exist, or cannot be read.
        """
        raise NotImplementedError

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        kind = next((kind for base, kind in ObjectFormat.kinds.items() if issubclass(target, base)), None)
        if kind is None or isinstance(self, kind):
            return super().for_run(target, model, loss)
        return self._as_kind(kind).for_run(target, model, loss)

    def _as_kind(self, kind: type) -> Dataset:
        """Returns the dataset with the same settings for another kind of targets.

        Raises:
            ConfigError: a setting of `augment` has no meaning there.
        """
        made = _combined(type(self), kind)
        augment = _converted(self.augment, made.model_fields["augment"].default, type(self))
        settings = {name: getattr(self, name) for name in type(self).model_fields if name in made.model_fields}
        dataset: Dataset = made(**{**settings, "augment": augment})
        return dataset


@functools.cache
def _combined(dataset: type, kind: type) -> Any:
    """Returns the class with the format of a dataset and another kind of targets."""
    form = next(base for base in dataset.__mro__ if issubclass(base, ObjectFormat) and not issubclass(base, Dataset))
    body = {
        "__module__": dataset.__module__,
        "__qualname__": f"{dataset.__qualname__}{kind.__name__}",
        "gives": kind.gives,  # type: ignore[attr-defined]
        "option": dataset.option,  # type: ignore[attr-defined]
    }
    return type(dataset)(f"{dataset.__name__}{kind.__name__}", (form, kind), body)


def _converted(augment: AugmentSettings, default: AugmentSettings, owner: type) -> AugmentSettings:
    """Returns the settings of the augmentation of boxes as those of another kind of targets.

    Raises:
        ConfigError: one was changed that the other kind does not have.
    """
    before = type(augment)()
    changed = {
        name: getattr(augment, name)
        for name in type(augment).model_fields
        if getattr(augment, name) != getattr(before, name)
    }
    known = type(default).model_fields
    if augment.transforms is not None:
        return type(default).model_construct(
            **{**default.__dict__, **default.disabled, "transforms": augment.transforms}
        )
    for name in changed:
        if name not in known:
            raise ConfigError(
                f"dataset.augment.{name} is for boxes, and the targets of this task are others. Leave it out; there "
                f"are {', '.join(known)}."
            )
    return default.model_copy(update=changed)


class ObjectBoxes(BoxedFiles):
    """Boxes of the objects of a format."""

    gives: ClassVar[Gives] = ObjectFormat.gives
    reads_outlines: ClassVar[bool] = False
    reads_points: ClassVar[bool] = False

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        read: AnnotationSet = self.read(findings)  # type: ignore[attr-defined]  # of the format
        splits = {split: self.boxed_split(read, images, findings) for split, images in read.splits.items()}
        return self.make_splits(splits, read.class_names, range(len(read.class_names)), findings)

    def boxed_split(
        self, read: AnnotationSet, images: Sequence[AnnotatedImage], findings: Findings
    ) -> Optional[BoxedSplit]:
        """Builds a split from its images; None without images.

        Args:
            read: what the files say.
            images: the images.
            findings: collects the problems.
        """
        objects = FlatObjects.of(images, read.class_names)
        usable = self.usable(read, objects, findings)
        edge_R4 = objects.edge_R4[usable]
        area_R = (edge_R4[:, 2:] - edge_R4[:, :2]).prod(axis=1)
        row_RD = np.column_stack([edge_R4, objects.class_R[usable], objects.flag_R[usable], area_R])
        table = BoxTable.grouped(objects.image_R[usable], row_RD, len(images), objects.size_P2, read.is_relative)
        if not images:
            return None
        files = ImageFiles([image.path for image in images])
        split = BoxedSplit(files, [image.identity for image in images], table)
        return self.completed(read, split, objects, usable)

    def usable(self, read: AnnotationSet, objects: FlatObjects, findings: Findings) -> np.ndarray:
        """Reports invalid objects; returns the indices of the usable ones."""
        return objects.usable(read.is_relative, findings, self.mends)

    def completed(self, read: AnnotationSet, split: BoxedSplit, objects: FlatObjects, usable: np.ndarray) -> BoxedSplit:
        """Adds further annotations, such as masks, to a split. This class has none.

        Args:
            read: what the files say.
            split: images and boxes.
            objects: all objects of the split.
            usable: indices of the objects in the table of boxes, in its order.
        """
        return split


class ObjectInstances(ObjectBoxes):
    """Masks of the objects of a format."""

    gives: ClassVar[Gives] = Gives(Images, Masks)
    reads_outlines: ClassVar[bool] = True
    annotation_class: ClassVar[Type[BoxAnnotations]] = InstanceAnnotations

    def usable(self, read: AnnotationSet, objects: FlatObjects, findings: Findings) -> np.ndarray:
        """Reports invalid objects, and those without an outline."""
        usable = super().usable(read, objects, findings)
        with_shape = [index for index in usable.tolist() if objects[index].shape is not None]
        if len(usable) and not with_shape:
            raise DataError(
                f"{self.option}: the annotations are boxes, and task=instance_segmentation learns outlines. Type "
                "task=detection."
            )
        refuse_all(findings, without_shape(objects, set(usable.tolist()) - set(with_shape)), "objects")
        return np.array(with_shape, np.int64)

    def completed(self, read: AnnotationSet, split: BoxedSplit, objects: FlatObjects, usable: np.ndarray) -> BoxedSplit:
        """Adds the outlines; arguments as in `ObjectBoxes.completed`."""
        shapes = [objects[index].shape for index in usable.tolist()]
        places = [objects.location(index) for index in usable.tolist()]
        outlines = ObjectOutlines(shapes, places, split.table.begin_P1, read.is_relative)
        return InstanceSplit(split.encoded, split.ids, split.table, outlines)


def without_shape(objects: FlatObjects, indices: Any) -> List[Problem]:
    """Returns a problem for each object that has a box only."""
    problems = []
    for index in sorted(indices):
        location = objects.location(index)
        fact = f"{location}: the object is a box, and others are outlines."
        problems.append(Problem(UNREADABLE_MASK, location, fact, "Draw its outline, or remove it."))
    return problems


@dataclass(frozen=True)
class ObjectOutlines:
    """Outlines of a split in memory; see `Outlines`.

    Attributes:
        shapes: outline of each row of the table of boxes.
        places: source location of each.
        begin_P1: index of the first row of each image, and the number of rows.
        is_relative: True if polygons are in shares of width and height.
    """

    shapes: Sequence[Any]
    places: Sequence[DataLocation]
    begin_P1: np.ndarray
    is_relative: bool

    @property
    def are_in_areas(self) -> bool:
        """Returns False: areas are those of boxes."""
        return False

    def read(self, image: int, number_M: Sequence[int], size: Tuple[int, int]) -> List[Outline]:
        """Returns the outlines of some objects of an image; see `Outlines.read`."""
        rows = [int(self.begin_P1[image]) + number for number in number_M]
        return [outline_of(self.shapes[row], size, self.is_relative, self.places[row]) for row in rows]

    def problems(self, image: int, count: int, size: Tuple[int, int]) -> List[Problem]:
        """Returns a problem for each outline without a pixel."""
        problems = []
        for row in range(int(self.begin_P1[image]), int(self.begin_P1[image]) + count):
            place = self.places[row]
            try:
                outline = outline_of(self.shapes[row], size, self.is_relative, place)
            except LoaderError as error:
                problems.append(problem_of(error, place))
                continue
            if not outline.in_image(size).any():
                fact = f"{place}: the outline contains no pixel."
                problems.append(Problem(EMPTY_MASK, place, fact, "Draw it again, or remove it."))
        return problems


class ObjectMasks(MaskedFiles):
    """The class of each pixel, drawn from the outlines of objects. Later objects of a file cover earlier ones."""

    reads_outlines: ClassVar[bool] = True
    reads_points: ClassVar[bool] = False
    remedy_if_shared: ClassVar[str]
    """Set by the format."""

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        read: AnnotationSet = self.read(findings)  # type: ignore[attr-defined]  # of the format
        names = [name for index, name in enumerate(read.class_names) if index != read.background]
        if len(names) > MAX_DRAWN_CLASSES:
            raise DataError(f"{self.option}: {len(names):,} classes, and masks have at most {MAX_DRAWN_CLASSES}.")
        pairs = {split: self._pairs(read, images, findings) for split, images in read.splits.items() if images}
        if "train" not in pairs:
            raise NoUsableSamples(f"{self.option}: nothing is left to train on.")
        background = BACKGROUND if read.background is None else read.class_names[read.background]
        if background in names:
            raise DataError(
                f"{self.option}: a class is called '{background}', which is the name of pixels of no object. Give it "
                "another one."
            )
        coding = MaskCoding(range(len(names) + 1), (IGNORED_VALUE,))
        class_names = [background, *names]
        return self.make_splits(
            pairs["train"],
            pairs.get("val"),
            pairs.get("test"),
            class_names,
            coding,
            self.remedy_if_shared,
            findings,
        )

    def _pairs(self, read: AnnotationSet, images: Sequence[AnnotatedImage], findings: Findings) -> DrawnPairs:
        """Checks the objects of a split; returns its images with the objects that are drawn."""
        objects = FlatObjects.of(images, read.class_names)
        usable = set(objects.usable(read.is_relative, findings, mends=True).tolist())
        plain = [index for index in usable if objects[index].shape is None]
        if len(plain) == len(usable) and plain:
            raise DataError(
                f"{self.option}: the annotations are boxes, and task=segmentation learns the class of each pixel. Type "
                "task=detection."
            )
        refuse_all(findings, without_shape(objects, plain), "objects")
        return DrawnPairs.of(objects, read.is_relative, read.background)


class ObjectKeyPoints(KeyPointFiles):
    """Key points of the objects of a format."""

    reads_outlines: ClassVar[bool] = False
    reads_points: ClassVar[bool] = True

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        read: AnnotationSet = self.read(findings)  # type: ignore[attr-defined]  # of the format
        if read.points is None:
            raise DataError(f"{self.option}: the annotations have no key points. Choose another task.")
        counts = np.bincount(
            [
                each.class_index
                for image in read.splits.get("train", ())
                for each in image.objects
                if each.points is not None
            ]
            or [0],
            minlength=len(read.class_names),
        )
        used = [name for name, count in zip(read.class_names, counts) if count]
        if len(used) > 1:
            raise DataError(
                f"{self.option}: {', '.join(used)} have key points, and a network learns one class. Type "
                f"{list_override('dataset.classes', used[:1])}."
            )
        if not used:
            raise NoUsableSamples(f"{self.option}: no object of the training data has key points.")
        splits: Dict[str, Optional[BoxedSplit]] = {
            split: self._posed(read, used[0], images, findings) for split, images in read.splits.items() if images
        }
        return self.make_splits(splits, used, range(1, 2), findings)

    def _posed(
        self, read: AnnotationSet, name: str, images: Sequence[AnnotatedImage], findings: Findings
    ) -> KeyPointSplit:
        """Builds a split from the objects that have a marked key point."""
        assert read.points is not None
        objects, number = FlatObjects.of(images, read.class_names), list(read.class_names).index(name)
        size_P2 = np.array([size_of(image.path) for image in images]) if read.is_relative else objects.size_P2
        usable = [
            index
            for index in objects.usable(read.is_relative, findings, self.mends).tolist()
            if objects.class_R[index] == number and objects[index].points is not None
        ]
        scale_R2 = size_P2[objects.image_R] if read.is_relative else np.ones((len(objects.image_R), 2))
        kept, points, problems = [], [], []
        for index in usable:
            point_J3 = np.array(objects[index].points, np.float64)
            point_J3[:, :2] *= scale_R2[index]
            outside_J = are_outside(point_J3, size_P2[objects.image_R[index]])
            if outside_J.any() and not self.mends:
                location, (x, y) = objects.location(index), point_J3[outside_J][0, :2]
                fact = f"{location}: the key point at {x:.6g}, {y:.6g} is outside its image."
                problems.append(Problem(BOX_OUTSIDE, location, fact, MEND_POINTS))
                continue
            point_J3[outside_J, 2] = 0
            if point_J3[:, 2].any():
                kept.append(index)
                points.append(point_J3)
        refuse_all(findings, problems, "objects")
        box_N4 = objects.edge_R4[kept] * np.tile(scale_R2[kept], (1, 2))
        limit_N2 = np.where(np.isfinite(size_P2), size_P2, np.inf)[objects.image_R[kept]]
        box_N4 = np.clip(box_N4, 0, np.tile(limit_N2, (1, 2)))
        area_N = (box_N4[:, 2:] - box_N4[:, :2]).prod(axis=1)
        posed = PosedObjects(
            objects.image_R[kept],
            box_N4,
            np.array(points).reshape(-1, len(read.points.names), 3),
            area_N,
            np.ones(len(kept)),
            size_P2,
        )
        point_names = list(read.points.names)
        sigmas = read.points.sigmas or usual_sigmas(point_names)
        flips = left_right_pairs(point_names) if read.points.flip_pairs is None else read.points.flip_pairs
        key_points = KeyPointSet(flips, read.points.skeleton, sigmas, [name])
        files = ImageFiles([image.path for image in images])
        table = BoxTable.empty(len(images))
        return KeyPointSplit(files, [image.identity for image in images], table, posed, key_points, point_names)


def size_of(path: str) -> Tuple[float, float]:
    """Returns (width, height) of an image, from the header of its file; NaN if that cannot be read."""
    try:
        with open_regular(path) as (file, _):
            head = file.read(_HEAD_BYTES)
        if head.startswith(_JPEG):
            with contextlib.suppress(Exception):  # a preview or a profile may be longer
                return ImageReader(head).size
        return ImageReader(ImageFiles([path]).read(0)[0]).size
    except Exception:  # Pillow raises many; the error is reported when the image is read
        return np.nan, np.nan


ObjectFormat.kinds = {Masks: ObjectInstances, ClassMap: ObjectMasks, KeyPoints: ObjectKeyPoints}
