"""Draws samples with their labels and the predictions of the network."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mxtrain.data.class_rows import ranked_order
from mxtrain.task.figure_fonts import drawable, font_of
from mxtrain.task.prediction_format import class_name

if TYPE_CHECKING:
    from mxtrain.data.spec import Source

_TILE = 112
"""Approximate length of a sample's longer side, in pixels."""
_GAP = 10
"""Distance between samples, in pixels."""
FONT_SIZE = 15
CAPTION = 2 * (FONT_SIZE + 4) + 4
"""Height of a caption of two lines, in pixels."""
_COLUMNS = 4
"""Samples in a row. TensorBoard shows images about 340 pixels wide, so captions of more columns would be illegible."""

PAPER = (255, 255, 255)
INK = (40, 40, 40)
QUIET = (120, 120, 120)
RIGHT = (30, 130, 60)
WRONG = (200, 30, 30)


@dataclass(frozen=True)
class PredictedImages:
    """Images with their labels and predictions.

    Attributes:
        image_BHWC: pixels for display, uint8.
        label_B: class indices.
        probability_BK: predicted class probabilities.
        threshold: see `Classification.threshold`.
    """

    image_BHWC: np.ndarray
    label_B: np.ndarray
    probability_BK: np.ndarray
    threshold: Optional[float] = None


def images_of(source: Source) -> np.ndarray:
    """Returns all samples of a source as uint8 images, (B, H, W, C)."""
    image_BCHW, *_ = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    return np.clip(image_BCHW, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


def draw_samples(samples: PredictedImages, class_names: Sequence[str], max_images: int) -> Image.Image:
    """Draws a grid of samples: under each its class, then the predicted class and its probability, in red if wrong.

    Args:
        samples: images (B, H, W, C) as uint8, labels (B,), probabilities (B, K).
        class_names: names of the K classes; a class without a name is shown by its number.
        max_images: largest number of samples to draw.

    Returns:
        An RGB image.
    """
    drawable_names = drawable(class_names)
    tiles = [as_tile(image, _TILE) for image in samples.image_BHWC[:max_images]]
    columns = min(_COLUMNS, max(1, len(tiles)))
    cell_w = max([_TILE, *(tile.width for tile in tiles)]) + _GAP
    cell_h = max([1, *(tile.height for tile in tiles)]) + CAPTION + _GAP
    rows = math.ceil(len(tiles) / columns)
    figure = Image.new("RGB", (columns * cell_w + _GAP, rows * cell_h + _GAP), PAPER)
    draw = ImageDraw.Draw(figure)
    for index, tile in enumerate(tiles):
        x = _GAP + index % columns * cell_w
        y = _GAP + index // columns * cell_h
        label = int(samples.label_B[index])
        predicted = int(ranked_order(samples.probability_BK[index], samples.threshold)[0])
        figure.paste(tile, (x, y))
        if predicted != label:
            draw.rectangle((x - 3, y - 3, x + tile.width + 2, y + tile.height + 2), outline=WRONG, width=3)
        names = (class_name(drawable_names, label), class_name(drawable_names, predicted))
        probability = float(samples.probability_BK[index][predicted])
        draw_caption(draw, (x, y + tile.height + 4), cell_w - _GAP, names, probability, predicted == label)
    return figure


def draw_caption(
    draw: ImageDraw.ImageDraw,
    position: Tuple[float, float],
    width: int,
    names: Tuple[str, str],
    probability: float,
    is_right: bool,
) -> None:
    """Draws two lines under a sample: its class; the predicted class and its probability, in red if wrong.

    Args:
        draw: drawing context of the image.
        position: x and y of the top left corner, in pixels.
        width: width of the lines, in pixels.
        names: names of the true and the predicted class, as `drawable` returns them.
        probability: probability of the predicted class, from 0 to 1.
        is_right: True if the prediction is correct.
    """
    (x, y), (true, predicted) = position, names
    draw.text((x, y), fit_text(true, width, font_for(true)), INK, font_for(true))
    probability_text = f" {probability:.2f}"
    font = font_for(predicted)
    predicted = fit_text(predicted, width - font_for("").getlength(probability_text), font)
    y += FONT_SIZE + 4
    draw.text((x, y), predicted, RIGHT if is_right else WRONG, font)
    draw.text((x + font.getlength(predicted), y), probability_text, QUIET if is_right else WRONG, font_for(""))


def font_for(name: str, size: int = FONT_SIZE) -> ImageFont.FreeTypeFont:
    """Returns a font that has the letters of a name."""
    return open_font(font_of(name) or "", size)


@functools.lru_cache(maxsize=16)
def open_font(file: str, size: int) -> ImageFont.FreeTypeFont:
    """Opens a font file; "" means Pillow's default font."""
    return ImageFont.truetype(file, size) if file else ImageFont.load_default(size)


def as_tile(image_HWC: np.ndarray, longer_side: int) -> Image.Image:
    """Resizes an image and converts it to RGB.

    Args:
        image_HWC: uint8.
        longer_side: length of the longer side, in pixels; approximate for small images, which are scaled by integers.
    """
    channels = image_HWC.shape[2]
    array = np.ascontiguousarray(image_HWC[:, :, :3] if channels >= 3 else image_HWC[:, :, 0])
    tile = Image.fromarray(array).convert("RGB")
    scale = longer_side / max(tile.size)
    if scale >= 1:
        # Whole multiples keep every pixel of a small image a sharp square.
        scale = max(1, round(scale))
    size = (max(1, round(tile.width * scale)), max(1, round(tile.height * scale)))
    return tile.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)


def fit_text(text: str, width: float, font: ImageFont.FreeTypeFont) -> str:
    """Returns `text`, shortened with dots if it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def draw_captioned(
    image_N: Sequence[np.ndarray], captions: Sequence[Sequence[str]], are_wrong: Sequence[bool], title: str
) -> Image.Image:
    """Draws a grid of images, each with two lines below it, the second in red if the prediction is wrong.

    Args:
        image_N: images (H, W, C), uint8.
        captions: two lines for each image.
        are_wrong: True for each image with a wrong prediction.
        title: title of the figure.

    Returns:
        An RGB image.
    """
    tiles = [as_tile(image, _TILE) for image in image_N]
    columns = min(_COLUMNS, max(1, len(tiles)))
    cell_w = max([_TILE, *(tile.width for tile in tiles)]) + 4 * _GAP
    cell_h = max([1, *(tile.height for tile in tiles)]) + CAPTION + _GAP
    head = FONT_SIZE + _GAP
    size = (columns * cell_w + _GAP, math.ceil(len(tiles) / columns) * cell_h + _GAP + head)
    figure = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(figure)
    draw.text((_GAP, _GAP // 2), fit_text(title, size[0] - 2 * _GAP, font_for("")), INK, font_for(""))
    for index, (tile, lines, is_wrong) in enumerate(zip(tiles, captions, are_wrong)):
        x, y = _GAP + index % columns * cell_w, head + _GAP + index // columns * cell_h
        figure.paste(tile, (x, y))
        for number, line in enumerate(drawable(lines)):
            font, top = font_for(line), y + tile.height + 4 + number * (FONT_SIZE + 4)
            color = INK if number == 0 else WRONG if is_wrong else QUIET
            draw.text((x, top), fit_text(line, cell_w - _GAP, font), color, font)
    return figure
