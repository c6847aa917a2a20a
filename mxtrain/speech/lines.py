"""Lines of real handwritten digits, written one after the other, as frames: each column of a line is one.

What a line says and how wide each digit is are functions of the line's number. In training, the digit images of a
class, their positions and the noise are drawn anew in each epoch.

Legend: N lines, D digits of a line, T columns, H height, G = 8 height and width of a digit as it was scanned.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import numpy as np
from PIL import Image

from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.loading.randomness import integers, uniform_rows
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.source import TranscribedSource

DIGITS = Alphabet("0123456789")
MEAN, DEVIATION = 0.15, 0.3
"""Statistics of pixels, where ink is 1; fixed, so that a line's frames are a function of its image alone."""
SMALLEST, WIDEST = 0.6, 1.1
"""Height of the lowest digit as a share of the line's, and width of the widest as a share of its height."""
GAP = (-1, 4)
"""Columns between two digits: below 0 they overlap."""
MARGIN = 2
NOISE = 0.2


class LineLayout(NamedTuple):
    """Positions of the digits of a line.

    Attributes:
        label_D: class of each digit.
        height_D, width_D: size of each digit in pixels.
        left_D: first column of each digit.
        columns: T.
    """

    label_D: np.ndarray
    height_D: np.ndarray
    width_D: np.ndarray
    left_D: np.ndarray
    columns: int


class WrittenLines(TranscribedSource):
    """Lines made of scanned digits.

    Args:
        image_NGG: digits, white 255.
        label_N: class of each digit.
        numbers: numbers of the lines, which determine their content.
        length: minimum and maximum number of digits in a line.
        height: H.
        seed: seed of the content of the lines.
    """

    def __init__(
        self,
        image_NGG: np.ndarray,
        label_N: np.ndarray,
        numbers: Sequence[int],
        length: Tuple[int, int],
        height: int,
        seed: int,
    ) -> None:
        self._image_NGG, self._label_N, self._numbers = image_NGG, label_N, list(numbers)
        self._length, self._height, self._seed = length, height, seed
        self._members: List[np.ndarray] = [np.flatnonzero(label_N == label) for label in range(10)]
        self._layouts = lay_out(np.asarray(self._numbers), length, height, seed)
        labels = [layout.label_D for layout in self._layouts]
        begin = np.concatenate([[0], np.cumsum([len(label_D) for label_D in labels])]).astype(np.int64)
        value = np.concatenate(labels).astype(np.int32) if labels else np.zeros(0, np.int32)
        texts = [DIGITS.decode(label_D) for label_D in labels]
        frame_N = np.array([layout.columns for layout in self._layouts], np.int64)
        super().__init__(frame_N, height, Ragged(value, begin), DIGITS, texts)

    def take(self, indices: Sequence[int]) -> WrittenLines:
        """See `TranscribedSource.take`."""
        numbers = [self._numbers[index] for index in indices if index < len(self)]
        return WrittenLines(self._image_NGG, self._label_N, numbers, self._length, self._height, self._seed)

    def read(self, index: int, *, seed: int, epoch: int, train: bool) -> np.ndarray:
        """See `TranscribedSource.read`."""
        return (self.draw(index, seed=seed, epoch=epoch, train=train).T - np.float32(MEAN)) / np.float32(DEVIATION)

    def draw(self, index: int, *, seed: int = 0, epoch: int = 0, train: bool = False) -> np.ndarray:
        """Returns the image of a line (H, T), ink is 1."""
        layout, number = self._layouts[index], np.array([self._numbers[index]])
        seed_and_epoch = (seed, epoch) if train else (self._seed, -1)
        look = uniform_rows(*seed_and_epoch, number, SpeechDraw.LINE_LOOK, 3 * len(layout.label_D))[0]
        which_D, top_D, ink_D = np.split(look, 3)
        noise = uniform_rows(*seed_and_epoch, number, SpeechDraw.LINE_NOISE, self._height * layout.columns)[0]
        line_HT = (noise.reshape(self._height, layout.columns) - np.float32(0.5)) * np.float32(2 * NOISE)
        for position, label in enumerate(layout.label_D.tolist()):
            members = self._members[label]
            height, width = int(layout.height_D[position]), int(layout.width_D[position])
            member = self._image_NGG[members[int(which_D[position] * len(members))]]
            ink = scaled(member, height, width)
            top, left = int(top_D[position] * (self._height - height + 1)), int(layout.left_D[position])
            part = line_HT[top : top + height, left : left + width]
            part += ink * np.float32(0.6 + 0.4 * ink_D[position])
        return line_HT


def scaled(image_GG: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes the image of a digit; ink is 1."""
    image = Image.fromarray(image_GG).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32) / np.float32(255)


def lay_out(number_N: np.ndarray, length: Tuple[int, int], height: int, seed: int) -> List[LineLayout]:
    """Chooses the digits of lines and their positions."""
    count_N = length[0] + integers(seed, 0, number_N, SpeechDraw.LINE_LENGTH, length[1] - length[0] + 1)
    max_digits = length[1]
    row = [uniform_rows(seed, 0, number_N, SpeechDraw.LINE_LAYOUT + kind, max_digits) for kind in range(4)]
    label_ND = (row[0] * 10).astype(np.int64)
    least = int(np.ceil(SMALLEST * height))
    height_ND = least + (row[1] * (height - least + 1)).astype(np.int64)
    width_ND = np.maximum(np.rint(height_ND * (SMALLEST + (WIDEST - SMALLEST) * row[2])).astype(np.int64), 2)
    gap_ND = GAP[0] + (row[3] * (GAP[1] - GAP[0] + 1)).astype(np.int64)
    layouts = []
    for count, label_D, height_D, width_D, gap_D in zip(count_N.tolist(), label_ND, height_ND, width_ND, gap_ND):
        step_D = (width_D + gap_D)[:count]
        left_D = MARGIN + np.cumsum(step_D) - step_D
        columns = int(left_D[-1] + width_D[count - 1] + MARGIN)
        layouts.append(LineLayout(label_D[:count], height_D[:count], width_D[:count], left_D, columns))
    return layouts


def image_frames(image: Image.Image, height: int) -> np.ndarray:
    """Returns the frames (T, H) of an image of a line with white ink on black, in its own proportions."""
    grey = image.convert("L")
    width = max(round(grey.width * height / max(grey.height, 1)), 1)
    scaled = np.asarray(grey.resize((width, height), Image.Resampling.BILINEAR), np.float32) / np.float32(255)
    return (scaled.T - np.float32(MEAN)) / np.float32(DEVIATION)
