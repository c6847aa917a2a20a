"""Rows of Parquet files, read in batches by pyarrow, which is an extra. Exported folders have a copy of this module."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Collection, Dict, Iterator, List, Mapping, Tuple, Union

from mxtrain.config.libraries import install_command, require_library
from mxtrain.errors import DataError

SAFE_VERSION = (14, 0, 1)
"""The first version of pyarrow that runs no code of a file's: https://nvd.nist.gov/vuln/detail/CVE-2023-47248."""
HUGGING_FACE, CLASS_LABEL, NO_CLASS = b"huggingface", "ClassLabel", -1
"""Key of the metadata in which Hugging Face's datasets describes columns, its type of classes, and the number of rows
without one, as in test splits."""
_ROWS_AT_ONCE = 4096
_OUT_OF_RANGE = "<value out of range"
"""Beginning of the text that pyarrow writes for a time beyond the calendar."""


def read_parquet(
    file: BinaryIO,
    path: Path,
    columns: List[str],
    may_nest: bool = False,
    names_classes: Union[bool, Collection[str]] = False,
    lists: Collection[str] = (),
) -> Iterator[Tuple[int, List[str], Mapping[Any, Any]]]:
    """Yields the number of each row from 0, the names of all columns, and the cells of the requested columns that
    exist; `a.b` is the field b of structs in a, as Hugging Face's translation.en.

    Args:
        file: the opened file.
        path: its path, for messages.
        columns: requested columns.
        may_nest: True if cells may be lists and structs, which become lists and dicts.
        lists: columns whose cells may be lists although others may not.
        names_classes: True, or the columns in which to replace numbers of classes by their names, if Hugging Face's
            datasets has written these; -1, which stands for no class, becomes None.

    Raises:
        DataError: pyarrow is not installed, or the file is no Parquet.
    """
    with _opened(file, path) as table:
        types = _types_of(table.schema_arrow)
        names = [name for name, kind in types.items() if not _is_struct(kind)]
        existing = [name for name in columns if name in types]
        for name in [] if may_nest else [name for name in existing if name not in lists]:
            _refuse_nested(path, name, types[name])
        classes = _class_names(table.schema_arrow) if names_classes else {}
        if not isinstance(names_classes, bool):
            classes = {name: names for name, names in classes.items() if name in names_classes}
        number = 0
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=existing, use_threads=False):
            cells = [_cells(path, name, _column_of(batch, name), number) for name in existing]
            for name, column in zip(existing, cells):
                if name in classes:
                    column[:] = [_named(path, name, cell, classes[name]) for cell in column]
            for row in zip(*cells) if cells else [()] * batch.num_rows:
                yield number, names, dict(zip(existing, row))
                number += 1


