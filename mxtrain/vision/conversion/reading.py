"""Reads datasets for conversion: all splits as the files have them, with boxes, outlines and key points at once.

The classes of this module take part in reading through hooks of datasets, `make_splits` and `completed`; files are read
and checked as for training.

Legend: R boxes of a split, D columns of `boxes.Column`, J key points.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import MASK_OUTSIDE, SHORT_POLYGON
from mxtrain.data.loading.described_paths import with_local_names
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.conversion.content import SPLITS, Content, ConvertedImages, ConvertedObject, LeftOut
from mxtrain.vision.detection.box_table import rows_in_pixels
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.coco_file import CocoContents
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.json_elements import number_array
from mxtrain.vision.instance_segmentation.coco_masks import BadMask, Runs, read_mask
from mxtrain.vision.objects.dataset import ObjectBoxes, ObjectFormat
from mxtrain.vision.objects.objects import (
    IGNORED_CLASS,
    AnnotationSet,
    FlatObjects,
    PointNames,
    Shape,
    corners,
    outline_of,
)
from mxtrain.vision.pose.coco_key_points import read_names

_ROUNDING = 2.0**-22
"""Share of a side up to which a box in shares of width and height is rounding of a whole pixel: float32 has 24 bits."""


@dataclass(frozen=True)
class Wanted:
    """Annotations that are read besides boxes.

    Attributes:
        outlines: outlines of objects.
        points: key points.
    """

    outlines: bool = True
    points: bool = True


@dataclass(frozen=True)
class _BoxImages:
    """Images with boxes only."""

    split: BoxedSplit

    @property
    def encoded(self) -> EncodedImages:
        return self.split.encoded

    def declared_size(self, index: int) -> Tuple[float, float]:
        """See `ConvertedImages`."""
        width, height = self.split.table.size_P2[index].tolist()
        return width, height

    def label(self, index: int) -> int:
        """See `ConvertedImages`."""
        return -1

    def objects(self, index: int, size: Tuple[int, int]) -> List[ConvertedObject]:
        """See `ConvertedImages`."""
        row_MD = self.split.table[index]
        if self.split.table.is_normalized:
            row_MD = rows_in_pixels(row_MD, *size)
            row_MD[:, :4] = whole(row_MD[:, :4], size)
        return [
            ConvertedObject(int(row[Column.CLASS]), tuple(row[:4]), flags=int(row[Column.FLAGS]))
            for row in row_MD.tolist()
        ]


def whole(edge_M4: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """Rounds edges to the whole pixels that they were before they were divided by the (width, height) of the image."""
    near_M4 = np.rint(edge_M4)
    return np.where(np.abs(edge_M4 - near_M4) <= _ROUNDING * np.array([*size, *size]), near_M4, edge_M4)


@dataclass(frozen=True)
class _CocoImages(_BoxImages):
    """Images of an annotation file of COCO. Outlines and key points are read from the file when they are needed."""

    contents: CocoContents
    number_R: np.ndarray
    mends: bool
    left_out: Optional[LeftOut] = None
    wants: Wanted = Wanted()

    def objects(self, index: int, size: Tuple[int, int]) -> List[ConvertedObject]:
        """See `ConvertedImages`."""
        table = self.split.table
        begin, end = table.begin_P1[index : index + 2].tolist()
        number_M = self.number_R[begin:end]
        rows = table.row_RD[begin:end]
        return [
            self._object(number, annotation, row_D, size)
            for number, annotation, row_D in zip(number_M.tolist(), self.contents.annotations(number_M), rows)
        ]

    def _object(self, number: int, annotation: Any, row_D: np.ndarray, size: Tuple[int, int]) -> ConvertedObject:
        edges = tuple(self.contents.edge_R4[number].tolist())
        shape = self._shape(number, annotation.get("segmentation"), size) if self.wants.outlines else None
        points = self._points(number, annotation) if self.wants.points else None
        area = float(self.contents.area_R[number])
        return ConvertedObject(int(row_D[Column.CLASS]), edges, shape, points, int(row_D[Column.FLAGS]), area)

    def _shape(self, number: int, segmentation: Any, size: Tuple[int, int]) -> Optional[Shape]:
        if not segmentation:
            return None
        place = self.contents.location(number)
        try:
            outline, faults = read_mask(segmentation, (size[1], size[0]))
        except BadMask as error:
            raise DataError(f"annotations: {place} {error.fact}. Correct it, or allow drop=[masks].") from error
        for fault in faults:
            if fault.kind == SHORT_POLYGON and self.left_out is not None:
                self.left_out.add("polygons of fewer than 3 points")
            if fault.kind == MASK_OUTSIDE and not self.mends:
                raise DataError(f"annotations: {place} {fault.fact}. Correct it, or type dataset.wrong_boxes=mend.")
        return outline if isinstance(outline, Runs) else plain(list(outline.points), self.contents.edge_R4[number])

    def _points(self, number: int, annotation: Any) -> Optional[np.ndarray]:
        category = int(self.contents.category_R[number])
        values = annotation.get("keypoints")
        if category not in self.contents.points or not values:
            return None
        count = len(self.contents.points[category][0])
        try:
            point_J3 = number_array(values).reshape(count, 3)
        except (TypeError, ValueError) as error:
            place = self.contents.location(number)
            raise DataError(f"annotations: {place} has no {count} key points of x, y and 0, 1 or 2.") from error
        return marked(point_J3 + [0.5, 0.5, 0])  # COCO's positions are pixel indices


def marked(point_J3: Optional[np.ndarray]) -> Optional[np.ndarray]:
    """Returns key points with 0 at unmarked ones; None if none is marked."""
    if point_J3 is None or not (point_J3[:, 2] > 0).any():
        return None
    return np.where(point_J3[:, 2:] > 0, point_J3, 0)


def plain(shape: Optional[Shape], edges: Any) -> Optional[Shape]:
    """Returns a shape; None if it is the rectangle of its box."""
    if shape is None or isinstance(shape, Runs) or len(shape) != 1 or len(shape[0]) != 4:
        return shape
    (corner_42,) = corners(edges)
    order = np.lexsort(np.asarray(shape[0]).T)
    return None if np.array_equal(np.asarray(shape[0])[order], corner_42[np.lexsort(corner_42.T)]) else shape


@dataclass(frozen=True)
class _ObjectImages(_BoxImages):
    """Images of a format of annotated objects."""

    read: AnnotationSet
    flat: FlatObjects
    usable_R: Sequence[int]

    @property
    def num_ignored(self) -> int:
        """Returns the number of regions that a segmentation ignores."""
        return sum(each.class_index == IGNORED_CLASS for image in self.flat.images for each in image.objects)

    def objects(self, index: int, size: Tuple[int, int]) -> List[ConvertedObject]:
        """See `ConvertedImages`."""
        begin, end = self.split.table.begin_P1[index : index + 2].tolist()
        return [self._object(number, size) for number in self.usable_R[begin:end]]

    def _object(self, number: int, size: Tuple[int, int]) -> ConvertedObject:
        each, width_height = self.flat[number], np.array(size, np.float64)
        edge_4, shape, points = np.array(each.edges, np.float64), each.shape, marked(each.points)
        if shape is not None:
            try:
                outline = outline_of(shape, (size[1], size[0]), self.read.is_relative, self.flat.location(number))
            except LoaderError as error:
                raise DataError(str(error)) from error
            shape = outline if isinstance(outline, Runs) else list(outline.points)
        if self.read.is_relative:
            edge_4 = whole(edge_4[None] * np.tile(width_height, 2), size)[0]
            points = None if points is None else points * [*size, 1]
        flags = int(self.flat.flag_R[number])
        left, top, right, bottom = edge_4.tolist()
        return ConvertedObject(each.class_index, (left, top, right, bottom), plain(shape, edge_4), points, flags)


@dataclass(frozen=True)
class _ClassImages:
    """Images with a class each."""

    encoded: Any
    labels: Optional[np.ndarray] = None

    def declared_size(self, index: int) -> Tuple[float, float]:
        """See `ConvertedImages`."""
        return np.nan, np.nan

    def objects(self, index: int, size: Tuple[int, int]) -> List[ConvertedObject]:
        """See `ConvertedImages`."""
        return []

    def label(self, index: int) -> int:
        """See `ConvertedImages`."""
        if self.labels is not None:
            return int(self.labels[index])
        return int(self.encoded.read_labels()[index])


@dataclass(frozen=True)
class _Read:
    """Result of `make_splits` of the classes below."""

    splits: Mapping[str, ConvertedImages]
    class_names: Sequence[str]
    category_ids: Sequence[int] = ()
    has_objects: bool = True


class _KeptBoxes:
    """Keeps the splits of boxes as the files have them: nothing is held out."""

    def make_splits(self, splits: Mapping[str, Any], class_names: Any, category_ids: Any, findings: Any = None) -> Any:
        """Returns the images of each split; arguments as in `BoxedFiles.make_splits`."""
        kept: Dict[str, ConvertedImages] = {
            split: each if isinstance(each, _BoxImages) else _BoxImages(each)
            for split in SPLITS
            if (each := splits.get(split)) is not None and len(each.encoded)
        }
        return _Read(kept, list(class_names), list(category_ids))


class _KeptClasses:
    """Keeps the splits of images with classes."""

    def make_splits(self, train: Any, val: Any, test: Any, class_names: Any, findings: Any = None) -> Any:
        """Returns the images of each split; arguments as in `DecodedDataset.make_splits`."""
        encoded, label_N = train
        kept: Dict[str, ConvertedImages] = {"train": _ClassImages(encoded, label_N if len(label_N) else None)}
        kept.update({name: _ClassImages(each) for name, each in (("val", val), ("test", test)) if each is not None})
        return _Read(kept, list(class_names), has_objects=False)


class _WholeCoco(_KeptBoxes, Coco):
    """COCO's files with everything in them."""

    def completed(self, split: BoxedSplit, contents: CocoContents, number_R: np.ndarray) -> Any:
        """Keeps the contents of the file; see `Coco.completed`."""
        return _CocoImages(split, contents, number_R, self.mends)


