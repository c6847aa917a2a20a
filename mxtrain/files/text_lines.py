"""Splits text into lines at line ends only, and lines into words at spaces and tabs only; shortens untrusted text.

`str.splitlines` also splits at form feeds, U+0085, U+2028 and other separators. Those are characters of a line in every
format that mxtrain reads, and splitting there shifts each later line. `str.split` without an
argument splits at U+00A0, U+3000 and other spaces as well, which belong to words.
"""

from __future__ import annotations

import re
from typing import List

BLANKS = " \t\r\n"
"""Characters that divide words or end lines."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_BETWEEN_WORDS = re.compile(f"[{BLANKS}]+")


def split_lines(text: str) -> List[str]:
    r"""Splits text at ``\n``, ``\r\n`` and ``\r``.

    Returns:
        The lines without their ends. A line end at the end of the text starts no further line.
    """
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    return lines


def split_words(text: str) -> List[str]:
    """Splits text at spaces, tabs and line ends; no other space divides words.

    Returns:
        The words, none of which is empty.
    """
    return [word for word in _BETWEEN_WORDS.split(text) if word]


def printable_line(text: str, max_length: int) -> str:
    """Replaces unprintable characters of untrusted text, such as line ends and terminal escapes, and shortens it."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."
