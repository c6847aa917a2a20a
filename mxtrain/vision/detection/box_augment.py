"""Random augmentation of images with boxes: crop, flip, colours, mosaic and mixup.

All windows are in pixels of the original image, so that each image is resized only once.

`draw_U` are the random numbers of a sample, from 0 to 1, in the order of `AugmentStream`.

Legend: C channels, H height, W width, T trials, U random numbers, M boxes of an image.
"""

from __future__ import annotations

from typing import ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.randomness import beta, bits, uniform
from mxtrain.types import Fraction, NamedInt, NonNegativeFloat, Positive, PositiveFloat, Range
from mxtrain.vision.detection.box_geometry import intersections_over_unions
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.transforms.base import AreaShare, DatasetTransform
from mxtrain.vision.images.transforms.chain import AugmentSettings
from mxtrain.vision.images.transforms.colors import colour_matrix, recoloured
from mxtrain.vision.images.view import Rectangle, Window

NUM_TRIALS = 50
"""Number of random crops that are tried for a sample."""
_MIN_SIDE = 1e-6
"""Smallest side of a tile's window, in pixels."""


class AugmentStream(NamedInt):
    """Positions in a sample's random stream. Values are part of the results: never renumber them."""

    FLIP = 0
    EXPAND = 1
    RATIO = 2
    DOWN = 3
    RIGHT = 4
    CROP = 5
    BRIGHTNESS = 6
    CONTRAST = 8
    SATURATION = 10
    HUE = 12
    """The four colour changes have two numbers each: whether it is applied, and by how much."""
    MOSAIC = 14
    CENTRE_X = 15
    CENTRE_Y = 16
    PARTNER = 17
    """Three numbers: the other images of a mosaic."""
    TILE = 20
    TILE_DOWN = 21
    TILE_RIGHT = 22
    MIX_PARTNER = 23
    TRIAL = 24
    """Four numbers for each trial of a crop."""


class Mosaic(DatasetTransform):
    """Combines parts of four images into one; crop and expand are not applied to a mosaic."""

    share: Fraction = 0.5
    """Share of the samples that are mosaics."""
    scale: Range[AreaShare] = [0.4, 1.0]
    """Smallest and largest share of an image's width or height that is visible."""
    epochs: Optional[Positive] = None
    """Number of first epochs with mosaics; null = all."""

    def settings(self) -> Dict[str, object]:
        return {"mosaic": self.share, "mosaic_scale": self.scale, "mix_epochs": self.epochs}


class BlendImages(DatasetTransform):
    """Mixup: blends each image with another one; the boxes of both are weighted by their shares."""

    alpha: PositiveFloat = 1.5
    """Alpha of the Beta distribution of the shares."""
    epochs: Optional[Positive] = None
    """Number of first epochs with mixup; null = all."""

    def settings(self) -> Dict[str, object]:
        return {"mixup": self.alpha, "mix_epochs": self.epochs}


class Expand(DatasetTransform):
    """Places half of the images on a larger canvas of the mean colour, so that objects become smaller."""

    ratio: Annotated[float, pydantic.Field(ge=1, le=16)] = 4.0
    """Largest factor of the sides of the canvas."""

    def settings(self) -> Dict[str, object]:
        return {"expand": self.ratio}


class BoxCrop(DatasetTransform):
    """Crops a random part that has a minimum overlap with at least one box."""

    min_iou: List[Fraction] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]
    """Minimum intersection over union with some box: one of these at random, or no crop."""
    scale: Range[AreaShare] = [0.3, 1.0]
    """Smallest and largest share of width and height of a part, before its aspect is changed."""
    aspect: Range[PositiveFloat] = [0.5, 2.0]
    """Smallest and largest change of the ratio of width to height."""

    def settings(self) -> Dict[str, object]:
        return {"crop_min_iou": self.min_iou, "crop_scale": self.scale, "crop_aspect": self.aspect}


