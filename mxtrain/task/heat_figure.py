"""Draws attribution maps: each image, and next to it the image in grey under a heat map.

Legend: B batch, H height, W width, C channels, h, w height and width of a map, which may be coarser than the image.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, List, Sequence, Tuple, Union

import numpy as np
from PIL import Image, ImageDraw

from mxtrain.data.checking.checks import checks_of
from mxtrain.task.explained import Attribution
from mxtrain.task.figure_fonts import drawable
from mxtrain.task.sample_figure import (
    CAPTION,
    FONT_SIZE,
    INK,
    PAPER,
    QUIET,
    WRONG,
    as_tile,
    draw_caption,
    font_for,
    images_of,
)
from mxtrain.task.sample_results import location_text
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples

_TILE = 160  # pixels along a sample's longer side, about
_GAP = 14
_BETWEEN = 3
_COLUMNS = 3
_HEAD = 2 * (FONT_SIZE + 5) + _GAP
_BRIGHTEST = 99.5
"""The percentile of a map that is drawn in full colour: single pixels would leave the rest invisible."""
_OPACITY = 0.9
_DARKEST, _LIGHTEST = 35, 150
"""Grey levels of black and white in the image under the heat map: neither hides its colours."""
_FOR = ((225, 75, 0), (255, 225, 70))
_AGAINST = ((0, 75, 215), (110, 205, 255))
"""RGB colours of the least and of the most heat, for and against the prediction."""


def show_explained(source: Samples, attributions: Sequence[Attribution], title: str) -> List[Artifact]:
    """Returns figures that show which parts of each sample contribute to its explained score.

    Args:
        source: the samples, in order.
        attributions: attribution of each sample.
        title: title with method, split and step.
    """
    images = images_of(source)  # type: ignore[arg-type]  # of images, as `Task.check_explained` says
    checks = checks_of(source)
    files = [location_text(checks.location(row), "sample", item.index) for row, item in enumerate(attributions)]
    return [
        heat_table(attributions, files),
        Figure("explain", lambda max_samples: draw_heat(images, attributions, title)),
    ]


def heat_table(attributions: Sequence[Attribution], files: Sequence[str]) -> Table:
    """Returns a table with the file, the true class, the prediction and the explained score of each sample."""
    facts = list(attributions[0].facts) if attributions else []
    rows: List[List[Union[str, int, float]]] = [
        [
            file,
            item.index,
            item.true,
            item.predicted,
            item.probability,
            item.score,
            *(item.facts[name] for name in facts),
        ]
        for file, item in zip(files, attributions)
    ]
    return Table("explain", ["file", "sample", "true", "predicted", "probability", "score", *facts], rows)


def draw_heat(image_BHWC: np.ndarray, attributions: Sequence[Attribution], title: str) -> Image.Image:
    """Draws a grid of samples with image, heat map, true class and prediction; wrong predictions are red.

    Args:
        image_BHWC: images, uint8.
        attributions: attribution of each image.
        title: title of the figure.

    Returns:
        An RGB image.
    """
    pairs = [_pair(image_HWC, item) for image_HWC, item in zip(image_BHWC, attributions)]
    columns = min(_COLUMNS, max(1, len(pairs)))
    cell_w = max(pair.width for pair in pairs) + _GAP
    cell_h = max(pair.height for pair in pairs) + CAPTION + _GAP
    has_against = any((item.heat_hw < 0).any() for item in attributions)
    legend = _legend(has_against, any(item.region_HW is not None for item in attributions))
    font = font_for("")
    width = max([columns * cell_w, *(int(font.getlength(line)) + _GAP for line in (title, legend))]) + _GAP
    figure = Image.new("RGB", (width, _HEAD + math.ceil(len(pairs) / columns) * cell_h), PAPER)
    draw = ImageDraw.Draw(figure)
    draw.text((_GAP, 6), title, INK, font)
    draw.text((_GAP, 6 + FONT_SIZE + 5), legend, QUIET, font)
    names = drawable([name for item in attributions for name in (item.true, item.predicted)])
    for number, (pair, item) in enumerate(zip(pairs, attributions)):
        x, y = _GAP + number % columns * cell_w, _HEAD + number // columns * cell_h
        figure.paste(pair, (x, y))
        if not item.is_right:
            draw.rectangle((x - 3, y - 3, x + pair.width + 2, y + pair.height + 2), outline=WRONG, width=3)
        true, predicted = names[2 * number : 2 * number + 2]
        place = (x, y + pair.height + 4)
        draw_caption(
            draw, place, cell_w - _GAP, (f"true: {true}", f"predicted: {predicted}"), item.probability, item.is_right
        )
    return figure


def _legend(has_against: bool, has_region: bool) -> str:
    colours = "orange supports the prediction" + (", blue opposes it" if has_against else "")
    return f"{colours}; each image has its own scale" + ("; outlined: the explained region" if has_region else "")


def _pair(image_HWC: np.ndarray, attribution: Attribution) -> Image.Image:
    """Draws an image and its heat map next to each other."""
    heat_hw, region_HW = attribution.heat_hw, attribution.region_HW
    if attribution.extent is not None:
        height, width = attribution.extent
        # The map covers the whole padded frame; the image is its top left part.
        shape = image_HWC.shape[:2] if region_HW is None else region_HW.shape
        heat_hw = _resized(heat_hw, (shape[1], shape[0]))[:height, :width]
        image_HWC = image_HWC[:height, :width]
        region_HW = None if region_HW is None else region_HW[:height, :width]
    tile = as_tile(image_HWC, _TILE)
    hot = _heated(tile, heat_hw, image_HWC.shape[:2])
    if not heat_hw.any():
        ImageDraw.Draw(hot).text((4, 2), "no heat", PAPER, font_for(""))
    if region_HW is not None:
        hot.paste((255, 255, 255), mask=_outline(region_HW, tile.size))
    pair = Image.new("RGB", (2 * tile.width + _BETWEEN, tile.height), PAPER)
    pair.paste(tile, (0, 0))
    pair.paste(hot, (tile.width + _BETWEEN, 0))
    return pair


def _heated(tile: Image.Image, heat_hw: np.ndarray, shape: Tuple[int, ...]) -> Image.Image:
    """Draws the tile in grey under a heat map, whose opacity grows with the heat."""
    # Small images are enlarged without smoothing. A map with one value per pixel must then stay aligned with them.
    is_as_fine = heat_hw.shape == tuple(shape) and tile.width >= shape[1]
    heat_HW = _resized(heat_hw, tile.size, Image.Resampling.NEAREST if is_as_fine else Image.Resampling.BILINEAR)
    # Sparse maps have a percentile of 0, and maps without heat a maximum of 0.
    strongest = float(np.percentile(np.abs(heat_HW), _BRIGHTEST)) or float(np.abs(heat_HW).max()) or 1.0
    share_HW1 = np.clip(heat_HW / strongest, -1, 1)[..., None]
    size_HW1 = np.abs(share_HW1)
    hot_HW3, cold_HW3 = (np.array(low) + size_HW1 * (np.array(high) - np.array(low)) for low, high in (_FOR, _AGAINST))
    grey_HW1 = _DARKEST + (_LIGHTEST - _DARKEST) / 255 * np.asarray(tile.convert("L"), np.float64)[..., None]
    opacity_HW1 = _OPACITY * size_HW1**0.8
    mixed_HW3 = grey_HW1 * (1 - opacity_HW1) + np.where(share_HW1 >= 0, hot_HW3, cold_HW3) * opacity_HW1
    return Image.fromarray(np.rint(mixed_HW3).astype(np.uint8))


def _resized(
    map_hw: np.ndarray, size: Tuple[int, int], resample: Image.Resampling = Image.Resampling.BILINEAR
) -> np.ndarray:
    """Resizes a map to (width, height)."""
    return np.asarray(Image.fromarray(map_hw.astype(np.float32)).resize(size, resample), np.float64)


def _outline(region_HW: np.ndarray, size: Tuple[int, int]) -> Image.Image:
    """Returns a mask of the border of a region, for an image of size (width, height)."""
    inside = np.asarray(Image.fromarray(region_HW).resize(size, Image.Resampling.NEAREST))
    padded = np.pad(inside, 1, mode="edge")
    shifts = (padded[2:, 1:-1], padded[:-2, 1:-1], padded[1:-1, 2:], padded[1:-1, :-2])
    return Image.fromarray(inside & ~np.logical_and.reduce(shifts))
