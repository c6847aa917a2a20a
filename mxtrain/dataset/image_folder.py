"""Images in one folder per class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.base import Dataset, Source, Splits
from mxtrain.dataset.decoding import DecodedSource, EncodedImages, known_statistics
from mxtrain.dataset.files import EXTENSIONS, ImageFiles
from mxtrain.dataset.image_settings import AreaShare, Augment, Decoding
from mxtrain.dataset.regular_files import FileId, exists, id_of, walk
from mxtrain.dataset.sources import Subset
from mxtrain.dataset.splitting import refuse_empty, split_indices
from mxtrain.errors import DataError
from mxtrain.types import OpenFraction, PathText, Positive, Shape

_DEFAULT_SIDE = 224


class DecodedDataset(Dataset):
    """Base of datasets whose images are decoded and resized when read."""

    root: PathText
    """Folder of the data."""
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

    def decoding(self) -> Decoding:
        """The settings by which files become samples."""
        return Decoding(self.decoded_shape(), self.central_crop)

    def decoding_for(self, shape: Shape) -> Decoding:
        """See `Dataset.decoding_for`."""
        return self.decoding()

    def decoded_as(self, decoding: Decoding) -> DecodedDataset:
        """See `Dataset.decoded_as`."""
        channels, height, width = decoding.shape
        settings = {"channels": channels, "image_size": [height, width], "central_crop": decoding.central_crop}
        return self.model_copy(update=settings)

    def make_splits(
        self,
        train: Tuple[EncodedImages, np.ndarray],
        val: Optional[EncodedImages],
        test: Optional[EncodedImages],
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
        train_source: Source = self._make_source(encoded)
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
        refuse_empty(name, len(train_source), 0 if val_source is None else len(val_source), self.val_fraction)
        mean, std = known_statistics(self.decoded_shape()[0])
        return Splits(
            train=train_source,
            val=val_source,
            test=test_source,
            class_names=class_names,
            shape=self.decoded_shape(),
            mean=mean if self.mean == "auto" else self.mean,
            std=std if self.std == "auto" else self.std,
            decoding=self.decoding(),
        )

    def _make_source(self, encoded: EncodedImages) -> Source:
        return DecodedSource(encoded, self.decoding(), crop_scale=self.augment.crop_scale)


class ImageFolder(DecodedDataset):
    """Image files in `root/train/CLASS/` with `root/val/` and `root/test/` beside, or all in `root/CLASS/`.

    The classes are the folder names in alphabetical order. Splits that are missing are carved out of the training
    images by `val_fraction` and `test_fraction`, seeded and stratified.
    """

    root: PathText = "data/image_folder"
    """The folder."""

    def open(self) -> Splits:
        """See `Dataset.open`."""
        root = Path(self.root)
        if not exists(root) or not root.is_dir():
            raise DataError(
                f"dataset=image_folder: there is no folder '{root}'. It must hold one folder per class with images, or "
                f"train/CLASS/ with val/CLASS/ beside. Name yours with dataset.root=FOLDER."
            )
        train_root = root / "train" if (root / "train").is_dir() else root
        class_names = _list_classes(train_root)
        roots = {"train": train_root}
        if train_root != root:
            roots.update({name: root / name for name in ("val", "test") if os.path.lexists(root / name)})
        finder = _ClassFinder(root, roots.values(), class_names)
        found = {name: finder.list_split(folder) for name, folder in roots.items()}
        return self.make_splits(
            (found["train"], found["train"].label_N), found.get("val"), found.get("test"), class_names
        )


def _list_classes(folder: Path) -> List[str]:
    names = _folders_in(folder)
    if len(names) < 2:
        held = f"only one, '{names[0]}'" if names else "none"
        raise DataError(
            f"dataset=image_folder: '{folder}' must hold one folder for each of at least two classes, but holds {held}"
            ". Sort the images into CLASS folders, or name another folder with dataset.root=FOLDER."
        )
    for name in names:
        require_utf8(name, f"The class folder in '{folder}'")
    return names


def _folders_in(folder: Path) -> List[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def require_utf8(name: str, what: str) -> None:
    """Raises: DataError: a name of bytes that are no UTF-8, which no JSON, table or picture could hold."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise DataError(f"{what} is called '{shown}', which is no UTF-8. Rename it.") from None


class _ClassFinder:
    """Lists the images of each class, each real file once: links may lead anywhere, also round in circles."""

    def __init__(self, root: Path, roots: Collection[Path], class_names: Sequence[str]) -> None:
        self._class_names = class_names
        self._seen: Dict[FileId, Path] = {}
        folders = [root, *roots, *(folder / name for folder in roots for name in class_names)]
        self._known = {id_of(folder) for folder in folders if folder.is_dir()}
        """What a link within a class does not add to it."""

    def list_split(self, folder: Path) -> ImageFiles:
        """The images in `folder/CLASS/`.

        Raises:
            DataError: a class is unknown or empty, or an image was seen before, in another class or split.
        """
        unknown = sorted(set(_folders_in(folder)) - set(self._class_names))
        if unknown:
            raise DataError(
                f"'{folder}' holds the class '{unknown[0]}', which the training images do not have. "
                f"Theirs are: {', '.join(self._class_names[:20])}."
            )
        paths: List[Path] = []
        labels: List[int] = []
        for label, name in enumerate(self._class_names):
            found = walk(folder / name, EXTENSIONS, self._known) if (folder / name).is_dir() else []
            if not found:
                raise DataError(
                    f"The class folder '{folder / name}' holds no images (files ending in {', '.join(EXTENSIONS)}). "
                    "Add some, or remove the folder."
                )
            for path, number in found:
                if number in self._seen:
                    raise DataError(
                        f"'{path}' and '{self._seen[number]}' are the same file, by a link: an image has one class, "
                        "and is either trained on or measured. Remove one of the two."
                    )
                self._seen[number] = path
            paths += (path for path, _ in found)
            labels += [label] * len(found)
        return ImageFiles(paths, np.asarray(labels))
