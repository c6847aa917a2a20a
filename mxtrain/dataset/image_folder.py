"""Images in one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.base import AreaShare, Augment, Dataset, Source, Splits
from mxtrain.dataset.decoding import DecodedSource, known_statistics
from mxtrain.dataset.files import EXTENSIONS, ImageFiles, find_images
from mxtrain.dataset.sources import Subset
from mxtrain.dataset.splitting import refuse_empty, split_indices
from mxtrain.errors import DataError
from mxtrain.types import OpenFraction, Positive, Shape

_DEFAULT_SIDE = 224


class DecodedDataset(Dataset):
    """Base of datasets whose images are decoded and resized when read."""

    batch_size: Positive = 64
    eval_batch_size: Positive = 64
    augment: Augment = Augment(flip=True, crop_scale=[0.25, 1.0])
    val_fraction: OpenFraction = 0.15
    central_crop: AreaShare = 0.875
    """Share of the shorter side that is kept where no random crop is taken."""

    def decoded_shape(self) -> Shape:
        """(C, H, W) that images are decoded to: colour and 224 x 224 where the description says auto."""
        height, width = (_DEFAULT_SIDE, _DEFAULT_SIDE) if self.image_size == "auto" else self.image_size
        return (3 if self.channels == "auto" else self.channels, height, width)

    def make_splits(
        self,
        train: Tuple[ImageFiles, np.ndarray],
        val: Optional[ImageFiles],
        test: Optional[ImageFiles],
        class_names: Sequence[str],
    ) -> Splits:
        """Sources of what was found, with validation and test samples carved out of the training part where missing.

        Args:
            train: The images, and their labels or an empty array where both other splits exist.
            val: Validation images or None.
            test: Test images or None.
            class_names: One per class.

        Returns:
            The splits.
        """
        encoded, label_N = train
        train_source = self._make_source(encoded)
        still_source = self._make_source(encoded)
        val_source = None if val is None else self._make_source(val)
        test_source = None if test is None else self._make_source(test)
        val_fraction = self.val_fraction if val is None else 0.0
        test_fraction = self.test_fraction if test is None else 0.0
        if val_fraction or test_fraction or val is None:
            in_train, in_val, in_test = split_indices(label_N, val_fraction, test_fraction, self.split_seed)
            train_source = Subset(train_source, in_train)
            val_source = Subset(still_source, in_val) if val_source is None else val_source
            if test_source is None and len(in_test):
                test_source = Subset(still_source, in_test)
        name = f"{type(self).__name__} in '{self.root}'"
        refuse_empty(name, len(train_source), len(val_source), self.val_fraction)
        mean, std = known_statistics(self.decoded_shape()[0])
        return Splits(
            train=train_source,
            val=val_source,
            test=test_source,
            class_names=class_names,
            shape=self.decoded_shape(),
            mean=mean if self.mean == "auto" else self.mean,
            std=std if self.std == "auto" else self.std,
        )

    def _make_source(self, encoded: ImageFiles) -> Source:
        return DecodedSource(
            encoded, self.decoded_shape(), crop_scale=self.augment.crop_scale, central_crop=self.central_crop
        )


class ImageFolder(DecodedDataset):
    """Image files in `root/train/CLASS/` with `root/val/` and `root/test/` beside, or all in `root/CLASS/`.

    The classes are the folder names in alphabetical order. Splits that are missing are carved out of the training
    images by `val_fraction` and `test_fraction`, seeded and stratified.
    """

    root: str = "data/image_folder"
    """The folder."""

    def open(self) -> Splits:
        """See `Dataset.open`."""
        root = Path(self.root)
        if not root.is_dir():
            raise DataError(
                f"dataset=image_folder: there is no folder '{root}'. It must hold one folder per class with images, or "
                f"train/CLASS/ with val/CLASS/ beside. Name yours with dataset.root=FOLDER."
            )
        train_root = root / "train" if (root / "train").is_dir() else root
        class_names = _list_classes(train_root)
        train = _list_split(train_root, class_names)
        val = test = None
        if train_root != root:
            val = _list_split(root / "val", class_names) if (root / "val").is_dir() else None
            test = _list_split(root / "test", class_names) if (root / "test").is_dir() else None
        return self.make_splits((train, train.label_N), val, test, class_names)


def _list_classes(folder: Path) -> List[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        held = f"only one, '{names[0]}'" if names else "none"
        raise DataError(
            f"dataset=image_folder: '{folder}' must hold one folder for each of at least two classes, but holds {held}"
            ". Sort the images into CLASS folders, or name another folder with dataset.root=FOLDER."
        )
    return names


def _list_split(folder: Path, class_names: Sequence[str]) -> ImageFiles:
    unknown = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(class_names))
    unknown = [name for name in unknown if not name.startswith(".")]
    if unknown:
        raise DataError(
            f"'{folder}' holds the class '{unknown[0]}', which the training images do not have. "
            f"Theirs are: {', '.join(class_names[:20])}."
        )
    paths: List[Path] = []
    labels: List[int] = []
    for label, name in enumerate(class_names):
        found = find_images(folder / name) if (folder / name).is_dir() else []
        if not found:
            raise DataError(
                f"The class folder '{folder / name}' holds no images (files ending in {', '.join(EXTENSIONS)}). "
                "Add some, or remove the folder."
            )
        paths += found
        labels += [label] * len(found)
    return ImageFiles(paths, np.asarray(labels))
