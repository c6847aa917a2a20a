"""Makes the signature of image inputs, so that a network gets the same input in training and in use."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Collection

from mxtrain.dataset.image.settings import Decoding, as_window
from mxtrain.dataset.signature import Signature
from mxtrain.errors import ConfigError
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxtrain.dataset.base import Dataset, Splits
    from mxtrain.model.base import Model


def sign_images(dataset: Dataset, splits: Splits, model: Model) -> Signature:
    """The dataset's own size and channels, unless the model or the user wants others."""
    channels, height, width = model.input_shape(dataset.input_shape(splits.shape))
    if dataset.channels != "auto":
        channels = dataset.channels
    if dataset.image_size != "auto":
        height, width = dataset.image_size
    decoding = splits.decoding or Decoding(tuple(splits.shape))
    return Signature(
        (channels, height, width), list(splits.mean), list(splits.std), list(splits.class_names), decoding=decoding
    )


def restored_signature(dataset: Dataset, given: Signature, typed: Collection[str], source: str) -> Signature:
    """How a command reads images: as the run did, which its checkpoint says, and another `dataset.central_crop` or
    `dataset.window` only where that is typed.

    Raises:
        ConfigError: something else of what enters the network was to be changed.
    """
    channels, *size = given.shape
    kept = {
        "dataset.image_size": list(size), "dataset.channels": channels, "dataset.mean": list(given.mean),
        "dataset.std": list(given.std),
    }  # fmt: skip
    for key, value in kept.items():
        wanted = getattr(dataset, key.partition(".")[2], value)
        if key in typed and wanted not in (value, "auto"):
            raise ConfigError(
                f"{key}={wanted}: what enters the network is part of what was trained, and {source} says "
                f"{key}={value}. Leave it out."
            )
    decoding = given.decoding
    if decoding is None:
        decoding = dataset.decoding_for(shapes_of(given.shape)[0])
        shown = "x".join(map(str, decoding.shape))
        print(
            f"{source} was made by an earlier version and does not say how image files are read: as {shown}, "
            f"with central_crop={decoding.central_crop:g}", file=sys.stderr,
        )  # fmt: skip
    if "dataset.central_crop" in typed:
        decoding = replace(decoding, central_crop=dataset.central_crop)  # type: ignore[attr-defined]
    if "dataset.window" in typed:
        decoding = replace(decoding, window=as_window(dataset.window))  # type: ignore[attr-defined]
    return replace(given, decoding=decoding)
