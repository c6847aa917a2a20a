"""Detection datasets in PASCAL VOC's layout.

Legend: R boxes, P images, D columns of `boxes.Column`.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Collection, Dict, List, Literal, Optional, Sequence, Set, Tuple, Type, Union

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    NOT_A_NUMBER,
    UNKNOWN_CLASS,
    UNREADABLE_FILE,
    DataLocation,
    Findings,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import FileId, exists, files_in, normalize_name, prefix_length, read_bytes, walk
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.data.recognition import IMAGES, Certainty, FileTree, Recognised, Setting
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, did_you_mean, list_override
from mxtrain.files.text_numbers import parse_flag, parse_number
from mxtrain.types import PathText
from mxtrain.types.kinds import Gives, Images, TargetKind
from mxtrain.vision.detection.box_faults import are_normalized, refuse_all, refuse_wrong_boxes
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_classes import ClassLookup, ClassNames, choose_class_names
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit
from mxtrain.vision.detection.boxes import BoxAnnotations, Flag
from mxtrain.vision.detection.voc_annotation import EDGES, BadAnnotation, VocObject, parse_annotation
from mxtrain.vision.detection.voc_layout import find_years, images_folder, labelmap_names, read_names
from mxtrain.vision.images.class_lists import VOC_CLASSES
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.instance_segmentation.instance_images import InstanceSplit
from mxtrain.vision.instance_segmentation.mask_rows import InstanceAnnotations
from mxtrain.vision.kinds import Boxes, Masks
from mxtrain.vision.segmentation.mask_pairs import Files, list_images, refuse_unpaired
from mxtrain.vision.segmentation.voc_masks import VocBoxSources, VocOutlines

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)

MAX_XML_BYTES = 16 << 20
MAX_TYPED_NAMES = 50
"""Largest number of class names that a message tells the user to type."""
_LAYOUT = (
    "It must be VOCdevkit, VOCdevkit/VOC2007 or another folder that holds JPEGImages/ (or images/), Annotations/ and "
    "ImageSets/Main/; or train/, val/ and test/, each with images and an .xml beside each of them."
)
MAX_GUESSED = 2000
"""Largest number of annotations whose classes `data guess` reads."""
PUBLIC_YEARS = ("2007", "2012")
SplitNames = Union[str, List[str], None]


class Voc(PublicDataset, BoxedFiles):
    """Images and boxes in PASCAL VOC's layout, of one or several years.

    A year has the files `JPEGImages/NAME.jpg`, `Annotations/NAME.xml`, and `ImageSets/Main/SPLIT.txt` with one name per
    line. Alternatively, images and annotations are in the same folder (`a.jpg`, `a.xml`), as Roboflow and LabelImg
    write them: in `train/`, `valid/` and `test/`, or only in the root. Images without an annotation are then ignored,
    and the settings of lists are not used.

    Coordinates in the files start at 1, and the last pixel belongs to the box. In mxtrain, a box therefore extends from
    xmin - 1 to xmax.
    """

    option: ClassVar[str] = "dataset=voc"
    gives: ClassVar[Gives] = Gives(Images, Boxes, Masks)
    published_as: ClassVar[str] = "voc2007"
    lists_folder: ClassVar[str] = "Main"
    """Folder in ImageSets with the lists of splits."""
    remedy_if_shared: ClassVar[str] = (
        "Type dataset.train_split=train, or dataset.val_split=null to hold out dataset.val_fraction of the training "
        "images."
    )

    root: PathText = "data/voc"
    train_split: SplitNames = "train"
    """Lists in ImageSets/Main of training images, e.g. trainval, or [2007/trainval,2012/trainval] for several years;
    None = all images with an annotation."""
    val_split: SplitNames = "val"
    """Lists of validation images; None = `val_fraction` of the training images."""
    test_split: SplitNames = None
    """Lists of a test split with annotations; None = no test split."""
    classes: ClassNames = []
    """Names in the order of their numbers; empty = the lines of `root/classes.txt`, the classes of `root/labelmap.txt`,
    or VOC's twenty."""
    other_classes: Literal["refuse", "leave_out"] = "refuse"
    """Treatment of objects of other classes."""
    without_annotation: Literal["refuse", "background", "leave_out"] = "refuse"
    """Treatment of images in a list that have no annotation file: CVAT and Datumaro write none for images without
    boxes."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        xml = files.find(".xml")
        if not xml or not re.search(r"<annotation\b", files.text(xml[0])[:2000]):
            return None
        found = sorted({name for file in xml[:MAX_GUESSED] for name in _names_in(files.root / file)})
        settings: Dict[str, Setting] = {"root": files.typed()}
        if (
            len(xml) <= MAX_GUESSED
            and not files.has("classes.txt")
            and not labelmap_names(files.root)
            and not {name.lower() for name in found} <= set(VOC_CLASSES)
        ):
            settings["classes"] = found
        years = [
            each
            for each in ("", *files.folders)
            if files.has(os.path.join(each, "Annotations")) and images_folder(files.root / each) is not None
        ]
        if not years:
            beside = any(f"{name[:-4]}{ending}" in files.images for name in xml[:1] for ending in IMAGES)
            form = "PASCAL VOC's XML files beside their images (LabelImg, Roboflow)"
            return Recognised(form, settings, "detection") if beside else None
        settings["root"] = files.typed(min(years, key=len))
        splits = {name.rpartition("/")[2][:-4] for name in files.find(".txt") if "ImageSets/Main/" in name}
        if "train" not in splits:
            settings["train_split"] = next((name for name in ("trainval", "default") if name in splits), "null")
        if "val" not in splits:
            settings["val_split"] = "null"
        if "test" in splits and _has_annotations(files):
            settings["test_split"] = "test"
        return Recognised("PASCAL VOC's folders with boxes", settings, "detection", Certainty.SURE)

    @property
    def public_names(self) -> Sequence[str]:
        """Returns the names of the public datasets to download: by the years in names of splits, e.g. 2012/trainval,
        otherwise `published_as`."""
        splits = (self.train_split, self.val_split, self.test_split)
        names = [name for split in splits for name in ([split] if isinstance(split, str) else split or ())]
        years = {f"voc{year}" for year in PUBLIC_YEARS if any(name.startswith((year, f"VOC{year}")) for name in names)}
        return sorted(years) or [self.published_as]

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BoxedFiles:
        dataset = super().for_run(target, model, loss)
        return dataset.as_class(VocInstances) if issubclass(target, Masks) else dataset

    def completed(self, split: BoxedSplit, sources: VocBoxSources, findings: Findings) -> Optional[BoxedSplit]:
        """Adds further annotations, such as masks, to a split. This class has none.

        Args:
            split: images and boxes.
            sources: annotation files of the images, and indices of the objects in them.
            findings: collects problems.
        """
        return split

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        root = self.require_root(_LAYOUT)
        names = choose_class_names(self.classes, root, labelmap_names(root) or VOC_CLASSES)
        reader = _SplitReader(self, names, findings)
        years = find_years(root)
        folders = {} if years else self._find_mixed(root)
        if folders:
            mixed = {split: reader.read_mixed(folder) for split, folder in folders.items()}
            return self.make_splits(mixed, names, range(len(names)), findings)
        if not years:
            raise DataError(
                f"{self.option}: '{root}' holds no JPEGImages/. {_LAYOUT} Name yours with dataset.root=FOLDER."
            )
        splits = {"train": self.train_split, "val": self.val_split, "test": self.test_split}
        read_splits = {
            split: reader.read(years, f"dataset.{split}_split", names_of_split)
            for split, names_of_split in splits.items()
            if names_of_split is not None or split == "train"
        }
        return self.make_splits(read_splits, names, range(len(names)), findings)

    def _find_mixed(self, root: Path) -> Dict[str, Path]:
        """Returns split -> folder with images and annotations side by side; empty if there are no annotations."""
        folders = find_splits(root, self.option) or {"train": root}
        return folders if any(name.lower().endswith(".xml") for name in files_in(folders["train"])) else {}


class VocInstances(Voc):
    """Instance masks in PASCAL VOC's layout, for the images in `ImageSets/Segmentation/`.

    A pixel of `SegmentationObject/NAME.png` is the number of its object in the annotation, from 1. White outlines (255)
    belong to no object.
    """

    gives: ClassVar[Gives] = Gives(Images, Masks)
    annotation_class: ClassVar[Type[BoxAnnotations]] = InstanceAnnotations
    published_as: ClassVar[str] = "voc2012"
    lists_folder: ClassVar[str] = "Segmentation"

    def completed(self, split: BoxedSplit, sources: VocBoxSources, findings: Findings) -> Optional[BoxedSplit]:
        """Adds the masks to a split; arguments as in `Voc.completed`."""
        masks = [_mask_of(path) for path in sources.annotations]
        missing = [number for number, mask in enumerate(masks) if not exists(mask)]
        refuse_unpaired(
            [DataLocation(str(sources.annotations[number])) for number in missing],
            [f"'{sources.annotations[number]}' has no mask '{masks[number]}'" for number in missing],
            f"({len(missing):,} of {len(masks):,} masks are missing)",
            "Add them, or name a split of images that have masks.",
            findings,
        )
        outlines = VocOutlines([str(mask) for mask in masks], sources.count_P, sources.object_R, split.table.begin_P1)
        return InstanceSplit(split.encoded, split.ids, split.table, outlines)


def _mask_of(annotation: Path) -> Path:
    """Returns the path of the mask file that belongs to an annotation."""
    parents = annotation.parents
    folder = next((parent for parent in parents if parent.name == "Annotations"), annotation.parent)
    return folder.with_name("SegmentationObject") / annotation.relative_to(folder).with_suffix(".png")


class _SplitReader:
    """Reads the images and boxes of splits. Each folder of images is listed only once."""

    def __init__(self, dataset: Voc, names: Sequence[str], findings: Findings) -> None:
        self._dataset, self._findings = dataset, findings
        self._classes = ClassLookup(names)
        self._images: Dict[Path, Files] = {}

    def read(self, years: Sequence[Path], setting: str, value: SplitNames) -> Optional[BoxedSplit]:
        """Reads the images of a split with their boxes.

        Args:
            years: folders of the years.
            setting: name of the setting, for messages.
            value: value of the setting.

        Returns:
            The split; None if it has no usable image.

        Raises:
            DataError: an image or annotation is missing.
        """
        names = [value] if value is None or isinstance(value, str) else value
        entries: Dict[str, Tuple[Path, FileId, Path]] = {}
        for name in names:
            setting_text = f"{setting}={'null' if name is None else name}"
            year, _, part = ("", "", None) if name is None else ("/" + name).rpartition("/")
            folder = _choose_year(years, year.strip("/"), setting_text)
            for path, number, annotation in self._list(folder, part or None, setting_text):
                if str(path) in entries:
                    fact = f"{setting_text} names '{path}', which {setting} has already."
                    self._findings.remark(Problem(LISTED_TWICE, DataLocation(str(path)), fact, "Name it once."))
                entries.setdefault(str(path), (path, number, annotation))
        return self._build_split(list(entries.values()))

    def read_mixed(self, folder: Path) -> Optional[BoxedSplit]:
        """Reads the images of a folder that have an annotation in the same folder, with their boxes."""
        images = list_images(folder, findings=self._findings)
        start = prefix_length(folder)
        annotations = {
            normalize_name(str(path)[start:-4]): path for path, _ in walk(folder, (".xml",), findings=self._findings)
        }
        unmatched = [name for name in annotations if name not in images]
        refuse_unpaired(
            [DataLocation(str(annotations[name])) for name in unmatched],
            [
                f"'{annotations[name]}' is the annotation of no image: no image of the same name is beside it"
                for name in unmatched
            ],
            f"({len(unmatched):,} of {len(annotations):,} have no image)",
            "Add the images, or remove these annotations.",
            self._findings,
        )
        without = len(images) - (len(annotations) - len(unmatched))
        if without:
            log.info(
                "%s: %d of %d images in '%s' have no annotation and are left out",
                self._dataset.option,
                without,
                len(images),
                folder,
            )
        return self._build_split([(*images[name], annotations[name]) for name in sorted(images) if name in annotations])

    def _build_split(self, entries: Sequence[Tuple[Path, FileId, Path]]) -> Optional[BoxedSplit]:
        """Builds a split from (image, identity of the image, annotation) entries; None if there are none."""
        boxes = _VocBoxes(self._dataset, self._classes, self._findings)
        for index, (_, _, annotation) in enumerate(entries):
            boxes.add(index, annotation)
        if not entries:
            return None
        table, object_R = boxes.table(len(entries))
        split = BoxedSplit(ImageFiles([path for path, _, _ in entries]), [number for _, number, _ in entries], table)
        sources = VocBoxSources([annotation for _, _, annotation in entries], boxes.counts(len(entries)), object_R)
        return self._dataset.completed(split, sources, self._findings)

    def _list(self, folder: Path, part: Optional[str], setting_text: str) -> List[Tuple[Path, FileId, Path]]:
        """Returns (image, identity of the image, annotation) entries.

        Args:
            folder: folder of a year.
            part: name of a list; None: all images with an annotation.
            setting_text: setting and its value, for messages.

        Raises:
            DataError: the list does not exist or is empty, or an image or an annotation is missing.
        """
        if folder not in self._images:
            self._images[folder] = list_images(images_folder(folder) or folder, findings=self._findings)
        images, annotations = self._images[folder], folder / "Annotations"
        matched, unmatched = _find_annotations(annotations, images, self._findings)
        lists = folder / "ImageSets" / self._dataset.lists_folder
        if part is None:
            matched = {**matched, **unmatched}
            names = {name: 0 for name in sorted(matched)}
            if not names:
                raise DataError(f"{setting_text}: '{annotations}' holds no annotations: no file there ends in .xml.")
        else:
            read = functools.partial(self._names, lists, part, setting_text, {*images, *matched})
            names = call_or_report(self._findings, DataLocation(str(lists)), read) or {}
            names, matched = self._without_annotation(names, images, matched, annotations, setting_text)
        for kind, files, parent in (("image", images, images_folder(folder)), ("annotation", matched, annotations)):
            missing = [name for name in names if name not in files]
            locations = [
                DataLocation(str(lists / f"{part}.txt"), names[name]) if part else DataLocation(str(matched[name]))
                for name in missing
            ]
            facts = [
                f"'{location.file}'{f', line {location.line}' if part else ''} names '{name}', of which there is no "
                f"{kind} in '{parent}'"
                for name, location in zip(missing, locations)
            ]
            remedy = "Add them, or remove these lines." if part else "Add them, or remove these annotations."
            if kind == "annotation":
                remedy += (
                    " Type dataset.without_annotation=background if no object is in them, or leave_out to train "
                    "without them."
                )
            refuse_unpaired(
                locations, facts, f"({len(missing):,} of {len(names):,} are missing)", remedy, self._findings
            )
        return [(*images[name], matched[name]) for name in names if name in images and name in matched]

    def _without_annotation(
        self, names: Dict[str, int], images: Files, matched: Dict[str, Path], annotations: Path, setting_text: str
    ) -> Tuple[Dict[str, int], Dict[str, Path]]:
        """Returns the names of a list and the annotations of images, as dataset.without_annotation says; logs how many
        images have none. The path of the annotation of a background image does not exist."""
        treatment = self._dataset.without_annotation
        missing = [name for name in names if name in images and name not in matched]
        if not missing or treatment == "refuse":
            return names, matched
        is_background = treatment == "background"
        log.info(
            "%s: %s: %d of %d images have no annotation: %s",
            self._dataset.option,
            setting_text,
            len(missing),
            len(names),
            "background" if is_background else "left out",
        )
        if is_background:
            return names, {**matched, **{name: annotations / f"{name}.xml" for name in missing}}
        return {name: line for name, line in names.items() if name in matched or name not in images}, matched

    def _names(self, lists: Path, part: str, setting_text: str, known: Collection[str]) -> Dict[str, int]:
        """Reads a list of images; see `read_names`."""
        setting = setting_text.partition("=")[0]
        all_images, held_out = "all images that have an annotation", "dataset.val_fraction of the training data"
        instead = {"dataset.train_split": f": {all_images}", "dataset.val_split": f": {held_out}"}.get(setting, "")
        return read_names(
            lists, part, setting_text, self._findings, f"Without lists, type {setting}=null{instead}.", known
        )


class _VocBoxes:
    """Collects boxes from annotation files, and their problems."""

    def __init__(self, dataset: Voc, classes: ClassLookup, findings: Findings) -> None:
        self._dataset, self._classes, self._findings = dataset, classes, findings
        self._rows: List[Tuple[float, ...]] = []
        self._sizes: Dict[int, Tuple[float, float]] = {}
        self._counts: Dict[int, int] = {}
        self._locations: List[Tuple[str, int]] = []
        self._refused: List[Problem] = []
        self._unknown_names: Set[str] = set()

    def add(self, index: int, path: Path) -> None:
        """Adds the boxes of an annotation.

        Args:
            index: index of the image in the split.
            path: annotation file.
        """
        if self._dataset.without_annotation == "background" and not os.path.lexists(path):
            return
        content = call_or_report(
            self._findings, DataLocation(str(path)), lambda: read_bytes(path, MAX_XML_BYTES), UNREADABLE_FILE
        )
        if content is None:
            return
        try:
            size, objects = parse_annotation(content)
        except BadAnnotation as error:
            location = DataLocation(str(path), error.line)
            self._refused.append(Problem(UNREADABLE_FILE, location, f"'{path}' {error.fact}.", "Write it again."))
            return
        if size is not None:
            self._sizes[index] = size
        self._counts[index] = objects[-1].number + 1 if objects else 0
        for voc_object in objects:
            self._add_object(index, path, voc_object)

    def _add_object(self, index: int, path: Path, voc_object: VocObject) -> None:
        """Adds the box of an object, or the problem that it has."""
        location, texts = DataLocation(str(path), voc_object.line), voc_object.texts
        number = self._classes.find(texts.get("name", ""))
        if number is None:
            if self._dataset.other_classes == "refuse":
                self._refused.append(self._unknown(location, texts.get("name", "")))
            return
        left, top, right, bottom = (parse_number(texts.get(edge, ""), allow_special=True) for edge in EDGES)
        if left is None or top is None or right is None or bottom is None:
            text = ", ".join(f"{edge} {texts[edge]!r:.40}" if edge in texts else f"no {edge}" for edge in EDGES)
            fact = f"{location}: the box of '{texts['name'][:40]}' has {text}."
            self._refused.append(Problem(NOT_A_NUMBER, location, fact, "Give it four numbers."))
            return
        text = texts.get("difficult", "")
        is_difficult = parse_flag(text)
        if is_difficult is None:
            fact = f"{location}: <difficult> of '{texts['name'][:40]}' is '{text[:40]}', which is neither yes nor no."
            self._refused.append(Problem(NOT_A_NUMBER, location, fact, "Write 0 or 1."))
            return
        flags = Flag.DIFFICULT * is_difficult
        # VOC counts pixels from 1, and the last pixel belongs to the box.
        self._rows.append((index, left - 1, top - 1, right, bottom, number, flags, voc_object.number))
        self._locations.append((str(path), voc_object.line))

    def _unknown(self, location: DataLocation, name: str) -> Problem:
        """Returns the problem of an object of an unknown class."""
        names = self._classes.names
        if not name:
            return Problem(UNKNOWN_CLASS, location, f"{location}: the object there has no name.", "Name its class.")
        self._unknown_names.add(name)
        fact = f"{location}: there is no class '{name[:60]}'."
        suggestion = did_you_mean(name, names).strip()
        remedy = (
            f"Classes are {', '.join(names[:20])}. Type dataset.classes=[NAME,...] for your own, or "
            "dataset.other_classes=leave_out."
        )
        return Problem(UNKNOWN_CLASS, location, fact, f"{suggestion} {remedy}".strip())

    def counts(self, num_images: int) -> np.ndarray:
        """Returns the number of objects in the annotation of each image, (P,), including unusable ones."""
        return np.array([self._counts.get(index, 0) for index in range(num_images)], np.int64)

    def table(self, num_images: int) -> Tuple[BoxTable, np.ndarray]:
        """Returns all valid boxes, and the index of the object of each box in its annotation, (R,)."""
        names = self._unknown_names
        if names and not self._rows and len(names) <= MAX_TYPED_NAMES:  # no object has one of the expected classes
            remedy = f"Type {list_override('dataset.classes', sorted(names))}, which are all names in the annotations."
            self._refused = [
                problem if problem.kind != UNKNOWN_CLASS else replace(problem, remedy=remedy)
                for problem in self._refused
            ]
        refuse_all(self._findings, self._refused, "problems of annotations")
        array_R8 = np.array(self._rows, np.float64).reshape(-1, 8)
        size_P2 = np.full((num_images, 2), np.nan)
        for index, size in self._sizes.items():
            size_P2[index] = size
        image_R, edge_R4 = array_R8[:, 0].astype(np.int64), array_R8[:, 1:5]
        # The numbers as they are in the file, from which 1 was taken above.
        if are_normalized(edge_R4 + [1, 1, 0, 0]):
            raise DataError(
                f"{DataLocation(*self._locations[0])}: the boxes of this file and of all others seem to be shares of "
                "width and height: their numbers lie between 0 and 1. VOC's are pixels. Multiply them by the width and "
                "the height of their images."
            )
        is_kept_R = refuse_wrong_boxes(
            edge_R4, size_P2[image_R], _VocNotes(self._locations, edge_R4), self._findings, self._dataset.mends
        )
        area_R = (edge_R4[:, 2:] - edge_R4[:, :2])[is_kept_R].prod(axis=1)
        row_RD = np.column_stack([array_R8[is_kept_R, 1:7], area_R])
        # Annotations were read in the order of the images, so boxes are already grouped by image.
        table = BoxTable.grouped(image_R[is_kept_R], row_RD, num_images, size_P2)
        return table, array_R8[is_kept_R, 7].astype(np.int64)


class _VocNotes:
    """Describes boxes in messages, by the coordinates in their files; see `BoxNotes`."""

    def __init__(self, locations: Sequence[Tuple[str, int]], edge_R4: np.ndarray) -> None:
        self._locations, self._edge_R4 = locations, edge_R4

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a box."""
        return DataLocation(*self._locations[index])

    def shown(self, index: int) -> str:
        """Returns a box as text."""
        values = self._edge_R4[index] + [1, 1, 0, 0]  # the first pixel is 1 in the file
        return ", ".join(f"{edge} {value:.6g}" for edge, value in zip(EDGES, values))


