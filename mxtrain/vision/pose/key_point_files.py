"""Base class of pose-estimation datasets whose images are files: objects with key points in them.

Legend: N objects, J key points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import STRICT, Findings, NoUsableSamples
from mxtrain.data.loading.sources import Subset
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.errors import DataError
from mxtrain.types import BatchSize, Positive, Shape
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.detection.box_faults import TOLERANCE
from mxtrain.vision.detection.boxed_files import BoxedFiles, BoxedSplit
from mxtrain.vision.images.settings import Decoding, as_window, window_setting
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_point_dataset import KeyPointDataset
from mxtrain.vision.pose.key_point_images import KeyPointImages, PosedObjects
from mxtrain.vision.pose.key_points import PERSON_NAMES, PERSON_SIGMAS, KeyPointSet
from mxtrain.vision.pose.signature import KeyPointSplits

OTHER_SIGMA = 0.05
"""Sigma of key points other than COCO's of a person, unless the metric defines sigmas: about the mean of COCO's."""
MEND_POINTS = "Correct it, or type dataset.wrong_boxes=mend to take such key points for unmarked."
"""Remedy for key points outside of their image."""


@dataclass(frozen=True)
class KeyPointSplit(BoxedSplit):
    """Images of a split, and the objects in them.

    Attributes:
        objects: objects with their key points.
        points: relations of the key points.
        names: names of the key points.
    """

    objects: PosedObjects
    points: KeyPointSet
    names: Sequence[str]


class KeyPointFiles(KeyPointDataset, BoxedFiles):  # the order matters: KeyPointDataset reads samples
    """Base class of datasets of objects with key points in image files. Objects without a marked key point are not
    samples; all objects of an image are in the same split."""

    gives: ClassVar[Gives] = Gives(Images, KeyPoints)

    augment: KeyPointAugment = KeyPointAugment()  # type: ignore[assignment]
    largest_batch: ClassVar[int] = 32
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 32, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 32

    def cut_shape(self) -> Shape:
        """Returns the (C, H, W) of the network's input."""
        height, width = (256, 192) if self.image_size == "auto" else self.image_size
        return (3 if self.channels == "auto" else self.channels, height, width)

    def scaled(self, source: Samples, signature: Signature) -> Sequence[Tuple[Samples, Signature]]:
        """Returns no other sizes: all crops have one size."""
        return ()

    def decoding(self) -> Decoding:
        """Returns the decoding of files."""
        return Decoding(self.cut_shape(), window=as_window(self.window))

    def decoded_as(self, decoding: Decoding) -> KeyPointFiles:
        """Returns this dataset with the image size and window of a decoding."""
        window = window_setting(decoding.window)
        return super().decoded_as(decoding).model_copy(update={"window": window})  # type: ignore[return-value]

    def make_splits(
        self,
        splits: Mapping[str, Optional[BoxedSplit]],
        class_names: Sequence[str],
        category_ids: Sequence[int],
        findings: Findings = STRICT,
    ) -> Splits:
        """Builds the splits; arguments as in `BoxedFiles.make_splits`."""
        train, val, test = (self._as_split(splits.get(split)) for split in ("train", "val", "test"))
        has_val = val is not None
        val = self.division.own_validation(val)
        if train is None:
            raise NoUsableSamples(f"{self.option}: nothing is left to train on.")
        for name, split in (("val", val), ("test", test)):
            if split is not None and list(split.names) != list(train.names):
                raise DataError(
                    f"{self.option}: the key points of dataset.{name}_annotations are {', '.join(split.names)}, and "
                    f"the ones of the training data ({', '.join(train.names)}). Name the right file."
                )
        parts, (mean, std) = self.hold_out(train, val, test, has_val, findings)
        sources: Dict[str, Optional[KeyPointImages]] = {
            name: None
            if split is None
            else KeyPointImages(
                split.encoded, split.objects, len(split.names), split.points, self.decoding(), mean, self.augment
            )
            for name, split in (("train", train), ("val", val), ("test", test))
        }
        train_source, val_source, test_source = sources["train"], sources["val"], sources["test"]
        assert train_source is not None
        if val_source is None:
            held_out = [Subset(train_source, np.flatnonzero(np.isin(train.objects.image_N, part))) for part in parts]
            train_source, val_source = held_out[:2]  # type: ignore[assignment]
            test_source = test_source or (held_out[2] if len(held_out[2]) else None)  # type: ignore[assignment]
        assert val_source is not None
        refuse_empty(f"{self.option} in '{self.root}'", len(train_source), len(val_source), self.val_fraction)
        return KeyPointSplits(
            train_source,
            val_source,
            test_source,
            train.names,
            self.cut_shape(),
            mean,
            std,
            self.decoding(),
            category_ids=category_ids,
            key_points=train.points,
        )

    @staticmethod
    def _as_split(split: Optional[BoxedSplit]) -> Optional[KeyPointSplit]:
        assert split is None or isinstance(split, KeyPointSplit)
        return split


def are_outside(point_J3: np.ndarray, size_2: np.ndarray) -> np.ndarray:
    """Returns a mask of the marked key points more than a pixel outside the image, (J,).

    Args:
        point_J3: x, y and visibility of key points.
        size_2: (width, height) of the image; NaN if unknown: then no key point is beyond its far edges.
    """
    point_J2, far_2 = point_J3[:, :2], np.where(np.isfinite(size_2), size_2, np.inf)
    return (point_J3[:, 2] > 0) & (np.maximum(-point_J2, point_J2 - far_2).max(axis=1) > TOLERANCE)


def usual_sigmas(names: Sequence[str]) -> Sequence[float]:
    """Returns the sigma of each key point: COCO's for those of a person, else `OTHER_SIGMA`."""
    return PERSON_SIGMAS if tuple(names) == PERSON_NAMES else (OTHER_SIGMA,) * len(names)
