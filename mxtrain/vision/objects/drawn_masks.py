"""Masks of classes that are drawn from the outlines of objects, whenever a sample is read.

Legend: h, w size of an image, P images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.objects.objects import IGNORED_CLASS, AnnotatedObject, FlatObjects, outline_of
from mxtrain.vision.segmentation.mask_pairs import MaskPairs
from mxtrain.vision.segmentation.masked_images import JointAugment, MaskCoding, MaskedImages

if TYPE_CHECKING:
    from PIL import Image

_IGNORED_VALUE = 255


@dataclass(frozen=True)
class DrawnPairs(MaskPairs):
    """Images and the objects from which their masks are drawn.

    Attributes:
        size_P2: annotated width and height of each image, NaN if unknown.
        objects: objects of each image, those in front last.
        is_relative: True if coordinates are shares of width and height.
        background: index of the class that means the background; None if there is none.
    """

    size_P2: np.ndarray
    objects: Sequence[Sequence[AnnotatedObject]]
    is_relative: bool
    background: Optional[int]

    @classmethod
    def of(cls, flat: FlatObjects, is_relative: bool, background: Optional[int]) -> DrawnPairs:
        """Returns the pairs of annotated images."""
        images = flat.images
        paths, sources = [image.path for image in images], [image.source for image in images]
        objects, ids = [image.objects for image in images], [image.identity for image in images]
        return cls(paths, sources, ids, flat.size_P2, objects, is_relative, background)

    def open(
        self, coding: MaskCoding, decoding: Decoding, mean: Sequence[float], augment: Optional[JointAugment] = None
    ) -> MaskedImages:
        """Returns the source; arguments as in `MaskedImages`."""
        return DrawnMasks(self, ImageFiles(self.images), self.masks, coding, decoding, mean, augment)

    def value_of(self, each: AnnotatedObject) -> int:
        """Returns the value of the pixels of an object: 0 is the background, and classes follow from 1."""
        if each.class_index == IGNORED_CLASS:
            return _IGNORED_VALUE
        if self.background is None or each.class_index < self.background:
            return each.class_index + 1
        return 0 if each.class_index == self.background else each.class_index


class DrawnMasks(MaskedImages):
    """Source of images and masks that are drawn from outlines."""

    def __init__(self, pairs: DrawnPairs, *arguments: Any) -> None:
        """Stores the outlines.

        Args:
            pairs: the outlines.
            arguments: arguments of `MaskedImages`.
        """
        super().__init__(*arguments)
        self._pairs = pairs

    def declared_size(self, index: int) -> np.ndarray:
        """See `MaskedImages.declared_size`."""
        size_2: np.ndarray = self._pairs.size_P2[index]
        return size_2

    def open_mask(self, index: int, size: Optional[Tuple[int, int]]) -> Image.Image:
        """Draws the mask of an image; see `MaskedImages.open_mask`."""
        from PIL import Image

        width, height = self.size(index) if size is None else size
        self.warn_of_size(index, (width, height), self.declared_size(index))
        mask_hw = np.zeros((height, width), np.uint8)
        for each in self._pairs.objects[index]:
            if each.shape is not None:
                location = DataLocation(self._pairs.masks[index], each.number)
                outline = outline_of(each.shape, (height, width), self._pairs.is_relative, location)
                inside_hw = outline.in_image((height, width)) > 0
                mask_hw[inside_hw] = self._pairs.value_of(each)
        return Image.fromarray(mask_hw)
