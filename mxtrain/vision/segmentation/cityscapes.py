"""Cityscapes: street scenes with 34 labels, 19 of which are classes of the benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Optional

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import read_bytes, walk
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.types import PathText
from mxtrain.vision.segmentation.mask_file import read_mask, values_in
from mxtrain.vision.segmentation.mask_pairs import MaskPairs, list_images, list_masks, pair, suffix_remover
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

LABELS = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
"""Value in *_labelIds.png -> class. Source: the benchmark, cityscapesscripts/helpers/labels.py."""
IGNORED = sorted(set(range(34)) - set(LABELS))
"""Ignored values. Other values, such as 255 in *_labelTrainIds.png, are errors."""
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_labelIds.png"
_LAYOUT = (
    "It must hold leftImg8bit/{train,val}/CITY/*_leftImg8bit.png and gtFine/{train,val}/CITY/*_gtFine_labelIds.png."
)


class Cityscapes(MaskedFiles):
    """`leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png` with `gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png`.

    There is no test split if it has no masks, or the published masks, which are blank.
    """

    option: ClassVar[str] = "dataset=cityscapes"

    root: PathText = "data/cityscapes"

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        if not files.find("_gtfine_labelids.png") or not files.has("leftImg8bit"):
            return None
        return Recognised("Cityscapes", {"root": files.typed()}, "segmentation", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        root = self.require_root(_LAYOUT)
        missing = next((name for name in ("leftImg8bit", "gtFine") if not (root / name).is_dir()), None)
        if missing:
            raise DataError(
                f"{self.option}: '{root}' holds no {missing}/. {_LAYOUT} Name yours with dataset.root=FOLDER."
            )
        train, val = (_pair(root, split, findings) for split in ("train", "val"))
        coding = MaskCoding(list(LABELS), IGNORED)
        test = _pair_test(root, findings)
        return self.make_splits(train, val, test, list(LABELS.values()), coding, findings=findings)


def _pair(root: Path, split: str, findings: Findings) -> MaskPairs:
    """Returns the images and masks of a split."""
    images = list_images(root / "leftImg8bit" / split, suffix_remover(_IMAGE), f"*{_IMAGE}", findings)
    folder = root / "gtFine" / split
    return pair(images, list_masks(folder, suffix_remover(_MASK), f"*{_MASK}", findings), folder, _MASK, findings)


def _pair_test(root: Path, findings: Findings) -> Optional[MaskPairs]:
    """Returns the test split; None if it has no masks, or if its first mask is blank."""
    if not (root / "leftImg8bit" / "test").is_dir() or not (root / "gtFine" / "test").is_dir():
        return None
    if not walk(root / "gtFine" / "test", (_MASK.lower(),)):
        return None
    pairs = _pair(root, "test", findings)
    try:
        values = values_in(read_mask(read_bytes(pairs.masks[0])))
    except Exception:  # `read_first_mask` reports the error
        return pairs
    return pairs if set(LABELS) & set(values.tolist()) else None
