"""Prints the tables of all commands, and formats their cells."""

from __future__ import annotations

import re
import sys
from typing import Iterator, List, Mapping, Optional, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mxtrain.terminal.console import open_console

BEST, WRONG = "bold green", "red"
"""Styles of rows."""
_NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*(e[-+]?[0-9]+)?( ?(%|[A-Za-z]{1,3}))?|[-+]?(nan|inf)|-?")
"""A number, maybe with a unit, or a cell without one."""
_JOINERS = "\u200c\u200d"
"""Joiners of Persian, Indian languages and emoji: not printable according to Python, but harmless."""
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_AGES = ((7 * 86400.0, "w"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def print_rows(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Optional[Mapping[int, str]] = None,
    unbroken: Sequence[str] = (),
) -> None:
    """Prints a table without frames on standard output. Columns of numbers are aligned on the right, except the first
    column, which names the rows.

    On a terminal, cells are wrapped to its width. Elsewhere each row is one line, whatever its length.

    Args:
        titles: headers of the columns.
        rows: cells of each row. Control characters, which names of files may contain, are shown as escapes.
        styles: rich styles of rows, by index.
        unbroken: titles of the columns whose cells are not wrapped, so that they can be copied.
    """
    console = open_console(sys.stdout)
    if not console.is_terminal:
        console.print(Text(rows_text(titles, rows)), soft_wrap=True)
        return
    lines = _cells(titles, rows)
    table = Table(box=None, pad_edge=False)
    for title, is_number in zip(lines[0], _number_columns(lines)):
        table.add_column(title, justify="right" if is_number else "left", no_wrap=title in unbroken)
    for number, cells in enumerate(lines[1:]):
        table.add_row(*map(Text, cells), style=(styles or {}).get(number))
    console.print(table)


def rows_text(titles: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> str:
    """Returns a table as text, one line for each row, as `print_rows` prints it outside of a terminal."""
    return "\n".join(" " * indent + line for line in _padded(_cells(titles, rows)))


def _cells(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> List[List[str]]:
    return [[on_one_line(cell) for cell in line] for line in (titles, *rows)]


def _number_columns(lines: Sequence[Sequence[str]]) -> List[bool]:
    return [number > 0 and _are_numbers(cells) for number, (_, *cells) in enumerate(zip(*lines))]


def _are_numbers(cells: Sequence[str]) -> bool:
    return all(map(_NUMBER.fullmatch, cells)) and any(cell.strip("-") for cell in cells)


def _padded(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(cell_len, cells)) for cells in zip(*lines)]
    are_numbers = _number_columns(lines)
    for line in lines:
        cells: List[str] = []
        for cell, width, is_number in zip(line, widths, are_numbers):
            # Letters of East Asian scripts are two columns wide.
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if is_number else cell + blanks)
        yield "  ".join(cells).rstrip()


def format_size(num_bytes: float) -> str:
    """Formats bytes with a decimal unit, e.g. 2.5 MB."""
    for factor, unit in _UNITS:
        if num_bytes >= factor:
            number = num_bytes / factor
            return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"
    return f"{num_bytes:.0f} B"


def format_age(seconds: float) -> str:
    """Formats an age in its largest unit, e.g. 3 d."""
    for factor, unit in _AGES:
        if seconds >= factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_cell(value: object) -> str:
    """Formats a value of any type for a cell: floats with six significant digits; None as an empty text."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def on_one_line(text: str) -> str:
    """Returns a text with escapes for line ends and control characters, which names of files may contain."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _JOINERS else ascii(one)[1:-1] for one in text)
