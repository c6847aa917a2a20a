"""A forecasting run from its files to eval, predict, the exported folder and the server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError
from mxtrain.exporting.standalone import OpenedExport
from mxtrain.forecasting.served import make_series_reader
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits

SHORT = ("trainer.max_epochs=1", "trainer.limit_train_batches=2", "dataset.batch_size=4", "logger=[]")
DAYS = [str(day) for day in np.datetime64("2024-01-01") + np.arange(60)]


def rows_of(text: str) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]  # a log of the training may be open


def require_same(one: List[Dict[str, Any]], other: List[Dict[str, Any]]) -> None:
    assert len(one) == len(other) > 0
    for row, twin in zip(one, other):
        assert list(row) == list(twin) and (row["item"], row["time"]) == (twin["item"], twin["time"])
        for name in set(row) - {"file", "item", "time"}:
            assert row[name] == pytest.approx(twin[name], rel=1e-4, abs=1e-4)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two shops with a price that is known for four days more, and a missing value."""
    lines = ["shop,date,price,region,sales"]
    for number, shop in enumerate(("a", "b")):
        for step, day in enumerate(DAYS):
            sales = "" if step == 20 or step >= 56 else f"{100 + 20 * (step % 7) + 5 * number + step % 3}"
            lines.append(f"{shop},{day},{1 + step % 4},{'north' if number else 'south'},{sales}")
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_a_run_is_evaluated_exported_and_served(table: Path, tmp_path: Path, capsys: Any) -> None:
    data = (f"dataset.path={table}", "dataset.item=shop", "dataset.known=[price]", "dataset.static=[region]")
    sizes = ("dataset.horizon=4", "dataset.context=14", "model.units=8", "model.num_layers=2")
    out = f"hydra.run.dir={tmp_path / 'run'}"
    assert run(["task=forecasting", *data, *sizes, *SHORT, out]) == 0
    said = capsys.readouterr()
    assert "2 series of 56 values, one day apart, 2 of them missing; season 7, 4 values" in said.out + said.err

    assert run(["eval", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "seasonal naive" in shown and "Holt-Winters (ETS, additive)" in shown
    folder = tmp_path / "run" / "eval" / "test"
    measured = json.loads((folder / "metrics.json").read_text())
    table_rows = (folder / "forecasters.csv").read_text().splitlines()
    assert float(table_rows[1].split(",")[1]) == pytest.approx(measured["crps"], rel=1e-5)
    assert (folder / "forecasts.png").stat().st_size > 1000

    assert run(["predict", str(tmp_path / "run"), "all"]) == 0
    everything = rows_of(capsys.readouterr().out)
    assert [row["time"] for row in everything] == DAYS[56:] * 2 and [row["item"] for row in everything[::4]] == [
        "a",
        "b",
    ]
    assert list(everything[0])[:5] == ["file", "item", "time", "mean", "0.1"]
    assert run(["predict", str(tmp_path / "run"), str(table)]) == 0
    of_file = rows_of(capsys.readouterr().out)
    require_same(everything, of_file)

    exported = tmp_path / "exported"
    assert run(["export", str(tmp_path / "run"), f"out={exported}"]) == 0
    assert run(["export", "check", str(exported)]) == 0
    capsys.readouterr()
    done = subprocess.run(
        [sys.executable, "-P", "predict.py", str(table)], cwd=exported, capture_output=True, text=True, env={}
    )
    assert done.returncode == 0, done.stderr
    require_same(of_file, rows_of(done.stdout))

    opened = OpenedExport(str(exported))
    reader = make_series_reader(
        opened, [type("Spec", (), {"dims": one["shape"]}) for one in opened.signature["inputs"]]
    )
    assert reader is not None
    body = {
        "start": DAYS[0],
        "target": [None if step == 20 else 100 + 20 * (step % 7) + step % 3 for step in range(56)],
        "cat": ["south"],
        "dynamic_feat": [[1 + step % 4 for step in range(60)]],
    }
    limits = BodyLimits(1, 1)
    read = reader.read(json.dumps(body).encode(), "application/json", limits)
    answer = reader.describe(read.inputs, opened.run(read.inputs), read.about)
    assert answer is not None
    require_same([{"file": "", "item": "a", **row} for row in answer["forecast"]], of_file[:4])
    reader.read(reader.example.encode(), "application/json", limits)
    for changes, reason in (
        ({"dynamic_feat": [[1] * 58]}, "2 rows of them, from 2024-02-28, are missing"),
        ({"target": ["x"]}, "value 0 of target is 'x', no number"),
        ({"cat": []}, "cat has 0 values, and 1 are needed"),
    ):
        with pytest.raises(RequestError, match=reason):
            reader.read(json.dumps({**body, **changes}).encode(), "application/json", limits)
    for name, value in (("frequency", "hour"), ("season", 0), ("known_columns", None)):
        damaged = json.loads(json.dumps(opened.signature))
        damaged["signature"][name] = value
        with pytest.raises(ValueError):
            make_series_reader(type("Folder", (), {"signature": damaged})(), [])


@pytest.mark.slow
def test_deepar_reads_its_lines_and_predicts(tmp_path: Path, capsys: Any) -> None:
    lines = [{"start": "2024-01-01", "target": [step % 7 + number for step in range(60)]} for number in range(3)]
    path = tmp_path / "train.json"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    out = f"hydra.run.dir={tmp_path / 'run'}"
    data = (f"dataset.path={path}", "dataset.frequency=D", "dataset.horizon=3", "dataset.context=7")
    words = ("dataset=deepar_lines", "model=deepar", "model.units=8", "model.distribution=negative_binomial")
    assert run([*words, *data, *SHORT, out]) == 0
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(path)]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 9 and rows[0]["item"] == "series 0" and rows[0]["time"] == "2024-03-01"
    assert all(row["0.1"] <= row["0.5"] <= row["0.9"] for row in rows)
    path.write_text(json.dumps(lines[2]) + "\n")
    assert run(["predict", str(tmp_path / "run"), str(path)]) == 0
    alone = [{**row, "item": "series 2"} for row in rows_of(capsys.readouterr().out)]
    require_same(alone, rows[6:])
    exported = tmp_path / "exported"
    assert run(["export", str(tmp_path / "run"), f"out={exported}"]) == 0
    command = [sys.executable, "-P", "predict.py", str(path)]
    done = subprocess.run(command, cwd=exported, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    require_same([{**row, "item": "series 2"} for row in rows_of(done.stdout)], rows[6:])
    assert run(["export", "check", str(exported)]) == 0
    opened = OpenedExport(str(exported))
    assert make_series_reader(opened, []) is None, "the server takes arrays"


@pytest.mark.parametrize(
    "words, said",
    [
        (
            "loss=likelihood",
            "Likelihood compares likelihood, and TemporalConvolution predicts quantiles. Type loss=quantile.",
        ),
        (
            "model=deepar loss=quantile",
            "Pinball compares quantiles, and DeepAR predicts likelihood. Type loss=likelihood.",
        ),
        (
            "metric=[coverage] metric.coverage.level=0.95",
            "metric.coverage.level=0.95: it must be one of task.quantiles",
        ),
        ("task.quantiles=[0.1,0.9]", "they must be different and ascending, with 0.5 among them"),
        ("task.quantiles=[0.5,0.1]", "they must be different and ascending, with 0.5 among them"),
        ("amp=bfloat16", "amp"),
    ],
)
def test_settings_that_do_not_fit_are_refused(describe_run: Any, words: str, said: str) -> None:
    monitor = () if "metric=" not in words else ("trainer.monitor=val/loss",)
    with pytest.raises(ConfigError) as caught:
        describe_run("task=forecasting", *words.split(), *monitor)
    assert said in str(caught.value)
