"""Numbers in English words, as texts to predict a number from that need no download."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from mxtrain.data.loading.randomness import bits
from mxtrain.text.draws import TextDraw

MAX_NUMBER = 9_999
"""Largest number in words."""
UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_words(number: int) -> str:
    """Returns a number from 0 to `MAX_NUMBER` in English words."""
    if number < 20:
        return UNITS[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return TENS[tens - 2] + (f"-{UNITS[rest]}" if rest else "")
    value, name, join = (1000, "thousand", " ") if number >= 1000 else (100, "hundred", " and ")
    count, rest = divmod(number, value)
    join = " and " if rest < 100 else join
    return f"{number_words(count)} {name}" + (f"{join}{number_words(rest)}" if rest else "")


def words_of_numbers(count: int) -> Tuple[List[str], np.ndarray]:
    """Returns distinct numbers in words, in random order, and the numbers (N,)."""
    random_M = bits(0, 0, np.arange(MAX_NUMBER + 1), TextDraw.NUMBER)
    number_N = np.argsort(random_M, kind="stable")[:count]
    return list(map(number_words, number_N.tolist())), number_N.astype(np.float32)
