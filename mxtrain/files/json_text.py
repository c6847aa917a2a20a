"""Strict parsing of JSON from untrusted files.

`json.loads` accepts values that later code cannot handle: numbers that become infinity, integers beyond int64, `NaN`,
objects with a repeated key (the last one wins), and nesting that exhausts the stack of recursive code.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any, Dict, List, Tuple, Union

from mxtrain.files.regular_files import MAX_TEXT_BYTES, read_regular

MAX_DEPTH = 100
"""Levels of nested arrays and objects."""

# Checking numbers one by one is slow. Every text with a number that may be out of range contains one of these after its
# digits became 0 and E became e. Searching for them is several times as fast as a regular expression.
_SIMPLIFIED = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_NUMBERS = (b"0" * 19, b"e000", b"e+000")
_PART_CHARS = 1 << 16  # characters to simplify at once: copies of a long text would need memory


class JsonTextError(ValueError):
    """A text is not JSON that mxtrain reads. The message completes the sentence "The file ..."."""


def parse_json(content: Union[str, bytes], allow_nan: bool = False) -> Any:
    """Parses one JSON value.

    Args:
        content: text, or bytes in UTF-8 (a byte order mark is skipped).
        allow_nan: whether to accept `NaN`, `Infinity` and `-Infinity`, which Python's encoder writes.

    Raises:
        JsonTextError: the content is not UTF-8 or JSON, is nested deeper than `MAX_DEPTH`, or contains a number beyond
            the range of float64 or int64, or an object with a repeated key.
    """
    if isinstance(content, bytes):
        content = content[len(BOM_UTF8) :] if content.startswith(BOM_UTF8) else content
        try:
            # Not utf-8-sig: decoding with it imports a codec, which a process in a sandbox cannot do.
            content = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JsonTextError(f"is not UTF-8: it holds the byte 0x{content[error.start]:02x}") from error
    try:
        value = json.loads(content, **decoder_options(content, allow_nan))
    except json.JSONDecodeError as error:
        raise JsonTextError(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise JsonTextError(f"is nested deeper than {MAX_DEPTH} levels") from error
    check_depth(value, content)
    return value


def decoder_options(text: str, allow_nan: bool = False) -> Dict[str, Any]:
    """Returns arguments for `json.loads` and `json.JSONDecoder` that reject what `parse_json` rejects, except nesting.

    Args:
        text: JSON to decode. Numbers are checked one by one only if one of them may be out of range.
        allow_nan: see `parse_json`.
    """
    # Python keeps the last of two equal keys, other readers the first: such an object means two things.
    options: Dict[str, Any] = {"object_pairs_hook": _object}
    if not allow_nan:
        options["parse_constant"] = _refuse_constant
    if _may_be_out_of_range(text):
        options.update(parse_float=_float, parse_int=_int)
    return options


def read_json(path: Union[str, Path], at_most: int = MAX_TEXT_BYTES) -> Any:
    """Reads a file with one JSON value; see `parse_json`.

    Args:
        path: path of a regular file.
        at_most: largest allowed size in bytes.

    Raises:
        OSError: the file cannot be read, is not regular or too large.
        JsonTextError: see `parse_json`.
    """
    return parse_json(read_regular(path, at_most))


def _may_be_out_of_range(text: str) -> bool:
    """Returns True if a text contains 19 digits in a row, or an exponent of three digits that is not negative."""
    for start in range(0, len(text), _PART_CHARS):
        part = text[start : start + _PART_CHARS + 18]  # the next part's beginning, as a number may be cut in two
        simplified = part.encode("utf-8", "surrogatepass").translate(_SIMPLIFIED)
        if any(number in simplified for number in _LARGE_NUMBERS):
            return True
    return False


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonTextError(f"has an object that holds the key {json.dumps(_shortened(repeated))} twice")
    return members


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonTextError(f"holds the number {_shortened(text)}, which is beyond the range of float64")
    return value


def _int(text: str) -> int:
    # The length comes first: converting a million digits takes time that grows with their square.
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise JsonTextError(f"holds the number {_shortened(text)}, which is beyond the range of 64-bit integers")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise JsonTextError(f"holds {text}, which is not JSON")


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:20]}...{text[-8:]}"


def check_depth(value: Any, text: str) -> None:
    """Rejects a value that is nested too deeply.

    The value is traversed level by level, since recursion over an untrusted value could exhaust the stack.

    Args:
        value: the decoded value.
        text: its JSON text, whose brackets limit the depth: most values need no traversal.

    Raises:
        JsonTextError: the value is nested deeper than `MAX_DEPTH`.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        members = (
            member
            for container in level
            for member in (container.values() if isinstance(container, dict) else container)
        )
        level = [member for member in members if isinstance(member, (dict, list))]
    if level:
        raise JsonTextError(f"is nested deeper than {MAX_DEPTH} levels")


def kind_of(value: Any) -> str:
    """Returns the type of a JSON value in words, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