def _has_annotations(files: FileTree) -> bool:
    """Returns True if the first image of the test split has an annotation. Those of competitions have none."""
    listed = [line.split()[0] for name in files.find("/main/test.txt") for line in files.lines(name, 1)]
    return any(files.named(f"{name}.xml") for name in listed)


def _names_in(path: Path) -> Set[str]:
    """Returns the names of the objects in an annotation; none if it cannot be read."""
    try:
        _, objects = parse_annotation(read_bytes(path, MAX_XML_BYTES))
    except (BadAnnotation, DataError):
        return set()
    return {each.texts["name"] for each in objects if each.texts.get("name")}


def _find_annotations(
    folder: Path, images: Collection[str], findings: Findings
) -> Tuple[Dict[str, Path], Dict[str, Path]]:
    """Matches annotations to images.

    An annotation has the same relative path as its image: `Annotations/sub/a.xml` for `JPEGImages/sub/a.jpg`. An
    annotation in another subfolder is also accepted if the file name is unique among images and among annotations.

    Returns:
        Image name -> annotation, and annotation name -> annotation without an image.
    """
    start = prefix_length(folder)
    paths = walk(folder, (".xml",), findings=findings) if folder.is_dir() else []
    annotations = {normalize_name(str(path)[start:-4]): path for path, _ in paths}
    matched = {name: path for name, path in annotations.items() if name in images}
    unmatched = {name: path for name, path in annotations.items() if name not in matched}
    count_of = Counter(name.rpartition("/")[2] for name in (*images, *unmatched))
    # A count of 2 is one image and one annotation.
    unique = {stem: name for name in unmatched if count_of[(stem := name.rpartition("/")[2])] == 2}
    for image in images:
        name = unique.get(image.rpartition("/")[2])
        if name is not None and image not in matched:
            matched[image] = unmatched.pop(name)
    return matched, unmatched


def _choose_year(years: Sequence[Path], year: str, setting_text: str) -> Path:
    """Returns the folder of a year, given as `2007` or `VOC2007`; without a year, the only folder.

    Raises:
        DataError: there is no such folder, or no year is given and there are several folders.
    """
    if not year:
        if len(years) == 1:
            return years[0]
        names, (setting, _, part) = [path.name for path in years], setting_text.partition("=")
        hint = "" if part == "null" else f"Say which, e.g. {setting}={names[0]}/{part}, or n"
        raise DataError(
            f"{setting_text}: several folders are there: {', '.join(names)}. {hint or 'N'}ame one with "
            "dataset.root=FOLDER."
        )
    for path in years:
        if path.name in (year, f"VOC{year}"):
            return path
    names = [path.name for path in years]
    hint = did_you_mean(year, names)
    raise DataError(f"{setting_text}: there is no folder '{year}'.{hint} There are: {', '.join(names)}.")
