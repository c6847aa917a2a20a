"""Draws key points on images, each in a colour of its own, joined by the skeleton.

Legend: H height, W width, C channels, J key points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Sequence

import numpy as np
from PIL import Image, ImageDraw

from mxtrain.task.figure_fonts import drawable
from mxtrain.task.sample_figure import FONT_SIZE, INK, PAPER, font_for
from mxtrain.vision.detection.box_figure import readable_scale
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.images.figure import TILE, beside, captioned, colour_of, grid, origin_of, photo
from mxtrain.vision.pose.key_points import KeypointMeta, known
from mxtrain.vision.pose.metrics import Pose
from mxtrain.vision.pose.signature import KeyPointSignature

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature

_LINE = (235, 235, 235)
_HEAD_SIZE = 13
"""Font size of the headings of columns, in pixels."""
_LEGEND_COLUMNS = 6


@dataclass(frozen=True)
class PosedSample:
    """The crop of an object, with key points in pixels of the crop.

    Attributes:
        image_HWC: uint8.
        true_J3: x, y, visibility.
        predicted_J3: x, y, score.
    """

    image_HWC: np.ndarray
    true_J3: np.ndarray
    predicted_J3: np.ndarray


def posed_samples(source: Any, indices: Iterable[int], predictions: Sequence[np.ndarray]) -> List[PosedSample]:
    """Returns samples of a source with their predicted poses.

    Args:
        source: source of the samples.
        indices: indices of the samples.
        predictions: predicted key points of each sample in pixels of its image, (J, 3).
    """
    samples = []
    for index, predicted_J3 in zip(indices, predictions):
        (image_CHW,), (true_J3,), (meta,) = source.fetch(np.array([index]), seed=0, epoch=0, train=False)
        back_33 = np.concatenate([meta[KeypointMeta.MATRIX : KeypointMeta.LEFT].reshape(2, 3), [[0, 0, 1]]])
        matrix_23 = np.linalg.inv(back_33)[:2]  # from the image to the crop
        image_HWC = np.clip(image_CHW, 0, 255).astype(np.uint8).transpose(1, 2, 0)
        crop_J3 = np.column_stack([transform_points(predicted_J3[:, :2], matrix_23), predicted_J3[:, 2]])
        samples.append(PosedSample(image_HWC, true_J3, crop_J3))
    return samples


def draw_on_image(source: Any, index: int, pose: Pose, signature: Signature, threshold: float) -> Image.Image:
    """Draws the key points of one object on its whole image, with their names and scores.

    Args:
        source: source of images in files.
        index: index of the sample.
        pose: the prediction.
        signature: signature with the names of the key points.
        threshold: smallest score of key points that are drawn.
    """
    origin, number = origin_of(source, index)
    image_HWC = np.clip(origin.image(number), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    scale = readable_scale(image_HWC)
    image = photo(image_HWC, scale)
    draw_points(image, pose.point_J3, pose.point_J3[:, 2] >= threshold, signature, scale)
    names, draw = drawable(list(signature.class_names)), ImageDraw.Draw(image)
    for number, (x, y, score) in enumerate(pose.point_J3.tolist()):
        if score >= threshold:
            text = f"{names[number]} {score:.2f}"
            position = (scale * x + 5, scale * y - FONT_SIZE / 2)
            draw.text(position, text, colour_of(number), font_for(text), stroke_width=1, stroke_fill=(0, 0, 0))
    return image


def draw_points(
    image: Image.Image, point_J3: np.ndarray, is_shown_J: np.ndarray, signature: Signature, scale: float
) -> None:
    """Draws key points and the lines between them into an image.

    Args:
        image: RGB image, which is written to.
        point_J3: key points in pixels of the image before it was resized.
        is_shown_J: mask of the key points to draw.
        signature: signature with the skeleton.
        scale: factor by which the image was resized.
    """
    signature = KeyPointSignature.cast(signature)
    draw = ImageDraw.Draw(image)
    position_J2 = (point_J3[:, :2] * scale).tolist()
    radius = max(2, round(max(image.size) / 80))
    for first, second in signature.key_points.skeleton if signature.key_points else ():
        if is_shown_J[first] and is_shown_J[second]:
            draw.line((*position_J2[first], *position_J2[second]), _LINE, max(1, radius // 2))
    for number in np.flatnonzero(is_shown_J).tolist():
        x, y = position_J2[number]
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour_of(number), _LINE)


def draw_gallery(
    samples: Sequence[PosedSample], signature: Signature, threshold: float, captions: Optional[Sequence[str]] = None
) -> Image.Image:
    """Draws samples in a grid: the true key points, and beside them the predicted ones. Below is a legend of their
    names.

    Args:
        samples: samples to draw.
        signature: signature of the network.
        threshold: smallest score of predicted key points that are drawn.
        captions: text under each sample; None: none.

    Returns:
        An RGB image.
    """
    tiles = []
    for number, sample in enumerate(samples):
        scale = TILE / max(sample.image_HWC.shape[:2])
        truth, predicted = photo(sample.image_HWC, scale), photo(sample.image_HWC, scale)
        draw_points(truth, sample.true_J3, known(sample.true_J3), signature, scale)
        draw_points(predicted, sample.predicted_J3, sample.predicted_J3[:, 2] >= threshold, signature, scale)
        tile = beside(truth, predicted)
        tiles.append(tile if captions is None else captioned(tile, captions[number]))
    heads = ["as it was marked, as it is predicted"] * min(len(tiles), 2)
    return _with_legend(grid(tiles, heads, 2, _HEAD_SIZE), signature.class_names)


def _with_legend(image: Image.Image, names: Sequence[str]) -> Image.Image:
    """Returns the image with a legend of the key points below it."""
    labels = drawable(list(names))
    columns = max(1, min(_LEGEND_COLUMNS, len(names), image.width // 110))
    lines = -(-len(names) // columns)
    canvas = Image.new("RGB", (image.width, image.height + lines * (FONT_SIZE + 5) + 4), PAPER)
    canvas.paste(image, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for number, name in enumerate(labels):
        x = 8 + number % columns * (image.width // columns)
        y = image.height + number // columns * (FONT_SIZE + 5)
        draw.ellipse((x, y + 3, x + 10, y + 13), colour_of(number), INK)
        draw.text((x + 16, y), name, INK, font_for(name))
    return canvas
