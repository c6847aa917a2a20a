"""Base class of datasets whose images are decoded and resized when read."""

from __future__ import annotations

from typing import ClassVar, Literal, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.loading.sources import Subset
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.spec import Source, Splits
from mxtrain.types import BatchSize, OpenFraction, PathText, Positive, Shape
from mxtrain.types.kinds import ClassIndex, Gives, Images
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.decoding import (
    DecodedSource,
    EncodedImages,
    choose_statistics,
    evenly_spaced,
    known_statistics,
)
from mxtrain.vision.images.settings import (
    Decoding,
    FileAugment,
    WindowSetting,
    as_window,
    window_setting,
)
from mxtrain.vision.images.signature import ImageSplits
from mxtrain.vision.images.transforms.base import AreaShare
from mxtrain.vision.images.typical_size import fitted_to

_MAX_SIDE = 224
"""Largest side in pixels that `image_size=auto` chooses: that of networks for ImageNet."""


class DecodedDataset(Dataset):
    """Base class of datasets whose images are decoded and resized when read."""

    gives: ClassVar[Gives] = Gives(Images, ClassIndex, usual_model="resnet")
    reads_bands: ClassVar[bool] = True
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText
    """Folder of the data."""
    largest_batch: ClassVar[int] = 64
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 64, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 64
    augment: FileAugment = FileAugment(flip=True, crop_scale=[0.25, 1.0])
    val_fraction: OpenFraction = 0.15
    """Share of the training samples held out for validation where there is no split of its own."""
    central_crop: AreaShare = 0.875
    """Share of the shorter side that is kept where no random crop is taken; `predict` and `eval` do as in training."""
    window: WindowSetting = "auto"
    """Range of grey values: [centre, width], or the name of a window of CT: abdomen, bone, brain, liver, lung,
    mediastinum; percentile = from the 0.5th to the 99.5th percentile of each file; full = all values of the bit depth;
    auto = the window in a DICOM file, otherwise full."""

    def decoded_shape(self) -> Shape:
        """Returns the (C, H, W) that images are decoded to. For auto, C is 3, and H and W are 224 until `make_splits`
        chooses them."""
        height, width = (_MAX_SIDE, _MAX_SIDE) if self.image_size == "auto" else self.image_size
        return (3 if self.channels == "auto" else self.channels, height, width)

    def decoding(self) -> Decoding:
        """Returns the settings by which files become samples."""
        return Decoding(self.decoded_shape(), self.central_crop, window=as_window(self.window))

    def decoded_as(self, decoding: Decoding) -> DecodedDataset:
        """Returns this dataset with the image size, crop and window of a decoding."""
        return self.with_decoding(decoding, central_crop=decoding.central_crop, window=window_setting(decoding.window))

    def make_splits(
        self,
        train: Tuple[EncodedImages, np.ndarray],
        val: Optional[EncodedImages],
        test: Optional[EncodedImages],
        class_names: Sequence[str],
        findings: Findings = STRICT,
    ) -> Splits:
        """Builds the splits. Missing validation and test splits are held out of the training images.

        Args:
            train: training images, and their labels (N,); the labels may be empty if both other splits exist.
            val: validation images; None: there are none.
            test: test images; None: there are none.
            class_names: name of each class.
            findings: if it continues after problems, statistics are not measured, since images are read later.
        """
        encoded, label_N = train
        fitted = fitted_to(self, encoded, self.decoding().window, _MAX_SIDE, min, findings)
        if fitted is not self:
            return fitted.make_splits(train, val, test, class_names, findings)
        has_val = val is not None
        val = self.division.own_validation(val)
        train_source: Source = self._make_source(encoded)
        eval_source = self._make_source(encoded)  # held-out samples are read without augmentation
        val_source = None if val is None else self._make_source(val)
        test_source = None if test is None else self._make_source(test)
        in_train = np.arange(len(encoded))
        if val is None or (self.test_fraction and test is None):
            units_N = self.units(encoded)
            in_train, in_val, in_test = self.division.divide(label_N, has_val, test is not None, unit_N=units_N)
            train_source = Subset(train_source, in_train)
            val_source = Subset(eval_source, in_val) if val_source is None else val_source
            if test_source is None and len(in_test):
                test_source = Subset(eval_source, in_test)
        name = f"{type(self).__name__} in '{self.root}'"
        refuse_empty(name, len(train_source), 0 if val_source is None else len(val_source), self.val_fraction)
        assert val_source is not None
        mean, std = known_statistics(self.decoded_shape()[0])
        if not findings.keeps_going:
            mean, std = self._choose_statistics(encoded, in_train)
        return ImageSplits(
            train=train_source,
            val=val_source,
            test=test_source,
            class_names=class_names,
            shape=self.decoded_shape(),
            mean=mean,
            std=std,
            decoding=self.decoding(),
        )

    def units(self, encoded: EncodedImages) -> Optional[np.ndarray]:
        """Returns the number of the unit of each training sample, whose samples belong to one split, (N,); None: each
        sample is a unit."""
        return None

    def _choose_statistics(
        self, encoded: EncodedImages, in_train: np.ndarray
    ) -> Tuple[Sequence[float], Sequence[float]]:
        source = DecodedSource(encoded, self.decoding())
        images = (source.fetch(np.array([i]), seed=0, epoch=0, train=False)[0] for i in evenly_spaced(in_train))
        return choose_statistics(self.mean, self.std, self.decoding(), lambda: encoded.read(in_train[0])[0], images)

    def _make_source(self, encoded: EncodedImages) -> Source:
        return DecodedSource(encoded, self.decoding(), crop_scale=self.augment.crop_scale)
