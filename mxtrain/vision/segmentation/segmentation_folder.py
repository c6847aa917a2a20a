"""Images in one folder, and masks of the same names in another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.data.base import Splits
from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.loading.regular_files import exists, files_in, read_text
from mxtrain.data.loading.split_folders import find_splits
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_integer
from mxtrain.types import Names, PathText
from mxtrain.vision.segmentation.mask_file import LARGEST_VALUE
from mxtrain.vision.segmentation.mask_pairs import MaskPairs, list_images, list_masks, pair, same_stem, suffix_remover
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

MaskValue = Annotated[int, pydantic.Field(ge=0, le=LARGEST_VALUE)]
IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label", "annotations")
"""Names of the folders of images and of masks, in lower case."""
MASK_ENDING = "_mask.png"
ROBOFLOW_CLASSES = "_classes.csv"
"""Files as Roboflow writes them: masks beside their images, and a table of pixel values and classes."""
_LAYOUT = (
    "It must hold images/ and masks/ with files of the same names, e.g. images/a.jpg and masks/a.png; with splits of "
    "your own train/images/, train/masks/, val/images/ ... or images/train/, masks/train/, images/val/ "
    "...; or each mask beside its image, as a_mask.png beside a.jpg."
)


class SegmentationFolder(MaskedFiles):
    """`root/images/NAME.jpg` with `root/masks/NAME.png`, or the same in `root/train/` and `root/val/`.

    Or each mask beside its image, as `a_mask.png` beside `a.jpg`, with classes in `_classes.csv` (Roboflow).

    Images may lie in folders below if their masks do. A validation split that is missing is held out of the training
    images by `val_fraction`, seeded.
    """

    option: ClassVar[str] = "dataset=segmentation_folder"

    root: PathText = "data/segmentation_folder"
    classes: Names = []
    """Names in the order of their values; empty = the lines of `root/classes.txt`."""
    mask_values: Union[Literal["auto"], List[MaskValue]] = "auto"
    """The value of each class in a mask, e.g. [0,128]; auto = 0, 1, 2 and so on."""
    ignored: List[MaskValue] = [255]
    """Pixel values that neither the loss nor metrics use."""

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

    def open(self) -> Splits:
        """See `Dataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        root = self.require_root(_LAYOUT)
        mixed = _find_mixed(root)
        folders_of = {} if mixed else _find_folders(root)
        listed = mixed.get("train", root) / ROBOFLOW_CLASSES
        names = self.classes or (read_roboflow_names(listed) if exists(listed) else [])
        names = names or read_class_names(root / "classes.txt")
        coding = self._coding(names)
        pairs = {split: _pair_mixed(folder, findings) for split, folder in mixed.items()}
        pairs.update({split: _pair(*folders, findings) for split, folders in folders_of.items()})
        val, test = pairs.get("val"), pairs.get("test")
        return self.make_splits(pairs["train"], val, test, names, coding, findings=findings)

    def remedy_if_ignored(self, coding: MaskCoding) -> str:
        """See `MaskedFiles.remedy_if_ignored`."""
        if len(coding.values) == 2 and len(coding.ignored) == 1:
            values = f"[{coding.values[0]},{coding.ignored[0]}]"
            return f"If {coding.ignored[0]} is the second class, type dataset.mask_values={values} dataset.ignored=[]."
        return "Give the value of each class, and the ignored values: dataset.mask_values=[...] dataset.ignored=[]."

    def _coding(self, names: List[str]) -> MaskCoding:
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
    """Reads the names of classes, one a line.

    Raises:
        DataError: there is no such file, it names fewer than two, or one twice.
    """
    if not exists(path):
        raise DataError(
            f"dataset=segmentation_folder: how are the classes called? Write a file '{path}' with one name a line in "
            "the order of their values, or type e.g. 'dataset.classes=[background,cat]'."
        )
    names = [line.strip() for line in split_lines(read_text(path)) if line.strip()]
    if len(names) < 2:
        raise DataError(f"'{path}' must name at least two classes, one a line, the background too; it names {names}.")
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise DataError(f"'{path}' names the class '{twice[0]}' twice. Give each line its own name.")
    return names


def read_roboflow_names(path: Path) -> List[str]:
    """Returns the names of classes in a table of pixel values and names, as Roboflow writes it.

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
    """Removes the quotes around a cell of a table, as around a name with a comma."""
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if is_quoted else cell


def _find_mixed(root: Path) -> Dict[str, Path]:
    """Returns the folders of splits, or the root alone, where masks lie beside their images, as Roboflow writes
    them."""
    folders = find_splits(root, SegmentationFolder.option) or {"train": root}
    return folders if any(name.endswith(MASK_ENDING) for name in files_in(folders["train"])) else {}


def _pair_mixed(folder: Path, findings: Findings) -> MaskPairs:
    def known_by(name: str) -> Optional[str]:
        return None if name.endswith(MASK_ENDING) else same_stem(name)

    images = list_images(folder, known_by, findings=findings)
    masks = list_masks(folder, suffix_remover(MASK_ENDING), f"NAME{MASK_ENDING}", findings)
    return pair(images, masks, folder, MASK_ENDING, findings)


def _find_folders(root: Path) -> Dict[str, Tuple[Path, Path]]:
    """Returns the folders of images and masks of each split; only "train" where there are no splits.

    Raises:
        DataError: a folder is missing, or two mean the same.
    """
    option = SegmentationFolder.option
    splits = find_splits(root, option)
    pairs = {split: (_kind_in(folder, IMAGES), _kind_in(folder, MASKS)) for split, folder in splits.items()}
    folders_of = {split: pair for split, pair in pairs.items() if any(os.path.lexists(folder) for folder in pair)}
    if "train" in folders_of:
        return folders_of
    images, masks = _kind_in(root, IMAGES), _kind_in(root, MASKS)
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(f"{option}: there is no folder '{folder}'. '{root}' is read. {_LAYOUT}")
    of_images, of_masks = find_splits(images, option), find_splits(masks, option)
    if not of_images and not of_masks:
        return {"train": (images, masks)}
    return {
        split: (of_images.get(split, images / split), of_masks.get(split, masks / split))
        for split in ("train", "val", "test") if split in of_images or split in of_masks
    }  # fmt: skip


def _kind_in(folder: Path, names: Sequence[str]) -> Path:
    """Returns the folder of images, or that of masks, in a folder: the first of the names where there is none.

    Raises:
        DataError: there are two.
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
    listed = list_images(images, findings=findings), list_masks(masks, findings=findings)
    return pair(*listed, masks, findings=findings)
