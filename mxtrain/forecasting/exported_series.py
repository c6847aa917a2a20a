"""Forecasts the next values of series with an exported network. Exported folders have a copy of this module.

Legend: H steps to predict, Q quantiles.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, decoded_text, json_lines_of
from mxtrain.data.features.exported_rows import FORMS, PARQUET, read_table
from mxtrain.data.table.cell_text import text_of
from mxtrain.data.table.missing_cells import MISSING_CELLS
from mxtrain.data.table.parquet import parquet_names
from mxtrain.data.table.text_rows import read_cells
from mxtrain.errors import DataError
from mxtrain.forecasting.quantile_rows import forecast_row, mean_weights
from mxtrain.forecasting.sampled_paths import PathSettings, forecast_with_parts
from mxtrain.forecasting.series_columns import (
    OBSERVED,
    SeriesColumnSettings,
    resolve_columns,
    rows_of_cells,
    series_of_objects,
)
from mxtrain.forecasting.series_set import (
    GridSettings,
    SeriesSet,
    SeriesWindows,
    WindowForm,
    build_series,
    missing_covariates,
)

READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    values = signature["signature"]
    further = [*values["known_columns"], *values["static_numbers"], *values["static_texts"]]
    columns = f"; it needs {', '.join(further)}" if further else ""
    return (
        f"a .csv file of series with columns of time, value and perhaps item, one {values['frequency']} apart (.tsv: "
        f"separated by tabs), lines of JSON with start and target (.jsonl), or with the package pyarrow a .parquet "
        f"file{columns}"
    )


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for the series of a file.

    Args:
        folder: exported folder.
        content: content of a CSV file, of a TSV or Parquet file if the name ends in .tsv or .parquet, or of lines of
            JSON: rows, or series with start and target.
        name: name of the file.

    Raises:
        ValueError: the file cannot be read, or a number is missing.
    """
    network = ExportedForecaster(folder.signature)
    series_set, locations = network.series_of(content, name)
    for number, inputs in network.inputs(series_set):
        value_HC = network.forecast(folder.run(inputs), folder, inputs)
        for row in network.rows(series_set, number, value_HC):
            yield {"file": locations[number], **row}


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns names and contents of files for the proof of an export: one series longer than the past and a short
    one."""
    values = signature["signature"]
    facts = signature.get("facts") or {}
    window, unit = values["window"], values["frequency"].lstrip("0123456789")
    if facts.get("time_format"):
        return []
    first = 0 if unit == "step" else "2024-01-01"
    lines = []
    for number, length in enumerate((window["past"] + 5, max(window["past"] // 2, 1))):
        value_T = 100 + 10 * np.sin(np.arange(length) / 3) + number
        target: List[Optional[float]] = [round(float(value), 3) for value in value_T]
        target[0] = None if length > 1 else target[0]
        known = [
            [mean + std * (step % 3 - 1) for step in range(length + window["horizon"])]
            for mean, std in zip(window["known_mean"], window["known_std"])
        ]
        split = len(known) - window.get("observed", 0)
        category = [each[0] if each else "x" for each in window["vocabularies"]]
        line = {"item_id": f"item {number}", "start": str(first), "target": target, "dynamic_feat": known[:split]}
        line.update({OBSERVED: [one[:length] for one in known[split:]]} if known[split:] else {})
        lines.append(json.dumps({**line, "cat": category}, ensure_ascii=False))
    return [] if values["static_numbers"] else [("proof.jsonl", ("\n".join(lines) + "\n").encode())]


class ExportedForecaster:
    """Inputs and outputs of an exported network.

    Args:
        signature: content of signature.json.
    """

    def __init__(self, signature: Mapping[str, Any]) -> None:
        self._signature = signature
        self._values, self._facts = signature["signature"], signature.get("facts") or {}
        self.form = WindowForm(**self._values["window"])
        self._future: List[str] = self._values["known_columns"][: self.form.num_future]
        self.levels: List[float] = list(self._facts["quantiles"])

    def series_of(self, content: bytes, name: str) -> Tuple[SeriesSet, List[str]]:
        """Returns the series of a file, and where each is; arguments as in `predict`."""
        form = next((ending for ending in FORMS if name.lower().endswith(ending)), "")
        if not form:
            form = ".jsonl" if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" else ".csv"
        if form == ".jsonl":
            lines = [(f"{name}:{line}", value) for line, value in json_lines_of(content, name)]
            if lines and isinstance(lines[0][1], dict) and isinstance(lines[0][1].get("target"), list):
                return self.series_of_objects(lines), [location for location, _ in lines]
            names: List[str] = list(lines[0][1]) if lines and isinstance(lines[0][1], dict) else []
        else:
            names = _header(content, name, form)
        if not names:
            raise ValueError(f"{name} is empty: there are no columns")
        return self._series_of_table(content, name, form, names)

    def series_of_objects(self, objects: Sequence[Tuple[str, Any]]) -> SeriesSet:
        """Returns the series of JSON objects; arguments as in `series_columns.series_of_objects`."""
        if len(self.form.static_mean):
            raise ValueError(f"{objects[0][0]}: this network reads numbers of items, which only tables have")
        series_set = series_of_objects(
            objects,
            self._values["frequency"],
            self._facts.get("time_format"),
            len(self.form.vocabularies),
            len(self._future),
            self.form.observed,
        )
        return self._checked(series_set, objects[0][0])

    def _series_of_table(
        self, content: bytes, name: str, form: str, names: Sequence[str]
    ) -> Tuple[SeriesSet, List[str]]:
        facts, values = self._facts, self._values
        settings = SeriesColumnSettings(
            facts.get("form", "auto"),
            facts.get("item"),
            facts.get("time"),
            facts.get("target"),
            self._future,
            values["static_numbers"],
            values["static_texts"],
            facts.get("missing", MISSING_CELLS),
            facts.get("decimal", "."),
            values["known_columns"][self.form.num_future :],
        )
        try:
            columns = resolve_columns(names, settings)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        table = list(read_table(content, name, form, columns.names))
        decimal = columns.decimal
        texts = [
            [
                _cell(cells[column], decimal if column not in (columns.time, columns.item) else ".")
                for column in columns.names
            ]
            for _, cells in table
        ]
        locations = [location for location, _ in table]
        rows, wrong = rows_of_cells(texts, columns, lambda row: locations[row])
        for cell in wrong[:1]:
            raise ValueError(f"{rows.location(cell.row)}: {cell.fact}")
        grid = GridSettings(values["frequency"], facts.get("time_format"), facts.get("gaps", "refuse"))
        try:
            series_set, problems = build_series(rows, grid)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        for problem in problems:
            if problem.kind not in ("time_order", "empty_series"):
                raise ValueError(f"{rows.location(problem.row)}: {problem.fact}")
        found = self._checked(series_set, name)
        return found, [locations[one.row % len(locations)] for one in found.series]

    def _checked(self, series_set: SeriesSet, location: str) -> SeriesSet:
        lacking = missing_covariates(series_set, self._future, self.form.horizon)
        if lacking is not None:
            raise ValueError(f"{location}: {lacking[1]}")
        if not series_set.series:
            raise ValueError(f"{location}: no series has a value")
        return series_set

    def inputs(self, series_set: SeriesSet) -> Iterator[Tuple[int, Dict[str, np.ndarray]]]:
        """Yields the number of each series and the inputs of the network for it, (1, ...) each."""
        windows = SeriesWindows(series_set, self.form)
        for number, one in enumerate(series_set.series):
            arrays = windows.inputs(number, len(one.target_T))
            if "paths" in self._facts:
                # The network compares its outputs with the future, which is not known; the encoder does not read it.
                arrays += [np.zeros(self.form.horizon, np.float32)] * 2
            yield (
                number,
                {
                    spec["name"]: array[None].astype(spec["dtype"])
                    for spec, array in zip(self._signature["inputs"], arrays)
                },
            )

    def forecast(
        self, outputs: Mapping[str, np.ndarray], folder: ExportedFolder, inputs: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns mean and quantiles of each step, (H, 1 + Q), for one series.

        Args:
            outputs: outputs of the network.
            folder: runs the parts of a network whose forecasts are sampled.
            inputs: inputs of the network.
        """
        paths = self._facts.get("paths")
        if paths is not None:
            arrays = [inputs[spec["name"]] for spec in self._signature["inputs"][:-2]]
            found: np.ndarray = forecast_with_parts(folder.run, arrays, PathSettings(**paths))[0]
            return found
        quantile_HQ = np.sort(np.asarray(outputs[self._signature["outputs"][0]["name"]], np.float32)[0], axis=1)
        mean_H = (quantile_HQ * mean_weights(self.levels)).sum(axis=1, dtype=np.float32)
        return np.concatenate([mean_H[:, None], quantile_HQ], axis=1)

    def rows(self, series_set: SeriesSet, number: int, value_HC: np.ndarray) -> List[Dict[str, Any]]:
        """Returns the rows of the forecast of a series."""
        one = series_set.series[number]
        times = series_set.grid.texts(one.first + len(one.target_T) + np.arange(len(value_HC)))
        return [forecast_row(one.name, time, value_C, self.levels) for time, value_C in zip(times, value_HC)]


def _cell(value: Any, decimal: str) -> Optional[str]:
    """Returns a cell as a text, whose decimal sign is that of the texts of its column; None if it is missing."""
    text = text_of(value)
    if text is None or isinstance(value, str):
        return text
    return text.replace(".", decimal)


def _header(content: bytes, name: str, form: str) -> List[str]:
    if form == PARQUET:
        try:
            return parquet_names(io.BytesIO(content), Path(name))
        except DataError as error:
            raise ValueError(str(error).rstrip(".")) from error
    lines = io.StringIO(decoded_text(content, name), newline="" if form == ".csv" else "\n")
    try:
        rows = (cells for _, cells in read_cells(Path(name), lines, form))
        return [cell.strip() for cell in next((cells for cells in rows if any(cells)), [])]
    except (DataError, csv.Error) as error:
        raise ValueError(str(error).rstrip(".")) from error
