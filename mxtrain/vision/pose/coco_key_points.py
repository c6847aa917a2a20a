"""Pose-estimation datasets in COCO's layout: folders of images, and a JSON file of objects, each of which is a sample.

Legend: P images, R annotations, N objects, J key points.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, List, Literal, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import (
    BOX_OUTSIDE,
    NOT_A_NUMBER,
    NOTHING_TO_LEARN,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
)
from mxtrain.data.loading.dataset_files import normalize_name
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import Names
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.detection.box_faults import are_normalized, refuse_all
from mxtrain.vision.detection.boxed_files import BoxedSplit
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.coco_file import CocoContents
from mxtrain.vision.detection.coco_recognition import recognise_coco
from mxtrain.vision.images.json_elements import number_array
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.key_point_files import MEND_POINTS, KeyPointFiles, KeyPointSplit, are_outside, usual_sigmas
from mxtrain.vision.pose.key_point_images import PosedObjects
from mxtrain.vision.pose.key_points import KeyPointSet, left_right_pairs


def _distinct(pairs: object) -> object:
    """Validates pairs of names, each of which occurs once."""
    if isinstance(pairs, list):
        names = [name for pair in pairs for name in pair]
        if len(set(names)) < len(names):
            raise ValueError("flip_pairs names a key point twice: each changes places with one other")
    return pairs


Pair = Annotated[Names, pydantic.Field(min_length=2, max_length=2)]


class CocoKeyPoints(KeyPointFiles, Coco):  # the order matters: KeyPointFiles reads samples
    """Persons, or objects of another category with key points, in COCO's layout.

    Unmarked key points are ignored; hidden ones are used. Crowd regions, and objects without a marked key point, are
    not samples.
    """

    option: ClassVar[str] = "dataset=coco_key_points"
    gives: ClassVar[Gives] = Gives(Images, KeyPoints)

    train_annotations: str = "annotations/person_keypoints_train2017.json"
    val_annotations: Optional[str] = "annotations/person_keypoints_val2017.json"

    flip_pairs: Annotated[Union[Literal["auto"], List[Pair]], pydantic.AfterValidator(_distinct)] = "auto"
    """Pairs of key points that change places in a mirrored image, e.g. [[wing_a,wing_b]]; auto = pairs whose names
    differ only in left and right, or in L and R."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        settings = recognise_coco(cls, files, has_points=True)
        return (
            Recognised("COCO's JSON with key points", settings, "pose_estimation", Certainty.SURE) if settings else None
        )

    @property
    def leaves_out(self) -> bool:
        """Returns True: categories without key points are not learned."""
        return True

    def _choose_classes(self, contents: CocoContents) -> Tuple[List[str], List[int]]:
        """Returns the category whose objects are samples."""
        names, ids = super()._choose_classes(contents)
        chosen = [number for number, category_id in enumerate(ids) if category_id in contents.points]
        if not chosen:
            subject = f"{' and '.join(names)} in" if self.classes else "no category of"
            raise DataError(
                f"{self.option}: {subject} '{contents.path}' {'has no' if self.classes else 'has'} key points: a "
                'category names them, as {"name": "person", "keypoints": ["nose", ...]}. Name another file with '
                "dataset.train_annotations=FILE."
            )
        if len(chosen) > 1 or len(self.classes) > 1:
            listed = ", ".join(names[number] for number in chosen)
            raise DataError(
                f"{self.option}: '{contents.path}' has key points of {listed}, and a network learns one class. Type "
                f"dataset.classes=[{names[chosen[0]]}]."
            )
        return [names[chosen[0]]], [ids[chosen[0]]]

    def _split(
        self, contents: CocoContents, folder: Path, setting: str, names: Sequence[str], findings: Findings
    ) -> Optional[BoxedSplit]:
        """Builds a split from the objects of a file that have a marked key point."""
        split = super()._split(contents, folder, setting, names, findings)
        category = next(iter(self._class_of(contents, names)), -1)
        if category not in contents.points:
            raise DataError(f"{self.option}: '{contents.path}' names no key points of '{names[0]}'.")
        point_names, skeleton = read_names(contents, category)
        images = split.images if split is not None else ()
        index_of = {normalize_name(path): index for index, path in enumerate(images)}
        index_P = [index_of.get(normalize_name(str(folder / name)), -1) for name in contents.names]
        image_R, size_R2 = np.array(index_P)[contents.image_R], contents.size_P2[contents.image_R]
        # Boxes of COCO reach up to a pixel beyond their images, which is rounding.
        edge_R4 = np.clip(contents.edge_R4, 0, np.tile(np.where(np.isfinite(size_R2), size_R2, np.inf), (1, 2)))
        is_object_R = (contents.category_R == category) & ~contents.is_crowd_R & (image_R >= 0)
        is_object_R &= (edge_R4[:, 2:] > edge_R4[:, :2]).all(axis=1)  # without empty boxes
        usable, points = self._read_points(contents, np.flatnonzero(is_object_R), len(point_names), findings)
        if split is None or not len(usable):
            is_crowd_R = contents.is_crowd_R[contents.category_R == category]
            are_crowds = len(is_crowd_R) > 0 and is_crowd_R.all()
            hint = f" All annotations have iscrowd=1. {self.crowd_remedy()}" if are_crowds else ""
            raise NoUsableSamples(f"{self.option}: '{contents.path}' has no {names[0]} with a key point.{hint}")
        _warn_of_unmarked(contents, point_names, points, findings)
        objects = PosedObjects(
            image_R[usable], edge_R4[usable], points, contents.area_R[usable], np.ones(len(usable)), split.table.size_P2
        )
        flips = self._flips(contents, point_names)
        key_points = KeyPointSet(flips, skeleton, usual_sigmas(point_names), list(names))
        return KeyPointSplit(split.encoded, split.ids, split.table, objects, key_points, point_names)

    def _flips(self, contents: CocoContents, point_names: Sequence[str]) -> List[Tuple[int, int]]:
        """Returns the pairs of indices of key points that change places in a mirrored image.

        Raises:
            DataError: a configured key point does not exist, or is in two pairs.
        """
        if self.flip_pairs == "auto":
            return left_right_pairs(point_names)
        for name in (name for pair in self.flip_pairs for name in pair):
            if name not in point_names:
                raise DataError(
                    f"dataset.flip_pairs: '{contents.path}' has no key point '{name}'."
                    f"{did_you_mean(name, point_names)} There are: {', '.join(point_names)}."
                )
        index = {name: number for number, name in enumerate(point_names)}
        return [(index[first], index[second]) for first, second in self.flip_pairs]

    def _read_points(
        self, contents: CocoContents, numbers: np.ndarray, count: int, findings: Findings
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the annotations with a key point, and their key points (N, J, 3)."""
        usable: List[int] = []
        points: List[np.ndarray] = []
        problems: List[Problem] = []
        marked: List[np.ndarray] = []
        for number in numbers.tolist():
            values = contents.annotation(number).get("keypoints")
            if not values:
                continue
            try:
                point_J3 = number_array(values).reshape(count, 3)
            except (TypeError, ValueError):
                point_J3 = np.full((count, 3), np.nan)
            if not np.isfinite(point_J3).all() or not np.isin(point_J3[:, 2], (0, 1, 2)).all():
                location = contents.location(number)
                fact = f"annotations: {location} has no {count} key points of x, y and 0, 1 or 2."
                problems.append(Problem(NOT_A_NUMBER, location, fact, "Correct it, or remove it."))
                continue
            marked.append(point_J3[point_J3[:, 2] > 0, :2].copy())
            point_J3[:, :2] += 0.5  # COCO's positions are pixel indices
            outside_J = are_outside(point_J3, contents.size_P2[contents.image_R[number]])
            if outside_J.any() and not self.mends:
                location = contents.location(number)
                x, y = point_J3[outside_J][0, :2] - 0.5
                fact = f"annotations: {location} has a marked key point at {x:g}, {y:g}, which is outside its image."
                problems.append(Problem(BOX_OUTSIDE, location, fact, MEND_POINTS))
                continue
            point_J3[outside_J, 2] = 0
            if point_J3[:, 2].any():
                usable.append(number)
                points.append(point_J3)
        refuse_all(findings, problems, "annotations")
        if marked and are_normalized(np.concatenate(marked)):
            raise DataError(
                f"'{contents.path}': the key points seem to be shares of width and height: all lie between 0 and 1. "
                "COCO's are pixels. Multiply them by the width and the height of their images."
            )
        return np.array(usable, np.int64), np.array(points).reshape(-1, count, 3)


def _warn_of_unmarked(
    contents: CocoContents, point_names: Sequence[str], point_NJ3: np.ndarray, findings: Findings
) -> None:
    """Warns of key points that no object of a file has: they are neither learned nor evaluated."""
    absent = [name for name, is_there in zip(point_names, (point_NJ3[..., 2] > 0).any(axis=0)) if not is_there]
    if not absent:
        return
    fact = (
        f"'{contents.path}': none of the {len(point_NJ3):,} objects has the key point {' or '.join(absent[:5])}"
        f"{f' ({len(absent)} such key points)' if len(absent) > 5 else ''}, so nothing of it is learned or measured."
    )
    problem = Problem(
        NOTHING_TO_LEARN, DataLocation(str(contents.path)), fact, "Mark it, or take it from the category."
    )
    findings.warn(problem)


def read_names(contents: CocoContents, category: int) -> Tuple[List[str], List[Tuple[int, int]]]:
    """Returns the names of the key points of a category, and the pairs of indices that are joined by a line.

    Raises:
        DataError: the names or the pairs are invalid.
    """
    names, skeleton = contents.points[category]
    try:
        pairs = [(int(first) - 1, int(second) - 1) for first, second in skeleton or []]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError
        if len(set(names)) < len(names) or not all(0 <= end < len(names) for pair in pairs for end in pair):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise DataError(
            f"'{contents.path}': the category '{contents.categories[category]}' has key points without names of their "
            "own, or a skeleton that joins others. Correct it."
        ) from error
    return names, pairs
