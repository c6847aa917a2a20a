"""Segmentation dataset of images in a folder, and masks with the same names in another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import exists, files_in, list_first, read_text, suggest_existing
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.data.recognition import VOLUMES, Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_integer
from mxtrain.types import Names, PathText
from mxtrain.vision.detection.boxed_classes import first_twice
from mxtrain.vision.images.volume_settings import VolumeSettings, volume_settings
from mxtrain.vision.segmentation.mask_colors import TABLES, MaskColors, find_table, read_table
from mxtrain.vision.segmentation.mask_file import MAX_VALUE
from mxtrain.vision.segmentation.mask_pairs import (
    MASK_EXTENSIONS,
    MaskPairs,
    list_images,
    list_masks,
    pair,
    stem_key,
    suffix_remover,
)
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

MaskValue = Annotated[int, pydantic.Field(ge=0, le=MAX_VALUE)]
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "imagestr")
MASK_FOLDERS = ("masks", "mask", "labels", "label", "annotations", "labelstr")
"""Accepted names of the folders of images and of masks, in lower case."""
_IGNORED_VALUE = 255
"""Value of the pixels of colours whose class is not learned."""
MASK_ENDING = "_mask.png"
ROBOFLOW_CLASSES = "_classes.csv"
"""File names of Roboflow: masks beside their images, and a table of pixel values and class names."""
_LAYOUT = (
    "It must hold images/ and masks/ with files of the same names, e.g. images/a.jpg and masks/a.png; with splits of "
    "your own train/images/, train/masks/, val/images/ ... or images/train/, masks/train/, images/val/ "
    "...; or each mask beside its image, as a_mask.png beside a.jpg."
)


class SegmentationFolder(VolumeSettings, MaskedFiles):
    """`root/images/NAME.jpg` with `root/masks/NAME.png`, or the same in `root/train/` and `root/val/`.

    Or each mask beside its image, as `a_mask.png` beside `a.jpg`, with classes in `_classes.csv` (Roboflow).

    Volumes have label volumes as masks, e.g. `images/a.nii.gz` and `masks/a.nii.gz`; each slice is a sample, see
    `VolumeSettings`. Images may lie in folders below if their masks do. A validation split that is missing is held out
    of the training images by `val_fraction`, seeded.
    """

    option: ClassVar[str] = "dataset=segmentation_folder"

    root: PathText = "data/segmentation_folder"
    classes: Names = []
    """Names in the order of their values; empty = the lines of `root/classes.txt`. With a table of colours: the classes
    to train on; pixels of its other colours are ignored."""
    colors: Optional[str] = "auto"
    """Table of the colours of classes in `root`, for masks with colours: CSV of name, red, green and blue, CVAT's
    labelmap.txt, or JSON; auto = labelmap.txt, class_dict.csv, colors.csv, .txt or .json, if there is one; null = masks
    have numbers."""
    mask_values: Union[Literal["auto"], List[MaskValue]] = "auto"
    """The value of each class in a mask, e.g. [0,128]; auto = 0, 1, 2 and so on."""
    ignored: List[MaskValue] = [255]
    """Pixel values that neither the loss nor metrics use."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        root = {"root": files.typed(), **volume_settings(files.find(*VOLUMES))}
        if files.find(MASK_ENDING) and files.named(ROBOFLOW_CLASSES):
            return Recognised("images with masks beside them (Roboflow)", root, "segmentation", Certainty.SURE)
        folders = {name.rpartition("/")[2].lower() for name in files.folders}
        masks = [name for name in files.find(*MASK_EXTENSIONS) if set(name.lower().split("/")) & set(MASK_FOLDERS)]
        if not masks or not folders & set(IMAGE_FOLDERS) or files.endings[".xml"] or _other_json(files):
            return None
        asks = () if any(map(files.has, ("classes.txt", *TABLES))) else ("dataset.classes=[NAME,...]",)
        return Recognised("images and masks in folders", root, "segmentation", asks=asks, counts={"masks": len(masks)})

    @pydantic.model_validator(mode="after")
    def _check_values(self) -> SegmentationFolder:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes={self.classes} names one twice")
        if self.mask_values != "auto":
            if len(set(self.mask_values)) < len(self.mask_values):
                raise ValueError(f"mask_values={self.mask_values} names one twice: each class has a value of its own")
            if self.classes and len(self.mask_values) != len(self.classes):
                raise ValueError(
                    f"mask_values has {len(self.mask_values)} values, and classes {len(self.classes)} names: give one "
                    "for each"
                )
        return self

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = self.require_root(_LAYOUT)
        mixed = _find_mixed(root)
        folders_of = {} if mixed else _find_folders(root)
        listed = mixed.get("train", root) / ROBOFLOW_CLASSES
        table = find_table(root) if self.colors == "auto" else root / self.colors if self.colors else None
        if table is not None:
            names, coding = self._color_coding(table)
        else:
            names = self.classes or (read_roboflow_names(listed) if exists(listed) else [])
            names = names or read_class_names(root / "classes.txt")
            coding = self._coding(names)
        pairs = {split: _pair_mixed(folder, findings) for split, folder in mixed.items()}
        pairs.update({split: _pair(*folders, findings) for split, folders in folders_of.items()})
        val, test = pairs.get("val"), pairs.get("test")
        return self.make_splits(pairs["train"], val, test, names, coding, findings=findings)

    def remedy_if_ignored(self, coding: MaskCoding) -> str:
        """Names the settings to type if a class has the ignored value in all masks."""
        if len(coding.values) == 2 and len(coding.ignored) == 1:
            values = f"[{coding.values[0]},{coding.ignored[0]}]"
            return f"If {coding.ignored[0]} is the second class, type dataset.mask_values={values} dataset.ignored=[]."
        return "Give the value of each class, and the ignored values: dataset.mask_values=[...] dataset.ignored=[]."

    def _color_coding(self, table: Path) -> Tuple[List[str], MaskCoding]:
        """Returns the classes, and the meaning of the colours of masks.

        Raises:
            DataError: the table is wrong, or lacks a class that is configured.
        """
        if not exists(table):
            raise DataError(f"dataset.colors={self.colors}: there is no file '{table}'.{suggest_existing(table)}")
        color_of = read_table(table)
        names = list(self.classes) or list(color_of)
        for name in names:
            if name not in color_of:
                raise DataError(
                    f"dataset.classes: '{table}' has no class '{name}'.{did_you_mean(name, color_of)} It has: "
                    f"{list_first(list(color_of))}."
                )
        if self.mask_values != "auto":
            raise DataError(f"dataset.mask_values: masks have the colours of '{table}'. Leave it out.")
        if len(names) > _IGNORED_VALUE:
            raise DataError(f"'{table}' has {len(names)} classes, and at most {_IGNORED_VALUE} are read.")
        value_of = {color: names.index(name) if name in names else _IGNORED_VALUE for name, color in color_of.items()}
        return names, MaskCoding(range(len(names)), (_IGNORED_VALUE,), colors=MaskColors(value_of))

    def _coding(self, names: List[str]) -> MaskCoding:
        """Returns the meaning of the values of masks.

        Raises:
            DataError: the settings contradict each other, or do not fit the number of classes.
        """
        values = list(range(len(names))) if self.mask_values == "auto" else self.mask_values
        if len(values) != len(names):
            raise DataError(
                f"{self.option}: dataset.mask_values names {len(values)} values, and there are {len(names)} classes: "
                f"{', '.join(names[:20])}. Give one for each."
            )
        conflicts = sorted(set(values) & set(self.ignored))
        if conflicts:
            raise DataError(
                f"{self.option}: the value {conflicts[0]} is that of the class '{names[values.index(conflicts[0])]}', "
                f"and dataset.ignored={self.ignored} ignores it. Change dataset.ignored or "
                "dataset.mask_values."
            )
        return MaskCoding(values, self.ignored)


