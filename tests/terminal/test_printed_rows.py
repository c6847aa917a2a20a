"""Tables of commands on a terminal, and as plain lines elsewhere."""

from __future__ import annotations

import io
from typing import Any, List

import pytest
from rich.text import Text

from mxtrain.terminal.tables import BEST, format_cell, print_rows

LONG = "a path that is longer than any line " * 5
ROWS = [
    ["outputs/a", "3 d", "2.5 MB", "0.1", "1e-05", "12 %", LONG.strip()],
    ["\u5bbd\u6587\u4ef6", "11 min", "-", "0.001", "nan", "", "x\x1b[31m\n"],
]
TITLES = ["run", "age", "size", "lr", "loss", "", "note"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *arguments: Any, **options: Any) -> List[str]:
    monkeypatch.setattr("sys.stdout", stream)
    print_rows(*arguments, **options)
    return stream.getvalue().splitlines()


def test_rows_are_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, io.StringIO(), TITLES, ROWS, {1: BEST})
    assert lines == [
        "run           age    size     lr   loss        note",
        f"outputs/a     3 d  2.5 MB    0.1  1e-05  12 %  {LONG.strip()}",
        "\u5bbd\u6587\u4ef6     11 min       -  0.001    nan        x\\x1b[31m\\n",
    ]


def test_columns_that_hold_a_text_are_aligned_on_the_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["10", "-", "p\u200cq", "2020-01-02"], ["none", "-", "\u202ex", "3.5.1 b c"]]
    assert printed(monkeypatch, io.StringIO(), ["a", "empty", "text", "d"], rows) == [
        "a     empty  text     d",
        "10    -      p\u200cq       2020-01-02",
        "none  -      \\u202ex  3.5.1 b c",
    ]
    assert printed(monkeypatch, io.StringIO(), ["a", "b"], []) == ["a  b"]
    names = [["7", "7"], ["12", "12"]]  # jobs of a sweep: the first column names the rows
    assert printed(monkeypatch, io.StringIO(), ["a", "b"], names) == ["a    b", "7    7", "12  12"]


def test_cells_are_wrapped_to_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = printed(monkeypatch, Terminal(), TITLES, ROWS, {1: BEST}, unbroken=("run", "age"))
    lines = [Text.from_ansi(line).plain for line in shown]
    assert len(lines) > 4 and max(Text(line).cell_len for line in lines) <= 60
    assert lines[1].startswith("outputs/a     3 d") and "11 min" in "".join(lines)
    styled = [line for line in shown if "\x1b[1;32m" in line]
    assert styled and all("outputs/a" not in line for line in styled)
    assert "\x1b[31m" not in "".join(shown)


def test_cells_of_any_value() -> None:
    assert [format_cell(one) for one in (1 / 3, 1234567.0, 1234567, "a", None, True)] == [
        "0.333333",
        "1.23457e+06",
        "1234567",
        "a",
        "",
        "True",
    ]
