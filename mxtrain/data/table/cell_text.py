"""Canonical spelling of the values of cells from different files and programs. Exported folders have a copy of this
module.

The same value is `True` in a CSV file of pandas, `true` in JSON and a bool in Python; a whole number is `1` or, in a
column with missing cells, `1.0`; a day is `2026-01-31`, `2026-01-31T00:00:00` or `2026-01-31 00:00:00.000`.

Vocabularies and hashes use the canonical spelling. A cell is first looked up as written, so that checkpoints of earlier
versions keep their ids. `1` and `true` stay different, and `01` and `1.50` stay unchanged, because they may be codes.
Ids of users and items are not changed.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import zlib
from typing import Any, Container, Dict, List, Mapping, Optional, Sequence

_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))\.0+", re.ASCII)
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|\+00:00)?", re.ASCII)
_MIDNIGHT = "00:00:00"
TRUTH = ("false", "true")


def text_of(value: Any) -> Any:
    """Converts a number, a truth value or a time to the text of a cell.

    NaN becomes None, as in pandas; other values are unchanged.
    """
    if isinstance(value, str):
        return value
    if hasattr(value, "item") and not getattr(value, "ndim", 0):  # a scalar of NumPy
        value = value.item()
    if (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NaTType", "NAType"):  # of pandas
        return None
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value


def canonical(text: str) -> str:
    """Returns the canonical spelling of a truth value, a whole number or a time; other texts are unchanged.

    Args:
        text: a cell, without space around it.
    """
    if text[:1] in "tTfF" and text.lower() in TRUTH:
        return text.lower()
    # A look at the last character is faster than two regular expressions, and decides for most words.
    if text[-1:] not in "0123456789Z":
        return text
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return whole[1]
    time = _TIME.fullmatch(text)
    if time is None:
        return text
    day, clock, fraction, zone = time.groups()
    fraction = (fraction or "").rstrip("0")
    if clock == _MIDNIGHT and not fraction and not zone:
        return day
    return f"{day} {clock}{'.' if fraction else ''}{fraction}{'Z' if zone else ''}"


def ids_of_texts(vocabulary: Sequence[str], first: int) -> Dict[str, int]:
    """Returns the id of each value of a vocabulary and of its `canonical` spelling; exact values take precedence.

    Args:
        vocabulary: values in the order of their ids.
        first: id of the first value.
    """
    ids = {value: number for number, value in enumerate(vocabulary, start=first)}
    for value, number in list(ids.items()):
        # Exact values first: a vocabulary of an earlier version may hold both `1` and `1.0`.
        ids.setdefault(canonical(value), number)
    return ids


def find_id(text: str, ids: Mapping[str, int]) -> Optional[int]:
    """Returns the id of a cell; None for a value that is not in the vocabulary.

    Args:
        text: a cell, without space around it.
        ids: result of `ids_of_texts`.
    """
    found = ids.get(text)
    return ids.get(canonical(text)) if found is None else found


def known_spelling(text: str, known: Container[str]) -> str:
    """Returns the spelling of an id among known ones: itself, or a whole number with or without `.0`, as pandas writes
    the numbers of a column with missing cells. An unknown id is unchanged.

    Args:
        text: an id.
        known: ids of the network.
    """
    spellings = (text, canonical(text), *([f"{text}.0"] if text.isdecimal() else []))
    return next((one for one in spellings if one in known), text)


def hash_code(text: str, is_canonical: bool) -> int:
    """Returns the code of a hashed value: CRC-32 of its UTF-8 bytes, with 0 replaced by 1 since 0 means missing.

    Unlike Python's `hash` it is the same in every process and on every machine.

    Args:
        text: a cell, without space around it.
        is_canonical: hash the `canonical` spelling; False in checkpoints of earlier versions.
    """
    return zlib.crc32((canonical(text) if is_canonical else text).encode()) or 1


def mixed_truth(texts: Sequence[str]) -> List[str]:
    """Returns truth values that are written in two ways in one column, such as `true` and `1`; empty for other columns.

    Args:
        texts: different values of a column.
    """
    values = dict.fromkeys(map(canonical, texts))
    if set(values) <= {"true", "false", "0", "1", "yes", "no"} and len(values) > 2:
        return list(values)
    return []