def _class_names(schema: Any) -> Dict[str, List[str]]:
    """Returns the class names of columns with numbers of classes or lists of them, from the metadata that Hugging
    Face's datasets writes; nothing if there are none."""
    content = (schema.metadata or {}).get(HUGGING_FACE, b"{}")
    try:
        features = json.loads(content)["info"]["features"]
        items = list(features.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    found: Dict[str, List[str]] = {}
    for column, feature in items:
        # A list is {"feature": ..., "_type": "List"} or "Sequence"; older versions write [...].
        while isinstance(feature, list) and len(feature) == 1 or isinstance(feature, dict) and "feature" in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == CLASS_LABEL else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[column] = names
    return found


def _named(path: Path, column: str, cell: Any, names: List[str]) -> Any:
    """Returns the name of a class, or a list of names.

    Raises:
        DataError: the class has no name.
    """
    if isinstance(cell, list):
        return [_named(path, column, value, names) for value in cell]
    if not isinstance(cell, int) or cell == NO_CLASS:
        return None if cell == NO_CLASS else cell
    if not 0 <= cell < len(names):
        raise DataError(
            f"{path}: the column '{column}' has the class {cell}, and its metadata names {len(names)} classes, from 0 "
            f"to {len(names) - 1}."
        )
    return names[cell]


def parquet_classes(file: BinaryIO, path: Path) -> Dict[str, List[str]]:
    """Returns the names of classes of columns with numbers of them, if Hugging Face's datasets has written these;
    raises as `read_parquet`."""
    with _opened(file, path) as table:
        return _class_names(table.schema_arrow)


def parquet_names(file: BinaryIO, path: Path) -> List[str]:
    """Returns the names of all columns; raises as `read_parquet`."""
    with _opened(file, path) as table:
        return [name for name, kind in _types_of(table.schema_arrow).items() if not _is_struct(kind)]


def _types_of(schema: Any) -> Dict[str, Any]:
    """Returns the type of each column, and behind structs the types of their fields."""
    types: Dict[str, Any] = {}
    for field in schema:
        types[field.name] = field.type
        if _is_struct(field.type):
            for number in range(field.type.num_fields):
                inner = field.type.field(number)
                types.setdefault(f"{field.name}.{inner.name}", inner.type)
    return types


def _is_struct(kind: Any) -> bool:
    return bool(require_library("pyarrow.types", "parquet", "Parquet").is_struct(kind))


def _column_of(batch: Any, name: str) -> Any:
    """Returns a column of a batch, or a field of a struct in one."""
    if name in batch.schema.names:
        return batch.column(name)
    column = next(column_name for column_name in batch.schema.names if name.startswith(f"{column_name}."))
    compute = require_library("pyarrow.compute", "parquet", "Parquet")
    return compute.struct_field(batch.column(column), [name[len(column) + 1 :]])


@contextmanager
def _opened(file: BinaryIO, path: Path) -> Iterator[Any]:
    _require_safe(path)
    parquet = require_library("pyarrow.parquet", "parquet", f"{path}: Parquet")
    damaged = require_library("pyarrow", "parquet", "Parquet").ArrowException
    try:
        yield parquet.ParquetFile(file)
    except (damaged, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _require_safe(path: Path) -> None:
    """Refuses versions of pyarrow that run code which a file holds.

    Raises:
        DataError: names the version, and what to install.
    """
    version = str(require_library("pyarrow", "parquet", f"{path}: Parquet").__version__)
    numbers = tuple(int(part) for part in re.findall(r"[0-9]+", version)[:3])
    if numbers < SAFE_VERSION:
        raise DataError(
            f"{path}: pyarrow {version} can run code that a Parquet file holds (CVE-2023-47248), so it opens no file. "
            f"Type {install_command('parquet')}."
        )


def _refuse_nested(path: Path, name: str, kind: Any) -> None:
    types = require_library("pyarrow.types", "parquet", "Parquet")
    if types.is_nested(kind):
        raise DataError(
            f"{path}: the column '{name}' is of the type {kind}, and a cell must be a number or a text. Leave it out, "
            "for example as ignore in dataset.columns."
        )


def _cells(path: Path, name: str, column: Any, first: int) -> List[Any]:
    """Returns the cells of a column as Python values; times as texts.

    Raises:
        DataError: a cell is no UTF-8, or no time that there can be; names the column.
    """
    pyarrow, kind = require_library("pyarrow", "parquet", "Parquet"), column.type
    try:
        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pyarrow.types.is_temporal(column.type):
            column = column.cast(pyarrow.string())
            wrong = next((text for text in column.to_pylist() if text and text.startswith(_OUT_OF_RANGE)), None)
            if wrong is not None:
                raise OverflowError(wrong.strip("<>"))
        cells: List[Any] = column.to_pylist()
        return cells
    except UnicodeDecodeError as error:
        reason = f"is no UTF-8: it holds the byte 0x{error.object[error.start]:02x}"
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        reason = f"is no {kind}: {error}"
    last = first + len(column) - 1
    raise DataError(f"{path}: a cell of the column '{name}', in records {first} to {last}, {reason}.")
