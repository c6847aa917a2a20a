"""Finds the images in observations: which axis holds channels and which holds stacked frames.

Environments declare the shape of an observation, but not the meaning of its axes: images are (H, W, C), as in
gymnasium, (C, H, W), or (H, W) with one channel; wrappers stack frames in front, (S, H, W) and (S, H, W, C).

Legend: S stacked frames, C channels, H, W height and width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import numpy as np
from typing_extensions import Literal

from mxtrain.errors import DataError
from mxtrain.reinforcement.policy import MIN_IMAGE_SIDE
from mxtrain.types import Shape

Channels = Literal["auto", "first", "last"]
MAX_CHANNELS = 32
"""Maximum number of channels or frames that are detected without `dataset.channels`."""


@dataclass(frozen=True)
class ImageLayout:
    """The axes of images in observations.

    Attributes:
        native: shape of an observation of the environment.
        order: its axes in the order S, C, H, W, as far as they exist.
        shape: input shape of the network, (S C, H, W).
        scale: factor that converts values to the range from 0 to 255.
    """

    native: Shape
    order: Tuple[int, ...]
    shape: Shape
    scale: float = 1.0

    def read(self, observation: Any) -> np.ndarray:
        """Converts an observation to network input.

        Raises:
            ValueError: the observation has another shape.
        """
        if np.shape(observation) != self.native:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {self.native}")
        image = np.transpose(observation, self.order).reshape(self.shape)
        return image if self.scale == 1.0 else image * np.float32(self.scale)

    @property
    def remark(self) -> str:
        """Returns remarks about an unusual order of axes and images too small for convolutions; may be empty."""
        count, height, width = self.shape
        sentences = []
        if self.order != (2, 0, 1):
            sentences.append(
                f"observations of {self.native} are read as images of {height} x {width} with "
                f"{count} channel{'s' * (count != 1)}"
            )
        if self.order == (0, 1, 2):
            sentences.append("dataset.channels=last reads the last axis as channels")
        if min(height, width) < MIN_IMAGE_SIDE:
            sentences.append(
                f"images of {height} x {width} are smaller than {MIN_IMAGE_SIDE} x {MIN_IMAGE_SIDE}: "
                "model=actor_critic has no convolutions for them, and their pixels enter dense layers"
            )
        return ". ".join(sentences)


def find_images(space: Any, channels: Channels, name: str) -> Optional[ImageLayout]:
    """Returns the layout of a Box whose observations are images; None if they are not images.

    Images are arrays of uint8 with three axes, with two if values go up to 255, and with four if the first axis is a
    small stack; arrays of other types are images if values are between 0 and 1 or 0 and 255 and the size suffices for
    convolutions.

    Args:
        space: gymnasium's Box.
        channels: value of `dataset.channels`.
        name: id of the environment, for messages.

    Raises:
        DataError: the channel axis is unknown, or `channels` is set although observations are not images.
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
    layout = _layout(shape, channels, name if is_pixels or is_scaled else "")
    if not is_pixels and channels == "auto" and min(layout.shape[1:]) < MIN_IMAGE_SIDE:
        return None
    return layout if space.dtype == np.uint8 or high != 1.0 else ImageLayout(shape, layout.order, layout.shape, 255.0)


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
    if max(min(first, middle), min(middle, last)) >= MIN_IMAGE_SIDE:
        raise DataError(
            f"dataset.id={name}: observations of {image} are images, and neither their first nor their last axis "
            f"is the shortest one with at most {MAX_CHANNELS} channels. Type dataset.channels=first or "
            "dataset.channels=last."
        )
    return "last"  # either way all pixels enter dense layers


def holds_images(space: Any) -> bool:
    """Returns True if observations of a space are images, or if a composed space (Dict, Tuple) contains images."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return any(holds_images(part) for part in (parts.values() if hasattr(parts, "values") else parts))
    return getattr(space, "dtype", None) == np.uint8 and len(space.shape or ()) in (2, 3, 4)
