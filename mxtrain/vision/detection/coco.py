"""Detection datasets in COCO's layout: folders of images, and one JSON annotation file per split.

Legend: P images, R boxes, D columns of `boxes.Column`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Optional, Sequence, Set, Tuple, Type, Union

import numpy as np

from mxtrain.data.checking.problems import (
    UNKNOWN_CLASS,
    DataLocation,
    Findings,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import exists, normalize_name
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import PathText
from mxtrain.types.kinds import Gives, Images, TargetKind
from mxtrain.vision.detection.box_faults import are_corners, are_normalized, as_corners, refuse_all, refuse_wrong_boxes
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_classes import ClassLookup, ClassNames
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit, find_named
from mxtrain.vision.detection.boxes import BoxAnnotations, Flag
from mxtrain.vision.detection.coco_file import CocoContents, read_coco, read_image_ids
from mxtrain.vision.detection.coco_recognition import recognise_coco
from mxtrain.vision.detection.voc_layout import find_years
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.json_elements import JsonFile
from mxtrain.vision.instance_segmentation.coco_masks import CocoOutlines, find_mask_problems
from mxtrain.vision.instance_segmentation.instance_images import InstanceSplit
from mxtrain.vision.instance_segmentation.mask_rows import InstanceAnnotations
from mxtrain.vision.kinds import Boxes, Masks
from mxtrain.vision.segmentation.mask_pairs import refuse_unpaired

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

_LAYOUT = "It must hold annotations/instances_train2017.json and train2017/ with images, or what the settings name."


class Coco(PublicDataset, BoxedFiles):
    """Images and boxes in COCO's layout.

    By default, `train2017/` has the images of `annotations/instances_train2017.json`, and likewise val2017; settings
    change these names. Classes are the categories in the order of their ids, which may have gaps. Images without
    annotations are samples, too.
    """

    option: ClassVar[str] = "dataset=coco"
    published_as: ClassVar[str] = "coco"
    gives: ClassVar[Gives] = Gives(Images, Boxes, Masks)
    remedy_if_shared: ClassVar[str] = (
        "Move it out of one of them, or type dataset.val_annotations=null to hold out dataset.val_fraction of the "
        "training images."
    )

    root: PathText = "data/coco"
    train_annotations: str = "annotations/instances_train2017.json"
    """Annotation file of the training images, in `root`."""
    train_images: str = "train2017"
    """Folder in `root` that the file names in it are relative to."""
    val_annotations: Optional[str] = "annotations/instances_val2017.json"
    """Annotation file of the validation images; None = `val_fraction` of the training images."""
    val_images: str = "val2017"
    """Folder of the validation images."""
    test_annotations: Optional[str] = None
    """Annotation file of the test images; None = no test split."""
    test_images: str = "test2017"
    """Folder of the test images."""
    classes: ClassNames = []
    """Names of the categories to train on; empty = all. Boxes of other categories are ignored."""

    crowds: Literal["regions", "objects"] = "regions"
    """Meaning of iscrowd=1: regions = a region of many objects, which is used neither in training nor in evaluation;
    objects = a single object. Some tools, such as CVAT, write iscrowd=1 for each mask."""
    box_format: Literal["auto", "xywh", "xyxy"] = "auto"
    """The four numbers of a bbox: xywh = left, top, width, height, as in COCO; xyxy = left, top, right, bottom, or
    right, bottom, left, top for all boxes of a file; auto = xywh, but boxes that can only be corners are rejected."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        settings = recognise_coco(cls, files, has_points=False)
        return Recognised("COCO's JSON with boxes", settings, "detection", Certainty.SURE) if settings else None

    @property
    def leaves_out(self) -> bool:
        """Returns True if files may have categories that the network does not learn."""
        return bool(self.classes)

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BoxedFiles:
        dataset = super().for_run(target, model, loss)
        return dataset.as_class(CocoInstances) if issubclass(target, Masks) else dataset

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        root = self.require_root(_LAYOUT)
        files = {
            "train": (self.train_annotations, self.train_images),
            "val": (self.val_annotations, self.val_images),
            "test": (self.test_annotations, self.test_images),
        }
        names: List[str] = []
        category_ids: List[int] = []
        splits: Dict[str, Optional[BoxedSplit]] = {}
        for split, (file, images) in files.items():
            if file is None:
                continue
            path, setting = root / file, f"dataset.{split}_annotations={file}"
            contents = call_or_report(
                findings, DataLocation(str(path)), functools.partial(_read, path, root, setting, findings)
            )
            if contents is None:
                continue
            contents = self._interpreted(contents)
            if not names:
                names, category_ids = self._choose_classes(contents)
            splits[split] = self._split(contents, root / images, f"dataset.{split}_images", names, findings)
        return self.make_splits(splits, names, category_ids, findings)

    def crowd_remedy(self) -> str:
        """Names the setting to type if crowd regions are objects."""
        return "If they are objects as any other (CVAT writes iscrowd=1 for masks), type dataset.crowds=objects."

    def _interpreted(self, contents: CocoContents) -> CocoContents:
        """Applies the settings of crowds and box formats to annotations, and fills in missing areas.

        Raises:
            DataError: boxes seem to have another format than the settings say.
        """
        if self.crowds == "objects":
            contents = replace(contents, is_crowd_R=np.zeros_like(contents.is_crowd_R))
        if self.box_format == "xyxy":
            contents = replace(contents, edge_R4=as_corners(contents.edge_R4))
        elif self.box_format == "auto" and are_corners(contents.edge_R4, contents.size_P2[contents.image_R]):
            raise DataError(
                f"'{contents.path}': the boxes seem to be [left, top, right, bottom]: so read, all of them lie in "
                "their images, and read as COCO's [left, top, width, height], many do not. Type "
                "dataset.box_format=xyxy, or dataset.box_format=xywh if they are COCO's."
            )
        if are_normalized(contents.edge_R4):
            raise DataError(
                f"'{contents.path}': the boxes seem to be shares of width and height: all numbers lie between 0 and 1. "
                "COCO's are pixels. Multiply them by the width and the height of their images."
            )
        with np.errstate(invalid="ignore"):  # invalid boxes are reported later
            box_area_R = (contents.edge_R4[:, 2:] - contents.edge_R4[:, :2]).prod(axis=1)
        return replace(contents, area_R=np.where(np.isnan(contents.area_R), box_area_R, contents.area_R))

    def sample_ids(self, locations: Sequence[str]) -> Dict[str, Union[int, str]]:
        """Returns file -> image id in the existing annotation files; see `BaseDataset.sample_ids`.

        An image is matched by its path, otherwise by its file name if only one annotated image has that name.
        """
        root = Path(self.root)
        parts = (
            (self.val_annotations, self.val_images),
            (self.test_annotations, self.test_images),
            (self.train_annotations, self.train_images),
        )
        id_of_path: Dict[str, Union[int, str]] = {}
        ids_of_name: Dict[str, Set[Union[int, str]]] = {}
        for file, images in parts:
            if file is None or not exists(root / file):
                continue
            folder = os.path.realpath(root / images)
            for number, name in read_image_ids(root / file):
                id_of_path.setdefault(normalize_name(os.path.normpath(os.path.join(folder, name))), number)
                ids_of_name.setdefault(normalize_name(os.path.basename(name)), set()).add(number)
        ids: Dict[str, Union[int, str]] = {}
        for location in locations:
            folder, name = os.path.split(os.path.abspath(location))
            path = normalize_name(os.path.join(os.path.realpath(folder), name))
            candidates = ids_of_name.get(normalize_name(name), set())
            if path in id_of_path:
                ids[location] = id_of_path[path]
            elif len(candidates) == 1:
                (ids[location],) = candidates
        return ids

    def _choose_classes(self, contents: CocoContents) -> Tuple[List[str], List[int]]:
        """Returns names and ids of the categories to learn.

        Raises:
            DataError: the file does not define a configured category.
        """
        if not self.classes:
            return list(contents.categories.values()), list(contents.categories)
        ids, index = list(contents.categories), ClassLookup(list(contents.categories.values()))
        chosen = [index.find(name) for name in self.classes]
        for name, number in zip(self.classes, chosen):
            if number is None:
                raise DataError(
                    f"dataset.classes: '{contents.path}' has no category '{name}'.{did_you_mean(name, index.names)} It "
                    f"has: {', '.join(index.names[:100])}."
                )
        return list(self.classes), [ids[number] for number in chosen if number is not None]

    def _split(
        self, contents: CocoContents, folder: Path, setting: str, names: Sequence[str], findings: Findings
    ) -> Optional[BoxedSplit]:
        """Builds a split from the existing images of an annotation file and their valid boxes; None without images."""
        is_usable_R = self._refuse_wrong(contents, names, findings)
        paths, ids = find_named(folder, contents.names)
        missing = [number for number, file_id in enumerate(ids) if file_id is None]
        refuse_unpaired(
            [DataLocation(str(contents.path), record=int(contents.record_P[number])) for number in missing],
            [
                f"'{contents.path}' names '{contents.names[number]}', and there is no file '{paths[number]}'"
                for number in missing
            ],
            f"({len(missing):,} of {len(paths):,} images are missing)",
            f"Add them, or say with {setting}=FOLDER where their names begin.",
            findings,
        )
        existing = [number for number, file_id in enumerate(ids) if file_id is not None]
        index_P = np.full(len(paths), -1)
        index_P[existing] = np.arange(len(existing))
        is_usable_R &= index_P[contents.image_R] >= 0
        class_of = self._class_of(contents, names)
        class_R = np.array([class_of.get(number, -1) for number in contents.category_R[is_usable_R].tolist()], np.int64)
        row_RD = np.column_stack(
            [
                contents.edge_R4[is_usable_R],
                class_R,
                Flag.CROWD * contents.is_crowd_R[is_usable_R],
                contents.area_R[is_usable_R],
            ]
        )
        table = BoxTable.grouped(
            index_P[contents.image_R[is_usable_R]], row_RD, len(existing), contents.size_P2[existing].reshape(-1, 2)
        )
        if not existing:
            return None
        kept_ids = [file_id for file_id in ids if file_id is not None]
        split = BoxedSplit(ImageFiles([paths[number] for number in existing]), kept_ids, table)
        kept_R = np.flatnonzero(is_usable_R)
        return self.completed(split, contents, kept_R[np.argsort(index_P[contents.image_R[kept_R]], kind="stable")])

    def completed(self, split: BoxedSplit, contents: CocoContents, number_R: np.ndarray) -> BoxedSplit:
        """Adds further annotations, such as masks, to a split. This class has none.

        Args:
            split: images and boxes.
            contents: contents of the annotation file.
            number_R: index of the annotation of each box in the split's table.
        """
        return split

    def _class_of(self, contents: CocoContents, names: Sequence[str]) -> Dict[int, int]:
        """Returns category id -> index of the class, for the categories to learn."""
        index = ClassLookup(names)
        classes = {number: index.find(name) for number, name in contents.categories.items()}
        return {number: class_index for number, class_index in classes.items() if class_index is not None}

    def _refuse_wrong(self, contents: CocoContents, names: Sequence[str], findings: Findings) -> np.ndarray:
        """Reports invalid annotations; returns a mask of the usable ones, (R,)."""
        categories = self._class_of(contents, names)
        # If the user has chosen classes, other categories of the file are ignored. Otherwise a category that is not in
        # the training split, or that the file does not define, is an error.
        allowed = list(contents.categories) if self.leaves_out else list(categories)
        is_usable_R = np.isin(contents.category_R, list(categories))
        unknown = np.flatnonzero(~np.isin(contents.category_R, allowed))
        problems = []
        for index in unknown.tolist():
            location, number = contents.location(index), int(contents.category_R[index])
            named = f", '{contents.categories[number]}'," if number in contents.categories else ""
            fact = (
                f"{location}: the annotation has the category {number}{named} which the training split does not have."
            )
            problems.append(Problem(UNKNOWN_CLASS, location, fact, "Add the category, or remove the annotation."))
        refuse_all(findings, problems, "annotations")
        size_R2 = contents.size_P2[contents.image_R].reshape(-1, 2)
        valid_R = refuse_wrong_boxes(contents.edge_R4, size_R2, contents, findings, self.mends)
        return is_usable_R & valid_R


