"""Alphabets of transcripts, and the number of frames that CTC needs for a transcript.

Legend: N samples, L characters of a transcript.
"""

from __future__ import annotations

import unicodedata
from typing import List, NamedTuple, Sequence

import numpy as np

SPACE = " "
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'"})
_SPOKEN_SIGNS = "%&@#"
"""Characters that Unicode counts as punctuation but that are spoken."""


class Alphabet:
    """Characters and their class indices, from 0. CTC's blank has the next index and is not part of the alphabet.

    Args:
        characters: characters of one code point each.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = list(characters)
        self._number = {character: number for number, character in enumerate(self.characters)}

    def unknown(self, text: str) -> List[str]:
        """Returns the distinct characters of a text that are not in the alphabet, in order."""
        return [character for character in dict.fromkeys(text) if character not in self._number]

    def encode(self, text: str) -> np.ndarray:
        """Returns the character indices of a text, (L,) int32; unknown characters are left out."""
        return np.array([self._number[character] for character in text if character in self._number], np.int32)

    def decode(self, numbers: np.ndarray) -> str:
        """Returns the text of a row of character indices; -1 is skipped."""
        return "".join(self.characters[int(number)] for number in numbers if number >= 0)


class Transcript(NamedTuple):
    """Reference of a sample, kept on the host; see `metric.texts.ReferenceText`.

    Attributes:
        text: transcript; empty if unknown.
        alphabet: alphabet that converts predictions to text.
    """

    text: str
    alphabet: Alphabet

    def read(self, prediction: np.ndarray) -> str:
        """Returns the text that was decoded for the sample."""
        return self.alphabet.decode(prediction)


def normalized(text: str, case: str, punctuation: str = "keep") -> str:
    """Normalizes a transcript for comparison: Unicode's NFC, one case, single spaces between words and none around.

    Args:
        text: original transcript.
        case: lower, upper or keep.
        punctuation: keep or remove.
    """
    text = unicodedata.normalize("NFC", text)
    text = text.lower() if case == "lower" else text.upper() if case == "upper" else text
    text = unicodedata.normalize("NFC", text)
    return SPACE.join((without_punctuation(text) if punctuation == "remove" else text).split())


def without_punctuation(text: str) -> str:
    """Replaces punctuation with spaces, except apostrophes between two letters, which become `'`, and the signs that
    are spoken: %, &, @ and #."""
    text = text.translate(_APOSTROPHES)
    characters = list(text)
    for position, character in enumerate(text):
        if is_punctuation(character):
            neighbours = text[max(position - 1, 0) : position], text[position + 1 : position + 2]
            if character != "'" or not all(map(str.isalpha, neighbours)):
                characters[position] = SPACE
    return "".join(characters)


def is_punctuation(character: str) -> bool:
    """Returns True for punctuation that is not spoken."""
    return unicodedata.category(character).startswith("P") and character not in _SPOKEN_SIGNS


def needed_frames(value: np.ndarray, begin_N1: np.ndarray) -> np.ndarray:
    """Returns the minimum number of scores that CTC needs for each transcript: one for each character, and a blank
    between two equal characters.

    Args:
        value: characters of all transcripts, concatenated.
        begin_N1: offset of each transcript, and the end of the last.

    Returns:
        Minimum numbers (N,), int64.
    """
    repeats = np.zeros(len(value) + 1, np.int64)
    repeats[1:-1] = value[1:] == value[:-1]
    repeats[begin_N1] = 0  # the first of a transcript follows nothing
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(repeats[:-1])])
    return np.diff(begin_N1) + before[begin_N1[1:]] - before[begin_N1[:-1]]
