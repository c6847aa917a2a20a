"""Predicts for rows of a table with an exported network. Exported folders have a copy of this module.

Legend: B batch, F fields with ids, M numbers.
"""

from __future__ import annotations

import csv
import io
import math
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, decoded_text
from mxtrain.data.table.missing_cells import MISSING_CELLS as ALL_MISSING
from mxtrain.data.table.missing_cells import MISSING_NUMBERS as ALL_MISSING_NUMBERS
from mxtrain.files.text_numbers import parse_number

MISSING_CELLS, MISSING_NUMBERS = frozenset(ALL_MISSING), frozenset(ALL_MISSING_NUMBERS)
"""Defaults of `dataset.missing`, and further cells without a value in columns of numbers."""
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
    signature, values = folder.signature, folder.signature["signature"]
    text = decoded_text(content, name)
    reader = csv.DictReader(io.StringIO(text), delimiter="\t" if name.lower().endswith(".tsv") else ",")
    columns = columns_of(values)
    missing = [column["name"] for column in columns if column["name"] not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name} has no column '{missing[0]}'; it has {', '.join(reader.fieldnames or ())}")
    for cells in reader:
        place = f"{name}:{reader.line_num}"
        dtypes = {spec["name"]: spec["dtype"] for spec in signature["inputs"]}
        arrays = [np.array([row]) for row in encode(columns, cells, place, signature["facts"]) if row]
        outputs = folder.run({key: array.astype(dtypes[key]) for key, array in zip(dtypes, arrays)})
        yield {"file": place, **predicted_row(signature, outputs)}


def encode(
    columns: Sequence[Dict[str, Any]], cells: Mapping[str, Union[str, float, None]], place: str, facts: Dict[str, Any]
) -> List[List[float]]:  # fmt: skip
    """Returns ids and numbers of one row.

    Args:
        columns: columns in the signature of the network.
        cells: texts or numbers by column name; None is a missing value.
        place: source location of the row, for messages.
        facts: facts of the folder: `missing`, the cells that mean a missing value, and `decimal`, the decimal sign.

    Raises:
        ValueError: a cell of a column of numbers is no number.
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
            number = float(given) if isinstance(given, (int, float)) else _number(cell, decimal)
            if number is None and not is_missing and cell not in MISSING_NUMBERS:
                raise ValueError(f"{place}: '{cell}' in column '{column['name']}' is no number")
            value = math.nan if is_missing or number is None else number
            value = value if math.isnan(value) or not column.get("log") else math.log1p(max(value, 0.0))
            is_missing = math.isnan(value)
            numbers.append(0.0 if is_missing else (value - column.get("mean", 0.0)) / column.get("std", 1.0))
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


def _number(cell: str, decimal: str) -> Optional[float]:
    """Returns the number in a cell without signs between its digits; None if it has none."""
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
