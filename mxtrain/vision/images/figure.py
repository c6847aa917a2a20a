"""Drawing that figures of boxes, masks and key points share.

Legend: H height, W width, C channels.
"""

from __future__ import annotations

import colorsys
import math
from typing import Any, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mxtrain.data.loading.samples import Wrapper
from mxtrain.task.sample_figure import FONT_SIZE, INK, PAPER, font_for

GAP = 8
"""Distance between tiles, in pixels."""
TILE = 220
"""Approximate length of the longer side of a sample, in pixels."""
_GOLDEN_RATIO = 0.618034
Colour = Tuple[int, ...]


def origin_of(source: Any, index: int) -> Tuple[Any, int]:
    """Returns the innermost source inside of wrappers, such as subsets, and the index of a sample in it."""
    while isinstance(source, Wrapper):
        source, index = source.source, source.index_in_source(index)
    return source, index


def colour_of(number: int) -> Colour:
    """Returns a bright colour for a class. Colours of consecutive classes differ much; none is near red, which marks
    errors."""
    hue = 0.08 + 0.84 * (0.12 + number * _GOLDEN_RATIO % 1) % 0.84
    return tuple(round(255 * channel) for channel in colorsys.hsv_to_rgb(hue, 0.8, (1.0, 0.8)[number // 6 % 2]))


def photo(image_HWC: np.ndarray, scale: float) -> Image.Image:
    """Resizes the pixels of a sample (H, W, C), uint8, by a factor, and converts them to an RGB image, of the first
    three channels."""
    image_HWC = np.ascontiguousarray(image_HWC[..., : 3 if image_HWC.shape[2] > 2 else 1])
    image = Image.fromarray(image_HWC if image_HWC.shape[2] == 3 else image_HWC[:, :, 0]).convert("RGB")
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Joins two images of the same height side by side."""
    canvas = Image.new("RGB", (left.width + right.width + 2, left.height), PAPER)
    canvas.paste(left, (0, 0))
    canvas.paste(right, (left.width + 2, 0))
    return canvas


def captioned(tile: Image.Image, caption: str, font_size: int = FONT_SIZE) -> Image.Image:
    """Returns an image with a line of text under it.

    Args:
        tile: the image.
        caption: the text.
        font_size: size of the text in pixels.
    """
    canvas = Image.new("RGB", (tile.width, tile.height + font_size + 6), PAPER)
    canvas.paste(tile, (0, 0))
    ImageDraw.Draw(canvas).text((0, tile.height + 2), caption, INK, font_for(caption, font_size))
    return canvas


def grid(
    tiles: Sequence[Image.Image], heads: Sequence[str], columns: int, font_size: int, min_width: int = TILE
) -> Image.Image:
    """Arranges images in a grid.

    Args:
        tiles: the images.
        heads: headings of the columns; empty: none.
        columns: largest number of columns.
        font_size: font size of the headings, in pixels.
        min_width: smallest width of a column, in pixels.
    """
    columns = min(columns, max(1, len(tiles)))
    cell_width = max([min_width, *(tile.width for tile in tiles)]) + GAP
    cell_height = max([1, *(tile.height for tile in tiles)]) + GAP
    head = font_size + GAP if heads else GAP
    num_rows = math.ceil(len(tiles) / columns)
    image = Image.new("RGB", (columns * cell_width + GAP, head + num_rows * cell_height), PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(font_size)
    for column, text in enumerate(heads[:columns]):
        draw.text((GAP + column * cell_width, 2), text, INK, font)
    for number, tile in enumerate(tiles):
        image.paste(tile, (GAP + number % columns * cell_width, head + number // columns * cell_height))
    return image
