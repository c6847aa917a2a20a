"""Splitting text into lines at line ends only.

`str.splitlines` also splits at form feeds, U+0085, U+2028 and other separators. Those are characters of a line in every
format that mxtrain reads, and splitting there shifts each later line.
"""

from __future__ import annotations

import re
from typing import List

_LINE_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: str) -> List[str]:
    r"""Splits text at ``\n``, ``\r\n`` and ``\r``.

    Returns:
        The lines without their ends. A line end at the end of the text starts no further line.
    """
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    return lines
