"""Parses SQuAD's files, and lines of JSON with questions. Exported folders have a copy of this module."""

from __future__ import annotations

import collections.abc
import itertools
from typing import Any, Dict, Iterator, Optional, Tuple

from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.text_lines import split_lines


def reason_of(error: Exception) -> str:
    """Describes an error in JSON."""
    if isinstance(error, KeyError):
        return f"there is no {error}"
    return "its parts are of other kinds" if isinstance(error, (TypeError, AttributeError)) else str(error)


class NumberedValues(Dict[int, Any]):
    """Values of JSON Lines by line number."""


def parse_questions(text: str) -> Any:
    """Parses a JSON document, or JSON Lines, which become `NumberedValues`.

    The text is JSON Lines if its first line is an object by itself and more lines follow.

    Raises:
        ValueError: it is no JSON, or a line of it is none.
    """
    lines = [(number, line) for number, line in enumerate(split_lines(text), start=1) if line.strip()]
    try:
        first = parse_json(lines[0][1], allow_nan=True) if len(lines) > 1 else None
    except JsonTextError:
        first = None
    if not isinstance(first, dict):
        return parse_json(text, allow_nan=True)
    values = NumberedValues()
    for number, line in lines:
        try:
            values[number] = parse_json(line, allow_nan=True)
        except JsonTextError as error:
            raise ValueError(f"line {number} {error}") from error
    return values


def question_entries(content: Any) -> Iterator[Tuple[Optional[int], str, Any]]:
    """Yields the line (None in a JSON document), the context and the JSON object of each question. Rows may be an
    iterator, of which only one is in memory."""
    data = (
        content
        if isinstance(content, (list, NumberedValues, collections.abc.Iterator))
        else content.get("data", [content])
    )
    numbered = data.items() if isinstance(data, NumberedValues) else zip(itertools.repeat(None), data)
    before = ""
    for line, row in numbered:
        if "paragraphs" not in row and "context" in row:
            context = require_text(row["context"])
            before = before if before == context else context  # questions about one context share it
            yield line, before, row
            continue
        for paragraph in row["paragraphs"]:
            context = require_text(paragraph["context"])
            for entry in paragraph["qas"]:
                yield line, context, entry


def require_text(value: Any) -> str:
    """Returns a value that must be a text. Raises: ValueError: it is none."""
    if not isinstance(value, str):
        raise ValueError(f"a text was expected, not {value!r:.60}")
    return value


def id_of(value: Any) -> str:
    """Returns an id as a string, as SQuAD's scripts read it from the keys of a JSON object."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"an id must be a text or a whole number, not {value!r:.60}")
    return value