class CocoInstances(Coco):
    """Instance masks in COCO's layout, as polygons or run lengths (RLE)."""

    gives: ClassVar[Gives] = Gives(Images, Masks)
    annotation_class: ClassVar[Type[BoxAnnotations]] = InstanceAnnotations

    def _refuse_wrong(self, contents: CocoContents, names: Sequence[str], findings: Findings) -> np.ndarray:
        """Reports invalid annotations and masks; returns a mask of the usable annotations, (R,)."""
        is_usable_R = super()._refuse_wrong(contents, names, findings)
        numbers = np.flatnonzero(is_usable_R)
        has_valid_mask, refused, remarks = find_mask_problems(contents, numbers, self.mends)
        refuse_all(findings, refused, "masks")
        for problem in remarks:
            findings.remark(problem)
        is_usable_R[numbers[~has_valid_mask]] = False
        return is_usable_R

    def completed(self, split: BoxedSplit, contents: CocoContents, number_R: np.ndarray) -> BoxedSplit:
        """Adds the masks to a split; arguments as in `Coco.completed`."""
        outlines = CocoOutlines(
            JsonFile(contents.path), contents.span_R2[number_R], contents.record_R[number_R], split.table.begin_P1
        )
        return InstanceSplit(split.encoded, split.ids, split.table, outlines)


def _read(path: Path, root: Path, setting: str, findings: Findings) -> CocoContents:
    """Reads an annotation file.

    Args:
        path: path of the file.
        root: folder of the dataset, for messages.
        setting: setting that names the file, for messages.
        findings: collects the problems.

    Raises:
        DataError: the file does not exist, or cannot be read.
    """
    if not exists(path):
        siblings = sorted(file.name for file in path.parent.glob("*.json"))
        existing = siblings or sorted(file.relative_to(root).as_posix() for file in root.glob("*.json"))
        listed = f" There are: {', '.join(existing)}." if siblings else f" '{root}' has: {', '.join(existing)}."
        is_voc = " It has the folders of VOC: type dataset=voc." if find_years(root) else ""
        hint = f"{did_you_mean(path.name, existing)}{listed if existing else is_voc or f' {_LAYOUT}'}"
        if setting.startswith("dataset.val_annotations"):
            hint += " Or type dataset.val_annotations=null to hold out dataset.val_fraction of the training data."
        raise DataError(f"{setting}: there is no file '{path}'.{hint}")
    return read_coco(path, findings)
