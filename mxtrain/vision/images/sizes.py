"""Types of settings of image sizes and scaling, with their validation."""

from __future__ import annotations

import math
from typing import List, Sequence, Union

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.types import Fraction, Positive, PositiveFloat

MAX_CHANNELS = 512
Channels = Union[Literal["auto"], Annotated[int, pydantic.Field(ge=1, le=MAX_CHANNELS)]]
"""Number of channels of the network's input: 1 grey, 3 colour, or the number of bands of the files."""
ChannelMean = Union[Literal["auto"], List[Fraction]]
ChannelStd = Union[Literal["auto"], List[PositiveFloat]]
ImageSize = Annotated[List[Positive], pydantic.Field(min_length=2, max_length=2)]
MAX_BATCH_GIB = 64
"""Largest allowed memory of the images of a batch as float32, in GiB."""


def square(size: object, field: pydantic.ValidationInfo) -> object:
    """Expands one number to a square, and rejects everything but a number or a pair."""
    if isinstance(size, int) and not isinstance(size, bool):
        size = [size, size]
    if size != "auto" and not (isinstance(size, list) and len(size) == 2):
        name = field.field_name
        raise ValueError(f"{name} is auto, one number or [height, width], e.g. [32,32], but {size} was given")
    return size


def refuse_large_batch(
    field: str, size: Sequence[int], channels: Union[str, int], batch_size: int, batch_field: str = "batch_size"
) -> None:
    """Rejects a batch of images that would not fit into memory.

    Args:
        field: setting with the size, for the message.
        size: (height, width) in pixels.
        channels: number of channels; auto: 3.
        batch_size: number of images.
        batch_field: setting with the number of images, for the message.

    Raises:
        ValueError: the batch is too large.
    """
    gib = batch_size * (3 if channels == "auto" else int(channels)) * math.prod(size) * 4 / 2**30
    if gib > MAX_BATCH_GIB:
        raise ValueError(
            f"{field}={size} with {batch_field}={batch_size}: a batch would take {gib:,.0f} GiB of memory, and at most "
            f"{MAX_BATCH_GIB} are allowed. Choose smaller ones"
        )
