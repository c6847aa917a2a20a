"""Rows of Parquet files, read in batches by pyarrow, which is an extra."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Tuple

from mxtrain.dataset.loading.libraries import require_library
from mxtrain.dataset.loading.regular_files import open_regular
from mxtrain.errors import DataError

_ROWS_AT_ONCE = 4096


def read_parquet(path: Path, columns: List[str]) -> Iterator[Tuple[int, List[str], Mapping[Any, Any]]]:
    """The number of each row from 0, the names of all columns, and the cells of those that are asked for and there.

    Raises:
        DataError: pyarrow is not installed, or the file is no Parquet.
    """
    with _opened(path) as table:
        names = list(table.schema_arrow.names)
        wanted = [name for name in columns if name in names]
        number = 0
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
            for row in batch.to_pylist():
                yield number, names, row
                number += 1


def parquet_names(path: Path) -> List[str]:
    """The names of all columns; raises as `read_parquet`."""
    with _opened(path) as table:
        return list(table.schema_arrow.names)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    parquet = require_library("pyarrow.parquet", "parquet", f"{path}: Parquet")
    damaged = require_library("pyarrow", "parquet", "Parquet").ArrowException
    with open_regular(path) as (file, _):
        try:
            yield parquet.ParquetFile(file)
        except (damaged, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
