"""Parses plain and formatted numbers in cells of tables. Exported folders have a copy of this module.

A plain number is `1234.5`. A formatted number has further symbols: `$1,234.50`, `12.5%`, `(1,234)`, U+2212 as a minus.
`12.5%` means 12.5. A column has one decimal sign, `dataset.decimal`. By default it is a point, and a comma groups
thousands; with a decimal comma, points, spaces and apostrophes group thousands.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional

from mxtrain.files.text_numbers import MAX_DIGITS, parse_number

_CURRENCY = r"[$€£¥₹₩₽₺]|USD|EUR|GBP|JPY|CNY|RMB|INR|CHF"
_SPACE = r"[ \u00a0\u2009\u202f]"


def _written(group: str, decimal: str) -> re.Pattern[str]:
    digits = rf"(?:[1-9][0-9]{{0,2}}(?:(?P<group>{group})[0-9]{{3}})(?:(?P=group)[0-9]{{3}})*|[0-9]+)"
    number = rf"(?:{digits}(?:{decimal}[0-9]*)?|{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?"
    return re.compile(
        rf"(?P<open>\()?(?P<sign>[+-])?(?P<before>{_CURRENCY})?{_SPACE}?(?P<sign2>[+-])?{_SPACE}?(?P<number>{number})"
        rf"{_SPACE}?(?P<after>%|{_CURRENCY})?(?P<close>\))?",
        re.ASCII,
    )


_WRITTEN: Dict[str, re.Pattern[str]] = {
    ".": _written("[,'\u2019\u00a0\u2009\u202f]", r"\."),
    ",": _written("[. '\u2019\u00a0\u2009\u202f]", ","),
}
_MINUS = str.maketrans("\u2212\u2013\ufe63\uff0d", "----")


class WrittenNumber(NamedTuple):
    """A number with the symbols around it.

    Attributes:
        value: the number, not scaled by its unit: 12.5 of `12.5%`.
        unit: `%`, a currency symbol, or empty.
        is_plain: True if the cell contains only a plain number.
    """

    value: float
    unit: str = ""
    is_plain: bool = True


def read_number(text: str, decimal: str = ".") -> Optional[WrittenNumber]:
    """Returns the plain or formatted number in a cell; None if it is no number."""
    plain = parse_number(text, allow_special=True) if decimal == "." else None
    if plain is not None:
        return WrittenNumber(plain)
    match = _WRITTEN[decimal].fullmatch(text.strip().translate(_MINUS)) if len(text) <= MAX_DIGITS else None
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    signs = [sign for sign in (match["sign"], match["sign2"], match["open"]) if sign]
    if len(signs) > 1 or (match["before"] and match["after"]):
        return None
    digits = match["number"].replace(match["group"] or "\0", "").replace(decimal, ".")
    value = float(digits) * (-1 if signs and signs[0] in "-(" else 1)
    unit = match["before"] or match["after"] or ""
    return WrittenNumber(value, unit, not unit and digits == text)
