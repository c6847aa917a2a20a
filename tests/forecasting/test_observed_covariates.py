"""Covariates of the past alone (`dataset.observed`): windows, tables, lines of JSON, exported folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import numpy as np
import pytest

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError, DamagedCheckpoint, DataError
from mxtrain.forecasting.dataset import SeriesSplits
from mxtrain.forecasting.forecasters import DeepAR, TemporalConvolution
from mxtrain.forecasting.json_lines import DeepARLines
from mxtrain.forecasting.series_columns import SeriesColumns, rows_of_cells
from mxtrain.forecasting.series_set import OneSeries, SeriesSet, SeriesWindows, WindowForm
from mxtrain.forecasting.series_table import SeriesTable
from mxtrain.forecasting.served import SeriesReader
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.forecasting.time_grid import TimeGrid

NUM_DAYS = 60


def write_table(path: Path, temperature: Any = lambda step: step % 5, future: int = 0) -> str:
    """Two shops with a price, which is known for the future, and the temperature of the day."""
    first = np.datetime64("2024-01-01")
    lines = ["shop,date,sales,price,temperature"]
    for shop in "ab":
        for step in range(NUM_DAYS + future):
            sales = f"{100 + 20 * (step % 7) + step % 3}" if step < NUM_DAYS else ""
            degrees = f"{temperature(step)}" if step < NUM_DAYS else ""
            lines.append(f"{shop},{first + step},{sales},{1 + step % 4},{degrees}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def table(path: str, **changes: Any) -> SeriesTable:
    settings = {"item": "shop", "time": "date", "target": "sales", "known": ["price"], "observed": ["temperature"]}
    return SeriesTable(path=path, horizon=3, **{**settings, **changes})


def signature_of(dataset: Any, model: Any = None) -> SeriesSignature:
    return SeriesSignature.cast(dataset.infer_signature(open_splits(dataset), model or TemporalConvolution()))


def test_a_window_has_no_observed_covariate_behind_the_cut() -> None:
    known_NC = np.array([[10.0, 1], [20, 2], [30, np.nan], [40, 4], [50, 5], [60, 6]])
    one = OneSeries("a", 2, np.arange(6.0), known_NC, np.zeros(0), ())
    windows = [
        SeriesWindows(SeriesSet(TimeGrid("D", 1, 0), [one]), WindowForm(3, 2, [0, 1], [10, 2], observed=observed))
        for observed in (1, 0, 2)
    ]
    known_FC, both_FC, none_FC = (each.inputs(0, 4)[2][:, -2:].tolist() for each in windows)
    assert known_FC == [[2, 0.5], [3, 0], [4, 1.5], [5, 0], [6, 0]]
    assert both_FC == [[2, 0.5], [3, 0], [4, 1.5], [5, 2], [6, 2.5]]
    assert none_FC[3:] == [[0, 0], [0, 0]]


def test_the_future_of_an_observed_column_changes_no_window(tmp_path: Path) -> None:
    """Steps behind the cut of the last training window are in the data, and those of the test split."""
    found: List[Any] = []
    for name, change in (("a.csv", 0), ("b.csv", 100)):
        path = write_table(tmp_path / name, lambda step, change=change: step % 5 + change * (step >= NUM_DAYS - 3))
        dataset = table(path)
        splits = SeriesSplits.cast(open_splits(dataset))
        signature = signature_of(dataset)
        windows = SeriesWindows(splits.found.series_set, signature.window)
        found.append([array.tolist() for array in windows.inputs(0, NUM_DAYS - 3)])
        assert signature.known_columns == ["price", "temperature"] and signature.future_columns == ["price"]
        again = SeriesSignature.from_json(json.loads(json.dumps(signature.to_json())))
        assert again.window.observed == 1 and again.to_json() == signature.to_json()
    assert found[0] == found[1]


def test_an_observed_column_may_be_missing_where_there_is_no_value(tmp_path: Path) -> None:
    dataset = table(write_table(tmp_path / "a.csv"))
    signature = signature_of(dataset)
    samples, _ = dataset.open_inputs([write_table(tmp_path / "new.csv", future=3)], signature, False, {})
    assert len(samples) == 2
    with pytest.raises(DataError, match="needs price of 3 steps after its last value"):
        dataset.open_inputs([write_table(tmp_path / "short.csv", future=2)], signature, False, {})
    path = write_table(tmp_path / "b.csv", lambda step: "" if step == 4 else 1)
    with pytest.raises(DataError, match="b.csv, line 6: 'temperature' is '', a missing number"):
        open_splits(table(path))
    path = write_table(tmp_path / "c.csv", lambda step: "warm" if step == 4 else 1)
    with pytest.raises(DataError, match="c.csv, line 6: 'temperature' is 'warm', no number"):
        open_splits(table(path))


def test_a_wrong_cell_is_one_problem() -> None:
    columns = SeriesColumns("long", "t", target="y", observed=["x"], missing=[""])
    cells = [["2024-01-01", "1", "warm"], ["2024-01-02", "1", ""], ["2024-01-03", "", None]]
    _, problems = rows_of_cells(cells, columns, str)
    assert [tuple(one) for one in problems] == [(0, "'x' is 'warm', no number"), (1, "'x' is '', a missing number")]


def test_an_observed_column_of_a_wide_table_may_be_missing_where_no_series_has_a_value() -> None:
    columns = SeriesColumns("wide", "t", series=["a", "b"], observed=["x"], missing=[""])
    cells = [["2024-01-01", "1", "", ""], ["2024-01-02", "", "", ""], ["2024-01-03", "1", "1", "2"]]
    _, problems = rows_of_cells(cells, columns, str)
    assert [tuple(one) for one in problems] == [(0, "'x' is '', a missing number")]


def test_wide_tables_have_observed_columns(tmp_path: Path) -> None:
    lines = [f"2024-01-{1 + step:02},{step},{step * 2},{step % 3}" for step in range(31)]
    (tmp_path / "wide.csv").write_text("\n".join(["date,a,b,wind", *lines]) + "\n")
    dataset = SeriesTable(path=str(tmp_path / "wide.csv"), horizon=2, observed=["wind"])
    series = SeriesSplits.cast(open_splits(dataset)).found.series_set.series
    assert [one.name for one in series] == ["a", "b"]
    assert all(one.known_NC[:4, 0].tolist() == [0, 1, 2, 0] for one in series)


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"observed": ["price"]}, "'price' is in known and in observed"),
        ({"static": ["temperature"]}, "'temperature' is in observed and in static"),
        ({"observed": ["wind", "wind"]}, "observed names 'wind' twice"),
    ],
)
def test_a_column_is_of_one_kind(changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table("x.csv", **changes)


def test_wrong_columns_and_networks_are_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv")
    with pytest.raises(DataError, match="dataset.observed=wind: .* there is no column 'wind'"):
        open_splits(table(path, observed=["wind"]))
    with pytest.raises(DataError, match="'sales' is the column of dataset.target, so it cannot be in dataset.observed"):
        open_splits(table(path, observed=["sales"]))
    with pytest.raises(ConfigError, match="DeepAR reads covariates of the step .* temperature is not known"):
        signature_of(table(path), DeepAR())
    values = signature_of(table(path)).to_json()
    values["window"]["observed"] = 3  # type: ignore[index,call-overload]
    with pytest.raises(DamagedCheckpoint, match="holds no windows of series"):
        SeriesSignature.from_json(values)


@pytest.mark.parametrize(
    "changes",
    [
        {"past": 0},
        {"horizon": 0},
        {"season": 0},
        {"known_std": [1.0]},
        {"known_std": [1.0, 0.0]},
        {"static_mean": [1.0]},
        {"static_mean": [1.0], "static_std": [-1.0]},
        {"observed": -1},
    ],
    ids=str,
)
def test_damaged_windows_are_refused(changes: Any, tmp_path: Path) -> None:
    values: Any = signature_of(table(write_table(tmp_path / "a.csv"))).to_json()
    SeriesSignature.from_json(values)
    for name, value in changes.items():
        (values if name == "season" else values["window"])[name] = value
    with pytest.raises(DamagedCheckpoint, match="holds no windows of series"):
        SeriesSignature.from_json(values)


def line(length: int, **changes: Any) -> str:
    target = [float(step % 7) for step in range(length)]
    value = {"start": "2024-01-01", "target": target, "past_feat_dynamic_real": [[step / 2 for step in range(length)]]}
    return json.dumps({**value, **changes})


def test_lines_of_gluonts_have_observed_covariates(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line(40)}\n{line(40)}\n")
    dataset = DeepARLines(path=str(path), frequency="D", horizon=3)
    signature = signature_of(dataset)
    assert signature.known_columns == ["past_feat_dynamic_real 0"] and signature.window.observed == 1
    assert len(dataset.open_inputs([str(path)], signature, False, {})[0]) == 2
    for wrong, said in (
        ({"past_feat_dynamic_real": [[1.0] * 39]}, "past_feat_dynamic_real have 39 values, and target has 40"),
        ({"past_feat_dynamic_real": []}, "past_feat_dynamic_real has 0 values, and 1 are needed"),
        ({"past_feat_dynamic_real": 3}, "past_feat_dynamic_real must be a list of lists"),
    ):
        path.write_text(f"{line(40, **wrong)}\n")
        with pytest.raises(DataError, match=said):
            dataset.open_inputs([str(path)], signature, False, {})


def test_the_server_shows_and_reads_observed_covariates(tmp_path: Path) -> None:
    signature = signature_of(table(write_table(tmp_path / "a.csv")))
    values = {"signature": signature.to_json(), "facts": {"quantiles": [0.5]}, "inputs": [], "outputs": [{"name": "x"}]}
    reader = SeriesReader(SimpleNamespace(signature=values))  # type: ignore[arg-type]
    example = json.loads(reader.example)
    assert len(example["past_feat_dynamic_real"][0]) == len(example["target"]) == 8
    assert len(example["dynamic_feat"][0]) == 8 + 3
    read = reader.read(reader.example.encode(), "application/json", SimpleNamespace())  # type: ignore[arg-type]
    assert read.about.series[0].known_NC.shape == (11, 2)


@pytest.mark.slow
def test_a_run_is_predicted_as_by_its_exported_folder(tmp_path: Path) -> None:
    path = write_table(tmp_path / "sales.csv")
    words = ["task=forecasting", f"dataset.path={path}", "dataset.item=shop", "dataset.time=date"]
    words += ["dataset.target=sales", "dataset.known=[price]", "dataset.observed=[temperature]", "dataset.horizon=3"]
    words += ["dataset.context=14", "model.units=8", "model.num_layers=2", "trainer.max_epochs=1", "logger=[]"]
    assert run([*words, f"hydra.run.dir={tmp_path}/run"]) == 0
    new = write_table(tmp_path / "new.csv", future=3)
    expected = list(mxtrain.load(tmp_path / "run").predict(new))
    assert len(expected) == 6
    assert run(["export", str(tmp_path / "run"), f"out={tmp_path}/out"]) == 0
    command = [sys.executable, "predict.py", new]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(text) for text in done.stdout.splitlines()]
    for row, other in zip(rows, expected):
        assert row["mean"] == pytest.approx(other["mean"], rel=1e-4)
    other = write_table(tmp_path / "other.csv", lambda step: step % 5 + 3, future=3)
    changed = list(mxtrain.load(tmp_path / "run").predict(other))
    assert abs(changed[0]["mean"] - expected[0]["mean"]) > 1e-3, "the network reads the temperature of the past"
