"""Strict parsing of numbers and booleans in text files.

`float()` and `int()` accept strings that are not numbers in data files: underscores (`1_0` is 10), digits of any
script, surrounding Unicode spaces, `infinity`. Readers of text formats use these functions instead.
"""

from __future__ import annotations

import math
import re
from typing import Optional

MAX_DIGITS = 400
"""Longest text that is parsed as a number. A float64 written in full has at most 326 characters before the exponent."""

_NUMBER = re.compile(r"[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*", re.ASCII)
_INTEGER = re.compile(r"[ \t]*[+-]?[0-9]+[ \t]*", re.ASCII)
_SPECIAL = re.compile(r"[ \t]*[+-]?(?:nan|inf|infinity)[ \t]*", re.ASCII | re.IGNORECASE)


def parse_number(text: str, allow_special: bool = False) -> Optional[float]:
    """Parses a decimal number: optional sign, ASCII digits, optional point, optional exponent.

    Args:
        text: the number; spaces and tabs around it are ignored.
        allow_special: also accept `nan`, `inf` and `infinity`, in any case.

    Returns:
        The number, or None if the text is not a number or is longer than `MAX_DIGITS`. A number beyond the range of
        float64 is returned as infinity; use `parse_finite` if it must be finite.
    """
    if len(text) > MAX_DIGITS:
        return None
    if _NUMBER.fullmatch(text) or (allow_special and _SPECIAL.fullmatch(text)):
        return float(text)
    return None


def parse_finite(text: str) -> Optional[float]:
    """Parses a number as `parse_number` does. Returns None also if it is beyond the range of float64."""
    value = parse_number(text)
    return value if value is not None and math.isfinite(value) else None


def parse_integer(text: str, low: int = -(2**63), high: int = 2**63 - 1) -> Optional[int]:
    """Parses a decimal integer: optional sign and ASCII digits.

    Args:
        text: the number; spaces and tabs around it are ignored.
        low, high: allowed range, both ends included; by default that of int64.

    Returns:
        The integer, or None if the text is not an integer or is out of range.
    """
    if len(text) > MAX_DIGITS or not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if low <= value <= high else None


UNSPECIFIED_WORDS = ("", "unspecified", "none", "null")
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "y", "t", "on"), ("0", "false", "no", "n", "f", "off")


def parse_boolean(text: str) -> Optional[bool]:
    """Parses a boolean: a word of `TRUE_WORDS` or `FALSE_WORDS` in any case, or the number 0 or 1.

    Args:
        text: the boolean; spaces and tabs around it are ignored.

    Returns:
        The boolean, or None if the text is neither.
    """
    word = text.strip(" \t").lower()
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    return {0.0: False, 1.0: True}.get(parse_number(word))  # type: ignore[arg-type]  # of None there is none


def parse_flag(value: object) -> Optional[bool]:
    """Parses a flag of an annotation, which may be absent.

    Args:
        value: a text in any case, a boolean, the number 0 or 1, or None.

    Returns:
        False for None and for `UNSPECIFIED_WORDS`; None if the value is neither true nor false.
    """
    if isinstance(value, str):
        return False if value.strip(" \t").lower() in UNSPECIFIED_WORDS else parse_boolean(value)
    if value is None or value == 0:
        return False
    return True if value == 1 else None
