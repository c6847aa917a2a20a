"""Predicts for rows of a table with an exported network. Exported folders have a copy of this module.

Legend: B batch, F fields with ids, M numbers.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.class_rows import binary_row, described_classes, threshold_of
from mxtrain.data.exported_folder import (
    ExportedFolder,
    UnseenWarning,
    decoded_text,
    json_lines_of,
    targets_in,
)
from mxtrain.data.number_rows import described_numbers
from mxtrain.data.table.cell_text import find_id, hash_code, ids_of_texts, text_of
from mxtrain.data.table.dates import FORM, columns_read, missing_part, read_moment, split_feature
from mxtrain.data.table.missing_cells import MISSING_CELLS as ALL_MISSING
from mxtrain.data.table.missing_cells import MISSING_NUMBERS as ALL_MISSING_NUMBERS
from mxtrain.data.table.parquet import read_parquet
from mxtrain.data.table.text_rows import add_nested, name_cells, read_cells, refuse_long_rows
from mxtrain.data.table.unseen_values import UnseenValues
from mxtrain.data.table.written_numbers import read_number
from mxtrain.errors import DataError, nearest

Cell = Union[str, float, None]
READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""
PARQUET, PARQUET_HEAD = ".parquet", b"PAR1"
FORMS = (".csv", ".tsv", ".jsonl", PARQUET)
"""Extensions of files. Files with other extensions are JSON lines if they begin with a brace, otherwise CSV."""

MISSING_CELLS, MISSING_NUMBERS = frozenset(ALL_MISSING), frozenset(ALL_MISSING_NUMBERS)
"""Defaults of `dataset.missing`, and further cells without a value in columns of numbers."""
MAX_NUMBER = float(np.finfo(np.float32).max)
MAX_COMPARED = 1000
"""Largest number of given names that are compared with one that is missing."""
UNSEEN, FIRST_VALUE, FIRST_BUCKET = 1, 2, 1
"""Ids within a field of a value that is in no vocabulary, of the first value of a vocabulary, and of the first hash
bucket. 0 is a missing value."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    names = ", ".join(columns_read([column["name"] for column in columns_of(signature["signature"])]))
    return (
        f"a .csv file whose first row names the columns (.tsv: separated by tabs), lines of JSON (.jsonl), or with "
        f"the package pyarrow a .parquet file; it needs {names}"
    )


