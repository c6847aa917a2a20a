"""COCO's panoptic segmentation as classes of pixels: PNG files whose colours are ids of segments, and a JSON file with
the category of each segment.

Legend: S segments of an image.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    UNKNOWN_CLASS,
    UNREADABLE_MASK,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import as_posix, exists, list_first, read_bytes, suggest_existing
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, LoaderError, did_you_mean
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.detection.boxed_classes import ClassNames, first_twice
from mxtrain.vision.detection.boxed_files import find_named
from mxtrain.vision.images.files import MAX_BYTES, ImageFiles
from mxtrain.vision.images.json_elements import JsonFile
from mxtrain.vision.images.pixels import read_error
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.segmentation.mask_colors import Color, MaskColors
from mxtrain.vision.segmentation.mask_pairs import MaskPairs
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import JointAugment, MaskCoding, MaskedImages

OPTION = "dataset=coco_panoptic"
_IGNORED_VALUE = 255
"""Value of the pixels of no segment, and of segments whose category is not learned."""
_PARTS = ("images", "annotations", "categories")


class CocoPanoptic(MaskedFiles):
    """Classes of pixels in COCO's panoptic layout: `annotations/panoptic_train2017.json`, the PNG files in
    `annotations/panoptic_train2017/`, and the images in `train2017/`; likewise val2017.

    Classes are the categories in the order of their ids, things and stuff. Pixels of no segment are ignored.
    """

    option: ClassVar[str] = OPTION

    root: PathText = "data/coco"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    train_annotations: str = "annotations/panoptic_train2017.json"
    """Annotation file of the training images, in `root`. The PNG files are in the folder of its name without .json."""
    train_images: str = "train2017"
    """Folder of the training images, in `root`."""
    val_annotations: Optional[str] = "annotations/panoptic_val2017.json"
    """Likewise for the validation images; None = `val_fraction` of the training images."""
    val_images: str = "val2017"
    """Folder of the validation images."""
    classes: ClassNames = []
    """Names of the categories to train on, in this order; empty = all. Pixels of other categories are ignored."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found = [
            name for name in files.find(".json") if '"segments_info"' in files.text(name) and name[:-5] in files.folders
        ]
        splits = files.by_split(found)
        if not splits:
            return None
        settings: Dict[str, Setting] = {"root": files.typed()}
        for split in ("train", "val"):
            folders = [name for name in files.folders if split in name and not name.startswith("annotations")]
            if split in splits:
                settings[f"{split}_annotations"] = splits[split]
                settings[f"{split}_images"] = min(folders, key=len) if folders else "images"
            else:
                settings[f"{split}_annotations"] = "null"
        return Recognised("COCO's panoptic segmentation", settings, "segmentation", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = self.require_root("It must hold annotations/panoptic_train2017.json and train2017/.")
        pairs: Dict[str, _PanopticPairs] = {}
        names: List[str] = []
        for split, file, images in (
            ("train", self.train_annotations, self.train_images),
            ("val", self.val_annotations, self.val_images),
        ):
            if file is None:
                continue
            path = root / file
            contents = call_or_report(findings, DataLocation(str(path)), functools.partial(_read, path, findings))
            if contents is None:
                continue
            names = names or self._choose_names(path, contents)
            if not self.classes:
                contents = _without_unknown(path, contents, names, findings)
            pairs[split] = _pairs(path, root / images, contents, names, findings)
        if "train" not in pairs:
            raise NoUsableSamples(f"{OPTION}: nothing is left to train on.")
        coding = MaskCoding(range(len(names)), (_IGNORED_VALUE,))
        return self.make_splits(pairs["train"], pairs.get("val"), None, names, coding, findings=findings)

    def _choose_names(self, path: Path, contents: _Contents) -> List[str]:
        """Returns the names of the classes to learn.

        Raises:
            DataError: a configured class does not exist, or there are too many.
        """
        known = list(contents.categories.values())
        for name in self.classes:
            if name not in known:
                raise DataError(
                    f"dataset.classes: '{path}' has no category '{name}'.{did_you_mean(name, known)} It has: "
                    f"{list_first(known)}."
                )
        names = list(self.classes) or known
        if not 2 <= len(names) <= _IGNORED_VALUE:
            raise DataError(
                f"{OPTION}: '{path}' has {len(names)} categories, and 2 to {_IGNORED_VALUE} can be learned."
            )
        return names


class _SegmentedImage(NamedTuple):
    """An image and its segments."""

    record: int
    name: str
    mask: str
    segment_S2: np.ndarray
    """Id and category of each segment."""


@dataclass(frozen=True)
class _Contents:
    """Contents of an annotation file: categories by id, and the annotated images."""

    categories: Dict[int, str]
    images: Sequence[_SegmentedImage]


def _read(path: Path, findings: Findings) -> _Contents:
    """Reads an annotation file.

    Raises:
        DataError: it does not exist, or is none.
    """
    if not exists(path):
        raise DataError(f"{OPTION}: there is no file '{path}'.{suggest_existing(path)} Name yours with dataset.root.")
    names: Dict[Any, str] = {}
    categories: Dict[int, str] = {}
    annotations: List[Tuple[int, Any, str, np.ndarray]] = []
    problems: List[Problem] = []
    parts = set()
    for element in JsonFile(path).elements():
        parts.add(element.key)
        if element.key not in _PARTS or element.record < 0:
            continue
        value = element.value
        try:
            if element.key == "images":
                names[value["id"]] = as_posix(value["file_name"])
            elif element.key == "categories":
                categories[int(value["id"])] = str(value["name"])
            else:
                segments = [(int(each["id"]), int(each["category_id"])) for each in value["segments_info"]]
                segment_S2 = np.array(segments, np.int64).reshape(-1, 2)
                hash(value["image_id"])  # a list or an object is no id
                annotations.append((element.record, value["image_id"], as_posix(value["file_name"]), segment_S2))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            location = DataLocation(str(path), record=element.record)
            fact = f"{element.key}: {location} lacks one of its fields, such as id, file_name and segments_info."
            problems.append(Problem(UNREADABLE_ROW, location, fact, "Correct or remove it."))
    missing = [part for part in _PARTS if part not in parts]
    if missing:
        raise DataError(f"'{path}' has no {' and no '.join(missing)}: it is no panoptic annotation of COCO.")
    twice = first_twice(list(categories.values()))
    if twice is not None:
        raise DataError(f"'{path}' has two categories of the name '{twice}'. Name one otherwise.")
    images: List[_SegmentedImage] = []
    seen = set()
    for record, image_id, mask, segment_S2 in annotations:
        location = DataLocation(str(path), record=record)
        unknown = [number for number in segment_S2[:, 1].tolist() if number not in categories]
        if image_id not in names or image_id in seen:
            what = "annotated twice" if image_id in seen else "not in the file"
            kind = LISTED_TWICE if image_id in seen else MISSING_COUNTERPART
            problems.append(Problem(kind, location, f"annotations: {location}: the image {image_id} is {what}.", ""))
        elif unknown:
            fact = f"annotations: {location} has the category {unknown[0]}, which the file does not define."
            problems.append(Problem(UNKNOWN_CLASS, location, fact, "Add the category."))
        else:
            seen.add(image_id)
            images.append(_SegmentedImage(record, names[image_id], mask, segment_S2))
    refuse_all(findings, problems, "elements")
    return _Contents(dict(sorted(categories.items())), images)


def _without_unknown(path: Path, contents: _Contents, names: Sequence[str], findings: Findings) -> _Contents:
    """Rejects images with segments of a category that the training split does not have; returns the others."""
    unknown = {number: name for number, name in contents.categories.items() if name not in names}
    kept: List[_SegmentedImage] = []
    problems: List[Problem] = []
    for image in contents.images:
        number = next((number for number in image.segment_S2[:, 1].tolist() if number in unknown), None)
        if number is None:
            kept.append(image)
            continue
        location = DataLocation(str(path), record=image.record)
        fact = f"annotations: {location} has the category '{unknown[number]}', which the training split does not have."
        remedy = f"{did_you_mean(unknown[number], names)} Categories are {list_first(names)}.".strip()
        problems.append(Problem(UNKNOWN_CLASS, location, fact, remedy))
    refuse_all(findings, problems, "annotations")
    return _Contents(contents.categories, kept)


def _pairs(path: Path, folder: Path, contents: _Contents, names: Sequence[str], findings: Findings) -> _PanopticPairs:
    """Returns the images of a file that exist, with their masks and the values of segments."""
    masks = path.with_suffix("")
    files, identities = find_named(folder, [image.name for image in contents.images])
    value_of = {
        number: names.index(name) if name in names else _IGNORED_VALUE for number, name in contents.categories.items()
    }
    kept: List[int] = []
    problems: List[Problem] = []
    for index, (image, identity) in enumerate(zip(contents.images, identities)):
        mask = masks / image.mask
        missing = files[index] if identity is None else "" if exists(mask) else str(mask)
        if missing:
            location = DataLocation(str(path), record=image.record)
            fact = f"annotations: {location} needs '{missing}', and there is no such file."
            problems.append(Problem(MISSING_COUNTERPART, location, fact, "Add it, or name the folder of the images."))
        else:
            kept.append(index)
    refuse_all(findings, problems, "annotations")
    return _PanopticPairs(
        [files[index] for index in kept],
        [str(masks / contents.images[index].mask) for index in kept],
        [identity for index in kept if (identity := identities[index]) is not None],
        [contents.images[index].segment_S2 for index in kept],
        value_of,
    )


@dataclass(frozen=True)
class _PanopticPairs(MaskPairs):
    """Images, masks of segments, and the categories of these.

    Attributes:
        segments: id and category of each segment of each image.
        value_of: category -> value of its pixels.
    """

    segments: Sequence[np.ndarray]
    value_of: Dict[int, int]

    def open(
        self, coding: MaskCoding, decoding: Decoding, mean: Sequence[float], augment: Optional[JointAugment] = None
    ) -> MaskedImages:
        """Returns the source; arguments as in `MaskedImages`."""
        return _PanopticMasks(self, ImageFiles(self.images), self.masks, coding, decoding, mean, augment)


class _PanopticMasks(MaskedImages):
    """Source of images and masks of segments, whose ids are colours."""

    def __init__(self, pairs: _PanopticPairs, *arguments: Any) -> None:
        """Stores the segments.

        Args:
            pairs: the segments.
            arguments: arguments of `MaskedImages`.
        """
        super().__init__(*arguments)
        self._pairs = pairs

    def open_mask(self, index: int, size: Optional[Tuple[int, int]]) -> Any:
        """Opens a mask as an image of classes; see `MaskedImages.open_mask`."""
        value_of: Dict[Color, int] = {(0, 0, 0): _IGNORED_VALUE}
        for number, category in self._pairs.segments[index].tolist():
            value_of[number & 255, number >> 8 & 255, number >> 16 & 255] = self._pairs.value_of[category]
        path = self._pairs.masks[index]
        try:
            return MaskColors(value_of).read(read_bytes(path, MAX_BYTES))
        except DataError as error:
            raise LoaderError(str(error), kind=UNREADABLE_MASK) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            remedy = "Its colours are ids of segments, red + 256 green + 65,536 blue, which segments_info lists."
            raise LoaderError(read_error(f"'{path}'", error, "a mask"), remedy, UNREADABLE_MASK) from error