def read_class_names(path: Path) -> List[str]:
    """Reads class names from a file with one name per line.

    Raises:
        DataError: the file does not exist, or has fewer than two names, or a name twice.
    """
    if not exists(path):
        raise DataError(
            f"dataset=segmentation_folder: how are the classes called? Write a file '{path}' with one name a line in "
            "the order of their values, or type e.g. 'dataset.classes=[background,cat]'."
        )
    names = [line.strip() for line in split_lines(read_text(path)) if line.strip()]
    if len(names) < 2:
        raise DataError(f"'{path}' must name at least two classes, one a line, the background too; it names {names}.")
    duplicate = first_twice(names)
    if duplicate is not None:
        raise DataError(f"'{path}' names the class '{duplicate}' twice. Give each line its own name.")
    return names


def read_roboflow_names(path: Path) -> List[str]:
    """Reads class names from a table of pixel values and names, as Roboflow writes it.

    Raises:
        DataError: the values are not 0, 1, 2 and so on.
    """
    rows = [line.partition(",")[::2] for line in split_lines(read_text(path))[1:] if line.strip()]
    names = {parse_integer(value.strip()): _unquoted(name.strip()) for value, name in rows}
    if len(rows) < 2 or sorted(names, key=str) != sorted(range(len(rows)), key=str):
        raise DataError(
            f"'{path}' must give the values 0, 1, 2 and so on to at least two classes, a line each, below a header. "
            "Correct it, or type dataset.classes=[...] dataset.mask_values=[...]."
        )
    return [names[value] for value in range(len(rows))]


