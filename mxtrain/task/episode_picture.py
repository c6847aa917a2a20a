"""Draws episodes: as an animation, and as a few pictures in a row."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Sequence

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

COLUMNS = 4
WIDTH = 240
"""Of a picture in a row, in pixels."""
CAPTION = 18
"""Height of a line of text, in pixels."""


def encode_animation(frames: Sequence[np.ndarray], frames_per_s: float) -> bytes:
    """A GIF that runs in a loop.

    Args:
        frames: pictures (H, W, 3), uint8.
        frames_per_s: how fast; GIF counts hundredths of a second.
    """
    from PIL import Image

    first, *others = (Image.fromarray(frame).convert("P", palette=Image.Palette.ADAPTIVE) for frame in frames)
    found = io.BytesIO()
    duration_ms = 10 * max(round(100 / frames_per_s), 2)  # viewers show shorter ones slowly
    first.save(found, "GIF", save_all=True, append_images=others, duration=duration_ms, loop=0)
    return found.getvalue()


def draw_episode(frames: Sequence[np.ndarray], said: str) -> Image.Image:
    """Pictures of an episode, line after line, below what is said of it."""
    from PIL import Image, ImageDraw

    height = max(round(WIDTH * frames[0].shape[0] / frames[0].shape[1]), 1)
    lines = math.ceil(len(frames) / COLUMNS)
    columns = min(COLUMNS, len(frames))
    sheet = Image.new("RGB", (columns * WIDTH, CAPTION + lines * height), "white")
    ImageDraw.Draw(sheet).text((4, 3), said, fill="black")
    for number, frame in enumerate(frames):
        line, column = divmod(number, COLUMNS)
        picture = Image.fromarray(frame).resize((WIDTH, height), Image.Resampling.BILINEAR)
        sheet.paste(picture, (column * WIDTH, CAPTION + line * height))
    return sheet
