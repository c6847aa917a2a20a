"""Prints rows in columns."""

from __future__ import annotations

from typing import Sequence


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints titles and rows; all columns but the last are padded."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        print("  " + "  ".join(f"{text:<{width}}" for text, width in zip(line, widths)).rstrip())
