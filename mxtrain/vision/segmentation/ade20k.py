"""ADE20K in the layout of the scene parsing benchmark: 150 classes, and unlabelled pixels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, List, Optional

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import exists, read_text
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.types import PathText
from mxtrain.vision.segmentation.mask_pairs import list_images, list_masks, pair
from mxtrain.vision.segmentation.masked_files import MaskedFiles
from mxtrain.vision.segmentation.masked_images import MaskCoding

_CLASSES = 150
_FOLDER = "ADEChallengeData2016"
_LAYOUT = f"It must be {_FOLDER} or hold it, with images/training/, annotations/training/ and the same of validation."


class Ade20k(PublicDataset, MaskedFiles):
    """`images/training/NAME.jpg` with `annotations/training/NAME.png`, and the same of `validation`.

    The value 0 is ignored, 1 to 150 are classes. `objectInfo150.txt` names them.
    """

    option: ClassVar[str] = "dataset=ade20k"
    published_as: ClassVar[str] = "ade20k"

    root: PathText = "data/ade20k"

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        folder = next(
            (name for name in ("", "ADEChallengeData2016") if files.has(os.path.join(name, "images/training"))), None
        )
        if folder is None or not files.has(os.path.join(folder, "annotations/training")):
            return None
        return Recognised("ADE20K's scene parsing", {"root": files.typed()}, "segmentation", Certainty.SURE)

    def examine(self, findings: Findings) -> Splits:
        """Finds, checks and splits the data; `findings` collects the problems."""
        self.fetch()
        root = self.require_root(_LAYOUT)
        root = root / _FOLDER if (root / _FOLDER).is_dir() else root
        if not (root / "images").is_dir() or not (root / "annotations").is_dir():
            raise DataError(f"{self.option}: '{root}' holds no images/ and annotations/. {_LAYOUT}")
        train, val = (
            pair(
                list_images(root / "images" / part, findings=findings),
                list_masks(root / "annotations" / part, findings=findings),
                root / "annotations" / part,
                findings=findings,
            )
            for part in ("training", "validation")
        )
        names = read_object_names(root / "objectInfo150.txt")
        coding = MaskCoding(range(1, _CLASSES + 1), [0])
        return self.make_splits(train, val, None, names, coding, findings=findings)


def read_object_names(path: Path) -> List[str]:
    """Returns the names of the 150 classes; their numbers if the file does not exist.

    Raises:
        DataError: the file has another form.
    """
    if not exists(path):
        return [str(number) for number in range(1, _CLASSES + 1)]
    rows = [line.split("\t") for line in split_lines(read_text(path)) if line.strip()]
    named = {row[0].strip(): row[-1].strip() for row in rows if row[0].strip().isdigit()}
    if sorted(map(int, named)) != list(range(1, _CLASSES + 1)) or not all(named.values()):
        raise DataError(
            f"'{path}' must hold one line for each class from 1 to {_CLASSES}, in columns with tabs between them: the "
            f"number first and the name last. {len(named)} such lines are there. Put back the published file, or "
            "remove it: classes are numbered then."
        )
    full = [named[str(number)] for number in range(1, _CLASSES + 1)]
    short = [name.split(",")[0].split(";")[0].strip() for name in full]
    # Most names are lists of synonyms; the first is enough unless two classes share it.
    return [name if short.count(name) == 1 else full_name for name, full_name in zip(short, full)]