def columns_of(values: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Returns the columns of the network.

    Args:
        values: signature of the checkpoint.
    """
    return (
        list(values["columns"])
        if "columns" in values
        else [
            {"name": column, "kind": "number", "mean": mean, "std": std}
            for column, mean, std in zip(values["class_names"], values["mean"], values["std"])
        ]
    )


def input_sizes(columns: Sequence[Dict[str, Any]]) -> Tuple[List[int], int]:
    """Returns the number of ids of each field, and the number of numbers, that `encode` makes of a row."""
    sizes = [
        FIRST_BUCKET + column["buckets"]
        if column["kind"] == "hashed"
        else FIRST_VALUE + len(column.get("vocabulary", []))
        for column in columns
        if column["kind"] != "number"
    ]
    return sizes, sum(1 + bool(column.get("indicator")) for column in columns if column["kind"] == "number")


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for a table.

    Args:
        folder: exported folder.
        content: content of a CSV file, of a TSV or Parquet file if the name ends in .tsv or .parquet, or of lines of
            JSON.
        name: name of the file.

    Raises:
        ValueError: the file lacks a column, or has a cell that is no number.
    """
    encoder = RowEncoder(folder.signature)
    form = next((ending for ending in FORMS if name.lower().endswith(ending)), "")
    if not form:
        form = ".jsonl" if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" else ".csv"
    for location, cells in read_table(content, name, form, encoder.names, encoder.categories):
        outputs = folder.run(encoder.inputs_of(cells, location))
        yield {"file": location, **predicted_row(folder.signature, outputs)}
    for sentence in encoder.unseen.sentences():
        warnings.warn(f"{name}: {sentence}", UnseenWarning, stacklevel=2)


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns names and contents of tables for the proof of an export, with a typical value in each column."""
    cells: Dict[str, Any] = {}
    for number, column in enumerate(columns_of(signature["signature"])):
        name, part = split_feature(column["name"])
        if part:
            cells[name] = "2026-01-31T18:30:00"
            continue
        value = float(column.get("mean", 0.0)) + (0.5 + number % 5 / 8) * float(column.get("std", 1.0))
        value = math.expm1(min(value, 40.0)) if column.get("log") else value
        words = {"true": True, "false": False}
        first: Any = next(iter(column.get("vocabulary", ())), "x")
        cells[column["name"]] = value if column["kind"] == "number" else words.get(first, first)
    row, file = json.dumps(cells, ensure_ascii=False), io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(cells)
    decimal = (signature.get("facts") or {}).get("decimal", ".")
    writer.writerow(str(value).replace(".", decimal) if isinstance(value, float) else value for value in cells.values())
    return [("proof.jsonl", f"{row}\n".encode()), ("proof.csv", file.getvalue().encode())]


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Optional[Dict[str, np.ndarray]]:
    """Returns the inputs of the network for the first row of a table, (1, ...) each; arguments as in `predict`."""
    encoder = RowEncoder(folder.signature)
    form = next(form for form in FORMS if name.lower().endswith(form))
    rows = read_table(content, name, form, encoder.names, encoder.categories)
    return next((encoder.inputs_of(cells, location) for location, cells in rows), None)


def read_table(
    content: bytes, name: str, form: str, names: Sequence[str], categories: Collection[str] = ()
) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yields the source location and the cells of each row of a table, as training reads them.

    Args:
        content: text in UTF-8, or Parquet.
        name: name of the table, for messages.
        form: one of `FORMS`: ".csv", ".tsv", ".jsonl" or ".parquet", whose rows are numbered from 0.
        names: columns that must be there.
        categories: columns of Parquet whose numbers of classes are replaced by their names, see `read_parquet`.

    Raises:
        ValueError: a column is missing, the text is no table, or pyarrow is not installed, which reads Parquet.
    """
    if form == PARQUET:
        yield from _parquet_rows(content, name, names, categories)
        return
    if content[:4] == PARQUET_HEAD:
        raise ValueError(
            f"{name} is Parquet, which is read only of files whose names end in {PARQUET}: write it as "
            "CSV or as lines of JSON"
        )
    if form == ".jsonl":
        for line, value in json_lines_of(content, name):
            yield f"{name}:{line}", cells_of(value, names, f"{name}:{line}")
        return
    lines = io.StringIO(decoded_text(content, name), newline="" if form == ".csv" else "\n")
    path = Path(name)
    try:
        rows = refuse_long_rows(path, name_cells(read_cells(path, lines, form), True), first_only=False)
        is_first = True
        for line, header, cells in rows:
            if is_first:
                _refuse_header(name, header, names)
            missing = next((column for column in names if column not in cells), None)
            if missing is not None:
                raise ValueError(f"{name}:{line} has no column '{missing}'; the row is too short")
            is_first = False
            yield f"{name}:{line}", {column: cells[column] for column in names}
        if is_first:
            header = next((cells for _, cells in read_cells(path, io.StringIO(lines.getvalue()), form)), [])
            _refuse_header(name, [column.strip() for column in header], names)
    except DataError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _refuse_header(name: str, header: Sequence[str], names: Sequence[str]) -> None:
    """Checks that a table has each column once, as training does. Raises: ValueError."""
    for column in names:
        if column not in header:
            raise ValueError(f"{name} has no column '{column}'; it has {', '.join(header) or 'no text'}")
        if header.count(column) > 1:
            raise ValueError(f"{name}: two columns are called '{column}'. Give each a name of its own")


def _parquet_rows(
    content: bytes, name: str, names: Sequence[str], categories: Collection[str]
) -> Iterator[Tuple[str, Dict[str, Any]]]:
    try:
        rows = read_parquet(io.BytesIO(content), Path(name), list(names), names_classes=categories)
        for number, header, row in rows:
            _refuse_header(name, header, names)
            if any(isinstance(row[column], bytes) for column in names):
                raise ValueError(f"{name}:{number}: a cell holds bytes, which are no text")
            yield f"{name}:{number}", {column: row[column] for column in names}
    except DataError as error:
        raise ValueError(str(error).rstrip(".")) from error


def cells_of(value: Any, names: Sequence[str], location: str) -> Dict[str, Cell]:
    """Returns the cells of a JSON object as texts.

    Args:
        value: the JSON value; keys of objects in it are columns such as `a.b`.
        names: columns that must be there.
        location: source location of the object, for messages.

    Raises:
        ValueError: it is no object, or lacks a column.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{location} is no JSON object with a value for each column")
    cells: Dict[Any, Any] = dict(value)
    add_nested(cells, value)
    check_cells(cells, names, location, "column")
    return {name: cells[name] for name in names}


def check_cells(cells: Mapping[str, Any], names: Sequence[str], location: str, noun: str) -> None:
    """Rejects cells of a JSON object that `encode` does not take.

    Args:
        cells: members of the object.
        names: names that must be there.
        location: source location of the object, for messages.
        noun: name of a cell in messages, such as "column".

    Raises:
        ValueError: a name is missing, or its value is a list or an object.
    """
    for name in names:
        if name not in cells:
            others = [other[:100] for other in itertools.islice(cells, MAX_COMPARED) if other not in names]
            near = nearest(name[:100], others)
            hint = f", and {near[0]!r} is no {noun} of the network" if near else ""
            raise ValueError(f"{location}: the {noun} {name!r} is missing{hint}; null says that it is not known")
        value = cells[name]
        if value is not None and not isinstance(value, (str, int, float)):
            raise ValueError(f"{location}: the {noun} {name!r} must be a text, a number, true, false or null")


class RowEncoder:
    """Converts rows to inputs of the network, and counts values that the network was not trained with.

    Args:
        signature: content of signature.json.
        columns: columns of the network; None = those of the signature.

    Attributes:
        names: names of the columns.
        categories: those that are no numbers.
        unseen: values of categories that are in no vocabulary.
    """

    def __init__(self, signature: Mapping[str, Any], columns: Optional[Sequence[Dict[str, Any]]] = None) -> None:
        self._columns = columns_of(signature["signature"]) if columns is None else list(columns)
        facts = signature.get("facts") or {}
        self._missing, self._decimal = frozenset(facts.get("missing", MISSING_CELLS)), facts.get("decimal", ".")
        self._specs = signature["inputs"]
        self.names = columns_read([column["name"] for column in self._columns])
        self.categories = [column["name"] for column in self._columns if column["kind"] != "number"]
        vocabularies = {
            column["name"]: column.get("vocabulary", [])
            for column in self._columns
            if column["kind"] not in ("number", "hashed")
        }
        self._ids = {name: ids_of_texts(values, FIRST_VALUE) for name, values in vocabularies.items()}
        self.unseen = UnseenValues(vocabularies)

    def inputs_of(self, cells: Mapping[str, Cell], location: str) -> Dict[str, np.ndarray]:
        """Returns the inputs of the network for one row, (1, F) and (1, M); arguments as in `encode`."""
        arrays = [np.array([row]) for row in self.encode(cells, location) if row]
        return {spec["name"]: array.astype(spec["dtype"]) for spec, array in zip(self._specs, arrays)}

    def encode(self, cells: Mapping[str, Cell], location: str) -> List[List[float]]:
        """Returns ids and numbers of one row.

        Args:
            cells: texts, numbers or truth values by column name; None is a missing value.
            location: source location of the row, for messages.

        Raises:
            ValueError: a cell of a column of numbers is no number, or not finite in float32.
        """
        ids: List[float] = []
        numbers: List[float] = []
        begin = 0
        for column in self._columns:
            name, part = split_feature(column["name"])
            value = cells[name]
            given = text_of(value)
            cell = "" if given is None else given.strip()
            is_missing = given is None or cell in self._missing
            if part:
                moment = None if is_missing else read_moment(cell)
                if moment is None and not is_missing:
                    raise ValueError(f"{location}: '{cell:.100}' in column '{name}' is no date; allowed are {FORM}")
                numbers += scaled_part(column, missing_part(part) if moment is None else moment.part(part))
            elif column["kind"] == "number":
                # A number of JSON has a point whatever the decimal sign of texts is.
                is_text = isinstance(value, (str, bool)) or value is None
                numbers += self._numbers(column, cell, is_missing, location, self._decimal if is_text else ".")
            elif column["kind"] == "hashed":
                # Checkpoints of earlier versions hashed cells as they were written, and keep their buckets.
                code = hash_code(cell, column.get("canonical", False))
                ids.append(begin + (0 if is_missing else FIRST_BUCKET + code % column["buckets"]))
                begin += FIRST_BUCKET + column["buckets"]
            else:
                known = find_id(cell, self._ids[column["name"]])
                ids.append(begin + (0 if is_missing else UNSEEN if known is None else known))
                begin += FIRST_VALUE + len(column.get("vocabulary", []))
                self.unseen.count(column["name"], cell if known is None and not is_missing else None)
        return [ids, numbers]

    def _numbers(
        self, column: Mapping[str, Any], cell: str, is_missing: bool, location: str, decimal: str
    ) -> List[float]:
        found = None if is_missing else read_number(cell, decimal)
        if found is None and not is_missing and cell not in MISSING_NUMBERS:
            raise ValueError(f"{location}: '{cell:.100}' in column '{column['name']}' is no number")
        value = math.nan if found is None else found.value
        if found is not None and not abs(value) <= MAX_NUMBER:
            raise ValueError(f"{location}: '{cell:.100}' in column '{column['name']}' is no finite number of 32 bits")
        value = value if math.isnan(value) or not column.get("log") else math.log1p(max(value, 0.0))
        is_missing = math.isnan(value)
        scaled = 0.0 if is_missing else (value - column.get("mean", 0.0)) / column.get("std", 1.0)
        if not abs(scaled) <= MAX_NUMBER:
            raise ValueError(
                f"{location}: '{cell:.100}' in column '{column['name']}' is too large for this network: "
                "scaled as in training it is beyond 32 bits"
            )
        return [scaled, *([float(is_missing)] if column.get("indicator") else [])]


def scaled_part(column: Mapping[str, Any], value: float) -> List[float]:
    """Returns the inputs of the network for a part of a date."""
    is_missing = math.isnan(value)
    scaled = 0.0 if is_missing else (value - column.get("mean", 0.0)) / column.get("std", 1.0)
    return [scaled, *([float(is_missing)] if column.get("indicator") else [])]


def predicted_row(signature: Dict[str, Any], outputs: Dict[str, np.ndarray]) -> Dict[str, Any]:
    """Returns the prediction for one row of a table or one text, in the format of its task."""
    if "Number" in targets_in(signature):
        return described_numbers(signature, outputs["output"])
    names = signature["class_names"]
    if "probabilities" in outputs:
        return described_classes(signature, outputs["probabilities"][0])
    probability = 0.5 * (1 + math.tanh(float(np.ravel(outputs["output"])[0]) / 2))
    return binary_row(names, probability, threshold_of(signature))
