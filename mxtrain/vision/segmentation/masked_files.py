"""Base class of segmentation datasets whose images and masks are files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Collection, List, Optional, Sequence, Set, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.data.checking.problems import NOTHING_TO_LEARN, STRICT, Findings, Problem
from mxtrain.data.loading.sources import Subset
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import DataError, LoaderError
from mxtrain.types import BatchSize, Positive
from mxtrain.vision.images.annotated_images import AnnotatedImages
from mxtrain.vision.images.decoding import EncodedImages, known_statistics
from mxtrain.vision.images.settings import Decoding, as_window, window_setting
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.images.sizes import ImageSize, refuse_large_batch, square
from mxtrain.vision.segmentation.mask_pairs import MaskPairs, refuse_shared_images
from mxtrain.vision.segmentation.masked import MaskedDataset
from mxtrain.vision.segmentation.masked_images import JointAugment, MaskCoding, MaskedImages
from mxtrain.vision.segmentation.signature import MaskSplits

MAX_MASKS_READ = 16
"""Largest number of training masks that `refuse_ignored_class` reads."""
Size = Annotated[Union[Literal["auto"], ImageSize], pydantic.BeforeValidator(square)]


class MaskedFiles(MaskedDataset, AnnotatedImages):  # the order matters: MaskedDataset reads samples
    """Base class of datasets of files: images of any size, and a mask for each."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    largest_side: ClassVar[int] = 480

    eval_size: Size = "auto"
    """[height, width] of the frame of whole images in evaluation and prediction: larger images are scaled down; auto =
    `image_size`."""
    augment: JointAugment = JointAugment()  # type: ignore[assignment]  # of its own annotations
    """Random augmentation of images and masks in training."""
    largest_batch: ClassVar[int] = 16
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 16, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 4

    @pydantic.model_validator(mode="after")
    def _check_eval_memory(self) -> MaskedFiles:
        if self.eval_size != "auto":
            refuse_large_batch("eval_size", self.eval_size, 3, self.eval_batch_size, "eval_batch_size")
        return self

    def decoding(self) -> Decoding:
        """Returns the settings by which image files become samples."""
        shape = self.cut_shape()
        height, width = shape[1:] if self.eval_size == "auto" else self.eval_size
        return Decoding(shape, frame=(height, width), window=as_window(self.window))

    def decoded_as(self, decoding: Decoding) -> MaskedFiles:
        """Returns this dataset with the image sizes and window of a decoding."""
        dataset = super().decoded_as(decoding)
        assert decoding.frame is not None
        settings = {"eval_size": list(decoding.frame), "window": window_setting(decoding.window)}
        return dataset.model_copy(update=settings)  # type: ignore[return-value]

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """Restores the dataset of a trained network; see `BaseDataset.restored`. `eval_size` may be overridden, since
        these networks accept images of any size."""
        dataset, signature = super().restored(signature, overrides, source)
        if "dataset.eval_size" in overrides:
            image_signature = ImageSignature.cast(signature)
            height, width = image_signature.decoding.shape[1:] if self.eval_size == "auto" else self.eval_size
            decoding = replace(image_signature.decoding, frame=(height, width))
            return self.decoded_as(decoding), replace(image_signature, decoding=decoding)
        return dataset, signature

    def make_splits(
        self,
        train: MaskPairs,
        val: Optional[MaskPairs],
        test: Optional[MaskPairs],
        class_names: Sequence[str],
        coding: MaskCoding,
        remedy: str = "Move it out of one of them.",
        findings: Findings = STRICT,
    ) -> Splits:
        """Builds the splits. A missing validation split is held out of the training samples.

        Args:
            train: training images and masks.
            val, test: validation and test images and masks; None: there are none.
            class_names: name of each class.
            coding: meaning of the values of masks.
            remedy: sentence that says what to do if an image belongs to two splits.
            findings: collects the problems.

        Raises:
            DataError: a split is empty, shares an image with another, or its first mask cannot be used.
        """
        fitted = self.fitted_to(train.encoded(self.decoding().slice_axis, not findings.keeps_going), findings)
        if fitted is not self:
            return fitted.make_splits(train, val, test, class_names, coding, remedy, findings)
        # Test images are only held out together with validation images.
        encoded = train.encoded(self.decoding().slice_axis, not findings.keeps_going)
        parts = self.division.divide(
            np.zeros(len(encoded), np.int32),
            val is not None,
            bool(val is not None or test),
            unit_N=self.units(encoded),
        )
        val = self.division.own_validation(val)
        refuse_shared_images({"train": train, "val": val, "test": test}, remedy, findings)
        shape, decoding = self.cut_shape(), self.decoding()
        mean, std = known_statistics(shape[0])
        if not findings.keeps_going:  # `data check` reads the images later, and continues after unreadable ones
            mean, std = self._choose_statistics(train, parts[0], coding, decoding)
        sources: Any = [
            None if pairs is None else pairs.open(coding, decoding, mean, self.augment) for pairs in (train, val, test)
        ]
        first_masks = [None if findings.keeps_going else read_first_mask(source) for source in sources]
        refuse_ignored_class(sources[0], first_masks[0], class_names, self.remedy_if_ignored(coding), findings)
        if val is None:
            subsets = [Subset(sources[0], part) for part in parts]
            sources = [*subsets[:2], sources[2] or (subsets[2] if len(subsets[2]) else None)]
        refuse_empty(f"{self.option} in '{self.root}'", len(sources[0]), len(sources[1]), self.val_fraction)
        train_source, val_source, test_source = sources
        return MaskSplits(
            train_source,
            val_source,
            test_source,
            class_names,
            shape,
            mean,
            std,
            decoding,
            mask_values=list(coding.values),
        )

    def units(self, encoded: EncodedImages) -> Optional[np.ndarray]:
        """Returns the number of the unit of each training sample, whose samples belong to one split, (N,); None: each
        sample is a unit."""
        return None

    def remedy_if_ignored(self, coding: MaskCoding) -> str:
        """Names the settings to type if a class has the ignored value in all masks."""
        return "Look at the values of the masks."

    def _choose_statistics(
        self, train: MaskPairs, in_train: np.ndarray, coding: MaskCoding, decoding: Decoding
    ) -> Tuple[Sequence[float], Sequence[float]]:
        source = train.open(coding, decoding, self.known_mean())
        return self.measure_statistics(source, in_train)


