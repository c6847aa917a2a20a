"""Makes the signature of image inputs, so that a network gets the same input in training and in use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Collection

from mxtrain.errors import ConfigError
from mxtrain.vision.images.settings import Decoding, as_window
from mxtrain.vision.images.signature import ImageSignature, ImageSplits

if TYPE_CHECKING:
    from mxtrain.data.base import Splits
    from mxtrain.model.base import Model
    from mxtrain.vision.images.dataset import Dataset


def sign_images(dataset: Dataset, splits: Splits, model: Model) -> ImageSignature:
    """The dataset's own size and channels, unless the model or the user wants others."""
    channels, height, width = model.input_shape(dataset.input_shape(splits.shape))
    if dataset.channels != "auto":
        channels = dataset.channels
    if dataset.image_size != "auto":
        height, width = dataset.image_size
    decoding = splits.decoding if isinstance(splits, ImageSplits) else Decoding(tuple(splits.shape))
    return ImageSignature(
        (channels, height, width), list(splits.mean), list(splits.std), list(splits.class_names), decoding=decoding
    )


def restored_signature(
    dataset: Dataset, given: ImageSignature, typed: Collection[str], source: str
) -> ImageSignature:  # fmt: skip
    """Returns the signature for a command: image settings of the run's checkpoint, with another `dataset.central_crop`
    or `dataset.window` only if typed.

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
    if "dataset.central_crop" in typed:
        decoding = replace(decoding, central_crop=dataset.central_crop)  # type: ignore[attr-defined]
    if "dataset.window" in typed:
        decoding = replace(decoding, window=as_window(dataset.window))  # type: ignore[attr-defined]
    return replace(given, decoding=decoding)
