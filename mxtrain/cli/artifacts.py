"""Prints the output of a task, and writes it as files."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from typing import List, Sequence

from mxtrain.files.durable import replace_file
from mxtrain.terminal.console import open_console
from mxtrain.terminal.tables import print_rows
from mxtrain.types import Artifact, Audio, Figure, Table, TextLines

MAX_SHOWN_ROWS = 60
MAX_SHOWN_SAMPLES = 16


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


def write_artifacts(artifacts: Sequence[Artifact], folder: Path) -> List[str]:
    """Writes tables as CSV, images as PNG and sounds as WAV files, and returns their names; replaces earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    names: List[str] = []
    for artifact in artifacts:
        if isinstance(artifact, Table):
            names.append(f"{artifact.name}.csv")
            write_table(folder / names[-1], [artifact.header, *artifact.rows])
        elif isinstance(artifact, Figure):
            figure = io.BytesIO()
            artifact.draw(MAX_SHOWN_SAMPLES).save(figure, "PNG")
            names.append(f"{artifact.name}.png")
            replace_file(folder / names[-1], figure.getvalue())
        elif isinstance(artifact, Audio):
            names.append(f"{artifact.name}.wav")
            replace_file(folder / names[-1], artifact.encode())
    return names


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Replaces a CSV file."""
    text = io.StringIO(newline="")
    # An undefined number is an empty cell, as in the metrics.csv of a run.
    csv.writer(text).writerows([["" if value != value else value for value in row] for row in rows])
    replace_file(path, text.getvalue().encode("utf-8", "surrogateescape"))
