"""Draws frames, time from left to right, with the true and the predicted text.

Legend: T frames, F numbers of a frame.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw

from mxtrain.task.figure_fonts import drawable
from mxtrain.task.sample_figure import FONT_SIZE, INK, PAPER, RIGHT, WRONG, font_for

WIDTH = 640
_STRIP, _GAP = 80, 10
_LINE = FONT_SIZE + 6
_LOW, _HIGH = 2, 98
"""Percentiles of a sample's values that become black and white."""


class SpokenFrames(NamedTuple):
    """A sample and its transcription.

    Attributes:
        frames_TF: frames.
        reference: true transcript.
        hypothesis: transcript of the network.
        is_sound: True if the values of a frame are frequency bands, lowest first; False for a column of an image, from
            the top.
    """

    frames_TF: np.ndarray
    reference: str
    hypothesis: str
    is_sound: bool


def draw_frames(samples: Sequence[SpokenFrames], max_samples: int) -> Image.Image:
    """Draws a strip for each sample, up to a limit, with the true text and the prediction below, which is red if wrong.
    Low frequencies are at the bottom; lines of handwriting are upright."""
    drawn_samples: List[SpokenFrames] = list(samples[:max_samples])
    height = _STRIP + 2 * _LINE + _GAP
    sheet = Image.new("RGB", (WIDTH + 2 * _GAP, height * max(len(drawn_samples), 1) + _GAP), PAPER)
    draw, longest = ImageDraw.Draw(sheet), max((len(sample.frames_TF) for sample in drawn_samples), default=1)
    for number, sample in enumerate(drawn_samples):
        top = _GAP + number * height
        width = max(round(WIDTH * len(sample.frames_TF) / longest), 1)
        sheet.paste(as_grey(sample).resize((width, _STRIP), Image.Resampling.BILINEAR), (_GAP, top))
        colour = RIGHT if sample.reference == sample.hypothesis else WRONG
        for line, (text, ink) in enumerate(((sample.reference, INK), (sample.hypothesis, colour))):
            (text,) = drawable([text])
            place = (_GAP, top + _STRIP + 2 + line * _LINE)
            draw.text(place, text, fill=ink, font=font_for(text))
    return sheet


class ComparedFrames(NamedTuple):
    """Predicted frames of a text, and the true ones."""

    predicted_TF: np.ndarray
    true_TF: np.ndarray
    text: str


def draw_compared(samples: Sequence[ComparedFrames], max_samples: int) -> Image.Image:
    """Draws predicted frames above true frames for each sample, up to a limit, with one grey scale and the text
    below."""
    drawn_samples = list(samples[:max_samples])
    height = 2 * _STRIP + 2 + _LINE + _GAP
    sheet = Image.new("RGB", (WIDTH + 2 * _GAP, height * max(len(drawn_samples), 1) + _GAP), PAPER)
    draw, longest = ImageDraw.Draw(sheet), max((len(sample.true_TF) for sample in drawn_samples), default=1)
    for number, sample in enumerate(drawn_samples):
        top, width = _GAP + number * height, max(round(WIDTH * len(sample.true_TF) / longest), 1)
        limits = tuple(np.percentile(sample.true_TF, [_LOW, _HIGH]).tolist())
        for row, frames_TF in enumerate((sample.predicted_TF, sample.true_TF)):
            grey = as_grey(SpokenFrames(frames_TF, "", "", is_sound=True), limits)
            sheet.paste(grey.resize((width, _STRIP), Image.Resampling.BILINEAR), (_GAP, top + row * (_STRIP + 2)))
        (text,) = drawable([sample.text])
        draw.text((_GAP, top + 2 * _STRIP + 4), text, fill=INK, font=font_for(text))
    return sheet


def as_grey(sample: SpokenFrames, limits: Optional[Tuple[float, ...]] = None) -> Image.Image:
    """Returns frames as an image, (F, T); `limits` become black and white, by default percentiles of these frames."""
    low, high = np.percentile(sample.frames_TF, [_LOW, _HIGH]) if limits is None else limits
    grey_FT = np.clip((sample.frames_TF.T - low) / max(high - low, 1e-6), 0, 1) * 255
    return Image.fromarray(np.ascontiguousarray(grey_FT[:: -1 if sample.is_sound else 1].astype(np.uint8)))
