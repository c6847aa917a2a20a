"""Series of files: long and wide form, gaps, duplicates and disorder with file and line, the split by time."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
import pyarrow
import pyarrow.parquet
import pydantic
import pytest

from mxtrain.data.checking.problems import Findings, Problem
from mxtrain.data.spec import open_splits
from mxtrain.errors import CheckpointError, ConfigError, DataError
from mxtrain.forecasting.dataset import SeriesSplits, choose_stride
from mxtrain.forecasting.forecasters import DeepAR, TemporalConvolution
from mxtrain.forecasting.json_lines import DeepARLines
from mxtrain.forecasting.series_set import OneSeries, SeriesSet, SeriesWindows, WindowForm
from mxtrain.forecasting.series_table import SeriesTable, generate_demand
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.forecasting.source import Cuts, ForecastSamples, seasonal_error, split_by_time
from mxtrain.forecasting.time_grid import TimeGrid

DAYS = [f"2024-01-{day:02}" for day in range(1, 32)]


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def found(dataset: Any) -> Dict[str, OneSeries]:
    return {one.name: one for one in SeriesSplits.cast(open_splits(dataset)).found.series_set.series}


def table(path: Path, rows: Sequence[str], **settings: Any) -> SeriesTable:
    return SeriesTable(path=write(path, *rows), horizon=2, **settings)


LONG = [
    "item_id,timestamp,target",
    *(f"{item},{day},{n * 2 + len(item)}" for item in ("a", "bb") for n, day in enumerate(DAYS)),
]


def test_long_and_wide_forms_are_the_same_series(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "mxtrain")
    wide = ["date,a,bb", *(f"{day},{n * 2 + 1},{n * 2 + 2}" for n, day in enumerate(DAYS))]
    one, other = found(table(tmp_path / "long.csv", LONG)), found(table(tmp_path / "wide.csv", wide))
    assert list(one) == list(other) == ["a", "bb"]
    for name in one:
        np.testing.assert_array_equal(one[name].target_T, other[name].target_T)
        assert one[name].first == other[name].first == 0
    assert "long form, the item is 'item_id', the time is 'timestamp', the value is 'target'." in caplog.text
    assert "wide form, the time is 'date', and each of 2 columns is a series: a, bb." in caplog.text


def test_columns_that_are_not_read_are_named(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "mxtrain")
    found(table(tmp_path / "a.csv", [LONG[0] + ",price,region", *(f"{row},1,n" for row in LONG[1:])], known=["price"]))
    ignored = "Columns that are ignored: region; a column is read if dataset.known, dataset.observed or dataset.static"
    assert f"the value is 'target'. {ignored} names it." in caplog.text


def test_parquet_and_json_lines_are_read(tmp_path: Path) -> None:
    rows = [dict(zip(LONG[0].split(","), row.split(","))) for row in LONG[1:]]
    columns: Dict[str, List[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["timestamp"] = [np.datetime64(day, "ms") for day in columns["timestamp"]]
    columns["target"] = [float(value) for value in columns["target"]]
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    lines = [json.dumps(row) for row in rows]
    expected = found(table(tmp_path / "a.csv", LONG))
    for dataset in (
        SeriesTable(path=str(tmp_path / "a.parquet"), horizon=2),
        table(tmp_path / "a.jsonl", lines),
    ):
        for name, one in found(dataset).items():
            np.testing.assert_array_equal(one.target_T, expected[name].target_T)


def test_columns_are_named_by_settings(tmp_path: Path) -> None:
    rows = ["shop;when;sold;price;size;kind"]
    for item, (size, kind) in (("x", (1, "old")), ("y", (3, "new"))):
        rows += [f"{item};{day};{n};{n / 2};{size};{kind}".replace(".", ",") for n, day in enumerate(DAYS)]
    path = tmp_path / "a.tsv"
    dataset = table(
        path,
        [row.replace(";", "\t") for row in rows],
        item="shop",
        time="when",
        target="sold",
        known=["price"],
        static=["size", "kind"],
        decimal=",",
    )
    splits = SeriesSplits.cast(open_splits(dataset))
    x, y = splits.found.series_set.series
    assert (x.static_S.tolist(), y.static_S.tolist(), x.categories, y.categories) == ([1], [3], ["old"], ["new"])
    np.testing.assert_allclose(x.known_NC[:, 0], np.arange(31) / 2)
    signature = SeriesSignature.cast(dataset.infer_signature(splits, TemporalConvolution()))
    assert (signature.frequency, signature.season) == ("D", 7)
    assert signature.window.vocabularies == [["new", "old"]] and signature.window.static_mean == [2]
    assert (signature.known_columns, signature.static_numbers, signature.static_texts) == (
        ["price"],
        ["size"],
        ["kind"],
    )
    # Without the 2 x 2 values of validation and test, of which the network may know nothing.
    np.testing.assert_allclose(signature.window.known_mean, [np.arange(27).mean() / 2])
    assert signature.shape == ((14,), (14,), (16, 6), (1,), (1,))
    again = SeriesSignature.from_json(json.loads(json.dumps(signature.to_json())))
    assert again.to_json() == signature.to_json() and again.sizes == signature.sizes


@pytest.mark.parametrize(
    "changed, settings, said",
    [
        (
            {5: None},
            {},
            "line 6: the series 'a' lacks 1 row before it, 2024-01-05, with one row each day. Add them, or",
        ),
        ({5: None, 6: None}, {}, "line 6: the series 'a' lacks 2 rows before it, from 2024-01-05, with"),
        ({5: "a,2024-01-04,1"}, {}, "line 6: the series 'a' has the time 2024-01-04 again, as {path}, line 5."),
        (
            {5: "a,2024-01-05 07:00,1"},
            {},
            "line 6: the time 2024-01-05 07:00 is not on the grid of the others, one day",
        ),
        ({5: "a,5.1.2024,1"}, {}, "line 6: the time '5.1.2024' is no time such as 2024-01-31"),
        ({5: "a,2024-01-05,x"}, {}, "line 6: 'target' is 'x', no number."),
        ({5: "a,2024-01-05,1e39"}, {}, "line 6: 'target' is 1e39, and numbers are at most 3.4e+38."),
        ({5: ",2024-01-05,1"}, {}, "line 6: 'item_id' is empty."),
        ({5: "a,2024-01-05"}, {}, "line 6: "),
        ({0: "item_id,timestamp,valeu"}, {}, "'item_id' holds texts. Name the column of values by dataset.target"),
        ({0: "item_id,moment,target"}, {}, "no column is called timestamp, time, datetime, date, ds, start. Name one"),
        ({}, {"target": "valeu"}, "dataset.target=valeu"),
        ({}, {"static": ["target2"]}, "dataset.static=target2"),
        (
            {31: "a,3024-01-31,1"},
            {"gaps": "zero"},
            "line 32: the series 'a' has 31 rows from 2024-01-01 to 3024-01-31.",
        ),
        ({}, {"frequency": "h"}, "line 3: the series 'a' lacks 23 rows before it"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, changed: Dict[int, Any], settings: Any, said: str) -> None:
    rows = [row for number, given in enumerate(LONG) if (row := changed.get(number, given)) is not None]
    path = tmp_path / "a.csv"
    with pytest.raises(DataError) as caught:
        open_splits(table(path, rows, **settings))
    assert str(path) in str(caught.value) and said.replace("{path}", str(path)) in str(caught.value)


@pytest.mark.parametrize("gaps, value", [("missing", np.nan), ("zero", 0.0), ("previous", 5.0)])
def test_gaps_are_filled_by_a_setting(tmp_path: Path, gaps: str, value: float) -> None:
    rows = [row for row in LONG if row not in ("a,2024-01-04,7", "a,2024-01-05,9")]
    series = found(table(tmp_path / "a.csv", rows, gaps=gaps))["a"]
    np.testing.assert_array_equal(series.target_T[2:6], [5, value, value, 11])


def test_a_gap_before_the_first_value_has_no_previous_one(tmp_path: Path) -> None:
    rows = [row.replace("a,2024-01-01,1", "a,2024-01-01,") for row in LONG if row != "a,2024-01-02,3"]
    series = found(table(tmp_path / "a.csv", rows, gaps="previous"))["a"]
    np.testing.assert_array_equal(series.target_T[:3], [np.nan, np.nan, 5])


def test_a_missing_number_of_an_item_is_one_problem(tmp_path: Path) -> None:
    rows = ["date,y,size", *(f"{day},{n},{'' if n == 3 else 2}" for n, day in enumerate(DAYS))]
    findings = Kept()
    table(tmp_path / "a.csv", rows, static=["size"]).examine(findings)
    assert [problem.kind for problem in findings.problems] == ["not_a_number"]


class Kept(Findings):
    """Keeps all problems."""

    def __init__(self) -> None:
        self.problems: List[Problem] = []

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        self.problems += problems

    def remark(self, problem: Problem) -> None:
        self.problems.append(problem)

    @property
    def keeps_going(self) -> bool:
        return True


def test_rows_out_of_order_are_sorted_and_said(tmp_path: Path, caplog: Any) -> None:
    rows = [LONG[0], LONG[3], LONG[2], LONG[1], *LONG[4:]]
    dataset = table(tmp_path / "a.csv", rows)
    np.testing.assert_array_equal(found(dataset)["a"].target_T, np.arange(31) * 2 + 1)
    said = "a.csv, line 3: the time 2024-01-02 is before 2024-01-03 of"
    assert said in caplog.text and "and so are 1 others. The rows are sorted." in caplog.text
    findings = Kept()
    dataset.examine(findings)
    assert [problem.kind for problem in findings.problems] == ["time_order"]


def test_a_check_lists_all_problems_and_goes_on(tmp_path: Path) -> None:
    changed = {3: "a,2024-01-02,1", 7: "a,x,1", 9: "a,2024-01-09,x"}
    rows = [changed.get(number, row) for number, row in enumerate(LONG)]
    findings = Kept()
    splits = table(tmp_path / "a.csv", [*rows, "short,2024-01-01,1", "empty,2024-01-01,"]).examine(findings)
    kinds = [problem.kind for problem in findings.problems]
    assert sorted(set(kinds)) == [
        "duplicate_time",
        "empty_series",
        "not_a_number",
        "short_series",
        "time_gap",
        "wrong_time",
    ]
    assert len(splits.val) == 2  # both long series are still there


def test_missing_values_count_nowhere_but_stay(tmp_path: Path) -> None:
    rows = [row if "2024-01-30" not in row else row.rpartition(",")[0] + ",NA" for row in LONG]
    dataset = table(tmp_path / "a.csv", rows)
    splits = SeriesSplits.cast(open_splits(dataset))
    signature = dataset.infer_signature(splits, TemporalConvolution())
    windows = SeriesWindows(splits.found.series_set, SeriesSignature.cast(signature).window)
    value_H, observed_H = windows.future(0, 29)
    assert value_H.tolist() == [0, 61] and observed_H.tolist() == [0, 1]
    assert splits.test is not None and len(splits.test) == 2
    assert "2 of them missing" in dataset.remark(signature, splits)


def test_one_series_without_items_and_steps_without_a_calendar(tmp_path: Path) -> None:
    rows = ["time,value", *(f"{step},{step % 3}" for step in range(10, 40, 2))]
    series = found(table(tmp_path / "a.csv", rows))
    assert list(series) == ["series"] and series["series"].target_T[:3].tolist() == [1, 0, 2]
    with pytest.raises(DataError, match="2 steps apart have no usual season.*dataset.horizon=N"):
        open_splits(SeriesTable(path=str(tmp_path / "a.csv")))


def test_short_series_are_left_out_and_named(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "a.csv"
    assert list(found(table(path, [*LONG, "c,2024-01-01,1", "c,2024-01-02,1", "d,2024-01-01,3"]))) == ["a", "bb"]
    assert f"{path}, line 64: the series 'c' has 2 values and is left out, and so are 1 others" in caplog.text
    with pytest.raises(DataError, match="no series has 60 values, which dataset.horizon=2 with 14 windows each"):
        open_splits(table(path, LONG, windows=14))


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"frequency": "hour"}, "is no frequency"),
        ({"form": "wide", "item": "a"}, "form=wide has a column for each item, so there is no item"),
        ({"known": ["a"], "static": ["a"]}, "'a' is in known and in static"),
        ({"known": ["a", "b", "a"]}, "known names 'a' twice"),
        ({"static": ["b", "b"]}, "static names 'b' twice"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        SeriesTable(**settings)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"known": ["target"]}, "'target' is the column of dataset.target, so it cannot be in dataset.known"),
        ({"static": ["timestamp"]}, "'timestamp' is the column of dataset.time, so it cannot be in dataset.static"),
        ({"time": "target"}, "'target' is the column of dataset.time and of dataset.target. Name two"),
    ],
)
def test_the_target_is_no_covariate(tmp_path: Path, settings: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"a.csv: {said}"):
        open_splits(table(tmp_path / "a.csv", LONG, **settings))


def test_times_of_another_form_are_shown(tmp_path: Path) -> None:
    rows = ["day,y", *(f"{n}/01/2024,{n}" for n in range(1, 20))]
    with pytest.raises(
        DataError, match=r"no row has a time: the time '1/01/2024' is no time such as .*dataset.time_format='%d"
    ):
        open_splits(table(tmp_path / "a.csv", rows, time="day"))


def test_unnamed_row_numbers_are_no_series(tmp_path: Path) -> None:
    wide = [",date,a,bb", *(f"{n},{day},{n * 2 + 1},{n * 2 + 2}" for n, day in enumerate(DAYS))]
    assert list(found(table(tmp_path / "wide.csv", wide))) == ["a", "bb"]


def test_series_are_split_by_time() -> None:
    cuts = Cuts(horizon=3, windows=2, stride=2, least=3)
    target_T = np.arange(24.0)
    one = OneSeries("a", 0, target_T, np.zeros((24, 0)), np.zeros(0), ())
    train, val, test = split_by_time(SeriesSet(TimeGrid("step", 1, 0), [one]), cuts, 1, None)
    assert test.cut_N.tolist() == [18, 21] and val.cut_N.tolist() == [12, 15]
    # The last training window ends where validation begins.
    assert train.cut_N.tolist() == [3, 5, 7, 9]
    assert cuts.shortest == 18 and Cuts(3, 1, 1, 3).shortest == 12


def test_a_change_of_the_future_changes_no_input_of_training() -> None:
    """No value of validation or test is seen in training: neither as an input nor as a target nor in a scale."""

    def arrays(later: float) -> List[Any]:
        target_T = np.arange(24.0)
        target_T[12:] += later
        one = OneSeries("a", 0, target_T, np.zeros((24, 0)), np.zeros(0), ())
        series_set = SeriesSet(TimeGrid("step", 1, 0), [one])
        train, _, _ = split_by_time(series_set, Cuts(3, 2, 1, 3), 1, None)
        windows = SeriesWindows(series_set, WindowForm(6, 3))
        return [
            array.tolist()
            for cut in train.cut_N.tolist()
            for array in (*windows.inputs(0, cut), *windows.future(0, cut))
        ]

    assert arrays(0.0) == arrays(1000.0)


def test_a_window_holds_past_flags_and_facts() -> None:
    target_T = np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    known_NC = np.arange(6.0)[:, None]
    one = OneSeries("a", 2, target_T, known_NC, np.array([4.0]), ["x"])
    form = WindowForm(4, 2, [2.0], [2.0], [1.0], [3.0], [["w", "x"]])
    windows = SeriesWindows(SeriesSet(TimeGrid("D", 1, 0), [one]), form)
    value_P, observed_P, known_FK, static_S, category_N = windows.inputs(0, 3)
    assert value_P.tolist() == [0, 1, 0, 3] and observed_P.tolist() == [0, 1, 0, 1]
    assert known_FK[:, -1].tolist() == [0, -1, -0.5, 0, 0.5, 1] and known_FK.shape == (6, 6)
    np.testing.assert_array_equal(known_FK[:, :-1], TimeGrid("D", 1, 0).features(np.arange(1, 7)))
    assert static_S.tolist() == [1] and category_N.tolist() == [2] and category_N.dtype == np.int32
    assert [part.tolist() for part in windows.future(0, 3)] == [[4, 5], [1, 1]]
    assert [part.tolist() for part in windows.future(0, 4)] == [[5, 0], [1, 0]]
    assert windows.inputs(0, 5)[0].tolist() == [0, 3, 4, 5], "for predict, all values are known"


def test_the_seasonal_error_is_of_the_whole_past() -> None:
    one = OneSeries("a", 0, np.array([1.0, 5.0, 2.0, np.nan, 4.0, 9.0, 100.0]), np.zeros((7, 0)), np.zeros(0), ())
    samples = ForecastSamples(SeriesSet(TimeGrid("D", 1, 0), [one]), np.zeros(2, int), np.array([6, 2]), 2)
    assert seasonal_error(samples, 0) == 1.5 and np.isnan(seasonal_error(samples, 1))


def test_generated_series_are_fixed() -> None:
    made = generate_demand(0)
    series = made.series
    assert made.grid == TimeGrid("h", 1, 1704067200)  # from 2024-01-01 on
    assert len(series) == 40 and all(len(one.target_T) == 1344 for one in series)
    assert min(one.target_T.min() for one in series) >= 0
    again = generate_demand(0).series
    np.testing.assert_array_equal(series[7].target_T, again[7].target_T)
    assert not np.array_equal(series[7].target_T, generate_demand(1).series[7].target_T)


LINES = [
    {"start": "2024-01-01 00:00:00", "target": [1, None, "NaN", *range(40)], "cat": [0], "dynamic_feat": [[0.5] * 43]},
    {"start": "2024-01-02 05:00:00", "target": list(range(30)), "cat": [2], "dynamic_feat": [[1] * 30]},
]


def test_lines_of_deepar_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *map(json.dumps, LINES))
    dataset = DeepARLines(path=path, frequency="H", horizon=3)
    splits = SeriesSplits.cast(open_splits(dataset))
    first, second = splits.found.series_set.series
    assert (first.first, second.first, first.name, second.name) == (0, 29, "series 0", "series 1")
    assert np.isnan(first.target_T[:4]).tolist() == [False, True, True, False]
    signature = SeriesSignature.cast(dataset.infer_signature(splits, TemporalConvolution()))
    assert signature.window.vocabularies == [["0", "2"]] and signature.known_columns == ["dynamic_feat 0"]
    assert (signature.frequency, signature.season) == ("h", 24)
    longer = [{**line, "dynamic_feat": [line["dynamic_feat"][0] + [0.5] * 3]} for line in LINES]
    again = write(tmp_path / "b.jsonl", *map(json.dumps, longer))
    samples, places = dataset.open_inputs([again], signature, False, {})
    assert places == [f"{again}:1", f"{again}:2"] and len(samples) == 2
    with pytest.raises(DataError, match="needs dynamic_feat 0 of 3 steps after its last value, and 3 rows of them"):
        dataset.open_inputs([path], signature, False, {})


def test_lines_of_gluonts_have_other_names_of_the_same_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *map(json.dumps, LINES))
    names = {"cat": "feat_static_cat", "dynamic_feat": "feat_dynamic_real"}
    renamed = [{names.get(key, key): value for key, value in line.items()} for line in LINES]
    theirs = [{**line, "feat_static_real": [], "source": "shop.csv"} for line in renamed]
    other = write(tmp_path / "b.jsonl", *map(json.dumps, theirs))
    read, again = (DeepARLines(path=one, frequency="h").read(Findings()) for one in (path, other))
    assert (read.known, read.static_texts) == (again.known, again.static_texts)
    for first, second in zip(read.series_set.series, again.series_set.series):
        np.testing.assert_array_equal(first.known_NC, second.known_NC)
        assert list(first.categories) == list(second.categories) and first.known_NC.size


def test_a_category_without_a_list_can_be_0(tmp_path: Path) -> None:
    lines = [json.dumps({"start": "2024-01-01", "target": list(range(30)), "cat": cat}) for cat in (0, 1)]
    read = DeepARLines(path=write(tmp_path / "a.jsonl", *lines), frequency="h").read(Findings())
    assert [list(series.categories) for series in read.series_set.series] == [["0"], ["1"]]


@pytest.mark.parametrize(
    "line, said",
    [
        ({"target": [1]}, 'is no object such as {"start"'),
        ({"start": "2024-01-01"}, "is no object such as"),
        ({"start": "1.1.2024", "target": [1]}, "start is '1.1.2024', no time such as"),
        ({"start": "2024-01-01", "target": [1, "x"]}, "value 1 of target is 'x', no number"),
        ({"start": "2024-01-01", "target": [1, True]}, "value 1 of target is True, no number"),
        ({"start": "2024-01-01", "target": [1e39]}, "value 0 of target is 1e+39, no number below 3.4e+38"),
        ({"start": "2024-01-01", "target": 3}, "target must be a list of numbers"),
        ({"start": "2024-01-01", "target": [None]}, "target has no number"),
        ({"start": "2024-01-01", "target": [1], "cat": [1.5]}, "cat must be a list of whole numbers"),
        ({"start": "2024-01-01", "target": [1, 2], "dynamic_feat": [[1]]}, "dynamic_feat is shorter than target"),
        ({"start": "2024-01-01", "target": [1], "dynamic_feat": [1]}, "dynamic_feat must be a list of lists"),
        ({"start": "2024-01-01", "target": [1], "dynamic_feat": 0}, "dynamic_feat must be a list of lists"),
        ({"start": "2024-01-01", "target": [1], "dynamic_feat": [[1], [1, 2]]}, "have different lengths"),
        ({"start": 20.5, "target": [1]}, "start must be a text"),
        (
            {"start": "2024-01-01", "target": [1], "feat_static_cat": [0], "cat": [0]},
            "has both cat and feat_static_cat",
        ),
        ({"start": "2024-01-01", "target": [1], "feat_static_real": [0.5]}, "feat_static_real is not read from lines"),
        ({"start": "2024-01-01", "target": [1], "past_feat_dynamic_cat": [[1]]}, "past_feat_dynamic_cat is not read"),
        (
            {"start": "2024-01-01", "target": [1], "past_feat_dynamic_real": [[1]]},
            "real has 1 values, and 0 are needed",
        ),
        ({"start": "2024-01-01 00:30", "target": [1]}, "is not on the grid of the others"),
        ({"start": "2024-01-01", "target": [1, 2], "cat": [0, 1]}, "cat has 2 values, and 1 are needed"),
    ],
)
def test_a_wrong_line_of_deepar_is_named(tmp_path: Path, line: Any, said: str) -> None:
    good = {"start": "2024-01-01 00:00", "target": list(range(30))}
    good = {**good, "cat": [0]} if "2 values" in said else good
    path = write(tmp_path / "a.jsonl", json.dumps(good), "", json.dumps(line))
    with pytest.raises(DataError) as caught:
        open_splits(DeepARLines(path=path, frequency="h", horizon=3))
    assert f"{path}, line 3" in str(caught.value) and said in str(caught.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(LINES[1]), "{")
    with pytest.raises(DataError, match="a.jsonl, line 2 "):
        open_splits(DeepARLines(path=path, frequency="h", horizon=3))
    with pytest.raises(DataError, match="holds no series"):
        open_splits(DeepARLines(path=write(tmp_path / "b.jsonl", ""), frequency="h"))
    with pytest.raises(pydantic.ValidationError, match="is no frequency"):
        DeepARLines(path=path, frequency="hours")
    with pytest.raises(DataError, match="do not say how far apart the values are. Type e.g. dataset.frequency=h"):
        open_splits(DeepARLines(path=path))


def test_counts_are_whole_numbers(tmp_path: Path) -> None:
    model = DeepAR(distribution="negative_binomial")
    for value, said in (("5", ""), ("NA", ""), ("-1", "a value is -1"), ("0.5", "a value is 0.5")):
        rows = [row if row != "a,2024-01-04,7" else f"a,2024-01-04,{value}" for row in LONG]
        dataset = table(tmp_path / "a.csv", rows)
        splits = open_splits(dataset)
        if not said:
            dataset.infer_signature(splits, model)
            continue
        with pytest.raises(DataError, match=f"is for counts, and {said} in the series 'a'"):
            dataset.infer_signature(splits, model)
        dataset.infer_signature(splits, DeepAR())


def test_a_series_needs_a_training_window_and_those_held_out(tmp_path: Path) -> None:
    rows = [LONG[0], *(f"a,{day},1" for day in DAYS[:8])]
    assert list(found(table(tmp_path / "a.csv", rows))) == ["a"], "2 x 2 held out, and 2 + 2 for training"
    with pytest.raises(DataError, match="no series has 8 values"):
        open_splits(table(tmp_path / "a.csv", rows[:-1]))


def test_windows_without_a_known_past_or_future_are_left_out(tmp_path: Path) -> None:
    values = ["", "", "", "", *range(8), "", "", 1, 2]
    rows = [LONG[0], *(f"a,{day},{value}" for day, value in zip(DAYS, values))]
    splits = open_splits(table(tmp_path / "a.csv", [*rows, *(f"b,{day},3" for day in DAYS)]))
    assert isinstance(splits.train, ForecastSamples) and isinstance(splits.val, ForecastSamples)
    cuts = [
        [int(cut) for number, cut in zip(part.series_N, part.cut_N) if number == 0]
        for part in (splits.train, splits.val)
    ]
    assert cuts == [[5, 6, 7, 8, 9, 10], []]


def test_one_missing_row_of_covariates_is_named(tmp_path: Path) -> None:
    rows = ["time,y,price", *(f"{day},{n if n < 28 else ''},{n}" for n, day in enumerate(DAYS[:29]))]
    dataset = table(tmp_path / "a.csv", rows, known=["price"])
    signature = dataset.infer_signature(open_splits(dataset), TemporalConvolution())
    with pytest.raises(
        DataError, match="needs price of 2 steps after its last value, and 1 rows of them, from 2024-01-30"
    ):
        dataset.open_inputs([str(tmp_path / "a.csv")], signature, False, {})


def test_windows_of_a_trained_network_stay(tmp_path: Path) -> None:
    dataset = table(tmp_path / "a.csv", LONG)
    signature = dataset.infer_signature(open_splits(dataset), TemporalConvolution())
    restored, _ = SeriesTable(path=dataset.path).restored(signature, [], "RUN")
    assert isinstance(restored, SeriesTable) and (restored.horizon, restored.season) == (2, 7)
    for name in ("horizon", "context", "season"):
        with pytest.raises(ConfigError, match=f"dataset.{name}: the length of windows is part of what was trained"):
            dataset.restored(signature, [f"dataset.{name}"], "RUN")
    with pytest.raises(ConfigError, match="more of them would be measured on values of the training"):
        dataset.restored(signature, ["dataset.windows"], "RUN")
    dataset.restored(signature, ["dataset.windows", "dataset.path"], "RUN")


def test_a_run_continues_with_the_same_scales_and_categories_alone(tmp_path: Path) -> None:
    rows = ["item,time,y,price,town", *(f"{town},{day},{n},{n},{town}" for town in "ab" for n, day in enumerate(DAYS))]
    settings: Any = {"known": ["price"], "static": ["town"]}
    before = table(tmp_path / "a.csv", rows, **settings)
    trained = before.infer_signature(open_splits(before), TemporalConvolution())
    before.check_compatible(trained, SeriesSignature.from_json(json.loads(json.dumps(trained.to_json()))), "RUN")
    changed = [line.replace("b,2024", "c,2024").replace(",b", ",c") for line in rows]
    changed[3] = changed[3].replace(",2,2,", ",2,900,")
    dataset = table(tmp_path / "b.csv", changed, **settings)
    signature = dataset.infer_signature(open_splits(dataset), TemporalConvolution())
    with pytest.raises(CheckpointError, match="RUN was trained with other windows .*: known_mean, known_std, voc"):
        dataset.check_compatible(signature, trained, "RUN")


def test_rows_of_memory_have_times_and_items_of_numbers(tmp_path: Path) -> None:
    dataset = table(tmp_path / "a.csv", ["time,y", *(f"{n},{n}" for n in range(31))], decimal=",")
    signature = dataset.infer_signature(open_splits(dataset), TemporalConvolution())
    own = dataset.samples_from([{"item": 1.5, "time": float(n), "y": n + 0.5} for n in range(9)], signature)
    assert isinstance(own, ForecastSamples) and own.name_of(0) == "1.5"
    assert own.past_of(0).tolist() == [n + 0.5 for n in range(9)]


def test_series_of_several_files_are_on_one_grid(tmp_path: Path) -> None:
    lasts = [f"{day}" for day in np.arange("2015-02", "2020-02", dtype="datetime64[M]").astype("datetime64[D]") - 1]
    dataset = table(tmp_path / "a.csv", ["date,y", *(f"{day},{n}" for n, day in enumerate(lasts))])
    signature = dataset.infer_signature(open_splits(dataset), TemporalConvolution())
    good = write(tmp_path / "b.csv", "date,y", "2023-02-28,1", "2023-03-31,2")
    samples, _ = dataset.open_inputs([str(tmp_path / "a.csv"), good], signature, False, {})
    assert isinstance(samples, ForecastSamples) and samples.times_of(1, 1) == ["2023-04-30"]
    other = write(tmp_path / "c.csv", "date,y", "2023-02-28,1", "2023-03-28,2", "2023-04-28,2")
    with pytest.raises(DataError, match="c.csv: the series 'series' has the time 2023-03-28, which is not on the grid"):
        dataset.open_inputs([str(tmp_path / "a.csv"), other], signature, False, {})
    unreadable: Dict[int, str] = {}
    samples, _ = dataset.open_inputs([str(tmp_path / "a.csv"), other, good], signature, True, unreadable)
    assert len(samples) == 2 and len(unreadable) == 1


def test_strides_visit_all_places_of_a_season() -> None:
    cuts = Cuts(horizon=24, windows=1, stride=1, least=24)
    assert choose_stride([500] * 10, cuts, 24) == 1
    assert choose_stride([2000] * 10, cuts, 24) == 5  # 3 would do, but divides the season
    assert choose_stride([2000] * 10, cuts, 1) == 3


def test_the_context_is_two_seasons_or_a_week() -> None:
    hours, quarters, days = TimeGrid("h", 1, 0), TimeGrid("min", 15, 0), TimeGrid("D", 1, 0)
    assert SeriesTable().context_of(hours) == 168 and SeriesTable().horizon_of(hours) == 24
    assert SeriesTable(horizon=200).context_of(hours) == 400
    assert SeriesTable().context_of(quarters) == 192 and SeriesTable().context_of(days) == 14
    assert SeriesTable(context=5).context_of(hours) == 5
    assert SeriesTable().context_of(TimeGrid("h", 24, 0)) == 14


def test_predict_reads_series_of_files_and_objects(tmp_path: Path) -> None:
    dataset = table(tmp_path / "a.csv", LONG)
    splits = open_splits(dataset)
    signature = SeriesSignature.cast(dataset.infer_signature(splits, TemporalConvolution()))
    later = write(tmp_path / "b.csv", "date,c,d", "2024-03-01,5,", "2024-03-02,6,1", "2024-03-03,,2")
    samples, places = dataset.open_inputs([str(tmp_path / "a.csv"), later], signature, False, {})
    assert isinstance(samples, ForecastSamples)
    assert places == [f"{tmp_path}/a.csv:2", f"{tmp_path}/a.csv:33", f"{later}:2", f"{later}:2"]
    assert samples.times_of(0, 2) == ["2024-02-01", "2024-02-02"], "behind the last value"
    assert samples.times_of(2, 2) == ["2024-03-03", "2024-03-04"] and samples.name_of(3) == "d"
    rows = [{"item_id": "c", "ds": day, "y": n} for n, day in enumerate(DAYS)]
    own = dataset.samples_from(rows, signature)
    assert isinstance(own, ForecastSamples) and own.cut_N.tolist() == [31] and own.name_of(0) == "c"
    everything, places = dataset.open_inputs(["all"], signature, False, {})
    assert len(everything) == 2
    hourly = write(tmp_path / "c.csv", "date,c", "2024-03-01 00:00,5", "2024-03-01 01:00,6")
    with pytest.raises(DataError, match="c.csv"):
        dataset.open_inputs([hourly], signature, False, {})
