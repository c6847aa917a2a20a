"""Cells of tables that `predict` copies beside its predictions, so that these can be joined with other data."""

from __future__ import annotations

from typing import Collection, Dict, List, Mapping, Optional, Sequence

from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.column_kinds import is_row_id, refuse_unknown_columns, silent_rows
from mxtrain.data.table.columns import TABLES, names_of_columns, stream_rows
from mxtrain.errors import DataError


def copied_cells(
    paths: Sequence[str], keep: Optional[Sequence[str]], read: Collection[str]
) -> Mapping[str, Mapping[str, str]]:
    """Returns the cells of some columns by the place of their row, `file:line`, or `file:record` of Parquet.

    Args:
        paths: paths of tables with a header.
        keep: the columns; None = columns with names of row ids that are in all files. Rows without such a column are
            left out then, and nothing is copied if a file is no table.
        read: columns that a network reads; by default they are not copied.

    Raises:
        DataError: a file lacks a column of `keep`.
    """
    tables = [path for path in paths if ending_of(path) in TABLES]
    columns = list(keep or ())
    if keep is None and tables:
        names = [_names(path) for path in tables]
        shared = set(names[0]).intersection(*names[1:])
        columns = [name for name in names[0] if is_row_id(name) and name not in read and name in shared]
    if not columns or (keep is None and len(tables) < len(paths)):
        return {}
    if len(tables) < len(paths):
        raise DataError("keep: only tables have columns (.csv, .tsv, .jsonl, .parquet). Leave keep out.")
    cells_of_rows: Dict[str, Mapping[str, str]] = {}
    for path in tables:
        if ending_of(path) != ".jsonl":
            refuse_unknown_columns(path, columns, names_of_columns(path), "keep")
        rows = silent_rows(path, columns, [""]) if keep is None else stream_rows(path, columns, True, null="")
        for number, row in rows:
            cells_of_rows[f"{path}:{number}"] = dict(zip(columns, row))
    return cells_of_rows


def _names(path: str) -> List[str]:
    try:
        return names_of_columns(path)
    except DataError:  # the error is reported when the file is read
        return []
