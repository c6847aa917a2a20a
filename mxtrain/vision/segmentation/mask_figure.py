"""Draws segmentation masks over images, each class in a colour of its own.

Legend: H height, W width, C channels; h, w size of an original image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw

from mxtrain.task.figure_fonts import drawable
from mxtrain.task.sample_figure import INK, PAPER, font_for
from mxtrain.vision.images.figure import GAP, grid, origin_of, photo
from mxtrain.vision.segmentation.mask_png import palette
from mxtrain.vision.segmentation.masked_images import MaskedImages

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples

_TILE = 160  # pixels along a sample's longer side, about
_FONT_SIZE = 13
_OPACITY = 0.6
_IGNORED = (224, 224, 192)
"""Colour of ignored pixels."""
_MAX_NAMES = 40


@dataclass(frozen=True)
class MaskedSample:
    """An image with its true and its predicted mask.

    Attributes:
        image_hwC: uint8.
        true_hw: true class of each pixel; -1 is ignored.
        predicted_hw: predicted class of each pixel.
    """

    image_hwC: np.ndarray
    true_hw: np.ndarray
    predicted_hw: np.ndarray


def own_mask(source: Samples, index: int, size: Sequence[int]) -> np.ndarray:
    """Reads the mask of a sample in the original size of its image.

    Args:
        source: source of the samples; may be a wrapper, such as a subset.
        index: index of the sample.
        size: (height, width) of the image.
    """
    origin, number = origin_of(source, index)
    return origin.mask(number, (size[1], size[0]))


def masked_samples(source: Any, indices: Iterable[int], predictions: Sequence[np.ndarray]) -> List[MaskedSample]:
    """Returns samples of a source for display, with the predicted masks."""
    samples = []
    for index, predicted_hw in zip(indices, predictions):
        origin, number = origin_of(source, index)
        height, width = predicted_hw.shape
        if isinstance(origin, MaskedImages):  # files are drawn in their original size
            image_CHW, true_hw = origin.image(number), origin.mask(number, (width, height))
        else:
            (image_CHW,), (true_hw,), _ = source.fetch(np.array([index]), seed=0, epoch=0, train=False)
        image_hwC = np.clip(image_CHW[:, :height, :width], 0, 255).astype(np.uint8).transpose(1, 2, 0)
        true_hw = true_hw[:height, :width]
        samples.append(MaskedSample(image_hwC, true_hw, predicted_hw.astype(np.int64)))
    return samples


def draw_masks(samples: Sequence[MaskedSample], class_names: Sequence[str]) -> Image.Image:
    """Draws samples in a grid: the image, the image with its true mask, and the image with the predicted mask. Below is
    a legend of the classes.

    Returns:
        An RGB image.
    """
    colours = palette(len(class_names))
    strips = [_strip(sample, colours) for sample in samples]
    masks = [mask_hw for sample in samples for mask_hw in (sample.true_hw, sample.predicted_hw)]
    classes = {int(number) for mask_hw in masks for number in np.unique(mask_hw)} - {-1}
    table = grid(strips, ["image, mask, prediction"] * 2, 2, _FONT_SIZE, min_width=3 * _TILE)
    legend = _legend(sorted(classes)[:_MAX_NAMES], class_names, colours, table.width - GAP)
    image = Image.new("RGB", (table.width, table.height + legend.height + GAP), PAPER)
    image.paste(table, (0, 0))
    image.paste(legend, (GAP, table.height))
    return image


def _strip(sample: MaskedSample, colours: np.ndarray) -> Image.Image:
    """Draws the image, the image with the true mask, and the image with the predicted mask, side by side."""
    image = photo(sample.image_hwC, _TILE / max(sample.image_hwC.shape[:2]))
    size = image.size
    strip = Image.new("RGB", (3 * size[0] + 4, size[1]), PAPER)
    strip.paste(image, (0, 0))
    for position, mask_hw in enumerate((sample.true_hw, sample.predicted_hw), start=1):
        small = np.asarray(Image.fromarray(mask_hw.astype(np.int32)).resize(size, Image.Resampling.NEAREST))
        colour = np.where((small < 0)[..., None], np.array(_IGNORED, np.uint8), colours[np.maximum(small, 0)])
        blended = Image.blend(image, Image.fromarray(colour.astype(np.uint8)), _OPACITY)
        strip.paste(blended, (position * (size[0] + 2), 0))
    return strip


def _legend(classes: Sequence[int], class_names: Sequence[str], colours: np.ndarray, width: int) -> Image.Image:
    """Draws the names of classes beside their colours, in as many lines as needed for that width in pixels."""
    labels = drawable(class_names)
    entries: List[Tuple[int, int, int]] = []  # class, x, y
    x, y, line = 0, 0, _FONT_SIZE + 6
    for number in classes:
        length = line + int(font_for(labels[number], _FONT_SIZE).getlength(labels[number])) + 2 * GAP
        if x and x + length > width:
            x, y = 0, y + line
        entries.append((number, x, y))
        x += length
    image = Image.new("RGB", (width, y + line), PAPER)
    draw = ImageDraw.Draw(image)
    for number, x, y in entries:
        draw.rectangle((x, y + 3, x + _FONT_SIZE, y + 3 + _FONT_SIZE - 2), fill=tuple(map(int, colours[number])))
        draw.text((x + line, y), labels[number], INK, font_for(labels[number], _FONT_SIZE))
    return image
