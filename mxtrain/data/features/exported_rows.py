"""Predicts for rows of a table with an exported network. Exported folders have a copy of this module.

Legend: B batch, F fields with ids, M numbers.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, decoded_text
from mxtrain.data.table.missing_cells import MISSING_CELLS as ALL_MISSING
from mxtrain.data.table.missing_cells import MISSING_NUMBERS as ALL_MISSING_NUMBERS
from mxtrain.errors import nearest
from mxtrain.files.text_numbers import parse_number

Cell = Union[str, float, None]

MISSING_CELLS, MISSING_NUMBERS = frozenset(ALL_MISSING), frozenset(ALL_MISSING_NUMBERS)
"""Defaults of `dataset.missing`, and further cells without a value in columns of numbers."""
LARGEST_NUMBER = float(np.finfo(np.float32).max)
MAX_COMPARED = 1000
"""Largest number of given names that are compared with one that is missing."""
FIRST_VALUE, FIRST_BUCKET = 2, 1
"""Ids within a field of the first value of a vocabulary, and of the first hash bucket. 0 is a missing value, and 1 an
unknown value of a vocabulary."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    names = ", ".join(column["name"] for column in columns_of(signature["signature"]))
    return f"a .csv file whose first row names the columns (.tsv: separated by tabs); it needs {names}"