class _WholeObjects(_KeptBoxes, ObjectBoxes):
    """Objects with outlines and key points."""

    def completed(self, read: AnnotationSet, split: BoxedSplit, objects: FlatObjects, usable: np.ndarray) -> Any:
        """Keeps the objects; see `ObjectBoxes.completed`."""
        return _ObjectImages(split, read, objects, usable.tolist())


@functools.cache
def _whole(dataset: type, wants: Wanted) -> Any:
    """Returns the class that reads everything of a dataset.

    Raises:
        DataError: its samples are no images with boxes or classes.
    """
    if issubclass(dataset, Coco):
        return _WholeCoco
    metaclass: Any = type(dataset)
    body: Dict[str, Any] = {"__module__": dataset.__module__, "__qualname__": f"{dataset.__qualname__}Whole"}
    if issubclass(dataset, ObjectFormat):
        forms = (base for base in dataset.__mro__ if issubclass(base, ObjectFormat) and not issubclass(base, Dataset))
        body.update(option=dataset.option, reads_outlines=wants.outlines, reads_points=wants.points)
        return metaclass(f"{dataset.__name__}Whole", (next(forms), _WholeObjects), body)
    kept = next((kept for base, kept in _KEPT.items() if issubclass(dataset, base)), None)
    if kept is None:
        raise DataError(
            f"{dataset.__name__} cannot be converted: its samples are no images with boxes, outlines or key points, "
            "and no images with one class each."
        )
    return metaclass(f"{dataset.__name__}Whole", (kept, dataset), body)


