"""Images of masks: each class in a colour of its own, over the photograph.

Legend: H height, W width, C channels; h, w of one image as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mxtrain.data.loading.samples import Wrapper
from mxtrain.logger.fonts import drawable
from mxtrain.task.sample_figure import font_for
from mxtrain.vision.segmentation.mask_png import palette
from mxtrain.vision.segmentation.masked_images import MaskedImages

if TYPE_CHECKING:
    from mxtrain.data.base import Samples

_TILE = 160  # pixels along a sample's longer side, about
_GAP = 8
_FONT_SIZE = 13
_OPACITY = 0.6
_PAPER, _INK, _IGNORED = (255, 255, 255), (40, 40, 40), (224, 224, 192)
_MAX_NAMES = 40


@dataclass(frozen=True)
class MaskedSample:
    """An image with two masks of its size; -1 is ignored."""

    image_hwC: np.ndarray
    """uint8."""
    true_hw: np.ndarray
    predicted_hw: np.ndarray


def own_mask(source: Samples, index: int, size: Sequence[int]) -> np.ndarray:
    """Returns the mask of a sample as large as its image, from its file.

    Args:
        source: source of the samples, perhaps a part of another.
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
        if isinstance(origin, MaskedImages):  # in files: both as large as they are
            image_CHW, true_hw = origin.image(number), origin.mask(number, (width, height))
        else:
            (image_CHW,), (true_hw,), _ = source.fetch(np.array([index]), seed=0, epoch=0, train=False)
        image_hwC = np.clip(image_CHW[:, :height, :width], 0, 255).astype(np.uint8).transpose(1, 2, 0)
        true_hw = true_hw[:height, :width]
        samples.append(MaskedSample(image_hwC, true_hw, predicted_hw.astype(np.int64)))
    return samples


def origin_of(source: Any, index: int) -> Tuple[Any, int]:
    """Returns the source that a part of it was taken from, or that is wrapped, and the sample's index there."""
    while isinstance(source, Wrapper):
        source, index = source.source, source.index_in_source(index)
    return source, index


def draw_masks(samples: Sequence[MaskedSample], class_names: Sequence[str]) -> Image.Image:
    """Draws samples in rows: the image, the image with its true mask, and the prediction; below, a legend of the
    classes.

    Returns:
        An RGB image.
    """
    colours = palette(len(class_names))
    strips = [_strip(sample, colours) for sample in samples]
    columns = 2 if len(strips) > 1 else 1
    cell_w = max([3 * _TILE, *(strip.width for strip in strips)]) + _GAP
    cell_h = max([1, *(strip.height for strip in strips)]) + _GAP
    rows = math.ceil(len(strips) / columns)
    masks = [mask_hw for sample in samples for mask_hw in (sample.true_hw, sample.predicted_hw)]
    occurring = {int(number) for mask_hw in masks for number in np.unique(mask_hw)}
    legend = _legend(sorted(occurring - {-1})[:_MAX_NAMES], class_names, colours, columns * cell_w)
    head = _FONT_SIZE + _GAP
    image = Image.new("RGB", (columns * cell_w + _GAP, head + rows * cell_h + legend.height + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT_SIZE)
    for column in range(columns):
        draw.text((_GAP + column * cell_w, 2), "image, mask, prediction", _INK, font)
    for number, strip in enumerate(strips):
        image.paste(strip, (_GAP + number % columns * cell_w, head + number // columns * cell_h))
    image.paste(legend, (_GAP, head + rows * cell_h))
    return image


def _strip(sample: MaskedSample, colours: np.ndarray) -> Image.Image:
    """Returns the image, and twice the image with a mask over it, side by side."""
    image_hwC = np.ascontiguousarray(sample.image_hwC)
    photo = Image.fromarray(image_hwC if image_hwC.shape[2] == 3 else image_hwC[:, :, 0]).convert("RGB")
    scale = _TILE / max(photo.size)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    photo = photo.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)
    strip = Image.new("RGB", (3 * size[0] + 4, size[1]), _PAPER)
    strip.paste(photo, (0, 0))
    for place, mask_hw in enumerate((sample.true_hw, sample.predicted_hw), start=1):
        small = np.asarray(Image.fromarray(mask_hw.astype(np.int32)).resize(size, Image.Resampling.NEAREST))
        colour = np.where((small < 0)[..., None], np.array(_IGNORED, np.uint8), colours[np.maximum(small, 0)])
        over = Image.blend(photo, Image.fromarray(colour.astype(np.uint8)), _OPACITY)
        strip.paste(over, (place * (size[0] + 2), 0))
    return strip


def _legend(classes: Sequence[int], class_names: Sequence[str], colours: np.ndarray, width: int) -> Image.Image:
    """Returns the names of classes, each beside its colour, in as many lines as it takes."""
    labels = drawable(class_names)
    places: List[Tuple[int, int, int]] = []
    x, y, line = 0, 0, _FONT_SIZE + 6
    for number in classes:
        length = line + int(font_for(labels[number], _FONT_SIZE).getlength(labels[number])) + 2 * _GAP
        if x and x + length > width:
            x, y = 0, y + line
        places.append((number, x, y))
        x += length
    image = Image.new("RGB", (width, y + line), _PAPER)
    draw = ImageDraw.Draw(image)
    for number, x, y in places:
        draw.rectangle((x, y + 3, x + _FONT_SIZE, y + 3 + _FONT_SIZE - 2), fill=tuple(map(int, colours[number])))
        draw.text((x + line, y), labels[number], _INK, font_for(labels[number], _FONT_SIZE))
    return image