def columns_of(values: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Returns the columns of the network.

    Args:
        values: signature of the checkpoint.
    """
    return list(values["columns"]) if "columns" in values else [
        {"name": column, "kind": "number", "mean": mean, "std": std}
        for column, mean, std in zip(values["class_names"], values["mean"], values["std"])
    ]  # fmt: skip


def input_sizes(columns: Sequence[Dict[str, Any]]) -> Tuple[List[int], int]:
    """Returns the number of ids of each field, and the number of numbers, that `encode` makes of a row."""
    sizes = [
        FIRST_BUCKET + column["buckets"] if column["kind"] == "hashed" else
        FIRST_VALUE + len(column.get("vocabulary", [])) for column in columns if column["kind"] != "number"
    ]  # fmt: skip
    return sizes, sum(1 + bool(column.get("indicator")) for column in columns if column["kind"] == "number")


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for a table with a header.

    Args:
        folder: exported folder.
        content: content of a CSV file, or of a TSV file if the name ends in .tsv.
        name: name of the file.

    Raises:
        ValueError: the file lacks a column, or has a cell that is no number.
    """
    names = [column["name"] for column in columns_of(folder.signature["signature"])]
    for place, cells in read_table(content, name, "\t" if name.lower().endswith(".tsv") else ",", names):
        outputs = folder.run(inputs_of(folder.signature, cells, place))
        yield {"file": place, **predicted_row(folder.signature, outputs)}


def read_table(
    content: bytes, name: str, delimiter: str, names: Sequence[str]
) -> Iterator[Tuple[str, Dict[str, Any]]]:  # fmt: skip
    """Yields the source location and the cells of each row of a table with a header.

    Args:
        content: text in UTF-8.
        name: name of the table, for messages.
        delimiter: character between two cells.
        names: columns that must be there.

    Raises:
        ValueError: a column is missing, or the text is no table.
    """
    reader = csv.DictReader(io.StringIO(decoded_text(content, name)), delimiter=delimiter)
    try:
        missing = [column for column in names if column not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{name} has no column '{missing[0]}'; it has {', '.join(reader.fieldnames or ())}")
        for cells in reader:
            yield f"{name}:{reader.line_num}", cells
    except csv.Error as error:
        raise ValueError(f"{name}:{reader.line_num}: {error}") from error


def inputs_of(signature: Dict[str, Any], cells: Mapping[str, Cell], place: str) -> Dict[str, np.ndarray]:
    """Returns the inputs of the network for one row, (1, F) and (1, M).

    Args:
        signature: content of signature.json.
        cells: see `encode`.
        place: source location of the row, for messages.

    Raises:
        ValueError: see `encode`.
    """
    dtypes = {spec["name"]: spec["dtype"] for spec in signature["inputs"]}
    rows = encode(columns_of(signature["signature"]), cells, place, signature["facts"])
    arrays = [np.array([row]) for row in rows if row]
    return {name: array.astype(dtypes[name]) for name, array in zip(dtypes, arrays)}


def check_cells(cells: Mapping[str, Any], names: Sequence[str], place: str, noun: str) -> None:
    """Rejects cells of a JSON object that `encode` does not take.

    Args:
        cells: members of the object.
        names: names that must be there.
        place: source location of the object, for messages.
        noun: name of a cell in messages, such as "column".

    Raises:
        ValueError: a name is missing, or its value is neither a text, a number nor null.
    """
    for name in names:
        if name not in cells:
            others = [other[:100] for other in itertools.islice(cells, MAX_COMPARED) if other not in names]
            near = nearest(name[:100], others)
            hint = f", and {near[0]!r} is no {noun} of the network" if near else ""
            raise ValueError(f"{place}: the {noun} {name!r} is missing{hint}; null says that it is not known")
        value = cells[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
            raise ValueError(f"{place}: the {noun} {name!r} must be a text, a number or null")


def encode(
    columns: Sequence[Dict[str, Any]], cells: Mapping[str, Cell], place: str, facts: Dict[str, Any]
) -> List[List[float]]:  # fmt: skip
    """Returns ids and numbers of one row.

    Args:
        columns: columns in the signature of the network.
        cells: texts or numbers by column name; None is a missing value.
        place: source location of the row, for messages.
        facts: facts of the folder: `missing`, the cells that mean a missing value, and `decimal`, the decimal sign.

    Raises:
        ValueError: a cell of a column of numbers is no number, or not finite in float32.
    """
    missing, decimal = facts.get("missing", MISSING_CELLS), facts.get("decimal", ".")
    ids: List[float] = []
    numbers: List[float] = []
    begin = 0
    for column in columns:
        given = cells[column["name"]]
        cell = "" if given is None else str(given).strip()
        is_missing = given is None or cell in missing
        if column["kind"] == "number":
            number = _number(given, cell, decimal)
            if number is None and not is_missing and cell not in MISSING_NUMBERS:
                raise ValueError(f"{place}: '{cell:.100}' in column '{column['name']}' is no number")
            if number is not None and not is_missing and not abs(number) <= LARGEST_NUMBER:
                raise ValueError(f"{place}: '{cell:.100}' in column '{column['name']}' is no finite number of 32 bits")
            value = math.nan if is_missing or number is None else number
            value = value if math.isnan(value) or not column.get("log") else math.log1p(max(value, 0.0))
            is_missing = math.isnan(value)
            scaled = 0.0 if is_missing else (value - column.get("mean", 0.0)) / column.get("std", 1.0)
            if not abs(scaled) <= LARGEST_NUMBER:
                raise ValueError(f"{place}: '{cell:.100}' in column '{column['name']}' is too large for this network: "
                                 "scaled as in training it is beyond 32 bits")  # fmt: skip
            numbers.append(scaled)
            numbers += [float(is_missing)] * bool(column.get("indicator"))
        elif column["kind"] == "hashed":
            code = zlib.crc32(cell.encode()) or 1
            ids.append(begin + (0 if is_missing else FIRST_BUCKET + code % column["buckets"]))
            begin += FIRST_BUCKET + column["buckets"]
        else:
            vocabulary = column.get("vocabulary", [])
            id_ = 0 if is_missing else FIRST_VALUE + vocabulary.index(cell) if cell in vocabulary else 1
            ids.append(begin + id_)
            begin += FIRST_VALUE + len(vocabulary)
    return [ids, numbers]


def _number(given: Cell, cell: str, decimal: str) -> Optional[float]:
    """Returns the number in a cell without signs between its digits; None if it has none.

    Args:
        given: the number or text.
        cell: its text.
        decimal: decimal sign of texts.
    """
    if isinstance(given, (int, float)):
        return float(given) if abs(given) <= LARGEST_NUMBER else math.nan if given != given else math.inf
    if decimal == ",":
        return None if "." in cell else parse_number(cell.replace(",", "."), allow_special=True)
    return parse_number(cell, allow_special=True)


def predicted_row(signature: Dict[str, Any], outputs: Dict[str, np.ndarray]) -> Dict[str, Any]:
    """Returns the prediction for one row of a table, in the format of its task."""
    values, names, task = signature["signature"], signature["class_names"], signature["task"]
    if task == "regression":
        value = float(np.ravel(outputs["output"])[0])
        return {"value": round(value * values.get("target_std", 1.0) + values.get("target_mean", 0.0), 6)}
    if "probabilities" in outputs:
        probability_K = outputs["probabilities"][0]
        order = (-probability_K).argsort(kind="stable")[:3]
        top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
        return {**top[0], "top": top}
    score = float(np.ravel(outputs["output"])[0])
    return {"class": names[-1], "probability": round(0.5 * (1 + math.tanh(score / 2)), 6)}
