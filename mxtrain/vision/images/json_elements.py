"""Reads a large JSON object element by element: for COCO's annotations, `json.load` would need five times the size of
the file in memory.

The text is decoded as Latin-1: each byte is a character, so that the text needs as much memory as the file, and
positions in it are positions in the file. Elements with other characters than ASCII are decoded again, as UTF-8.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, NoReturn, Sequence, Set, Tuple

import numpy as np

from mxtrain.data.loading.regular_files import open_regular, read_bytes
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, check_depth, decoder_options, parse_json

MAX_BYTES = 8 << 30
_SPACE = re.compile(r"[ \t\r\n]*")
Decode = Callable[[str, int], Tuple[Any, int]]
_BOM = "\xef\xbb\xbf"


class Element(NamedTuple):
    """An element of an array in the object, or a value that is not an array.

    Attributes:
        key: key in the object.
        record: index in the array; -1 if the value is not an array.
        value: the parsed value.
        begin, end: position in the file, in bytes.
    """

    key: str
    record: int
    value: Any
    begin: int
    end: int


class JsonFile:
    """A JSON file with an object whose arrays are read element by element."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def elements(self) -> Iterator[Element]:
        """Yields all elements, in order. An empty array gives an element of record -1 and value [].

        Raises:
            DataError: the file cannot be read, or is not a JSON object; the message has line and column.
        """
        content = read_bytes(self.path, MAX_BYTES)
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"'{self.path}' is in UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 FILE.")
        text = content.decode("latin-1")
        del content  # as large as the text
        try:
            yield from _members(text)
        except json.JSONDecodeError as error:
            self._refuse(f"is no JSON: {error.msg} (line {error.lineno}, column {error.colno})", error)
        except RecursionError as error:
            self._refuse("is no JSON that can be read: it is nested too deeply", error)
        except JsonTextError as error:
            self._refuse(str(error), error)

    def _refuse(self, wrong: str, error: Exception) -> NoReturn:
        raise DataError(f"'{self.path}' {wrong}. Copy or write it again.") from error

    def element(self, begin: int, end: int) -> Any:
        """Returns the element between two positions."""
        return next(self.elements_at([(begin, end)]))

    def elements_at(self, spans: Iterable[Sequence[int]]) -> Iterator[Any]:
        """Reads each of several elements, of a file that is opened once."""
        with open_regular(self.path) as (file, _):
            for begin, end in spans:
                file.seek(begin)
                yield parse_json(file.read(end - begin), allow_nan=True)


def number_array(values: Any) -> np.ndarray:
    """Returns the numbers of a JSON list as float64. NumPy itself would read texts, such as "1_0", as numbers.

    Raises:
        TypeError, ValueError: it is no list of numbers, or of lists of the same length.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"no numbers, but {array.dtype}")
    return array.astype(np.float64)


def _members(text: str) -> Iterator[Element]:
    decode = json.JSONDecoder(**decoder_options(text, allow_nan=True)).raw_decode  # users of a value reject NaN
    keys: Set[str] = set()
    at = _skip(text, len(_BOM) if text.startswith(_BOM) else 0)
    if text[at : at + 1] == "[":
        raise JsonTextError('is a list, and must be an object, as {"images": [...], "annotations": [...]}')
    at = _expect(text, at, "{")
    if text[at : at + 1] == "}":
        return
    while True:
        key, at = _value(decode, text, at)
        if not isinstance(key, str):
            raise json.JSONDecodeError("Expecting property name", text, at)
        if key in keys:
            raise JsonTextError(f"has the key {json.dumps(key[:40])} twice")
        keys.add(key)
        at = _expect(text, _skip(text, at), ":")
        if text[at : at + 1] == "[":
            for element in _array(decode, text, key, at):
                yield element  # and the last is looked at below
            at = element.end if element.record < 0 else _skip(text, element.end) + 1
        else:
            value, end = _value(decode, text, at)
            yield Element(key, -1, value, at, end)
            at = end
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            if _skip(text, at + 1) != len(text):
                raise json.JSONDecodeError("Extra data", text, at + 1)
            return
        at = _expect(text, at, ",")


def _array(decode: Decode, text: str, key: str, at: int) -> Iterator[Element]:
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        yield Element(key, -1, [], at, at + 1)
        return
    index = 0
    while True:
        value, end = _value(decode, text, at)
        yield Element(key, index, value, at, end)
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return
        at = _expect(text, at, ",")
        index += 1


def _value(decode: Decode, text: str, at: int) -> Tuple[Any, int]:
    try:
        value, end = decode(text, at)
    except StopIteration as error:  # the decoder says so of nothing at all
        raise json.JSONDecodeError("Expecting value", text, at) from error
    part = text[at:end]
    if not part.isascii():
        return parse_json(part.encode("latin-1"), allow_nan=True), end
    check_depth(value, part)
    return value, end


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _expect(text: str, at: int, character: str) -> int:
    """Returns the position after an expected character."""
    if text[at : at + 1] != character:
        raise json.JSONDecodeError(f"Expecting '{character}'", text, at)
    return _skip(text, at + 1)
