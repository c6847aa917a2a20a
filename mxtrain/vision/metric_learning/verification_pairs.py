"""Dataset of pairs of images to verify: insightface's `.bin` files, or a table of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Optional, Union

import numpy as np

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import require_exists
from mxtrain.data.loading.sources import Subset
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError
from mxtrain.types import PathText
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.images.decoded import DecodedDataset
from mxtrain.vision.images.decoding import DecodedSource, known_statistics
from mxtrain.vision.images.settings import FileAugment
from mxtrain.vision.images.signature import ImageSplits
from mxtrain.vision.images.transforms.base import AreaShare
from mxtrain.vision.kinds import Identity
from mxtrain.vision.metric_learning.pair_files import PairImages, read_bin, read_table

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.model.spec import Model
    from mxtrain.vision.images.files import ImageFiles

BIN = ".bin"


def open_pairs(path: str, root: str, findings: Findings) -> Union[PairImages, ImageFiles]:
    """Opens a verification set: `.bin` of insightface, otherwise a table of pairs.

    Raises:
        DataError: it cannot be read, or is no verification set.
    """
    require_exists(path)
    return read_bin(path) if Path(path).suffix.lower() == BIN else read_table(path, root, findings)


class VerificationPairs(DecodedDataset):
    """Pairs of images, for `eval` of networks that were trained on other data.

    `path` is a `.bin` file of insightface (lfw.bin, cfp_fp.bin, agedb_30.bin), or a CSV, TSV, JSONL or Parquet table
    with the columns first, second (image files) and same (0 or 1).
    """

    gives: ClassVar[Gives] = Gives(Images, Identity)
    folds_by: ClassVar[Literal["", "samples", "columns"]] = ""

    path: PathText = "data/lfw.bin"
    """The file of pairs; by default in the folder that MXTRAIN_DATA names, else in data/."""
    root: PathText = ""
    """Folder of relative paths in a table; empty: the folder of the table."""
    augment: FileAugment = FileAugment()
    central_crop: AreaShare = 1.0
    """Share of the shorter side that is kept; faces are aligned, so all of it."""

    def examine(self, findings: Findings) -> Splits:
        """Finds and checks the pairs, which are the validation split; nothing is trained on."""
        source = DecodedSource(open_pairs(self.path, self.root, findings), self.decoding())
        mean, std = known_statistics(self.decoded_shape()[0])
        return ImageSplits(
            train=Subset(source, np.arange(0)),
            val=source,
            test=None,
            class_names=(),
            shape=self.decoded_shape(),
            mean=mean,
            std=std,
            decoding=self.decoding(),
        )

    def infer_signature(self, splits: Splits, model: Optional[Model]) -> Signature:
        """Refuses training.

        Raises:
            ConfigError: always: pairs have no identities to learn.
        """
        raise ConfigError(
            "dataset=verification_pairs: pairs have no identities to learn from. Train on dataset=face_record or "
            f"dataset=image_folder, and type `eval RUN dataset=verification_pairs dataset.path={self.path}`."
        )