def _unquoted(cell: str) -> str:
    """Removes the quotes of a CSV cell, such as a name with a comma."""
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if is_quoted else cell


def _find_mixed(root: Path) -> Dict[str, Path]:
    """Returns split -> folder with masks beside their images, as Roboflow writes them. Without splits, the root is the
    training split. Empty if masks are in folders of their own."""
    folders = find_splits(root, SegmentationFolder.option) or {"train": root}
    return folders if any(name.endswith(MASK_ENDING) for name in files_in(folders["train"])) else {}


def _pair_mixed(folder: Path, findings: Findings) -> MaskPairs:
    """Returns the images and masks of a folder with both."""

    def key_of(name: str) -> Optional[str]:
        return None if name.endswith(MASK_ENDING) else stem_key(name)

    images = list_images(folder, key_of, findings=findings)
    masks = list_masks(folder, suffix_remover(MASK_ENDING), f"NAME{MASK_ENDING}", findings)
    return pair(images, masks, folder, MASK_ENDING, findings)


def _find_folders(root: Path) -> Dict[str, Tuple[Path, Path]]:
    """Returns split -> folders of images and of masks. Without splits, there is only "train".

    Raises:
        DataError: a folder is missing, or two folders have the same meaning.
    """
    option = SegmentationFolder.option
    splits = find_splits(root, option)
    pairs = {
        split: (_find_folder(folder, IMAGE_FOLDERS), _find_folder(folder, MASK_FOLDERS))
        for split, folder in splits.items()
    }
    folders_of = {split: pair for split, pair in pairs.items() if any(os.path.lexists(folder) for folder in pair)}
    if "train" in folders_of:
        return folders_of
    images, masks = _find_folder(root, IMAGE_FOLDERS), _find_folder(root, MASK_FOLDERS)
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(f"{option}: there is no folder '{folder}'. '{root}' is read. {_LAYOUT}")
    image_splits, mask_splits = find_splits(images, option), find_splits(masks, option)
    if not image_splits and not mask_splits:
        return {"train": (images, masks)}
    return {
        split: (image_splits.get(split, images / split), mask_splits.get(split, masks / split))
        for split in ("train", "val", "test")
        if split in image_splits or split in mask_splits
    }


def _find_folder(folder: Path, names: Sequence[str]) -> Path:
    """Returns the folder inside a folder that has one of some names, in any case. If there is none, returns the path
    for the first name.

    Raises:
        DataError: several folders have one of the names.
    """
    entries = os.listdir(folder) if folder.is_dir() else []
    matches = sorted(name for name in entries if name.lower() in names)
    if len(matches) > 1:
        raise DataError(
            f"{SegmentationFolder.option}: '{folder}' holds {' and '.join(f'{name}/' for name in matches)}. Only one "
            f"of them can be read as {names[0]}/: move the others elsewhere."
        )
    return folder / (matches[0] if matches else names[0])


def _pair(images: Path, masks: Path, findings: Findings) -> MaskPairs:
    """Returns the images and masks of two folders."""
    listed = list_images(images, findings=findings), list_masks(masks, findings=findings)
    return pair(*listed, masks, findings=findings)


def _other_json(files: FileTree) -> bool:
    """Returns True if there are JSON files other than a table of colours, such as annotations."""
    return any(name not in TABLES for name in files.find(".json"))
