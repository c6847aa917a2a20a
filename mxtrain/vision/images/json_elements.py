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

from mxtrain.data.loading.dataset_files import open_regular, read_bytes
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, check_depth, decoder_options, parse_json

MAX_BYTES = 8 << 30
_SPACE = re.compile(r"[ \t\r\n]*")
Decode = Callable[[str, int], Tuple[Any, int]]
"""Function of a text and a position in it that returns the value there, and the position behind it."""
_BOM = "\xef\xbb\xbf"
"""Byte order mark of UTF-8, as Latin-1."""


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
        """Yields all elements, in order. An empty array yields one element with record -1 and the value [].

        Raises:
            DataError: the file cannot be read, or is not a JSON object; the message has line and column.
        """
        content = read_bytes(self.path, MAX_BYTES)
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"'{self.path}' is in UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 FILE.")
        # In Latin-1 a byte is a character: positions are those in the file, and no character makes the text four times
        # as large. 480 MB take 5.9 s and 985 MB, with json.load 16.1 s and 2,896 MB.
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
        """Reads the element between two positions in the file, in bytes."""
        return next(self.elements_at([(begin, end)]))

    def elements_at(self, spans: Iterable[Sequence[int]]) -> Iterator[Any]:
        """Yields the elements between pairs of positions (begin, end), in bytes. The file is opened once."""
        with open_regular(self.path) as (file, _):
            for begin, end in spans:
                file.seek(begin)
                yield parse_json(file.read(end - begin), allow_nan=True)


def number_array(values: Any) -> np.ndarray:
    """Converts a JSON list of numbers to float64. Strings are rejected; NumPy itself would convert some, such as "1_0".

    Raises:
        TypeError, ValueError: it is not a list of numbers, or of lists of numbers of the same length.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"no numbers, but {array.dtype}")
    return array.astype(np.float64)


def _members(text: str) -> Iterator[Element]:
    """Yields the elements of the object in a text, see `JsonFile.elements`."""
    decode = json.JSONDecoder(**decoder_options(text, allow_nan=True)).raw_decode  # users of a value reject NaN
    keys: Set[str] = set()
    position = _skip_space(text, len(_BOM) if text.startswith(_BOM) else 0)
    if text[position : position + 1] == "[":
        raise JsonTextError('is a list, and must be an object, as {"images": [...], "annotations": [...]}')
    position = _expect(text, position, "{")
    if text[position : position + 1] == "}":
        return
    while True:
        key, position = _value(decode, text, position)
        if not isinstance(key, str):
            raise json.JSONDecodeError("Expecting property name", text, position)
        if key in keys:
            raise JsonTextError(f"has the key {json.dumps(key[:40])} twice")
        keys.add(key)
        position = _expect(text, _skip_space(text, position), ":")
        if text[position : position + 1] == "[":
            for element in _array(decode, text, key, position):
                yield element
            # The last element tells where the array ends.
            position = element.end if element.record < 0 else _skip_space(text, element.end) + 1
        else:
            value, end = _value(decode, text, position)
            yield Element(key, -1, value, position, end)
            position = end
        position = _skip_space(text, position)
        if text[position : position + 1] == "}":
            if _skip_space(text, position + 1) != len(text):
                raise json.JSONDecodeError("Extra data", text, position + 1)
            return
        position = _expect(text, position, ",")


def _array(decode: Decode, text: str, key: str, position: int) -> Iterator[Element]:
    """Yields the elements of the array that begins at a position."""
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "]":
        yield Element(key, -1, [], position, position + 1)
        return
    index = 0
    while True:
        value, end = _value(decode, text, position)
        yield Element(key, index, value, position, end)
        position = _skip_space(text, end)
        if text[position : position + 1] == "]":
            return
        position = _expect(text, position, ",")
        index += 1


def _value(decode: Decode, text: str, position: int) -> Tuple[Any, int]:
    """Returns the value at a position, and the position behind it."""
    try:
        value, end = decode(text, position)
    except StopIteration as error:  # raised by the decoder if there is no value
        raise json.JSONDecodeError("Expecting value", text, position) from error
    part = text[position:end]
    # Bytes beyond ASCII are not Latin-1 but UTF-8, so this element is parsed once more.
    if not part.isascii():
        return parse_json(part.encode("latin-1"), allow_nan=True), end
    check_depth(value, part)
    return value, end


def _skip_space(text: str, position: int) -> int:
    """Returns the position of the next character that is not white space."""
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _expect(text: str, position: int, character: str) -> int:
    """Returns the position of the next token after an expected character.

    Raises:
        json.JSONDecodeError: there is another character.
    """
    if text[position : position + 1] != character:
        raise json.JSONDecodeError(f"Expecting '{character}'", text, position)
    return _skip_space(text, position + 1)
