"""Series of tables, in long and wide form, and the default data: generated hourly demand.

Legend: N series, T steps, R rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence

import numpy as np
import pydantic

from mxtrain.data.checking.problems import (
    NOT_A_NUMBER,
    STRICT,
    DataLocations,
    Findings,
    NoUsableSamples,
    Problem,
)
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import list_first
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.data.loading.uniform_hash import uniform_rows
from mxtrain.data.predict_inputs import rows_from
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.signature import Signature
from mxtrain.data.table.cells import MISSING_CELLS, CellTexts, Decimal
from mxtrain.data.table.column_kinds import guess_kinds
from mxtrain.data.table.columns import (
    ROWS,
    given_rows,
    location_of,
    names_of_columns,
    require_column,
    require_file,
    stream_rows,
)
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.text_numbers import parse_finite
from mxtrain.forecasting.dataset import ReadSeries, SeriesDataset, inputs_of
from mxtrain.forecasting.json_lines import read_deepar_lines
from mxtrain.forecasting.series_columns import (
    USUAL_NAMES,
    WIDE,
    SeriesColumns,
    SeriesColumnSettings,
    resolve_columns,
    rows_of_cells,
    usual_column,
)
from mxtrain.forecasting.series_set import (
    HARMLESS,
    GridSettings,
    OneSeries,
    SeriesSet,
    build_series,
    missing_covariates,
)
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.forecasting.time_grid import TimeGrid, parse_frequency, parse_times
from mxtrain.types import NamedInt, Names, PathText

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples

log = logging.getLogger(__name__)

NUM_SERIES, NUM_HOURS = 40, 56 * 24
"""Size of the generated data: eight weeks of hours."""


class DemandDraw(NamedInt):
    """Random streams of the generated series."""

    SHAPE = 40
    NOISE = 41


class SeriesTable(SeriesDataset):
    """Series of a table. In long form a row has the item, the time and the value; in wide form a row has the time and
    the values of all items."""

    path: Optional[PathText] = None
    """File of the table: .csv, .tsv, .jsonl (also compressed, .gz) or .parquet; null = generated data: 40 series of
    hourly demand over eight weeks, with a daily and a weekly course, trend and noise."""
    form: Literal["auto", "long", "wide"] = "auto"
    """long = a row for each item and time; wide = a row for each time, with a column for each item; auto = long if
    there is a column of values by `target` or its usual names."""
    item: Optional[str] = None
    """Column with the name of the item, for long form; null = item_id, item, unique_id, series, series_id, sku or id,
    if there is such a column; otherwise the table is one series."""
    time: Optional[str] = None
    """Column of times: dates and times as in ISO 8601, or whole numbers of steps; null = timestamp, time, datetime,
    date, ds or start."""
    target: Optional[str] = None
    """Column of values, for long form; null = target, y, value, sales or demand."""
    known: Names = []
    """Columns of numbers that are known for the future, too, such as prices or holidays; `predict` needs rows of the
    steps to predict, with an empty value."""
    observed: Names = []
    """Columns of numbers that are known up to the last value alone, such as temperatures: the network reads them before
    the cut. Where a value is missing, they may be, too."""
    static: Names = []
    """Columns that belong to the item and do not change with time: numbers, or texts, which are categories."""
    frequency: Optional[str] = None
    """Distance of two times: s, min, h, D, B (business days), W, M, Q, Y or step, with a number in front, such as
    15min; null = the most frequent distance."""
    time_format: Optional[str] = None
    """Form of the times for Python's strptime, such as %d.%m.%Y; null = ISO 8601, or whole numbers."""
    gaps: Literal["refuse", "missing", "zero", "previous"] = "refuse"
    """Rows that are missing between two times of a series: refuse; missing = their values are missing and count
    nowhere; zero; previous = the value before."""
    missing: CellTexts = list(MISSING_CELLS)
    """Cells that mean a missing value, which counts neither in training nor in evaluation."""
    decimal: Decimal = "."
    """Decimal sign of numbers: "." or ","; the other one groups digits."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        for name in files.find(".csv", ".tsv", ".jsonl", ".parquet"):
            names = files.columns(name)
            time, target, item = (usual_column(kind, names) for kind in ("time", "target", "item"))
            cells = files.first_row(name)
            if time is None or not cells or parse_times([cells.get(time, "")])[2]:
                continue
            settings = {"path": files.typed(name)}
            if target is not None:
                certainty = Certainty.LIKELY if item is not None else Certainty.MAY_BE
                return Recognised("series over time, a row for each value", settings, "forecasting", certainty)
            has_date = parse_times([cells[time]])[1]
            if (
                has_date
                and len(names) > 1
                and all(parse_finite(cells[each]) is not None for each in names if each != time)
            ):
                form = "series over time, a column for each"
                return Recognised(form, settings, "forecasting", Certainty.MAY_BE)
        return None

    @pydantic.model_validator(mode="after")
    def _check_columns(self) -> SeriesTable:
        if self.frequency is not None:
            parse_frequency(self.frequency)
        if self.form == WIDE and (self.item or self.target or self.static):
            name = next(name for name in ("item", "target", "static") if getattr(self, name))
            raise ValueError(f"form=wide has a column for each item, so there is no {name}. Leave it out")
        for setting in ("known", "observed", "static"):
            names = getattr(self, setting)
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{setting} names '{twice[0]}' twice")
        for first, second in (("known", "static"), ("known", "observed"), ("observed", "static")):
            both = [name for name in getattr(self, first) if name in getattr(self, second)]
            if both:
                raise ValueError(f"'{both[0]}' is in {first} and in {second}; a column is one of them")
        return self

    @property
    def data_name(self) -> str:
        return "the generated series" if self.path is None else f"dataset.path={self.path}"

    @property
    def num_windows(self) -> int:
        """Returns the number of cuts of each series for testing: each day of the week for the generated series."""
        return self.windows or (7 if self.path is None else 1)

    def read(self, findings: Findings) -> ReadSeries:
        """See `SeriesDataset.read`."""
        if self.path is None:
            return ReadSeries(generate_demand(self.split_seed))
        columns = self._find_columns(self.path)
        log.info("%s", _say_columns(self.path, columns, names_of_columns(self.path)))
        return self._read_file(self.path, columns, findings)

    def read_inputs(self, path: str, signature: SeriesSignature) -> ReadSeries:
        """See `SeriesDataset.read_inputs`."""
        if ending_of(path) == ".jsonl" and holds_series(path):
            return read_deepar_lines(path, signature.frequency, self.time_format, signature=signature)
        columns = self._find_columns(path, signature)
        return self._read_file(path, columns, STRICT, signature.frequency)

    def _read_file(
        self, path: str, columns: SeriesColumns, findings: Findings, frequency: Optional[str] = None
    ) -> ReadSeries:
        null = self.missing[0] if self.missing else None
        numbered = list(stream_rows(path, columns.names, True, False, findings, None, null, self._decimals(columns)))
        rows = [row for _, row in numbered]
        line_R = [line for line, _ in numbered]
        if not rows:
            raise DataError(f"{path} has no rows.")
        series_set = self._series_of(
            path, rows, columns, lambda row: str(location_of(path, line_R[row])), findings, frequency
        )
        are_records = str(path).endswith(".parquet")
        number_N = [line_R[one.row % len(line_R)] for one in series_set.series]
        locations = DataLocations([str(path)], number_N, None, are_records)
        known = [*columns.known, *columns.observed]
        return ReadSeries(
            series_set, locations, known, columns.static_numbers, columns.static_texts, len(columns.observed)
        )

    def _decimals(self, columns: SeriesColumns) -> Dict[Any, str]:
        """Returns the decimal sign of each column of numbers."""
        return {name: self.decimal for name in columns.names if name not in (columns.time, columns.item)}

    def _series_of(
        self,
        path: str,
        rows: Sequence[Sequence[str]],
        columns: SeriesColumns,
        location: Any,
        findings: Findings,
        frequency: Optional[str],
    ) -> SeriesSet:
        series_rows, wrong_cells = rows_of_cells(rows, columns, location)
        name = path or "the rows"
        place = DataLocations([path], np.zeros(1))[0]
        for cell in wrong_cells:
            fact = f"{series_rows.location(cell.row)}: {cell.fact}."
            findings.refuse(Problem(NOT_A_NUMBER, place, fact, "Correct the cell."))
        settings = GridSettings(frequency or self.frequency, self.time_format, self.gaps)
        try:
            series_set, problems = build_series(series_rows, settings)
        except ValueError as error:
            raise DataError(f"{name}: {error}.") from error
        for problem in problems:
            fact = f"{series_rows.location(problem.row)}: {problem.fact}."
            found = Problem(problem.kind, place, fact, problem.remedy)
            findings.warn(found) if problem.kind in HARMLESS else findings.refuse(found)
        if not series_set.series:
            raise NoUsableSamples(f"{name}: no series has a value.")
        return series_set

    def _find_columns(self, path: str, signature: Optional[SeriesSignature] = None) -> SeriesColumns:
        """Returns the columns of a file.

        Args:
            path: the file.
            signature: signature of a trained network, which knows what static columns hold; None in training.

        Raises:
            DataError: a column is not there, or it is not clear which one is meant.
        """
        names = names_of_columns(path)
        for setting in ("item", "time", "target"):
            if (given := getattr(self, setting)) is not None:
                require_column(f"dataset.{setting}", given, path, names)
        for setting in ("known", "observed", "static"):
            for column in getattr(self, setting):
                require_column(f"dataset.{setting}", column, path, names)
        texts: Sequence[str] = ()
        if signature is not None:
            texts = signature.static_texts
        elif self.static:
            kinds = guess_kinds(path, self.static, self.missing, self.decimal, "")
            texts = [name for name in self.static if kinds[name] != "number"]
        try:
            columns = resolve_columns(names, self._column_settings(texts))
        except ValueError as error:
            raise DataError(f"{path}: {error}.") from error
        if columns.form == WIDE and self.form == "auto":
            self._require_numbers(path, columns.series)
        return columns

    def _column_settings(self, texts: Sequence[str]) -> SeriesColumnSettings:
        """Returns the settings of columns.

        Args:
            texts: static columns that hold texts.
        """
        numbers = [name for name in self.static if name not in texts]
        return SeriesColumnSettings(
            self.form,
            self.item,
            self.time,
            self.target,
            self.known,
            numbers,
            list(texts),
            self.missing,
            self.decimal,
            self.observed,
        )

    def _require_numbers(self, path: str, names: Sequence[str]) -> None:
        kinds = guess_kinds(path, names, self.missing, self.decimal, "")
        texts = [name for name in names if kinds[name] in ("category", "hashed")]
        if texts:
            raise DataError(
                f"{path}: no column is called {', '.join(USUAL_NAMES['target'])}, so each column would be a series "
                f"(wide form), but '{texts[0]}' holds texts. Name the column of values by dataset.target, one of "
                f"{', '.join(names)}."
            )

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns series to predict for, of rows in memory: dicts from column to value, or a data frame of pandas, with
        the columns of the settings or their usual names."""
        signature = SeriesSignature.cast(signature)
        rows = rows_from(value, ROWS)
        names = [str(name) for name in (rows[0] if rows else {})]
        try:
            columns = resolve_columns(names, self._column_settings(signature.static_texts))
        except ValueError as error:
            raise DataError(f"the rows: {error}.") from error
        null = self.missing[0] if self.missing else None
        cells = [row for _, row in given_rows(rows, columns.names, null, self._decimals(columns))]
        series_set = self._series_of("", cells, columns, lambda row: f"row {row}", STRICT, signature.frequency)
        self._require_same_form(series_set, signature)
        lacking = missing_covariates(series_set, signature.future_columns, signature.window.horizon)
        if lacking is not None:
            raise DataError(f"{lacking[1]}.")
        return inputs_of(series_set, signature.season)

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: how tables are read."""
        names = ("item", "time", "target", "time_format", "gaps", "missing", "decimal", "form")
        return DatasetExport(signature.exported_reader, {name: getattr(self, name) for name in names})


def holds_series(path: str) -> bool:
    """Returns True if the first line of a file of JSON lines is a series with its values, not a row of a table."""
    require_file(path)
    with open_text(path, "\n", STRICT) as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        value = parse_json(first, allow_nan=True)
    except JsonTextError:
        return False
    return isinstance(value, dict) and isinstance(value.get("target"), list)


def _say_columns(path: str, columns: SeriesColumns, names: Sequence[str]) -> str:
    """Returns a sentence that lists the columns that are read and the columns that are ignored.

    Args:
        path: path of the table.
        columns: columns that are read.
        names: all columns of the table.
    """
    unread = [name for name in names if name not in columns.names]
    hint = "a column is read if dataset.known, dataset.observed or dataset.static names it"
    rest = f" Columns that are ignored: {list_first(unread)}; {hint}." if unread else ""
    if columns.form == WIDE:
        return (
            f"{path}: wide form, the time is '{columns.time}', and each of {len(columns.series)} columns is a series: "
            f"{', '.join(columns.series[:5])}{', ...' if len(columns.series) > 5 else ''}.{rest}"
        )
    item = "one series" if columns.item is None else f"the item is '{columns.item}'"
    return f"{path}: long form, {item}, the time is '{columns.time}', the value is '{columns.target}'.{rest}"


def generate_demand(seed: int) -> SeriesSet:
    """Returns the default data: hourly demand of 40 items over eight weeks from 2024-01-01, with a daily and a weekly
    course, a trend, and noise that lasts for some hours.

    Args:
        seed: seed of the series.
    """
    number_N = np.arange(NUM_SERIES)
    draw_NK = uniform_rows(seed, 0, number_N, DemandDraw.SHAPE, 8)
    noise_NT = 2 * uniform_rows(seed, 0, number_N, DemandDraw.NOISE, NUM_HOURS) - 1
    for hour in range(1, NUM_HOURS):
        noise_NT[:, hour] = noise_NT[:, hour] + 0.7 * noise_NT[:, hour - 1]
    hour_T = np.arange(NUM_HOURS)
    day_T = hour_T // 24
    level_N, peak_N, width_N, weekend_N, evening_N, trend_N, size_N, phase_N = draw_NK.T[:, :, None]
    daily_NT = np.exp(-(((hour_T % 24) - 8 - 8 * peak_N) ** 2) / (8 + 24 * width_N))
    daily_NT += 0.7 * evening_N * np.exp(-(((hour_T % 24) - 20) ** 2) / 8)
    weekly_NT = np.where(day_T % 7 >= 5, 0.3 + 0.5 * weekend_N, 1 + 0.1 * np.cos(2 * np.pi * (day_T / 7 + phase_N)))
    course_NT = (0.3 + daily_NT) * weekly_NT * (1 + (trend_N - 0.4) * hour_T / NUM_HOURS)
    value_NT = 10 ** (1 + 2 * level_N) * (course_NT + 0.05 * (1 + size_N) * noise_NT)
    value_NT = np.maximum(np.round(value_NT, 2), 0.0)
    begin = int(parse_times(["2024-01-01"])[0][0])
    no_facts = np.zeros((NUM_HOURS, 0), np.float32), np.zeros(0, np.float32)
    series: List[OneSeries] = [
        OneSeries(f"item {number}", 0, value_T, *no_facts, (), number) for number, value_T in enumerate(value_NT)
    ]
    return SeriesSet(TimeGrid("h", 1, begin), series)