def refuse_ignored_class(
    source: MaskedImages,
    first_mask_HW: Optional[np.ndarray],
    class_names: Sequence[str],
    remedy: str,
    findings: Findings,
) -> None:
    """Searches a few training masks for a class whose pixels have an ignored value, as in masks of 0 and 255 with two
    classes: training would succeed, but never learn that class.

    Reads at most `MAX_MASKS_READ` masks, and stops when all classes, or two masks without ignored pixels, were seen.

    Args:
        source: training images and masks.
        first_mask_HW: the first mask, if it was read before.
        class_names: name of each class.
        remedy: sentence that says what to type.
        findings: collects the problem.

    Raises:
        WrongData: only one class occurs, and most masks have ignored pixels.
    """
    if not source.coding.ignored or len(class_names) < 2 or not len(source):
        return
    classes: Set[int] = set()
    shares: List[float] = []
    num_plain = 0  # masks without an ignored pixel
    chosen = np.unique(np.linspace(0, len(source) - 1, MAX_MASKS_READ).astype(np.int64))
    for index in chosen.tolist():
        try:
            mask_HW = source.mask(index, source.size(index)) if index or first_mask_HW is None else first_mask_HW
        except LoaderError:  # reported when the sample is read
            continue
        classes.update(np.unique(mask_HW[mask_HW >= 0]).tolist())
        shares.append(float((mask_HW < 0).mean()))
        num_plain += shares[-1] == 0
        if len(classes) == len(class_names) or num_plain == 2:
            return
    absent = [f"'{name}'" for number, name in enumerate(class_names) if number not in classes]
    # A few masks of a dataset with many classes do not contain all of them.
    has_some_of_many = len(classes) > 1 and len(absent) > 1
    if 2 * num_plain >= len(shares) or has_some_of_many:
        return
    values = ", ".join(map(str, source.coding.ignored[:5]))
    fact = (
        f"In {len(shares)} training masks, no pixel is of the class {' or '.join(absent[:5])}, and "
        f"{np.mean(shares):.0%} of the pixels have an ignored value ({values})."
    )
    problem = Problem(NOTHING_TO_LEARN, source.location(0), fact, remedy)
    if len(classes) < 2:
        findings.refuse(problem)
    else:
        findings.warn(problem)


def read_first_mask(source: Optional[MaskedImages]) -> Optional[np.ndarray]:
    """Reads the first mask of a split; None if there is none.

    This reports faults of all masks, such as colours, before training. Other masks are read during training.

    Raises:
        DataError: the first image or its mask cannot be used.
    """
    if source is None or not len(source):
        return None
    try:
        return source.mask(0, source.size(0))
    except LoaderError as error:
        raise DataError(str(error)) from error
