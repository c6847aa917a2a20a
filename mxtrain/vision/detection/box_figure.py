"""Images of boxes: each class in a colour of its own, with name and score.

Legend: H height, W width, C channels; N detections, M true boxes, D columns of `boxes.Column`.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mxtrain.logger.fonts import drawable
from mxtrain.task.sample_figure import font_for
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.boxes import is_box
from mxtrain.vision.instance_segmentation.mask_rows import DETECTION_COLUMNS, FACTS, detection_masks, mask_of
from mxtrain.vision.segmentation.mask_figure import origin_of

if TYPE_CHECKING:
    pass

_TILE = 220  # pixels along a sample's longer side, about
_GAP = 8
_FONT_SIZE = 13
_PAPER, _INK, _WRONG = (255, 255, 255), (40, 40, 40), (200, 30, 30)
_COLUMNS = 4
# TensorBoard shows an image about 340 pixels wide: names in a gallery must be legible there.
_PAIRS, _PAIR_COLUMNS, _PAIR_TILE, _PAIR_FONT_SIZE = 8, 3, 170, 26
_SMALL = 256
"""Smaller images (by their longer side, in pixels) are enlarged, so that captions do not cover the objects."""
_GOLDEN = 0.618034
Colour = Tuple[int, ...]


@dataclass(frozen=True)
class BoxedSample:
    """An image with true boxes and detections in its own pixels."""

    image_HWC: np.ndarray
    """uint8."""
    true_MD: np.ndarray
    detection_N6: np.ndarray
    """Class, score, left, top, right, bottom."""
    true_masks: Sequence[np.ndarray] = ()
    """(H, W) of each true box; empty if there are none."""
    detection_masks: Sequence[np.ndarray] = ()


def boxed_samples(source: Any, indices: Iterable[int], predictions: Sequence[np.ndarray]) -> List[BoxedSample]:
    """Returns samples of a source for display, with the detections in each.

    Args:
        source: perhaps a part of another.
        indices: indices of the samples.
        predictions: (N, 6) of each, or with masks, as `mask_rows` says.
    """
    samples = []
    for index, detection_NR in zip(indices, predictions):
        origin, number = origin_of(source, index)
        true_masks: Sequence[np.ndarray] = ()
        if isinstance(origin, BoxedImages):  # in files: as large as they are
            image_CHW, true_MD, true_masks = origin.image(number), origin.boxes(number), origin.masks(number)
        else:
            (image_CHW,), (true_MD,), (fact,) = origin.fetch(np.array([number]), seed=0, epoch=0, train=False)
            if len(fact) == FACTS:
                true_masks = [mask_of(code, image_CHW.shape[1:]) for code in fact[-1]]
        image_HWC = np.clip(image_CHW, 0, 255).astype(np.uint8).transpose(1, 2, 0)
        masks = detection_masks(detection_NR) if detection_NR.shape[1] > DETECTION_COLUMNS else ()
        samples.append(BoxedSample(image_HWC, true_MD[is_box(true_MD)], detection_NR[:, :6], true_masks, masks))
    return samples


def draw_boxes(
    sample: BoxedSample, class_names: Sequence[str], scale: Optional[float] = None, font_size: int = _FONT_SIZE
) -> Image.Image:  # fmt: skip
    """Returns the image with its detections.

    Args:
        sample: the image and its detections; true boxes are not drawn.
        class_names: names of all classes.
        scale: factor of the size; None: 1, or a whole number for small images.
        font_size: font size of names, in pixels.
    """
    names = drawable(class_names)
    scale = scale or readable_scale(sample.image_HWC)
    classes = sample.detection_N6[:, 0].astype(int).tolist()
    image = photo(tinted(sample.image_HWC, sample.detection_masks, [colour_of(one) for one in classes]), scale)
    # The highest score last, so that no other box covers it.
    for number, score, *edges in sample.detection_N6[::-1].tolist():
        _add_box(image, edges, scale, colour_of(int(number)), f"{names[int(number)]} {score:.2f}", 2, font_size)
    return image


def draw_gallery(samples: Sequence[BoxedSample], class_names: Sequence[str]) -> Image.Image:
    """Draws the first samples in a grid that is wider than tall: true boxes, and beside them the detections.

    Returns:
        An RGB image.
    """
    names = drawable(class_names)
    tiles = []
    for sample in samples[:_PAIRS]:
        scale = _PAIR_TILE / max(sample.image_HWC.shape[:2])
        truth = photo(tinted(sample.image_HWC, sample.true_masks, true_colours(sample)), scale)
        for row in sample.true_MD.tolist():
            _add_box(truth, row[:4], scale, colour_of(int(row[4])), names[int(row[4])], font_size=_PAIR_FONT_SIZE)
        tiles.append(beside(truth, draw_boxes(sample, class_names, scale, _PAIR_FONT_SIZE)))
    return grid(tiles, ["true, found"] * min(len(tiles), _PAIR_COLUMNS), _PAIR_COLUMNS, _PAIR_FONT_SIZE)


def draw_mistakes(samples: Sequence[BoxedSample], captions: Sequence[str], class_names: Sequence[str]) -> Image.Image:
    """Draws wrong detections, one in each tile, in red, with the true boxes of their images.

    Args:
        samples: each with one detection.
        captions: under each.
        class_names: names of all classes.
    """
    names = drawable(class_names)
    tiles = []
    for sample, caption in zip(samples, captions):
        scale = _TILE / max(sample.image_HWC.shape[:2])
        image_HWC = tinted(sample.image_HWC, sample.true_masks, true_colours(sample))
        image = photo(tinted(image_HWC, sample.detection_masks, [_WRONG] * len(sample.detection_masks)), scale)
        for row in sample.true_MD.tolist():
            _add_box(image, row[:4], scale, colour_of(int(row[4])), names[int(row[4])])
        for _, _, *edges in sample.detection_N6.tolist():
            _add_box(image, edges, scale, _WRONG, "", width=3)
        tile = Image.new("RGB", (image.width, image.height + _FONT_SIZE + 6), _PAPER)
        tile.paste(image, (0, 0))
        font = font_for(caption, _FONT_SIZE)
        ImageDraw.Draw(tile).text((0, image.height + 2), caption, _INK, font)
        tiles.append(tile)
    return grid(tiles, [], _COLUMNS)


def readable_scale(image_HWC: np.ndarray) -> int:
    """Returns the magnification at which names in a drawn image can be read."""
    return max(1, math.ceil(_SMALL / max(image_HWC.shape[:2])))


def true_colours(sample: BoxedSample) -> List[Colour]:
    """Returns the colour of each true box."""
    return [colour_of(number) for number in sample.true_MD[:, 4].astype(int).tolist()]


def tinted(image_HWC: np.ndarray, masks: Sequence[np.ndarray], colours: Sequence[Colour]) -> np.ndarray:
    """Returns an image with masks over it, half as strong as it, the first on top."""
    if not len(masks):
        return image_HWC
    image_HW3 = np.repeat(image_HWC, 3 // image_HWC.shape[2], axis=2).copy()
    for mask_HW, colour in zip(masks[::-1], colours[::-1]):
        is_there_HW = np.asarray(mask_HW) > 0
        image_HW3[is_there_HW] = (image_HWC[is_there_HW] // 2 + np.array(colour) // 2).astype(np.uint8)
    return image_HW3


def photo(image_HWC: np.ndarray, scale: float) -> Image.Image:
    """Returns a sample's pixels (H, W, C), uint8, as an RGB image of another size."""
    image_HWC = np.ascontiguousarray(image_HWC)
    image = Image.fromarray(image_HWC if image_HWC.shape[2] == 3 else image_HWC[:, :, 0]).convert("RGB")
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)


