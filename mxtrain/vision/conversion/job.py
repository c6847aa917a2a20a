"""A conversion: what the source has, what the target can hold, and the objects as they are written.

Legend: P images, M objects of an image, J key points.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import numpy as np

from mxtrain.errors import DataError
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import Content, ConvertedImages, ConvertedObject, LeftOut
from mxtrain.vision.conversion.names import NamePool, extension_of
from mxtrain.vision.detection.box_faults import REMEDY, TOLERANCE, excess
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.images.files import ImageFiles, read_content
from mxtrain.vision.images.pixels import ImageReader, unreadable
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.objects.dataset import size_of
from mxtrain.vision.objects.objects import Shape, corners, extent

LOSSES = {
    "masks": "outlines of objects",
    "key_points": "objects with key points",
    "crowds": "crowd regions",
    "difficult": "objects marked as difficult",
    "duplicates": "objects that occur twice in an image",
    "unread": "annotations that are not read",
}
"""Content that a target may not hold, as typed in `drop` -> in words."""
REMAINS = {
    "masks": "all objects keep their boxes, without outlines",
    "key_points": "all objects keep their boxes, without key points",
    "crowds": "crowd regions are left out",
    "difficult": "these objects lose the mark",
    "duplicates": "one of them is kept",
    "unread": "these are left out",
}
"""Content as in `LOSSES` -> its treatment if it is dropped, in words."""


@dataclass(frozen=True)
class Holds:
    """Kinds of content that a format can hold.

    Attributes:
        objects: True for boxes, False for a class of each image.
        outlines, points, crowds, difficult, duplicates: True if it can hold them.
        clips: True if coordinates must lie in the image.
        boxes_outlines: True if the boxes of outlines are the smallest ones around them.
        one_polygon: True if an outline is a single polygon.
        separate: True if names of images of different splits may be the same.
    """

    objects: bool = True
    outlines: bool = False
    points: bool = False
    crowds: bool = False
    difficult: bool = False
    duplicates: bool = True
    clips: bool = False
    boxes_outlines: bool = False
    one_polygon: bool = False
    separate: bool = True


@dataclass
class ConversionJob:
    """A conversion. `survey` must be called first: it reads the size of each image and counts what is in the source.

    Attributes:
        content: the source.
        holds: what the target can hold.
        drop: keys of `LOSSES` that may be left out.
        left_out: counts of what the source's reader left out.
        sizes: width and height of each image of each split, (P, 2).
        names: name of each image of each split.
        counts: numbers of what is in the source.
        notes: remarks for the user.
    """

    content: Content
    holds: Holds
    drop: FrozenSet[str]
    left_out: LeftOut
    sizes: Dict[str, np.ndarray] = field(default_factory=dict)
    names: Dict[str, List[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    notes: List[str] = field(default_factory=list)
    point_classes: Set[int] = field(default_factory=set)
    """Classes of the objects with key points."""
    largest_move: float = 0.0
    """Largest distance in pixels by which boxes of outlines become smaller or larger."""
    _digest: Any = field(default_factory=hashlib.sha256)

    def path(self, split: str, index: int) -> Optional[str]:
        """Returns the file of an image; None for records."""
        encoded = self.content.splits[split].encoded
        return encoded.paths[index] if isinstance(encoded, ImageFiles) else None

    def size(self, split: str, index: int) -> Tuple[int, int]:
        """Returns (width, height) of an image."""
        width, height = self.sizes[split][index].tolist()
        return width, height

    def label(self, split: str, index: int) -> int:
        """Returns the class of an image; -1 if objects have classes."""
        return self.content.splits[split].label(index)

    @property
    def digest(self) -> str:
        """Returns a hash of everything that is converted; image files count by their names and times of change."""
        return self._digest.hexdigest()

    def survey(self, progress: WorkProgress) -> None:
        """Reads sizes, names and annotations of all images once.

        Raises:
            DataError: an image or annotation cannot be used.
        """
        pool = NamePool()
        self._digest.update(repr(list(self.content.class_names)).encode("utf-8", "surrogateescape"))
        progress.begin("checking", self.content.num_images)
        for split, images in self.content.splits.items():
            pool = NamePool() if self.holds.separate else pool
            self.names[split] = []
            self.sizes[split] = np.zeros((len(images.encoded), 2), np.int32)
            for index in range(len(images.encoded)):
                self._survey(split, images, index, pool)
                progress.advance(1)

    def _survey(self, split: str, images: ConvertedImages, index: int, pool: NamePool) -> None:
        size, name = self._open(split, index, pool)
        self.sizes[split][index] = size
        self.names[split].append(name)
        declared = images.declared_size(index)
        self.counts["sizes"] += bool(np.isfinite(declared).all() and tuple(declared) != size)
        label = images.label(index)
        self._digest.update(f"{split}/{name} {size} {label}\n".encode("utf-8", "surrogateescape"))
        objects = images.objects(index, size)
        self._require_inside(images, index, objects, size)
        self.counts["empty"] += not objects
        seen = set()
        for each in objects:
            self._count(each)
            self._count_outside(each, size)
            key = (each.class_index, each.edges, *_key(each))
            self.counts["duplicates"] += key in seen
            seen.add(key)
            self._digest.update(repr(key + (each.flags,)).encode())

    def _open(self, split: str, index: int, pool: NamePool) -> Tuple[Tuple[int, int], str]:
        """Returns (width, height) and the new name of an image."""
        path, encoded = self.path(split, index), self.content.splits[split].encoded
        if path is not None:
            width, height = size_of(path)
            if not np.isfinite(width + height):
                raise DataError(f"'{path}' cannot be read as an image. Replace or remove it; `data check` finds all.")
            # Another file of the same length must not be taken for the one that was copied before an interruption.
            self._digest.update(f"{os.stat(path).st_mtime_ns} ".encode())
            return (int(width), int(height)), pool.name(path)
        content = read_content(encoded, index)
        self._digest.update(content)
        try:
            size = ImageReader(content).size
        except Exception as error:  # Pillow raises many
            raise DataError(str(unreadable(encoded.name(index), error))) from error
        return size, pool.name(f"{split}_{index:06d}", extension_of(content))

    def _require_inside(
        self, images: ConvertedImages, index: int, objects: Sequence[ConvertedObject], size: Tuple[int, int]
    ) -> None:
        edge_M4 = np.array([each.edges for each in objects], np.float64).reshape(-1, 4)
        beyond_M = excess(edge_M4, np.array([size], np.float64)) if len(edge_M4) else np.zeros(0)
        if not self.content.mends and (beyond_M > TOLERANCE).any():
            number = int(beyond_M.argmax())
            edges = ", ".join(f"{edge:.6g}" for edge in edge_M4[number])
            raise DataError(
                f"{images.encoded.name(index)}: the box {edges} (left, top, right, bottom) reaches "
                f"{beyond_M[number]:.4g} pixels beyond its image of {size[0]} x {size[1]}. {REMEDY}"
            )

    def _count(self, each: ConvertedObject) -> None:
        self.counts["objects"] += 1
        self.counts["masks"] += each.shape is not None
        if isinstance(each.shape, Runs):
            self.counts["parts"] += 1
        elif each.shape is not None:
            self.counts["parts"] += len(each.shape) > 1
            self.counts["corners"] += any(len(part) != 4 for part in each.shape)
        self.counts["key_points"] += each.points is not None
        if each.points is not None:
            self.point_classes.add(each.class_index)
        self.counts["crowds"] += bool(each.flags & Flag.CROWD)
        self.counts["difficult"] += bool(each.flags & Flag.DIFFICULT)

    def _count_outside(self, each: ConvertedObject, size: Tuple[int, int]) -> None:
        """Counts an object of whose box nothing remains after it was clipped to its image."""
        if self._clips and not _has_area(_clipped(each.edges, size)):
            if self.content.mends:
                self.counts["outside"] += 1
            else:
                self.left_out.add("boxes outside of their images")

    @property
    def _clips(self) -> bool:
        """Returns True if coordinates are clipped to their images."""
        return self.holds.clips or self.content.mends

    @property
    def writes_points(self) -> bool:
        """Returns True if key points are written."""
        return self.holds.points and "key_points" not in self.drop and self.counts["key_points"] > 0

    @property
    def writes_outlines(self) -> bool:
        """Returns True if outlines are written; then objects without one have the rectangle of their box."""
        if not self.holds.outlines or "masks" in self.drop or (self.holds.one_polygon and self.writes_points):
            return False
        return self.counts["masks"] > 0

    def losses(self) -> Dict[str, int]:
        """Returns what the target cannot hold: key of `LOSSES` -> number."""
        holds, counts = self.holds, self.counts
        lost = {
            "masks": 0 if self.writes_outlines else counts["masks"],
            "key_points": 0 if self.writes_points else counts["key_points"],
            "crowds": 0 if holds.crowds else counts["crowds"],
            "difficult": 0 if holds.difficult else counts["difficult"],
            "duplicates": 0 if holds.duplicates else counts["duplicates"],
            "unread": sum(self.left_out.counts.values()),
        }
        if self.writes_outlines and holds.one_polygon:
            lost["masks"] = counts["parts"]
        return {kind: count for kind, count in lost.items() if count}

    def refuse_losses(self, target: str) -> Dict[str, int]:
        """Refuses what would be lost and is not in `drop`; returns what is left out.

        Args:
            target: setting of the target, e.g. "to=yolo".

        Raises:
            DataError: something would be lost.
        """
        lost = self.losses()
        refused = {kind: count for kind, count in lost.items() if kind not in self.drop}
        if refused:
            facts = [f"{count:,} {self._words(kind)}" for kind, count in refused.items()]
            chosen = ",".join(sorted({*self.drop, *refused}))
            raise DataError(
                f"{target} cannot hold {' and '.join(facts)}. Type drop=[{chosen}] to convert the rest: "
                f"{'; '.join(REMAINS[kind] for kind in refused)}."
            )
        return lost

    def _words(self, kind: str) -> str:
        if kind == "unread":
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.counts.items())
            return f"{LOSSES[kind]} ({reasons})"
        if kind == "masks" and self.writes_outlines:
            return "outlines of several parts or with holes, or masks of pixels"
        return LOSSES[kind]

    def objects(self, split: str, index: int) -> List[ConvertedObject]:
        """Returns the objects of an image as they are written."""
        size = self.size(split, index)
        adapted = [self._adapted(each, size) for each in self.content.splits[split].objects(index, size)]
        kept = [each for each in adapted if each is not None]
        if self.holds.duplicates:
            return kept
        unique = {(each.class_index, each.edges, *_key(each)): each for each in reversed(kept)}
        return list(reversed(list(unique.values())))

    def _adapted(self, each: ConvertedObject, size: Tuple[int, int]) -> Optional[ConvertedObject]:
        """Returns an object as it is written; None if it is left out."""
        holds = self.holds
        if each.flags & Flag.CROWD and not holds.crowds:
            return None
        clips = self._clips
        flags = each.flags & (Flag.CROWD * holds.crowds | Flag.DIFFICULT * holds.difficult)
        edges = _clipped(each.edges, size) if clips else each.edges
        if not _has_area(edges):
            return None
        shape = self._shape(each, size, clips)
        if shape is not None and holds.boxes_outlines:
            around = extent(shape)
            self.largest_move = max(self.largest_move, *(abs(a - b) for a, b in zip(around, edges)))
            edges = around
        points = each.points if self.writes_points else None
        if points is not None and clips:
            points = np.column_stack([points[:, :2].clip(0, size), points[:, 2]])
        return ConvertedObject(each.class_index, edges, shape, points, flags, each.area)

    def _shape(self, each: ConvertedObject, size: Tuple[int, int], clips: bool) -> Optional[Shape]:
        if not self.writes_outlines:
            return None
        shape = corners(each.edges) if each.shape is None else each.shape
        if clips and not isinstance(shape, Runs):
            return [part_K2.clip(0, size) for part_K2 in shape]
        return shape


def _clipped(edges: Sequence[float], size: Tuple[int, int]) -> Tuple[float, float, float, float]:
    left, top, right, bottom = (min(max(edge, 0.0), float(limit)) for edge, limit in zip(edges, (*size, *size)))
    return left, top, right, bottom


def _has_area(edges: Sequence[float]) -> bool:
    left, top, right, bottom = edges
    return left < right and top < bottom


def _key(each: ConvertedObject) -> Tuple[bytes, bytes]:
    """Returns the outline and the key points of an object as bytes."""
    parts = () if each.shape is None else (each.shape.lengths,) if isinstance(each.shape, Runs) else each.shape
    shape = b"|".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return shape, b"" if each.points is None else np.ascontiguousarray(each.points).tobytes()
