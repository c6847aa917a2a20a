"""Parses SQuAD's files, and lines of JSON with questions. Exported folders have a copy of this module."""

from __future__ import annotations

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
    """Values of lines of JSON by the numbers of these lines."""


def parse_questions(text: str) -> Any:
    """One JSON, or `NumberedValues` if the first line is an object by itself and others follow.

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
    found = NumberedValues()
    for number, line in lines:
        try:
            found[number] = parse_json(line, allow_nan=True)
        except JsonTextError as error:
            raise ValueError(f"line {number} {error}") from error
    return found


def question_entries(content: Any) -> Iterator[Tuple[Optional[int], str, Any]]:
    """(line, context, entry of a question); no line where a file is one JSON."""
    data = content if isinstance(content, (list, NumberedValues)) else content.get("data", [content])
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
    """An id as SQuAD's scripts read it back from the keys of a JSON: as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"an id must be a text or a whole number, not {value!r:.60}")
    return value
