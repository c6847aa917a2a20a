"""Annotated objects in images, as annotation tools describe them: boxes, outlines and key points.

Coordinates are edges: pixel i extends from i to i + 1. Where `is_relative`, they are shares of width and height.

Legend: K points of a polygon, J key points, M objects of an image, R objects of a split, P images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import MASK_SIZE, DataLocation, Findings
from mxtrain.data.loading.dataset_files import FileId
from mxtrain.errors import LoaderError
from mxtrain.vision.detection.box_faults import NORMALIZED_TOLERANCE, TOLERANCE, refuse_wrong_boxes
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.instance_segmentation.outlines import Polygons

IGNORED_CLASS = -1
"""Class of regions that a segmentation ignores."""
Points = Sequence[np.ndarray]
"""Polygons of one object, (K, 2) each."""
Shape = Union[Points, Runs]


class AnnotatedObject(NamedTuple):
    """An object in an image."""

    number: int
    """Line of the label file from 1, or index in the list of a JSON file."""
    class_index: int
    edges: Tuple[float, float, float, float]
    """Left, top, right, bottom."""
    shape: Optional[Shape] = None
    """Polygons, or a mask of the image; None: only the box is known."""
    points: Optional[np.ndarray] = None
    """Key points (J, 3): x, y, visibility as in `Visibility`."""
    is_difficult: bool = False


class NumberedSource:
    """Base class of images whose annotations have numbers in a file.

    Attributes:
        source: the file.
        are_lines: True if the numbers are lines, False if they are records.
    """

    source: str
    are_lines: bool

    def location(self, number: int) -> DataLocation:
        """Returns the source location of an annotation by its number."""
        return DataLocation(self.source, number) if self.are_lines else DataLocation(self.source, record=number)


@dataclass(frozen=True)
class AnnotatedImage(NumberedSource):
    """An image and its objects.

    Attributes:
        path: image file.
        identity: device and inode of the file.
        source: file with the annotation, for messages.
        size: annotated (width, height); None if unknown.
        objects: the objects in it, those in front last.
        are_lines: True if numbers of objects are lines, False if they are records.
    """

    path: str
    identity: FileId
    source: str
    size: Optional[Tuple[float, float]] = None
    objects: Sequence[AnnotatedObject] = ()
    are_lines: bool = False


@dataclass(frozen=True)
class PointNames:
    """Names and relations of the key points of objects.

    Attributes:
        names: name of each key point.
        skeleton: pairs of indices that are joined by a line.
        flip_pairs: pairs that are swapped in a mirrored image; None: by their names.
        sigmas: see `KeyPointSet.sigmas`; empty: unknown.
    """

    names: Sequence[str]
    skeleton: Sequence[Tuple[int, int]] = ()
    flip_pairs: Optional[Sequence[Tuple[int, int]]] = None
    sigmas: Sequence[float] = ()


@dataclass(frozen=True)
class AnnotationSet:
    """Everything that files of a format say.

    Attributes:
        class_names: name of each class.
        splits: images of each split, "train", "val" and "test"; those that do not exist are missing.
        is_relative: True if coordinates are shares of width and height.
        points: key points of the objects; None if the format has none.
        background: index of the class that means the background; None if there is none.
    """

    class_names: Sequence[str]
    splits: Mapping[str, Sequence[AnnotatedImage]]
    is_relative: bool = False
    points: Optional[PointNames] = None
    background: Optional[int] = None


def extent(shape: Shape) -> Tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the smallest box around a shape."""
    return shape.extent() if isinstance(shape, Runs) else Polygons(shape).extent()


def corners(edges: Sequence[float]) -> Points:
    """Returns the polygon of a box."""
    left, top, right, bottom = edges
    return [np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float64)]


def outline_of(shape: Shape, size: Tuple[int, int], is_relative: bool, location: DataLocation) -> Union[Polygons, Runs]:
    """Returns the outline of a shape in pixels of its image.

    Args:
        shape: the shape.
        size: (height, width) of the image.
        is_relative: True if polygons are in shares of width and height.
        location: source location of the shape, for messages.

    Raises:
        LoaderError: it is a mask of another size.
    """
    if not isinstance(shape, Runs):
        return Polygons([point_K2 * (size[1], size[0]) for point_K2 in shape] if is_relative else shape)
    if shape.size != tuple(size):
        raise LoaderError(
            f"{location}: the mask has {shape.size[1]} x {shape.size[0]} pixels, and its image {size[1]} x {size[0]}.",
            "Replace one of them.",
            MASK_SIZE,
        )
    return shape


@dataclass(frozen=True)
class FlatObjects:
    """Objects of a split in arrays, and their descriptions in messages; see `BoxNotes`.

    Attributes:
        images: the images.
        image_R: index of the image of each object.
        index_R: index of each object among those of its image.
        edge_R4: left, top, right, bottom.
        class_R: class of each.
        flag_R: a sum of `Flag` for each.
        names: names of the classes.
    """

    images: Sequence[AnnotatedImage]
    image_R: np.ndarray
    index_R: np.ndarray
    edge_R4: np.ndarray
    class_R: np.ndarray
    flag_R: np.ndarray
    names: Sequence[str] = field(default=())

    @classmethod
    def of(cls, images: Sequence[AnnotatedImage], names: Sequence[str]) -> FlatObjects:
        """Returns the objects of some images; regions that are ignored are left out."""
        rows = [
            (number, index, each)
            for number, image in enumerate(images)
            for index, each in enumerate(image.objects)
            if each.class_index != IGNORED_CLASS
        ]
        integers = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
        return cls(
            images,
            integers[:, 0],
            integers[:, 1],
            np.array([each.edges for *_, each in rows], np.float64).reshape(-1, 4),
            np.array([each.class_index for *_, each in rows], np.int64),
            np.array([Flag.DIFFICULT * each.is_difficult for *_, each in rows], np.int64),
            names,
        )

    def __getitem__(self, index: int) -> AnnotatedObject:
        return self.images[self.image_R[index]].objects[self.index_R[index]]

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an object."""
        return self.images[self.image_R[index]].location(self[index].number)

    def shown(self, index: int) -> str:
        """Returns the box of an object as text, for messages."""
        edges = ", ".join(f"{edge:.6g}" for edge in self.edge_R4[index])
        return f"{edges} (left, top, right, bottom) of '{self.names[self.class_R[index]]}'"

    @property
    def size_P2(self) -> np.ndarray:
        """Returns the annotated width and height of each image, NaN if unknown."""
        sizes = [(np.nan, np.nan) if image.size is None else image.size for image in self.images]
        return np.array(sizes, np.float64).reshape(-1, 2)

    def usable(self, is_relative: bool, findings: Findings, mends: bool) -> np.ndarray:
        """Rejects invalid boxes; returns the indices of the others. Arguments as in `refuse_wrong_boxes`."""
        size_R2 = np.ones((len(self.edge_R4), 2)) if is_relative else self.size_P2[self.image_R]
        tolerance = NORMALIZED_TOLERANCE if is_relative else TOLERANCE
        return np.flatnonzero(refuse_wrong_boxes(self.edge_R4, size_R2, self, findings, mends, tolerance))


def pairs_of(order: Sequence[int]) -> Optional[List[Tuple[int, int]]]:
    """Returns the pairs that an order of mirrored key points swaps; None if it is not made of swaps.

    Args:
        order: index of the key point that each becomes in a mirrored image, e.g. [0, 2, 1].
    """
    if sorted(order) != list(range(len(order))) or any(order[order[index]] != index for index in order):
        return None
    return [(first, second) for first, second in enumerate(order) if first < second]
