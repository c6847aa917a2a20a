"""Prints the output of a task."""

from __future__ import annotations

import math
import sys
from typing import Sequence

from mxtrain.terminal.console import open_console
from mxtrain.terminal.tables import print_rows
from mxtrain.types import Artifact, Table, TextLines

MAX_SHOWN_ROWS = 60


def show_artifacts(artifacts: Sequence[Artifact]) -> None:
    """Prints tables and texts."""
    console = open_console(sys.stdout)
    for artifact in artifacts:
        if isinstance(artifact, Table) and artifact.is_shown:
            print_rows(artifact.header, [list(map(_text, row)) for row in artifact.rows[:MAX_SHOWN_ROWS]])
            if len(artifact.rows) > MAX_SHOWN_ROWS:
                more = len(artifact.rows) - MAX_SHOWN_ROWS
                console.print(f"... and {more} more rows in {artifact.name}.csv")
        elif isinstance(artifact, TextLines):
            for line in artifact.lines:
                console.print(line, soft_wrap=True)
    if artifacts:
        console.print()


def _text(value: object) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4f}"
    return str(value)
