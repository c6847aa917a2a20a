"""Segmentation dataset in PASCAL VOC's layout."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Optional

from mxtrain.data.checking.problems import STRICT, DataLocation, Findings
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.detection.voc_layout import OUTLINE_VALUE, find_years, read_names
from mxtrain.vision.images.class_lists import VOC_CLASSES
from mxtrain.vision.segmentation.mask_pairs import (
    Files,
    MaskPairs,
    list_images,
    list_masks,
    refuse_unpaired,
    select_pairs,
)
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

VOC_NAMES = ("background", *VOC_CLASSES)
_LAYOUT = (
    "It must be VOCdevkit, VOCdevkit/VOC2012 or another folder that holds JPEGImages/, SegmentationClass/ and "
    "ImageSets/Segmentation/."
)


class VocSegmentation(PublicDataset, MaskedFiles):
    """`JPEGImages/NAME.jpg` with `SegmentationClass/NAME.png`, and `ImageSets/Segmentation/SPLIT.txt` with a name a
    line."""

    option: ClassVar[str] = "dataset=voc_segmentation"
    published_as: ClassVar[str] = "voc2012"

    root: PathText = "data/voc_segmentation"
    train_split: str = "train"
    """List in ImageSets/Segmentation of the training images, e.g. train or train_aug."""
    val_split: Optional[str] = "val"
    """List of the validation images; None = `val_fraction` of the training images."""
    test_split: Optional[str] = None
    """List of the images of a test split with masks; None = no test split."""
    mask_folder: str = "SegmentationClass"
    """Folder of the masks; the 10,582 of train_aug are usually in SegmentationClassAug."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        folders = [name for name in files.folders if name.rpartition("/")[2] == "SegmentationClass"]
        if not folders or not files.find(".txt"):
            return None
        root = files.typed(min(folders, key=len).rpartition("/")[0])
        lists = {name.rpartition("/")[2][:-4] for name in files.find(".txt") if "ImageSets/Segmentation/" in name}
        chosen = {} if "val" in lists else {"val_split": "null"}
        chosen.update({"train_split": min(lists)} if lists and "train" not in lists else {})
        return Recognised("PASCAL VOC's masks of classes", {"root": root, **chosen}, "segmentation", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        root = _find_devkit(self.require_root(_LAYOUT))
        images = list_images(root / "JPEGImages", findings=findings)
        masks = list_masks(root / self.mask_folder, findings=findings)
        lists = root / "ImageSets" / "Segmentation"

        def read(name: Optional[str], split: str) -> Optional[MaskPairs]:
            return read_split(lists, name, split, images, masks, findings) if name else None

        return self.make_splits(
            read_split(lists, self.train_split, "train", images, masks, findings),
            read(self.val_split, "val"),
            read(self.test_split, "test"),
            list(VOC_NAMES),
            MaskCoding(range(len(VOC_NAMES)), [OUTLINE_VALUE]),
            "Type dataset.train_split=train, or dataset.val_split=null to hold out dataset.val_fraction of the "
            "training images.",
            findings,
        )


def _find_devkit(root: Path) -> Path:
    """Returns the folder with JPEGImages: the root itself, the only folder in it, or the one of 2012.

    Raises:
        DataError: there is no such folder, or several of other years.
    """
    years = find_years(root)
    chosen_years = years if len(years) == 1 else [path for path in years if path.name == "VOC2012"]
    if chosen_years:
        return chosen_years[0]
    several = f" Several are there: {', '.join(path.name for path in years)}." if years else ""
    raise DataError(
        f"dataset=voc_segmentation: '{root}' holds no JPEGImages/. {_LAYOUT}{several} Name yours with "
        "dataset.root=FOLDER."
    )


def read_split(
    folder: Path, name: str, split: str, images: Files, masks: Files, findings: Findings = STRICT
) -> MaskPairs:
    """Returns the images and masks that the list of a split names.

    Args:
        folder: folder of the lists.
        name: name of the list without its extension.
        split: name of the split, for messages.
        images, masks: existing files by key.
        findings: collects names without an image or a mask.

    Raises:
        DataError: the list does not exist or is empty, or an image or a mask is missing.
    """
    path, setting = folder / f"{name}.txt", f"dataset.{split}_split={name}"
    line_of = read_names(folder, name, setting, findings, known={*images, *masks})
    stems = list(line_of)
    for kind, files in (("image", images), ("mask", masks)):
        missing = [stem for stem in stems if stem not in files]
        parent = folder.parents[1] / "JPEGImages" if kind == "image" else next(iter(masks.values()))[0].parent
        refuse_unpaired(
            [DataLocation(str(path), line_of[stem]) for stem in missing],
            [
                f"'{path}', line {line_of[stem]} names '{stem}', of which there is no {kind} in '{parent}'"
                for stem in missing
            ],
            f"({len(missing):,} of {len(stems):,} are missing)",
            "Add them, or remove these lines.",
            findings,
        )
    return select_pairs([stem for stem in stems if stem in images and stem in masks], images, masks)