def colour_of(number: int) -> Colour:
    """Returns a bright colour for each class, neighbours far apart; none is near red, which marks mistakes."""
    hue = 0.08 + 0.84 * (0.12 + number * _GOLDEN % 1) % 0.84
    return tuple(round(255 * channel) for channel in colorsys.hsv_to_rgb(hue, 0.8, (1.0, 0.8)[number // 6 % 2]))


def _add_box(
    image: Image.Image, edges: Sequence[float], scale: float, colour: Colour, name: str, width: int = 2,
    font_size: int = _FONT_SIZE,
) -> None:  # fmt: skip
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = (round(edge * scale) for edge in edges)
    left, top = max(left, 0), max(top, 0)
    right, bottom = max(left + 1, min(right, image.width) - 1), max(top + 1, min(bottom, image.height) - 1)
    draw.rectangle((left, top, right, bottom), outline=colour, width=width)
    if not name:
        return
    font = font_for(name, font_size)
    length, height = int(font.getlength(name)) + 4, font_size + 3
    x = max(0, min(left, image.width - length))
    y = top - height if top >= height else min(bottom + 1, image.height - height)
    draw.rectangle((x, y, x + length, y + height), fill=colour)
    ink = (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)
    draw.text((x + 2, y), name, ink, font)


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Joins two images of the same height side by side."""
    canvas = Image.new("RGB", (left.width + right.width + 2, left.height), _PAPER)
    canvas.paste(left, (0, 0))
    canvas.paste(right, (left.width + 2, 0))
    return canvas


def grid(
    tiles: Sequence[Image.Image], heads: Sequence[str], columns: int, font_size: int = _FONT_SIZE
) -> Image.Image:  # fmt: skip
    """Arranges images in a grid.

    Args:
        tiles: the images.
        heads: above the columns.
        columns: at most.
        font_size: font size of the heads, in pixels.
    """
    columns = min(columns, max(1, len(tiles)))
    cell_w = max([_TILE, *(tile.width for tile in tiles)]) + _GAP
    cell_h = max([1, *(tile.height for tile in tiles)]) + _GAP
    head = font_size + _GAP if heads else _GAP
    image = Image.new("RGB", (columns * cell_w + _GAP, head + math.ceil(len(tiles) / columns) * cell_h), _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(font_size)
    for column, text in enumerate(heads[:columns]):
        draw.text((_GAP + column * cell_w, 2), text, _INK, font)
    for number, tile in enumerate(tiles):
        image.paste(tile, (_GAP + number % columns * cell_w, head + number // columns * cell_h))
    return image


def captions_of(
    detection_N8: np.ndarray, true_G8: np.ndarray, class_names: Sequence[str],
    best: Sequence[Optional[Tuple[int, float]]],
) -> List[str]:  # fmt: skip
    """Returns the kind of error of each detection.

    Args:
        detection_N8: as `CollectedBoxes.boxes` gives them.
        true_G8: likewise.
        class_names: names of all classes.
        best: which true box each covers most, and how much; None if there is none.
    """
    names = drawable(class_names)
    captions = []
    for row, match in zip(detection_N8.tolist(), best):
        caption = f"found {names[int(row[1])]} ({row[2]:.2f})"
        if match is None or match[1] < 0.1:
            captions.append(f"{caption}, nothing there")
            continue
        number, iou = match
        captions.append(f"{caption}, is {names[int(true_G8[number, 1])]} (IoU {iou:.3f})")
    return captions