class BoxAugment(AugmentSettings):
    """Random augmentation of images and boxes; random numbers are a function of (seed, epoch, sample index).

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2; mosaic: Bochkovskiy et al., "YOLOv4"
    (2020); mixup: Zhang et al., "Bag of Freebies for Training Object Detection Neural Networks" (2019), section 3.1.
    """

    disabled: ClassVar[Mapping[str, object]] = {
        "expand": 1.0,
        "crop_min_iou": [],
        "flip": False,
        "brightness": 0.0,
        "contrast": 0.0,
        "saturation": 0.0,
        "hue": 0.0,
    }
    kept_settings: ClassVar[Tuple[str, ...]] = ("min_visible",)
    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {
        "mosaic": Mosaic,
        "mixup": BlendImages,
        "expand": Expand,
        "box_crop": BoxCrop,
    }

    expand: Annotated[float, pydantic.Field(ge=1, le=16)] = 4.0
    """Maximum factor by which half of the images are placed in a larger image filled with the mean colour; 1 = off."""
    crop_min_iou: List[Fraction] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]
    """Minimum intersection over union of a random crop with some box: one of these at random, or no crop; empty =
    off."""
    crop_scale: Range[AreaShare] = [0.3, 1.0]
    """Smallest and largest share of width and height of a part, before its aspect is changed."""
    crop_aspect: Range[PositiveFloat] = [0.5, 2.0]
    """Smallest and largest change of the ratio of width to height."""
    min_visible: Fraction = 0.1
    """Minimum visible share of a box; boxes with less, or whose centre is cut off, are left out."""
    flip: bool = True
    """Mirror left-right with probability one half."""
    brightness: Fraction = 0.125
    """Half of the images: the brightness changes by up to this, where white is 1; 0 = off."""
    contrast: Fraction = 0.5
    """Half of the images: all values are multiplied by a factor from 1 - this to 1 + this; 0 = off."""
    saturation: Fraction = 0.5
    """Half of the images: the distance from grey is multiplied by a factor from 1 - this to 1 + this; 0 = off."""
    hue: Annotated[float, pydantic.Field(ge=0, le=0.5)] = 0.05
    """Half of the images: the hue is rotated by up to this share of the colour circle; 0 = off."""
    mosaic: Fraction = 0.0
    """Share of the samples that are mosaics of parts of four images; crops and `expand` do not apply to them."""
    mosaic_scale: Range[AreaShare] = [0.4, 1.0]
    """Smallest and largest share of an image's width or height that is visible in a mosaic."""

    mixup: NonNegativeFloat = 0.0
    """Alpha of the Beta distribution of the weight with which each image is blended with another one in its original
    size; boxes have the weight of their image. 0 = off. Mosaics are not blended."""
    mix_epochs: Optional[Positive] = None
    """Number of first epochs with mosaic and mixup; None = all epochs."""

    @property
    def capacity(self) -> int:
        """Returns the largest number of images in a sample."""
        return 4 if self.mosaic else 2 if self.mixup else 1

    def mixes_images(self, epoch: int) -> bool:
        """Returns True if samples of an epoch (from 0) may combine several images."""
        return self.mix_epochs is None or epoch < self.mix_epochs

    def mix_share(self, seed: int, epoch: int, index: int) -> float:
        """Returns the weight of the sample's own image in a blend."""
        return float(beta(seed, epoch, np.array([index]), self.mixup)[0])

    def draws(self, seed: int, epoch: int, index: int, number: int = 0) -> np.ndarray:
        """Returns the random numbers of a sample, from 0 to 1, in the order of `AugmentStream`.

        Args:
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            index: index of the sample.
            number: number of the image in a mosaic, from 0.
        """
        # All 224 numbers of a sample are one vector of one hash: asking for each costs more than resizing the image.
        key = int(bits(seed, epoch, np.array([index]), VisionDraw.BOX_SAMPLE + number)[0])
        return uniform(key, 0, np.arange(AugmentStream.TRIAL + 4 * NUM_TRIALS), VisionDraw.BOX_SAMPLE)

    def is_mosaic(self, draw_U: np.ndarray) -> bool:
        """Returns True if a sample is made of four images."""
        return bool(draw_U[AugmentStream.MOSAIC] < self.mosaic)

    def is_flipped(self, draw_U: np.ndarray) -> bool:
        """Returns True if an image is mirrored."""
        return self.flip and bool(draw_U[AugmentStream.FLIP] < 0.5)

    def window(self, draw_U: np.ndarray, size: Tuple[int, int], edge_M4: np.ndarray) -> Window:
        """Returns the visible part of an image, in its own pixels. It may extend beyond the image.

        Args:
            draw_U: random numbers from `draws`.
            size: (width, height) of the image.
            edge_M4: boxes of single objects in the image.
        """
        width, height = size
        canvas: Window = (0.0, 0.0, float(width), float(height))
        if self.expand > 1 and draw_U[AugmentStream.EXPAND] < 0.5:
            margin = draw_U[AugmentStream.RATIO] * (self.expand - 1)  # relative to the image
            left, top = -draw_U[AugmentStream.RIGHT] * margin * width, -draw_U[AugmentStream.DOWN] * margin * height
            canvas = (left, top, left + (1 + margin) * width, top + (1 + margin) * height)
        chosen = int(draw_U[AugmentStream.CROP] * (len(self.crop_min_iou) + 1))
        if chosen == len(self.crop_min_iou):
            return canvas
        return self._crop(draw_U, canvas, size, edge_M4, self.crop_min_iou[chosen])

    def _crop(
        self, draw_U: np.ndarray, canvas: Window, size: Tuple[int, int], edge_M4: np.ndarray, min_iou: float
    ) -> Window:
        """Returns the first of `NUM_TRIALS` random parts of the canvas that has enough overlap with a box; the canvas
        if none has."""
        draw_T4 = draw_U[AugmentStream.TRIAL :].reshape(NUM_TRIALS, 4)
        low, high = self.crop_scale
        scale_T = low + (high - low) * draw_T4[:, 0]
        # Limit the aspect so that both sides fit into the canvas at this scale.
        min_T, max_T = np.maximum(self.crop_aspect[0], scale_T**2), np.minimum(self.crop_aspect[1], scale_T**-2.0)
        aspect_T = np.where(max_T > min_T, min_T + (max_T - min_T) * draw_T4[:, 1], 1.0)
        canvas_2 = np.array([canvas[2] - canvas[0], canvas[3] - canvas[1]])
        side_T2 = np.stack([scale_T * np.sqrt(aspect_T), scale_T / np.sqrt(aspect_T)], axis=1).clip(0, 1) * canvas_2
        begin_T2 = np.array(canvas[:2]) + draw_T4[:, 2:] * (canvas_2 - side_T2)
        window_T4 = np.concatenate([begin_T2, begin_T2 + side_T2], axis=1)
        visible_T2 = np.minimum(window_T4[:, 2:], np.array(size)) - np.maximum(window_T4[:, :2], 0.0)
        fits_T = (visible_T2 >= 1).all(axis=1)  # an expanded canvas has parts outside the image
        if len(edge_M4):
            fits_T &= _covers(window_T4, edge_M4, min_iou)
        fitting = np.flatnonzero(fits_T)
        return tuple(window_T4[fitting[0]].tolist()) if len(fitting) else canvas

    def tile_window(self, draw_U: np.ndarray, size: Tuple[int, int], aspect: float) -> Window:
        """Returns the visible part of an image in a mosaic, at a random scale and position.

        Args:
            draw_U: random numbers from `draws`.
            size: (width, height) of the image.
            aspect: ratio of width to height of the part.
        """
        width, height = size
        low, high = self.mosaic_scale
        scale = low + (high - low) * draw_U[AugmentStream.TILE]
        part_width = min(width, height * aspect) * scale
        side_x, side_y = max(part_width, _MIN_SIDE), max(part_width / aspect, _MIN_SIDE)
        left = draw_U[AugmentStream.TILE_RIGHT] * (width - side_x)
        top = draw_U[AugmentStream.TILE_DOWN] * (height - side_y)
        return left, top, left + side_x, top + side_y

    def recoloured(self, draw_U: np.ndarray, image_CHW: np.ndarray) -> np.ndarray:
        """Applies random brightness, contrast, saturation and hue to an image with values from 0 to 255.

        All four changes are affine, so they are combined: the image is processed in one pass and clipped only once.
        """
        colour_34 = self._colours(draw_U)
        if colour_34 is None:
            return image_CHW
        return recoloured(image_CHW, colour_34)

    def _colours(self, draw_U: np.ndarray) -> Optional[np.ndarray]:
        """Returns the affine colour transform (3, 4), the last column being added; None if nothing changes."""
        amounts = {
            stream: (2 * draw_U[stream + 1] - 1) * strength
            for stream, strength in (
                (AugmentStream.BRIGHTNESS, self.brightness),
                (AugmentStream.CONTRAST, self.contrast),
                (AugmentStream.SATURATION, self.saturation),
                (AugmentStream.HUE, self.hue),
            )
            if draw_U[stream] < 0.5 and strength
        }
        if not amounts:
            return None
        contrast = 1 + amounts.get(AugmentStream.CONTRAST, 0.0)
        saturation, hue = 1 + amounts.get(AugmentStream.SATURATION, 0.0), amounts.get(AugmentStream.HUE, 0.0)
        # The four changes are linear, so they are one matrix, and values are clipped once, at the end.
        matrix_33 = contrast * colour_matrix(saturation, hue)
        added = contrast * 255 * amounts.get(AugmentStream.BRIGHTNESS, 0.0)
        return np.concatenate([matrix_33, np.full((3, 1), added)], axis=1)


