from __future__ import annotations

import json
import math

import pytest

from mxtrain.files.json_text import MAX_DEPTH, JsonTextError, parse_json


def test_valid_json() -> None:
    value = {"a": [1, 2.5, -3, 1e300, 2**63 - 1, None, True], "\u00e9": {"b": "123456789012345678901234567890"}}
    assert parse_json(json.dumps(value)) == value
    assert parse_json(b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode()) == value


def test_depth() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    parse_json(nested(MAX_DEPTH))
    parse_json("[" + ",".join(["[]"] * 1000) + "]")
    for levels in (MAX_DEPTH + 1, 5000, 1_000_000):
        with pytest.raises(JsonTextError, match="nested deeper than 100 levels"):
            parse_json(nested(levels))
    with pytest.raises(JsonTextError, match="nested deeper"):
        parse_json('{"a":' * 101 + "1" + "}" * 101)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1e400", "the number 1e400, which is beyond the range of float64"),
        ("-1e999", "beyond the range of float64"),
        ("[1" + "0" * 400 + ".5]", "beyond the range of float64"),
        (str(2**63), "beyond the range of 64-bit integers"),
        ("[-" + "9" * 5000 + "]", "beyond the range of 64-bit integers"),
        ("NaN", "holds NaN, which is not JSON"),
        ('{"a": 1, "b": 2, "a": 3}', 'the key "a" twice'),
        ("{", r"is not JSON: .*line 1, column 2"),
        ("1 2", "Extra data"),
        (b"\xff", "is not UTF-8: it holds the byte 0xff"),
    ],
)
def test_refused(text: object, message: str) -> None:
    with pytest.raises(JsonTextError, match=message):
        parse_json(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [str(2**63), "1E999", "1e+999"])
def test_large_numbers_are_found_at_any_position_of_long_texts(number: str) -> None:
    """Long texts are searched in parts of 2**20 characters, and a number may lie in two of them."""
    for start in range(2**20 - len(number) - 1, 2**20 + 1):
        with pytest.raises(JsonTextError, match="beyond the range"):
            parse_json(number.rjust(start + len(number)))
    assert parse_json('"\u4e2d\ud800' + "1e-999 " * 200_000 + '"')[-7:] == "1e-999 "


def test_nan_on_request() -> None:
    assert math.isnan(parse_json("NaN", allow_nan=True))