_KEPT = {BoxedFiles: _KeptBoxes, ImageFolder: _KeptClasses, ImageRecord: _KeptClasses}


def read_content(dataset: BaseDataset, name: str, left_out: LeftOut, wants: Wanted) -> Content:
    """Reads a dataset.

    Args:
        dataset: the dataset.
        name: option that chooses it, e.g. "dataset=cvat".
        left_out: counts what is not read.
        wants: what is read besides boxes.

    Raises:
        DataError: it cannot be read, a problem was found, or it is of another kind.
    """
    kind = _whole(type(dataset), wants)
    settings = {field: getattr(dataset, field) for field in kind.model_fields if field in type(dataset).model_fields}
    if issubclass(kind, Coco):  # key points have another augmentation
        settings.pop("augment")
    whole_dataset = with_local_names(kind(**settings))
    read: _Read = whole_dataset.examine(left_out)
    splits = dict(read.splits)
    points: Optional[PointNames] = None
    for split, images in splits.items():
        found: Optional[PointNames] = None
        if isinstance(images, _CocoImages):
            splits[split] = replace(images, left_out=left_out, wants=wants)
            found = _coco_points(images.contents)
        elif isinstance(images, _ObjectImages):
            found = images.read.points
            left_out.add("regions that a segmentation ignores", images.num_ignored)
        if points is not None and found is not None and list(found.names) != list(points.names):
            raise DataError(f"{name}: the key points of the split {split} are others than those of the training split.")
        points = points or found
    return Content(
        name,
        read.class_names,
        splits,
        read.has_objects,
        read.category_ids,
        points if wants.points else None,
        bool(read.has_objects and whole_dataset.mends),
    )


def _coco_points(contents: CocoContents) -> Optional[PointNames]:
    """Returns the key points of a file; None if its categories have none.

    Raises:
        DataError: categories have different ones.
    """
    found = [read_names(contents, category) for category in contents.points]
    if any(names != found[0][0] for names, _ in found):
        raise DataError(
            f"'{contents.path}': categories have different key points. Type drop=[key_points] to leave them out."
        )
    return PointNames(*found[0]) if found else None
