"""Detects whether cells of a tab-separated table are quoted, as in CSV.

Some programs quote cells of such tables (pandas, R, Excel), others never do (Common Voice, WMT). Nothing in a file says
which, so its first lines decide.
"""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Optional, Sequence

_MAX_CHARACTERS = 1 << 20
"""Number of characters of the first lines that are examined."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"(?=[\t\n]|\r\n|\r?\Z)')
_PLAIN = re.compile(r"[^\t\n]*")
_DOUBLED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
_MIN_ROWS = 2
"""Minimum number of rows from which a column counts as quoted because all of its cells are."""


class _Cell(NamedTuple):
    """A cell, without the quotes around it."""

    text: str
    is_quoted: bool


def first_lines(lines: Iterator[str]) -> List[str]:
    """Takes the first lines of a file."""
    first, size = [], 0
    for line in lines:
        first.append(line)
        size += len(line)
        if size >= _MAX_CHARACTERS:
            break
    return first


def has_doubled_quotes(cell: str) -> bool:
    """Returns True if a cell is in quotes and holds quotes that are doubled, as only quoting makes them."""
    return cell[:1] == '"' and _DOUBLED.fullmatch(cell) is not None


def is_quoted(lines: Sequence[str], header: bool) -> bool:
    """Returns True if cells between tabs are quoted.

    They are if the header is. They are, too, if each cell that begins with a quote is a quoted one, and there is one of
    these reasons: a quote inside of a cell is doubled; a cell holds a tab or a line end; all cells of a column are
    quoted; or commas are in quoted cells alone, as Excel writes them.

    Args:
        lines: the first lines of a file.
        header: whether the first one names the columns.
    """
    if not any('"' in line for line in lines):
        return False
    if header:
        first = next(filter(str.strip, lines))
        quoted = [cell for cell in first.strip("\r\n").split("\t") if cell.startswith('"')]
        if quoted:
            return all(_QUOTED.fullmatch(cell) for cell in quoted)
    rows = _rows_of("".join(lines))
    return rows is not None and _has_reason(rows[1:] if header else rows)


def _rows_of(text: str) -> Optional[List[List[_Cell]]]:
    """Returns the rows of a text if each cell that begins with a quote is a quoted one, and all rows have as many cells
    as the first; else None."""
    rows: List[List[_Cell]] = [[]]
    position = 0
    while position < len(text):
        quoted = _QUOTED.match(text, position) if text[position] == '"' else None
        if text[position] == '"' and (quoted is None or ("\t" in quoted[1] and "\n" in quoted[1])):
            return None  # a quoted cell would begin in one row and end in another
        match = quoted or _PLAIN.match(text, position)
        assert match is not None
        rows[-1].append(_Cell(match[1] if quoted else match[0], quoted is not None))
        position = match.end()
        position += text.startswith("\r", position)
        if text.startswith("\n", position):
            rows.append([])
        elif position == len(text) and text.endswith("\t"):
            rows[-1].append(_Cell("", False))
        position += 1
    rows = [row for row in rows if any(cell.text.strip() for cell in row)]
    return rows if all(len(row) == len(rows[0]) for row in rows[:-1]) else None  # the last line may be incomplete


def _has_reason(rows: Sequence[Sequence[_Cell]]) -> bool:
    quoted = [cell.text for row in rows for cell in row if cell.is_quoted]
    if any('""' in text or "\t" in text or "\n" in text for text in quoted):
        return True
    if len(rows) >= _MIN_ROWS and any(all(cell.is_quoted for cell in column) for column in zip(*rows)):
        return True
    is_excel = not any("," in cell.text for row in rows for cell in row if not cell.is_quoted)
    return bool(quoted) and is_excel and all("," in text for text in quoted)
