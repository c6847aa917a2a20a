"""Chooses the image size and the channels of a network by its files, for `image_size=auto` and `channels=auto`."""

from __future__ import annotations

import logging
import statistics
from typing import TYPE_CHECKING, Callable, Dict, TypeVar, Union

import numpy as np

from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.loading.opening import ImageNeedsSetting
from mxtrain.errors import DataError
from mxtrain.vision.images.decoding import EncodedImages, evenly_spaced
from mxtrain.vision.images.pixels import ImageReader, read_error
from mxtrain.vision.images.tiff import is_tiff

if TYPE_CHECKING:
    from mxtrain.types import Shape
    from mxtrain.vision.images.dataset import Dataset
    from mxtrain.vision.images.settings import Window

    AnyDataset = TypeVar("AnyDataset", bound=Dataset)

log = logging.getLogger(__name__)

MULTIPLE = 32
"""Sides are multiples of this: most networks halve an image five times."""


def fitted_to(
    dataset: AnyDataset,
    encoded: EncodedImages,
    window: Window,
    largest: int,
    side_of: Callable[[Shape], int],
    findings: Findings = STRICT,
) -> AnyDataset:
    """Returns a dataset with `image_size=auto` and `channels=auto` replaced by values that fit its training images;
    the dataset itself if nothing changes.

    Args:
        dataset: settings.
        encoded: training images.
        window: range of grey values.
        largest, side_of: see `typical_side`.
        findings: collects problems; `data check` reports images that do not fit the settings one by one.

    Raises:
        DataError: the first image cannot be read with these settings, or needs a library that is not installed.
    """
    update: Dict[str, object] = {}
    channels = file_channels(encoded, dataset.channels, window, findings)
    if channels not in (3, dataset.channels):
        log.info("dataset.channels=%d: the number of bands of the first image (auto)", channels)
        update["channels"] = channels
    if dataset.image_size == "auto":
        side = typical_side(encoded, largest, side_of)
        update["image_size"] = [side, side]
    return dataset.model_copy(update=update) if update else dataset


def file_channels(encoded: EncodedImages, setting: Union[str, int], window: Window, findings: Findings = STRICT) -> int:
    """Returns the number of channels for a setting `channels`: for auto, that of the first image if it is neither grey
    nor in colour, otherwise 3. Reads the first image; if it is damaged, reading the samples raises the error.

    Raises:
        DataError: the first image has another number of channels, or cannot be read with these settings.
    """
    channels = 3 if setting == "auto" else int(setting)
    try:
        content = encoded.read(0)[0]
        has_bands = not isinstance(content, bytes) or is_tiff(content)
        if setting == "auto" and window == "auto" and not has_bands:
            return channels  # without Pillow, whose import takes a tenth of a second
        image = ImageReader(content, window)
        channels = image.own_channels if setting == "auto" else channels
        image.resized((0.0, 0.0, *image.size), (1, 1), channels)
    except ImageNeedsSetting as error:
        if not findings.keeps_going:
            raise DataError(read_error(encoded.name(0), error)) from error
    except Exception:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
        log.debug("the first image cannot be read", exc_info=True)
    return channels


def typical_side(encoded: EncodedImages, largest: int, side_of: Callable[[Shape], int]) -> int:
    """Returns the median side in pixels of evenly spaced images, rounded up to a multiple of `MULTIPLE`.

    Args:
        encoded: training images. Unreadable ones are skipped here; reading them later raises the error.
        largest: upper limit of the result, which is also returned if no image can be read.
        side_of: chooses a side of (height, width): `min` or `max`.
    """
    sides = []
    for index in evenly_spaced(np.arange(len(encoded))).tolist() if len(encoded) else ():
        try:
            width, height = ImageReader(encoded.read(index)[0]).size
        except Exception:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            continue
        sides.append(side_of((height, width)))
    if not sides:
        return largest
    # median_high is a side that occurs, never the half between two.
    median = statistics.median_high(sides)
    side = min(-(-median // MULTIPLE) * MULTIPLE, largest)
    kind = "shorter" if side_of is min else "longer"
    log.info("dataset.image_size=%d: %d px is the median %s side of %d images (auto)", side, median, kind, len(sides))
    return side
