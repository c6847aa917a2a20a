from __future__ import annotations

import csv
from dataclasses import replace

from mxtrain.callback.protocol import Progress
from mxtrain.logger.csv import Csv


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def as_cells(rows):
    return [{name: str(value) for name, value in {"lr": "", **row}.items()} for row in rows]


def test_the_rows_as_a_table(fake_run):
    fake_run.drive(Csv().build(), 1, 30)
    assert read(fake_run.run_dir / "metrics.csv") == as_cells(fake_run.rows(30))


def test_a_resumed_run_continues(fake_run):
    fake_run.drive(Csv().build(), 1, 15)
    with open(fake_run.run_dir / "metrics.csv", "ab") as file:
        file.write(b"16,1,tr")
    fake_run.drive(Csv().build(), 11, 30)
    assert read(fake_run.run_dir / "metrics.csv") == as_cells(fake_run.rows(30))


def test_missing_and_non_finite_values_are_empty(fake_run):
    logger = Csv().build()
    logger.on_start(fake_run.info())
    logger.on_steps([{"step": 1, "loss": float("nan"), "unknown": 3}], Progress(1, 0, 30))
    logger.on_end(fake_run.result(1))
    (row,) = read(fake_run.run_dir / "metrics.csv")
    assert row == {"step": "1", "epoch": "", "split": "", "loss": "", "accuracy": "", "lr": "", "samples_per_s": ""}


def test_new_metrics_after_a_resume_get_a_column(fake_run):
    fake_run.drive(Csv().build(), 1, 10)
    logger = Csv().build()
    logger.on_start(replace(fake_run.info(10), metric_names=["top5"]))
    logger.on_steps([{"step": 11, "top5": 0.5}], Progress(11, 1, 30))
    logger.on_end(fake_run.result(11))
    rows = read(fake_run.run_dir / "metrics.csv")
    assert (rows[0]["accuracy"], rows[0]["top5"]) == ("0.0", "")
    assert (rows[-1]["accuracy"], rows[-1]["top5"]) == ("", "0.5")
