"""Draws episodes as animations, and as rows of frames."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Sequence

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

COLUMNS = 4
WIDTH = 240
"""Width of an image in a row, in pixels."""
CAPTION = 18
"""Height of a line of text, in pixels."""


def encode_animation(frames: Sequence[np.ndarray], frames_per_s: float) -> bytes:
    """Encodes a GIF that loops.

    Args:
        frames: images (H, W, 3), uint8.
        frames_per_s: frame rate; rounded to GIF's hundredths of a second.
    """
    from PIL import Image

    # By octrees: eight times as fast as Pillow's adaptive palette, for colours that differ by a few levels of 256.
    method, dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE
    first, *further = (Image.fromarray(frame).quantize(256, method, dither=dither) for frame in frames)
    file = io.BytesIO()
    duration_ms = 10 * max(round(100 / frames_per_s), 2)  # viewers show shorter ones slowly
    first.save(file, "GIF", save_all=True, append_images=further, duration=duration_ms, loop=0)
    return file.getvalue()


def draw_episode(frames: Sequence[np.ndarray], caption: str, num_steps: int) -> Image.Image:
    """Draws frames of an episode in rows, each with its step, below a caption.

    Args:
        frames: images (H, W, 3), uint8, evenly spaced over the episode.
        caption: text above the frames.
        num_steps: number of steps of the episode.
    """
    from PIL import Image, ImageDraw

    height = max(round(WIDTH * frames[0].shape[0] / frames[0].shape[1]), 1)
    lines = math.ceil(len(frames) / COLUMNS)
    columns = min(COLUMNS, len(frames))
    figure = Image.new("RGB", (columns * WIDTH, CAPTION + lines * height), "white")
    draw = ImageDraw.Draw(figure)
    draw.text((4, 3), caption, fill="black")
    step_N = np.linspace(0, num_steps, len(frames)).astype(int)  # as `Episodes.frames` chooses them
    for number, frame in enumerate(frames):
        line, column = divmod(number, COLUMNS)
        image = Image.fromarray(frame).resize((WIDTH, height), Image.Resampling.BILINEAR)
        left, top = column * WIDTH, CAPTION + line * height
        figure.paste(image, (left, top))
        draw.rectangle((left, top, left + WIDTH - 1, top + height - 1), outline="lightgrey")
        label = f"step {step_N[number]}"
        draw.rectangle(draw.textbbox((left + 5, top + 4), label), fill="white")
        draw.text((left + 5, top + 4), label, fill="black")
    return figure
