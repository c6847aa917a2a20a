"""Shared parts of datasets whose images are files of any size, with an annotation for each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol, Sequence, Tuple

import numpy as np
from typing_extensions import Self

from mxtrain.data.loading.regular_files import exists, nearest_there
from mxtrain.errors import DataError
from mxtrain.types import PathText, Shape
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.decoding import EncodedImages, choose_statistics, known_statistics, spread
from mxtrain.vision.images.settings import WindowSetting
from mxtrain.vision.images.typical_size import typical_side


class Pictures(Protocol):
    """A source that gives images as they are."""

    def read(self, index: int) -> bytes:
        """The content of a file."""

    def picture(self, index: int) -> np.ndarray:
        """An image as large as it is, (C, H, W)."""


class PictureFiles(Dataset):
    """Base of datasets of files: images of any size, and something else for each."""

    option: ClassVar[str] = ""
    """Setting that chooses it, for messages."""
    largest_side: ClassVar[int] = 512
    """Pixels of `image_size=auto` at most."""

    root: PathText = "data"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    window: WindowSetting = "auto"
    """Range of grey values: [centre, width]; full = all values of the bit depth; auto = the window in a DICOM file,
    otherwise full."""

    def cut_shape(self) -> Shape:
        """(C, H, W) of what is trained on; as large as `image_size=auto` can be as long as no image has been seen."""
        side = self.largest_side
        height, width = (side, side) if self.image_size == "auto" else self.image_size
        return (3 if self.channels == "auto" else self.channels, height, width)

    def sized_for(self: Self, encoded: EncodedImages) -> Self:
        """This dataset with an `image_size` for its training images, where the description says auto.

        Args:
            encoded: the training images.
        """
        if self.image_size != "auto":
            return self
        side = typical_side(encoded, self.largest_side, max)
        return self.model_copy(update={"image_size": [side, side]})

    def require_root(self, layout: str) -> Path:
        """The folder.

        Args:
            layout: what it holds, in a sentence.

        Raises:
            DataError: there is none.
        """
        root = Path(self.root)
        if not exists(root) or not root.is_dir():
            raise DataError(
                f"{self.option}: there is no folder '{root}'.{nearest_there(root)} {layout} Name yours with "
                "dataset.root=FOLDER."
            )
        return root

    def measure_statistics(self, source: Pictures, in_train: np.ndarray) -> Tuple[Sequence[float], Sequence[float]]:
        """Mean and standard deviation as the description says: known ones, or measured on images as large as they
        are, since what they are filled up with is not known yet.

        Args:
            source: of the training images.
            in_train: those that are not held out.
        """
        decoding = self.decoding()  # type: ignore[attr-defined]
        pictures = (source.picture(int(index)) for index in spread(in_train))
        return choose_statistics(self.mean, self.std, decoding, lambda: source.read(0), pictures)

    def known_mean(self) -> Sequence[float]:
        """Fill colour of images while their mean is unknown."""
        return known_statistics(self.cut_shape()[0])[0]
