"""Dates and times of a table as numbers."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.data.features import exported_rows
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.spec import open_splits
from mxtrain.data.table.dates import (
    DateColumn,
    columns_read,
    features_of,
    guessed_parts,
    read_moment,
    shown_feature,
    split_feature,
)
from mxtrain.errors import DataError
from mxtrain.tables.feature_table import FeatureTable, NumericFeatureTable

pytestmark = pytest.mark.usefixtures("own_cache")
START = datetime.datetime(2024, 2, 28, 22, 30)


def write_rows(path: Path, form: str = "{:%Y-%m-%dT%H:%M:%S}", missing: int = 3) -> str:
    rows = ["sold,size,price"]
    for number in range(40):
        time = form.format(START + datetime.timedelta(hours=7 * number)) if number != missing else ""
        rows.append(f"{time},{number % 7},{number * 0.5}")
    path.write_text("\n".join(rows))
    return str(path)


@pytest.mark.parametrize(
    "text, clock, offset",
    [
        ("2024-02-29", (2024, 2, 29), None),
        ("2024-02-29 18:30", (2024, 2, 29, 18, 30), None),
        ("2024-02-29T18:30:05.123456789", (2024, 2, 29, 18, 30, 5), None),
        ("2024-02-29T18:30:05Z", (2024, 2, 29, 18, 30, 5), 0),
        ("2024-02-29 18:30:05+0530", (2024, 2, 29, 18, 30, 5), 330),
        ("2024-02-29 18:30:05-01:00", (2024, 2, 29, 18, 30, 5), -60),
    ],
)
def test_dates_are_read_as_they_are_written(text: str, clock: Any, offset: Any) -> None:
    moment = read_moment(text)
    assert moment is not None and (moment.clock, moment.offset) == (datetime.datetime(*clock), offset)
    passed = moment.clock - datetime.timedelta(minutes=offset or 0) - datetime.datetime(2000, 1, 1)
    assert moment.part("trend") == pytest.approx(passed / datetime.timedelta(days=365.25))


@pytest.mark.parametrize(
    "text",
    [
        "2023-02-29",
        "2024-13-01",
        "24-02-28",
        "28.02.2024",
        "2024-02-28T25:00",
        "2024-02-28T10:00+99:00",
        "10:30",
        "",
        "x",
    ],
)
def test_other_texts_are_no_dates(text: str) -> None:
    assert read_moment(text) is None


def test_cyclic_parts_turn_once_in_their_period() -> None:
    def angle(text: str, part: str) -> float:
        moment = read_moment(text)
        assert moment is not None
        return math.degrees(math.atan2(moment.part(f"{part} sine"), moment.part(f"{part} cosine"))) % 360

    assert angle("2024-01-01", "month") == 0 and angle("2024-07-02", "month") == pytest.approx(180)
    assert angle("2023-12-31", "month") == pytest.approx(360 * 364 / 365)
    assert angle("2024-02-26", "weekday") == 0  # a Monday
    assert angle("2024-03-03", "weekday") == pytest.approx(360 * 6 / 7)
    assert angle("2024-03-03T06:00", "hour") == pytest.approx(90)
    assert angle("2024-03-03T18:30+09:00", "hour") == pytest.approx(277.5)  # by the clock as it is written


def test_names_of_features() -> None:
    names = features_of("sold", ["weekday", "trend"])
    assert list(map(shown_feature, names)) == ["trend of sold", "weekday sine of sold", "weekday cosine of sold"]
    assert split_feature(names[0]) == ("sold", "trend") and split_feature("sold") == ("sold", "")
    assert columns_read(["a", *names, "b"]) == ["a", "sold", "b"] and shown_feature("a") == "a"
    assert guessed_parts(["2024-02-28", ""]) == ["trend", "month", "weekday"]
    assert guessed_parts(["2024-02-28", "2024-02-28 10:00"]) == ["trend", "month", "weekday", "hour"]


def test_a_column_has_offsets_everywhere_or_nowhere() -> None:
    for first, second in (("2024-02-28T10:00", "2024-02-28T10:00Z"), ("2024-02-28T10:00Z", "2024-02-28T10:00")):
        column = DateColumn("sold")
        assert column.read("2024-02-28")[1] == "" and column.read(first)[1] == ""
        assert f"'sold' is '{second}', with" in column.read(second)[1]


def test_dates_are_guessed_scaled_by_the_training_rows_and_exported(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv")
    dataset = NumericFeatureTable(train=path, target="price", test_fraction=0.2)
    splits = open_splits(dataset)
    signature: Any = dataset.infer_signature(splits, None)  # type: ignore[arg-type]  # it needs no model
    columns = signature.columns.columns
    assert [shown_feature(column.name) for column in columns[:4]] == [
        "trend of sold",
        "month sine of sold",
        "month cosine of sold",
        "weekday sine of sold",
    ]
    assert len(columns) == 8 and columns[0].indicator and not columns[1].indicator
    rows: Any = splits.train
    numbers = np.array([number for number in rows.row_N if number != 3])
    trend = [read_moment(f"{START + datetime.timedelta(hours=7 * int(n)):%Y-%m-%dT%H:%M:%S}") for n in numbers]
    values = np.array([moment.part("trend") for moment in trend if moment is not None])
    assert (columns[0].mean, columns[0].std) == pytest.approx((values.mean(), values.std()), rel=1e-4)
    assert "trend of sold" in dataset.remark(signature, splits)

    # The reader of exported folders makes the same inputs, and a row of Python does.
    (batch,) = dataset.build_loader(rows, signature, LoaderOptions(batch_size=100)).epoch()
    exported = {"signature": signature.to_json(), "inputs": [{"name": "data", "dtype": "float32"}]}
    encoder = exported_rows.RowEncoder(exported)
    assert encoder.names == ["sold", "size"]
    lines = Path(path).read_text().splitlines()[1:]
    for index in (0, 3, len(rows) - 1):
        sold, size, _ = lines[int(rows.row_N[index])].split(",")
        found = encoder.inputs_of({"sold": sold or None, "size": size}, "here")["data"]
        np.testing.assert_allclose(batch.inputs[0].asnumpy()[index : index + 1], found, atol=2e-4)
    with pytest.raises(ValueError, match="here: '31.01.2026' in column 'sold' is no date"):
        encoder.inputs_of({"sold": "31.01.2026", "size": "1"}, "here")
    given: Any = dataset.samples_from([{"sold": START, "size": 0}, {"sold": None, "size": 1}], signature)
    first = given.build_encoder(signature.columns).inputs(given, np.arange(2))[0]
    expected = encoder.inputs_of({"sold": START.isoformat(), "size": "0"}, "")["data"]
    np.testing.assert_allclose(first[:1], expected, atol=2e-4)
    assert first[1, 0] == 0 and first[1, 1] == 1  # a missing trend, and its indicator

    restored, _ = dataset.restored(signature, [], "checkpoint")
    assert [one.name for one in restored.column_settings(path)] == [one.name for one in columns]  # type: ignore[attr-defined]
    assert type(signature).from_json(signature.to_json()).columns == signature.columns
    assert [name for name, _ in exported_rows.examples({"signature": signature.to_json()})] == [
        "proof.jsonl",
        "proof.csv",
    ]


def test_parts_and_kinds_are_settings(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", form="{:%Y-%m-%d}")
    kinds: Any = {"sold": {"kind": "date", "parts": ["weekday"]}, "size": "ignore"}
    chosen = NumericFeatureTable(train=path, target="price", columns=kinds).column_settings(path)
    assert [shown_feature(one.name) for one in chosen] == ["weekday sine of sold", "weekday cosine of sold"]
    guessed = FeatureTable(train=path, target="price").column_settings(path)
    assert [shown_feature(one.name) for one in guessed][-1] == "size" and len(guessed) == 6  # without the hour
    as_texts = FeatureTable(train=path, target="price", columns={"sold": "category"}).column_settings(path)  # type: ignore[dict-item]
    assert [(one.name, one.kind) for one in as_texts] == [("sold", "category"), ("size", "number")]


def test_wrong_dates_are_refused_with_their_line(tmp_path: Path) -> None:
    path = Path(write_rows(tmp_path / "rows.csv"))
    lines = path.read_text().splitlines()
    for cell, reason in (
        ("2024-02-30", "no date; allowed are dates as"),
        ("2024-03-01T10:00Z", "with an offset from UTC"),
    ):
        changed = [*lines[:9], f"{cell},1,2", *lines[10:]]
        path.write_text("\n".join(changed))
        with pytest.raises(DataError, match=f"rows.csv, line 10: 'sold' is '{cell}', {reason}"):
            open_splits(NumericFeatureTable(train=str(path), target="price"))


def test_timestamps_of_parquet_are_dates(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    times = [START + datetime.timedelta(hours=7 * number) for number in range(40)]
    for name, kind in (("plain", pa.timestamp("us")), ("zone", pa.timestamp("us", tz="UTC")), ("day", pa.date32())):
        values = [time.date() for time in times] if name == "day" else times
        path = str(tmp_path / f"{name}.parquet")
        table = pa.table({"sold": pa.array(values, kind), "price": [float(number) for number in range(40)]})
        parquet.write_table(table, path)
        splits = open_splits(NumericFeatureTable(train=path, target="price"))
        store = splits.train.stores[0]  # type: ignore[union-attr]
        assert len(store.numbers) == (5 if name == "day" else 7), name
        first = read_moment(times[0].isoformat() if name != "day" else times[0].date().isoformat())
        assert first is not None and store.number_RN[0, 0] == pytest.approx(first.part("trend"), rel=1e-6)