def tiles(draw_U: np.ndarray, height: int, width: int) -> List[Rectangle]:
    """Returns the four rectangles of a mosaic of that height and width. Their common corner is random, in the middle
    half of both sides."""
    x, y = (
        min(max(round((0.25 + 0.5 * draw_U[stream]) * length), 1), length - 1)
        for stream, length in ((AugmentStream.CENTRE_X, width), (AugmentStream.CENTRE_Y, height))
    )
    return [
        Rectangle(0, 0, x, y),
        Rectangle(x, 0, width - x, y),
        Rectangle(0, y, x, height - y),
        Rectangle(x, y, width - x, height - y),
    ]


def partners(draw_U: np.ndarray, count: int) -> Sequence[int]:
    """Returns the indices of the three further images of a mosaic, out of `count`; an index may be repeated."""
    return [int(draw_U[AugmentStream.PARTNER + number] * count) for number in range(3)]


def mix_partner(draw_U: np.ndarray, index: int, count: int) -> int:
    """Returns the index of the other image for mixup, out of `count`; the same index if there is only one image."""
    # The distance is never 0 modulo count, so no image is blended with itself.
    return (index + 1 + int(draw_U[AugmentStream.MIX_PARTNER] * (count - 1))) % count


def _covers(window_T4: np.ndarray, edge_M4: np.ndarray, min_iou: float) -> np.ndarray:
    """Returns a mask of the windows that contain the centre of a box and have at least that intersection over union
    with it, (T,)."""
    iou_TM = intersections_over_unions(window_T4, edge_M4)
    centre_M2 = (edge_M4[:, :2] + edge_M4[:, 2:]) / 2
    has_centre_TM = ((centre_M2 >= window_T4[:, None, :2]) & (centre_M2 < window_T4[:, None, 2:])).all(axis=-1)
    return (has_centre_TM & (iou_TM >= min_iou)).any(axis=1)
