from __future__ import annotations

import pytest

from mxtrain.files.text_lines import split_lines


@pytest.mark.parametrize(
    "text, lines",
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb\rc\n\nd", ["a", "b", "c", "", "d"]),
    ],
)
def test_lines_end_as_in_splitlines(text: str, lines: list) -> None:
    assert split_lines(text) == lines == text.splitlines()


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_other_separators_stay_in_the_line(separator: str) -> None:
    assert split_lines(f"a{separator}b\nc") == [f"a{separator}b", "c"]
