"""Base class of datasets of image files of any size, each with an annotation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Sequence, Tuple

import numpy as np
from typing_extensions import Self

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import exists, suggest_existing
from mxtrain.errors import DataError
from mxtrain.types import PathText, Shape
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.decoding import EncodedImages, choose_statistics, evenly_spaced, known_statistics
from mxtrain.vision.images.settings import WindowSetting, as_window
from mxtrain.vision.images.typical_size import fitted_to

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import ImageContent


class RawImageSource(Protocol):
    """A source of images in their original size."""

    def read(self, index: int) -> ImageContent:
        """Returns the content of an image file."""

    def image(self, index: int) -> np.ndarray:
        """Returns an image in its original size, (C, H, W)."""


class AnnotatedImages(Dataset):
    """Base class of datasets of image files of any size, each with an annotation (boxes, a mask, ...)."""

    reads_bands: ClassVar[bool] = True
    option: ClassVar[str] = ""
    """Setting that chooses the dataset, for messages."""
    largest_side: ClassVar[int] = 512
    """Largest side in pixels that `image_size=auto` chooses."""

    root: PathText = "data"
    """Folder of the files; by default in the folder that MXTRAIN_DATA names, else in data/."""
    window: WindowSetting = "auto"
    """Range of grey values: [centre, width], or the name of a window of CT: abdomen, bone, brain, liver, lung,
    mediastinum; percentile = from the 0.5th to the 99.5th percentile of each file; full = all values of the bit depth;
    auto = the window in a DICOM file, otherwise full."""

    def cut_shape(self) -> Shape:
        """Returns the (C, H, W) of the network's input. While `image_size` is auto, H and W are `largest_side`."""
        side = self.largest_side
        height, width = (side, side) if self.image_size == "auto" else self.image_size
        return (3 if self.channels == "auto" else self.channels, height, width)

    def fitted_to(self: Self, encoded: EncodedImages, findings: Findings) -> Self:
        """Returns this dataset with `image_size=auto` and `channels=auto` replaced by values that fit its training
        images; see `typical_size.fitted_to`.

        Args:
            encoded: the training images.
            findings: collects problems.
        """
        return fitted_to(self, encoded, as_window(self.window), self.largest_side, max, findings)

    def require_root(self, layout: str) -> Path:
        """Returns the dataset's folder.

        Args:
            layout: sentence that describes the expected content.

        Raises:
            DataError: the folder does not exist.
        """
        root = Path(self.root)
        if not exists(root) or not root.is_dir():
            raise DataError(
                f"{self.option}: there is no folder '{root}'.{suggest_existing(root)} {layout} Name yours with "
                "dataset.root=FOLDER."
            )
        return root

    def measure_statistics(
        self, source: RawImageSource, in_train: np.ndarray
    ) -> Tuple[Sequence[float], Sequence[float]]:
        """Returns the mean and standard deviation of the settings; for auto, see `choose_statistics`.

        They are measured on images in their original size: resized ones may be padded with the mean, which is not known
        yet.

        Args:
            source: source of the training images.
            in_train: indices of the training images that are not held out.
        """
        decoding = self.decoding()  # type: ignore[attr-defined]
        images = (source.image(int(index)) for index in evenly_spaced(in_train))
        return choose_statistics(self.mean, self.std, decoding, lambda: source.read(0), images)

    def known_mean(self) -> Sequence[float]:
        """Returns the fill colour of images while their mean is unknown."""
        return known_statistics(self.cut_shape()[0])[0]
