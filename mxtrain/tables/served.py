"""Reads rows of tables that clients of `mxtrain serve` send, as `predict.py` of the folder does. Imports no MXNet."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import targets_in
from mxtrain.data.features import exported_rows
from mxtrain.data.features.feature_columns import FEATURE_COLUMNS_STATE, FeatureColumns
from mxtrain.data.number_rows import num_outputs
from mxtrain.data.table.dates import split_feature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.serving.errors import RequestError
from mxtrain.serving.protocol import parse_json
from mxtrain.serving.readers import CSV_TYPE, JSON_LINES_TYPES, JSON_TYPE, TSV_TYPE, BodyLimits, ReadBody
from mxtrain.types.kinds import Numbers, TableFeatures

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

ROWS = "rows"
"""Key of a JSON object with several rows."""
BODY = "the body"
KINDS = ("category", "hashed", "number")
TARGETS = {"RowClass", "Number", "ClassIndex", "ClassSet"}
FORM: Dict[str, JsonForm] = {
    "class_names": [str],
    "signature": {
        "columns?": FEATURE_COLUMNS_STATE,
        "class_names": [str],
        "mean": [NUMBER],
        "std": [NUMBER],
        "target_mean?": NUMBER,
        "target_std?": NUMBER,
        "targets?": [{"name": str, "mean": NUMBER, "std": NUMBER}],
        "*": object,
    },
    "facts": {"missing?": [str], "decimal?": str, "quantiles?": [NUMBER], "margins?": [NUMBER], "*": object},
    "*": object,
}
"""Form of what is read of a signature.json."""


class RowReader:
    """Reads rows of a table: a JSON object with a value for each column, several of them, CSV or TSV.

    Args:
        folder: exported folder, whose signature was checked.
    """

    kind = "json"
    media_types = (JSON_TYPE, CSV_TYPE, TSV_TYPE, *JSON_LINES_TYPES)

    def __init__(self, folder: ExportedFolder) -> None:
        self._signature = folder.signature
        self._num_outputs = num_outputs(self._signature)
        columns = exported_rows.columns_of(self._signature["signature"])
        kinds = {}
        for column in columns:
            name, part = split_feature(column["name"])
            kinds[name] = "date" if part else "count" if column.get("log") else column["kind"]
        self.columns = [{"name": name, "kind": kind} for name, kind in kinds.items()]
        cells = {split_feature(column["name"])[0]: _typical_cell(column) for column in columns}
        self.example = json.dumps(cells, ensure_ascii=False)

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """See `BodyReader.read`."""
        rows: List[Dict[str, np.ndarray]] = []
        # A new one for each body, because it counts the values that training has not seen.
        encoder = exported_rows.RowEncoder(self._signature)
        try:
            for location, cells in self._rows(body, media_type, encoder.names):
                if len(rows) == limits.max_rows:
                    raise RequestError(
                        413,
                        f"the body has too many rows: at most {limits.max_rows} are taken at once. "
                        "Send several requests.",
                    )
                rows.append(encoder.inputs_of(cells, location))
        except ValueError as error:
            raise RequestError(400, f"{str(error)[:1000]}.") from error
        if not rows:
            raise RequestError(400, "the body holds no row.")
        inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        return ReadBody(inputs, unseen=encoder.unseen.counts)

    def _rows(self, body: bytes, media_type: str, names: Sequence[str]) -> Iterable[Tuple[str, Mapping[str, Any]]]:
        """Returns the source location and the cells of each row."""
        if media_type != JSON_TYPE:
            form = {TSV_TYPE: ".tsv", CSV_TYPE: ".csv"}.get(media_type, ".jsonl")
            return exported_rows.read_table(body, BODY, form, names)
        value = parse_json(body)
        rows = value.get(ROWS)
        if not isinstance(rows, list):
            return [(BODY, exported_rows.cells_of(value, names, BODY))]
        locations = (f"{ROWS}[{number}]" for number in range(len(rows)))
        return ((location, exported_rows.cells_of(row, names, location)) for location, row in zip(locations, rows))

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Any
    ) -> Optional[Dict[str, Any]]:
        """Returns the row that `predict.py` writes; None if the outputs are not those of such a network."""
        probability_BK, names = outputs.get("probabilities"), self._signature["class_names"]
        if probability_BK is not None and probability_BK.shape != (1, len(names)):
            return None
        if probability_BK is None and ("output" not in outputs or outputs["output"].size != self._num_outputs):
            return None
        return exported_rows.predicted_row(self._signature, dict(outputs))


def _typical_cell(column: Mapping[str, Any]) -> Any:
    """Returns a cell for the example: the mean of a column of numbers, and the first value of a category."""
    if split_feature(column["name"])[1]:
        return "2026-01-31T18:30:00"
    if column["kind"] == "number":
        mean = float(column.get("mean", 0.0))
        # The signature may be a stranger's, and expm1 overflows for large numbers.
        mean = math.expm1(min(mean, 80.0)) if column.get("log") else mean
        return float(f"{mean:.3g}")
    return next(iter(column.get("vocabulary", ())), "...")


def make_row_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[RowReader]:
    """Returns the reader for a network whose folder reads tables with named columns; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    signature = folder.signature
    if signature.get("reader") != exported_rows.__name__.rpartition(".")[2] or signature.get("predicts") is False:
        return None
    if not TARGETS & set(targets_in(signature)):
        return None
    require_form(signature, FORM)
    values = signature["signature"]
    if "columns" not in values and not len(values["class_names"]) == len(values["mean"]) == len(values["std"]):
        raise ValueError("class_names, mean and std are not of the same length")
    if not signature["class_names"] and "Number" not in targets_in(signature):
        raise ValueError("class_names is empty")
    columns = exported_rows.columns_of(values)
    try:
        FeatureColumns.from_json(columns)
    except DamagedCheckpoint as error:
        raise ValueError(str(error)) from error
    if any(column["kind"] not in KINDS for column in columns):
        raise ValueError(f"the kinds of columns are {', '.join(KINDS)}")
    sizes, num_numbers = exported_rows.input_sizes(columns)
    widths = [width for width in (len(sizes), num_numbers) if width]
    if [list(spec.dims[1:]) for spec in inputs] != [[width] for width in widths]:
        raise ValueError("the columns are not those of the network's inputs")
    return RowReader(folder)


READERS = dict.fromkeys((TableFeatures.name, Numbers.name), make_row_reader)
"""Readers for `mxtrain.serving.readers`, by the name of a kind of samples."""
