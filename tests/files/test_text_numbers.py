from __future__ import annotations

import math

import pytest

from mxtrain.files.text_numbers import parse_finite, parse_integer, parse_number


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0.0),
        ("-1", -1.0),
        ("+1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        (" 7\t", 7.0),
    ],
)
def test_number(text: str, value: float) -> None:
    assert parse_number(text) == value == parse_finite(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1_0",
        "0x1F",
        "1,5",
        "1 5",
        "\u06f1",
        "\uff11",
        "\u22121",
        "\u00a01",
        "1\n",
        "\x0c1",
        "1\u2009",
        "e5",
        ".",
        "1e",
        "--1",
        "True",
        "9" * 401,
    ],
)
def test_no_number(text: str) -> None:
    assert parse_number(text) is None
    assert parse_number(text, allow_special=True) is None
    assert parse_integer(text) is None


@pytest.mark.parametrize("text", ["nan", "-inf", "Infinity"])
def test_special_numbers_are_accepted_only_on_request(text: str) -> None:
    assert parse_number(text) is None
    value = parse_number(text, allow_special=True)
    assert value is not None and not math.isfinite(value)


def test_number_beyond_float64() -> None:
    assert parse_number("1e400") == math.inf
    assert parse_finite("1e400") is None


def test_integer_range() -> None:
    assert parse_integer("-9223372036854775808") == -(2**63)
    assert parse_integer("9223372036854775808") is None
    assert parse_integer("300", 0, 255) is None
    assert parse_integer(" +255 ", 0, 255) == 255
    assert parse_integer("1.0") is None
