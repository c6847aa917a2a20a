"""Finds the images in observations: which axis holds channels and which holds stacked frames.

Environments say the shape of an observation, and not what its axes are: images are (H, W, C), as gymnasium gives them,
(C, H, W), or (H, W) of one channel; wrappers stack frames in front, (S, H, W) and (S, H, W, C).

Legend: S stacked frames, C channels, H, W height and width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import numpy as np
from typing_extensions import Literal

from mxtrain.errors import DataError
from mxtrain.reinforcement.policy import LEAST_IMAGE_SIDE
from mxtrain.types import Shape

Channels = Literal["auto", "first", "last"]
MAX_CHANNELS = 32
"""More channels, or frames, are not taken for such without `dataset.channels`."""


@dataclass(frozen=True)
class ImageLayout:
    """The axes of images in observations.

    Attributes:
        native: shape of an observation as the environment gives it.
        order: its axes in the order S, C, H, W, as far as there are such.
        shape: of an observation as it enters the network: (S C, H, W).
        scale: by which numbers are multiplied, to be in units of 0 to 255.
    """

    native: Shape
    order: Tuple[int, ...]
    shape: Shape
    scale: float = 1.0

    def read(self, observation: Any) -> np.ndarray:
        """Returns an observation as it enters the network.

        Raises:
            ValueError: it has another shape.
        """
        if np.shape(observation) != self.native:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {self.native}")
        image = np.transpose(observation, self.order).reshape(self.shape)
        return image if self.scale == 1.0 else image * np.float32(self.scale)

    @property
    def remark(self) -> str:
        """Says an unusual order of axes, and that images are too small for convolutions; empty if there is nothing."""
        count, height, width = self.shape
        said = []
        if self.order != (2, 0, 1):
            said.append(f"observations of {self.native} are read as images of {height} x {width} with "
                        f"{count} channel{'s' * (count != 1)}")  # fmt: skip
        if self.order == (0, 1, 2):
            said.append("dataset.channels=last reads the last axis as channels")
        if min(height, width) < LEAST_IMAGE_SIDE:
            said.append(
                f"images of {height} x {width} are smaller than {LEAST_IMAGE_SIDE} x {LEAST_IMAGE_SIDE}: "
                "model=actor_critic has no convolutions for them, and their pixels enter dense layers"
            )
        return ". ".join(said)


def find_images(space: Any, channels: Channels, name: str) -> Optional[ImageLayout]:
    """Returns the layout of a Box whose observations are images; None if they are other numbers.

    Images are uint8 of three axes, of two if they go up to 255, and of four if the first axis is a small stack; numbers
    of another type if they lie between 0 and 1 or 0 and 255 and are large enough for convolutions.

    Args:
        space: gymnasium's Box.
        channels: of `dataset.channels`.
        name: of the environment, for messages.

    Raises:
        DataError: it is not known which axis holds the channels, or images were asked for and there are none.
    """
    shape = tuple(int(size) for size in space.shape)
    is_stacked = len(shape) == 4 and shape[0] <= MAX_CHANNELS
    if len(shape) not in (2, 3) and not is_stacked:
        if channels != "auto":
            raise DataError(
                f"dataset.channels={channels}: observations of {name} have the shape {shape}, which is no image. "
                "Type dataset.channels=auto."
            )
        return None
    low, high = float(np.min(space.low)), float(np.max(space.high))
    is_pixels = space.dtype == np.uint8 and (len(shape) > 2 or high == 255)
    is_scaled = low == 0.0 and high in (1.0, 255.0) and space.dtype != np.bool_
    if not (is_pixels or is_scaled or channels != "auto"):
        return None
    found = _layout(shape, channels, name if is_pixels or is_scaled else "")
    if not is_pixels and channels == "auto" and min(found.shape[1:]) < LEAST_IMAGE_SIDE:
        return None
    return found if space.dtype == np.uint8 or high != 1.0 else ImageLayout(shape, found.order, found.shape, 255.0)


def _layout(shape: Shape, channels: Channels, name: str) -> ImageLayout:
    if len(shape) == 2:
        return ImageLayout(shape, (0, 1), (1, *shape))
    frames, image = shape[:-3], shape[-3:]
    axes = (2, 0, 1) if _channel_axis(image, channels, name) == "last" else (0, 1, 2)
    count, height, width = (image[axis] for axis in axes)
    order = (*range(len(frames)), *(axis + len(frames) for axis in axes))
    return ImageLayout(shape, order, (int(np.prod(frames, dtype=int)) * count, height, width))


def _channel_axis(image: Shape, channels: Channels, name: str) -> str:
    if channels != "auto":
        return channels
    first, middle, last = image
    if first <= MAX_CHANNELS and first < min(middle, last):
        return "first"
    if last <= MAX_CHANNELS and last < min(first, middle):
        return "last"
    if max(min(first, middle), min(middle, last)) >= LEAST_IMAGE_SIDE:
        raise DataError(
            f"dataset.id={name}: observations of {image} are images, and neither their first nor their last axis "
            f"is the shortest one with at most {MAX_CHANNELS} channels. Type dataset.channels=first or "
            "dataset.channels=last."
        )
    return "last"  # either way all pixels enter dense layers


def holds_images(space: Any) -> bool:
    """Returns True if a space is of images, or a composed space (Dict, Tuple) has images among its parts."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return any(holds_images(part) for part in (parts.values() if hasattr(parts, "values") else parts))
    return getattr(space, "dtype", None) == np.uint8 and len(space.shape or ()) in (2, 3, 4)
