"""Random scale, rotation and mirroring of objects with key points.

Legend: B batch.
"""

from __future__ import annotations

import math
from typing import ClassVar, Dict, Mapping, Sequence, Type

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.randomness import uniform
from mxtrain.types import Fraction, OpenFraction
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.transforms.base import DatasetTransform
from mxtrain.vision.images.transforms.chain import AugmentSettings
from mxtrain.vision.pose.crop import Crop

Degrees = Annotated[float, pydantic.Field(ge=0, le=90)]


class CutOut(DatasetTransform):
    """Crops objects at a random scale and angle."""

    scale: OpenFraction = 0.25
    """Standard deviation of the factor of the length of a crop, whose mean is 1; clipped at one standard deviation."""
    rotate: Degrees = 30.0
    """Standard deviation of the rotation in degrees; clipped at two standard deviations."""
    rotate_share: Fraction = 0.6
    """Share of the samples that are rotated."""

    def settings(self) -> Dict[str, object]:
        return {"scale": self.scale, "rotate": self.rotate, "rotate_share": self.rotate_share}


class KeyPointAugment(AugmentSettings):
    """Random augmentation in training; every draw is a function of (seed, epoch, sample index).

    Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), section 3, and their code.
    """

    disabled: ClassVar[Mapping[str, object]] = {"flip": False, "scale": 0.0, "rotate": 0.0, "rotate_share": 0.0}
    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {"cut_out": CutOut}

    flip: bool = True
    """Mirror left-right with probability one half; left and right key points change places."""
    scale: OpenFraction = 0.25
    """Standard deviation of the factor of the length of a crop, whose mean is 1; clipped at one standard deviation."""
    rotate: Degrees = 30.0
    """Standard deviation of the rotation in degrees; clipped at two standard deviations; 0 = off."""
    rotate_share: Fraction = 0.6
    """Share of the samples that are rotated."""

    def crop(self, box_4: Sequence[float], size: Sequence[int], seed: int, epoch: int, index: int) -> Crop:
        """Returns the crop of an object.

        Args:
            box_4: left, top, right, bottom of the object.
            size: (H, W) of the network's input.
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            index: index of the sample.
        """
        share_6 = [float(uniform(seed, epoch, np.array([index]), VisionDraw.KEY_POINTS + draw)[0]) for draw in range(6)]
        factor = 1 + self.scale * min(max(_normal(*share_6[:2]), -1.0), 1.0)
        degrees = 0.0
        if share_6[2] < self.rotate_share:
            degrees = self.rotate * min(max(_normal(*share_6[3:5]), -2.0), 2.0)
        return Crop.around(box_4, size, factor, degrees, self.flip and share_6[5] < 0.5)


def _normal(first: float, second: float) -> float:
    """Converts two uniform random numbers to a normally distributed one. Source: Box and Muller (1958)."""
    # log1p of -first, because the uniform number may be 0 and is never 1.
    return math.sqrt(-2 * math.log1p(-first)) * math.cos(2 * math.pi * second)
