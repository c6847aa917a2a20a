"""Reads objects with key points, each cropped from its image.

Legend: N objects, J key points, B batch, C channels, H height, W width, F columns of `KeypointMeta`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

import numpy as np

from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.encoded_image_source import EncodedImageSource, batch_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.pose.crop import Crop
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_points import KeyPointSet, meta_row


@dataclass(frozen=True)
class PosedObjects:
    """Objects in images; coordinates in pixels of the images.

    Attributes:
        image_N: index of each object's image.
        box_N4: left, top, right, bottom; None = whole images.
        point_NJ3: x, y and visibility of each key point; None = unknown.
        area_N: area of each in pixels.
        score_N: score of each box, 1 for annotated boxes.
        size_P2: annotated width and height of each image, NaN if unknown; None = unknown for all.
    """

    image_N: np.ndarray
    box_N4: Optional[np.ndarray]
    point_NJ3: Optional[np.ndarray]
    area_N: np.ndarray
    score_N: np.ndarray
    size_P2: Optional[np.ndarray] = None

    @classmethod
    def whole(cls, num_images: int) -> PosedObjects:
        """Returns one object per image, which fills the image."""
        return cls(np.arange(num_images), None, None, np.zeros(num_images), np.ones(num_images))

    @classmethod
    def found(cls, image_N: Sequence[int], box_N4: np.ndarray, score_N: Sequence[float]) -> PosedObjects:
        """Returns objects for detected boxes."""
        return cls(np.asarray(image_N), box_N4, None, np.zeros(len(box_N4)), np.asarray(score_N, float))


class KeyPointImages(EncodedImageSource):
    """Source of objects in encoded images: crops around the objects, in one size.

    Besides crops and key points (B, J, 3) in pixels of the network's input, a batch has a row of `KeypointMeta` each.
    """

    samples_per_task = 4

    def __init__(
        self,
        encoded: EncodedImages,
        objects: PosedObjects,
        num_points: int,
        key_points: KeyPointSet,
        decoding: Decoding,
        mean: Sequence[float],
        augment: Optional[KeyPointAugment] = None,
    ) -> None:
        """Stores the settings; no image is read yet.

        Args:
            encoded: the images.
            objects: objects in the images.
            num_points: J.
            key_points: relations of the key points.
            decoding: decoding, with the size of the crops.
            mean: padding colour per channel, from 0 to 1.
            augment: random augmentation in training.
        """
        super().__init__(encoded, decoding, mean)
        self.objects, self.num_points = objects, num_points
        self._order_J, self._augment = key_points.order(num_points), augment
        self._sigma_J = np.asarray(key_points.sigmas or np.zeros(num_points))

    def __len__(self) -> int:
        return len(self.objects.image_N)

    def number(self, index: int) -> int:
        """Returns the index of the image of an object; an image may have several objects."""
        return int(self.objects.image_N[index])

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns crops, key points (B, J, 3) float32, and metadata (B, F); see `Source.fetch`."""
        augment = self._augment if train else None
        samples = [self._read(index, augment, seed, epoch) for index in index_B.tolist()]
        point_BJ3 = np.stack([points for _, points, _ in samples]).astype(np.float32)
        images_BCHW = batch_of([image for image, _, _ in samples])
        return images_BCHW, point_BJ3, np.stack([meta_F for _, _, meta_F in samples])

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image that replaces one that cannot be read."""
        height, width = self.shape[1:]
        crop = Crop((0.0, 0.0), 1.0, (height, width))
        meta_F = meta_row(crop, (width, height), (0, 0, width, height), 0, 0, 0, self._sigma_J)
        return np.zeros((1, *self.shape), np.uint8), np.zeros((1, self.num_points, 3), np.float32), meta_F[None]

    def _read(
        self, index: int, augment: Optional[KeyPointAugment], seed: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        image, objects = self.open(index), self.objects
        if objects.size_P2 is not None:
            self.warn_of_size(index, image.size, objects.size_P2[self.number(index)])
        full_image = (0.0, 0.0, *map(float, image.size))
        box_4 = full_image if objects.box_N4 is None else objects.box_N4[index]
        size = self.shape[1:]
        crop = Crop.around(box_4, size) if augment is None else augment.crop(box_4, size, seed, epoch, index)
        image_CHW = crop.draw(functools.partial(self.resize, index, image), image.size, self._fill_C)
        point_J3 = np.zeros((self.num_points, 3)) if objects.point_NJ3 is None else objects.point_NJ3[index]
        meta_F = meta_row(
            crop,
            image.size,
            box_4,
            objects.area_N[index],
            self.number(index),
            objects.score_N[index],
            self._sigma_J,
        )
        return image_CHW, crop.points(point_J3, self._order_J), meta_F
