"""Writes metrics.csv: the rows of metrics.jsonl as a table with fixed columns."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Sequence

from mxtrain.archive.run_files import FileName
from mxtrain.callback.protocol import RunInfo
from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import replace_file
from mxtrain.files.regular_files import read_regular
from mxtrain.files.text_lines import split_lines
from mxtrain.logger.files import cut_file
from mxtrain.logger.row_file import RowFileLogger
from mxtrain.logger.spec import Logger

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow


class Csv(Logger):
    """Writes every row as one line of a table. What a row lacks, and NaN and infinity, are empty cells."""

    file_name: FileName = "metrics.csv"
    """A name inside the run directory."""

    @property
    def writes_to(self) -> str:
        return self.file_name

    def build(self) -> CsvLogger:
        return CsvLogger(self.file_name)


class CsvLogger(RowFileLogger):
    """Appends rows as lines of a table."""

    def prepare(self, path: Path, run: RunInfo) -> None:
        self._columns = prepare_table(path, columns_for(run.metric_names), run.resumed_step)

    def encode(self, row: MetricRow) -> bytes:
        return _encode([_cell(row.get(column)) for column in self._columns])


def columns_for(metric_names: Iterable[str]) -> list[str]:
    """Returns the columns of the table, in order."""
    names = ["step", "epoch", "split", "loss", *metric_names, "lr", "samples_per_s"]
    return list(dict.fromkeys(names))


def prepare_table(path: Path, columns: Sequence[str], step: int) -> list[str]:
    """Creates the table, or restores an existing one to its content at `step`.

    Args:
        path: CSV file.
        columns: columns that this run writes.
        step: last step to keep.

    Returns:
        Columns of the table: `columns`, then the ones that only older rows have.

    Raises:
        RunDirectoryError: the file cannot be read or written.
    """
    try:
        data = read_regular(path) if path.exists() else b""
        # A killed process may have written a part of its last line.
        complete_lines = data[: data.rfind(b"\n") + 1]
        lines = split_lines(complete_lines.decode("utf-8", "replace"))
        old_columns = next(csv.reader(lines[:1]), [])
        kept_rows = [row for row in csv.DictReader(lines) if _is_kept(row, step)]
        all_columns = list(dict.fromkeys([*columns, *(old_columns if kept_rows else ())]))
        table_rows = [all_columns, *([row.get(name) or "" for name in all_columns] for row in kept_rows)]
        table = b"".join(map(_encode, table_rows))
        if data[: len(table)] != table:
            replace_file(path, table)
        elif len(data) > len(table):
            cut_file(path, len(table))
    except OSError as error:
        raise RunDirectoryError(f"Cannot bring {path} back to step {step}: {error.strerror}.") from error
    except csv.Error as error:
        raise RunDirectoryError(f"{path} is not a table of an earlier run: {error}. Move it away.") from error
    return all_columns


def _is_kept(row: MetricRow, step: int) -> bool:
    try:
        return int(row["step"]) <= step
    except (KeyError, TypeError, ValueError):
        return False


def _cell(value: object) -> object:
    return "" if value is None or isinstance(value, float) and not math.isfinite(value) else value


def _encode(cells: Iterable[object]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode("utf-8")
