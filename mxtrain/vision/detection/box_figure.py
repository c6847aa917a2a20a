"""Draws detections on images: each class in a colour of its own, with its name and score.

Legend: H height, W width, C channels; N detections, M true boxes, D columns of `boxes.Column`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw

from mxtrain.task.figure_fonts import drawable
from mxtrain.task.sample_figure import WRONG, font_for
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.boxes import is_box
from mxtrain.vision.images.figure import TILE, Colour, beside, captioned, colour_of, grid, origin_of, photo
from mxtrain.vision.instance_segmentation.mask_rows import DETECTION_COLUMNS, META_COLUMNS, decode_mask, detection_masks

_FONT_SIZE = 13
_COLUMNS = 4
# TensorBoard shows an image about 340 pixels wide: names in a gallery must be legible there.
_PAIRS, _PAIR_COLUMNS, _PAIR_TILE, _PAIR_FONT_SIZE = 8, 3, 170, 26
_SMALL = 256
"""Images with a smaller longer side, in pixels, are enlarged, so that names do not cover the objects."""


@dataclass(frozen=True)
class BoxedSample:
    """An image with true boxes and detections in its own pixels."""

    image_HWC: np.ndarray
    """uint8."""
    true_MD: np.ndarray
    detection_N6: np.ndarray
    """Class, score, left, top, right, bottom."""
    true_masks: Sequence[np.ndarray] = ()
    """Masks (H, W) of the true boxes; empty if there are none."""
    detection_masks: Sequence[np.ndarray] = ()
    """Masks (H, W) of the detections; empty if there are none."""


def boxed_samples(source: Any, indices: Iterable[int], predictions: Sequence[np.ndarray]) -> List[BoxedSample]:
    """Returns samples of a source for display, with the detections in each.

    Args:
        source: source of the samples; may be a wrapper, such as a subset.
        indices: indices of the samples.
        predictions: detections of each sample, (N, 6), or with masks, see `mask_rows`.
    """
    samples = []
    for index, detection_NR in zip(indices, predictions):
        origin, number = origin_of(source, index)
        true_masks: Sequence[np.ndarray] = ()
        if isinstance(origin, BoxedImages):  # files are drawn in their original size
            image_CHW, true_MD, true_masks = origin.image(number), origin.boxes(number), origin.masks(number)
        else:
            (image_CHW,), (true_MD,), (meta,) = origin.fetch(np.array([number]), seed=0, epoch=0, train=False)
            if len(meta) == META_COLUMNS:
                true_masks = [decode_mask(code, image_CHW.shape[1:]) for code in meta[-1]]
        image_HWC = np.clip(image_CHW, 0, 255).astype(np.uint8).transpose(1, 2, 0)
        masks = detection_masks(detection_NR) if detection_NR.shape[1] > DETECTION_COLUMNS else ()
        samples.append(BoxedSample(image_HWC, true_MD[is_box(true_MD)], detection_NR[:, :6], true_masks, masks))
    return samples


def draw_boxes(
    sample: BoxedSample, class_names: Sequence[str], scale: Optional[float] = None, font_size: int = _FONT_SIZE
) -> Image.Image:
    """Returns the image with its detections.

    Args:
        sample: the image and its detections; true boxes are not drawn.
        class_names: names of all classes.
        scale: factor of the size; None: see `readable_scale`.
        font_size: font size of names, in pixels.
    """
    names = drawable(class_names)
    scale = scale or readable_scale(sample.image_HWC)
    classes = sample.detection_N6[:, 0].astype(int).tolist()
    image = photo(tinted(sample.image_HWC, sample.detection_masks, [colour_of(number) for number in classes]), scale)
    # The highest score last, so that no other box covers it.
    for number, score, *edges in sample.detection_N6[::-1].tolist():
        _add_box(image, edges, scale, colour_of(int(number)), f"{names[int(number)]} {score:.2f}", 2, font_size)
    return image


def draw_gallery(samples: Sequence[BoxedSample], class_names: Sequence[str]) -> Image.Image:
    """Draws the first samples in a grid: the true boxes, and beside them the detections.

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
    """Draws wrong detections in red, one per tile, with the true boxes of their images.

    Args:
        samples: samples with one detection each.
        captions: text under each tile.
        class_names: names of all classes.
    """
    names = drawable(class_names)
    tiles = []
    for sample, caption in zip(samples, captions):
        scale = TILE / max(sample.image_HWC.shape[:2])
        image_HWC = tinted(sample.image_HWC, sample.true_masks, true_colours(sample))
        image = photo(tinted(image_HWC, sample.detection_masks, [WRONG] * len(sample.detection_masks)), scale)
        for row in sample.true_MD.tolist():
            _add_box(image, row[:4], scale, colour_of(int(row[4])), names[int(row[4])])
        for _, _, *edges in sample.detection_N6.tolist():
            _add_box(image, edges, scale, WRONG, "", width=3)
        tiles.append(captioned(image, caption, _FONT_SIZE))
    return grid(tiles, [], _COLUMNS, _FONT_SIZE)


def readable_scale(image_HWC: np.ndarray) -> int:
    """Returns the factor by which an image is enlarged so that names in it are legible: a whole number, from 1."""
    return max(1, math.ceil(_SMALL / max(image_HWC.shape[:2])))


def true_colours(sample: BoxedSample) -> List[Colour]:
    """Returns the colour of each true box."""
    return [colour_of(number) for number in sample.true_MD[:, 4].astype(int).tolist()]


def tinted(image_HWC: np.ndarray, masks: Sequence[np.ndarray], colours: Sequence[Colour]) -> np.ndarray:
    """Blends masks with an image, with an opacity of one half. The first mask is on top.

    Args:
        image_HWC: uint8.
        masks: masks (H, W).
        colours: colour of each mask.
    """
    if not len(masks):
        return image_HWC
    image_HW3 = np.repeat(image_HWC, 3 // image_HWC.shape[2], axis=2).copy()
    for mask_HW, colour in zip(masks[::-1], colours[::-1]):
        is_object_HW = np.asarray(mask_HW) > 0
        image_HW3[is_object_HW] = (image_HWC[is_object_HW] // 2 + np.array(colour) // 2).astype(np.uint8)
    return image_HW3


def _add_box(
    image: Image.Image,
    edges: Sequence[float],
    scale: float,
    colour: Colour,
    name: str,
    width: int = 2,
    font_size: int = _FONT_SIZE,
) -> None:
    """Draws a box, and its name above or below it, into an image.

    Args:
        image: the image, which is written to.
        edges: left, top, right, bottom in pixels of the image before it was resized.
        scale: factor by which the image was resized.
        colour: colour of the box.
        name: text; empty: none.
        width: width of the lines in pixels.
        font_size: font size of the text in pixels.
    """
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


def captions_of(
    detection_N8: np.ndarray,
    true_G8: np.ndarray,
    class_names: Sequence[str],
    best: Sequence[Optional[Tuple[int, float]]],
) -> List[str]:
    """Returns the kind of error of each detection.

    Args:
        detection_N8, true_G8: detections and true boxes, see `CollectedBoxes.boxes`.
        class_names: names of all classes.
        best: index of the true box with the highest intersection over union for each detection, and this value; None if
            the image has no true box.
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
