"""Prints tables of runs, jobs and trials, and formats what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_AGES = ((7 * 86400.0, "w"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class Row:
    """One line of a table; the best is marked."""

    cells: Sequence[str]
    is_best: bool = False


def print_rows(console: Console, titles: Sequence[str], rows: Sequence[Row], unbroken: Sequence[str] = ()) -> None:
    """Prints a table without frames, after an empty line.

    Args:
        console: receives the table.
        titles: headers of the columns.
        rows: a cell for each column. Names of files may hold what a terminal would obey; it is spelled out.
        unbroken: columns whose cells stay on one line, so that they can be copied.
    """
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(on_one_line(title), no_wrap=title in unbroken)
    for row in rows:
        table.add_row(*(Text(on_one_line(cell)) for cell in row.cells), style="bold green" if row.is_best else None)
    console.print()
    console.print(table)


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


def on_one_line(text: str) -> str:
    """Returns a text in which line ends and what a terminal would obey, as names of files may hold, are spelled out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
