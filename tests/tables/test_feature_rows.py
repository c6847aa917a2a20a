"""Tables as ids and numbers: against a computation cell by cell, and what is found wrong with them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
import pydantic
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mxtrain.data.features import feature_store
from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.spec import open_splits
from mxtrain.data.table.column_kinds import ColumnSpec
from mxtrain.data.table.columns import read_columns
from mxtrain.errors import DataError
from mxtrain.tables.criteo import CATEGORIES, COUNTS, Criteo
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.tables.number_table import NumberTable

pytestmark = pytest.mark.usefixtures("own_cache")

KINDS = {"age": "number", "town": "category", "page": "hashed", "visits": "count", "note": "ignore"}
NAMES = ["age", "town", "page", "visits", "note", "target"]


def rows_of(count: int, seed: int) -> List[Dict[str, str]]:
    draw = np.random.RandomState(seed)
    rows = []
    for number in range(count):
        rows.append(
            {
                "age": "" if draw.rand() < 0.2 else f"{draw.randn() * 10 + 40:.2f}",
                "town": ["Rome", "Oslo", "Bonn, am Rhein", "", f"rare {number}"][draw.randint(5)],
                "page": "" if draw.rand() < 0.1 else f"/page/{draw.randint(50)}",
                "visits": str(draw.randint(-1, 1000)),
                "note": "x",
                "target": str(int(draw.rand() < 0.3)),
            }
        )
    return rows


def write_csv(path: Path, rows: Sequence[Dict[str, str]]) -> str:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([NAMES, *([row[name] for name in NAMES] for row in rows)])
    return str(path)


def table(**given: Any) -> FeatureTable:
    specs = {name: ColumnSpec(kind=kind) for name, kind in KINDS.items()}  # type: ignore[arg-type]
    return FeatureTable(**{"columns": specs, "min_count": 3, "buckets": 7, **given})


def encoded(dataset: Any, source: Any) -> Any:
    columns = dataset.infer_signature(dataset.open(), None).columns
    return columns, *FeatureEncoder(columns)(source, np.arange(len(source)))


def wanted(columns: FeatureColumns, trained: List[Dict[str, str]], rows: List[Dict[str, str]]) -> Any:
    """Ids and numbers by the guide's rules, cell by cell."""
    counts: Dict[str, int] = {}
    for row in trained:
        counts[row["town"]] = counts.get(row["town"], 0) + 1
    towns = sorted((town for town, count in counts.items() if town and count >= 3), key=lambda t: (-counts[t], t))
    ages = np.array([float(row["age"]) for row in trained if row["age"]], np.float32).astype(float)
    visits = np.array([np.log1p(max(float(row["visits"]), 0)) for row in trained])
    ids, numbers = [], []
    for row in rows:
        town = 0 if not row["town"] else 2 + towns.index(row["town"]) if row["town"] in towns else 1
        page = 1 + zlib.crc32(row["page"].encode()) % 7 if row["page"] else 0
        ids.append([town, 2 + len(towns) + page])
        age = (float(row["age"]) - ages.mean()) / ages.std() if row["age"] else 0.0
        visit = (np.log1p(max(float(row["visits"]), 0)) - visits.mean()) / visits.std()
        numbers.append([age, float(not row["age"]), visit])
    return ids, numbers


def test_cells_become_ids_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "ROWS_AT_ONCE", 64)  # values go on behind those of the rows before
    trained, tested = rows_of(300, 0), rows_of(80, 1)
    dataset = table(train=write_csv(tmp_path / "a.csv", trained), test=write_csv(tmp_path / "b.csv", tested))
    splits = dataset.open()
    held = splits.val.row_N.tolist()
    assert len(splits.train) == 255 and len(held) == 45 and len(splits.test) == 80
    kept = [row for number, row in enumerate(trained) if number not in held]
    for source, rows in ((splits.train, kept), (splits.val, [trained[n] for n in held]), (splits.test, tested)):
        columns, id_BF, number_BN = encoded(dataset, source)
        ids, numbers = wanted(columns, kept, rows)
        assert id_BF.dtype == np.int32 and id_BF.tolist() == ids
        np.testing.assert_allclose(number_BN, numbers, rtol=1e-5, atol=1e-5)
        assert source.read_labels().tolist() == [int(row["target"]) for row in rows]
    assert {1, 0} <= {row[0] for row in ids}, "some towns are unseen, and some are missing"
    assert [column.indicator for column in columns.numbers] == [True, False]


def test_several_files_are_as_one(tmp_path: Path) -> None:
    trained, val = rows_of(300, 0), rows_of(20, 2)
    whole = [write_csv(tmp_path / "whole.csv", trained)]
    parts = [write_csv(tmp_path / f"{n}.csv", trained[100 * n : 100 * n + 100]) for n in range(3)]
    found = []
    for files in (whole, parts):
        dataset = table(train=files, val=write_csv(tmp_path / "val.csv", val), test_fraction=0.2)
        splits = dataset.open()
        found.append([encoded(dataset, source) for source in (splits.train, splits.val, splits.test)])
        assert str(splits.train.checks().location(0)).endswith("line 2")
    for (one, *arrays), (other, *others) in zip(*found):
        assert one.fields == other.fields and len(one.columns) == 4
        for array, same in zip(arrays, others):
            np.testing.assert_allclose(array, same, atol=1e-6)
    whole_rows, part_rows = (table(train=files).open().train for files in (whole, parts))
    assert whole_rows.read_labels().tolist() == part_rows.read_labels().tolist()


@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".csv.gz", ".parquet"])
def test_other_files_give_the_same(tmp_path: Path, ending: str) -> None:
    rows = [{name: text.replace(", ", " ") for name, text in row.items()} for row in rows_of(60, 0)]
    path = tmp_path / f"t{ending}"
    if ending == ".tsv":
        path.write_text("\n".join("\t".join(row) for row in [NAMES, *([r[n] for n in NAMES] for r in rows)]))
    elif ending == ".csv.gz":
        with gzip.open(path, "wt") as stream:
            stream.write("\n".join(",".join(row) for row in [NAMES, *([r[n] for n in NAMES] for r in rows)]))
    else:
        numbers = ("age", "visits", "target")
        typed = [{n: None if not r[n] else float(r[n]) if n in numbers else r[n] for n in NAMES} for r in rows]
        if ending == ".jsonl":
            path.write_text("\n".join(map(json.dumps, typed)))
        else:
            pyarrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(typed), path)
    dataset, same = table(train=str(path)), table(train=write_csv(tmp_path / "same.csv", rows))
    found, expected = (encoded(one, one.open().train) for one in (dataset, same))
    assert found[0] == expected[0] and all((a == b).all() for a, b in zip(found[1:], expected[1:]))


def test_unnamed_columns_are_guessed_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{**row, "note": "", "page": f"/{number}"} for number, row in enumerate(rows_of(400, 0))]
    dataset = table(train=write_csv(tmp_path / "t.csv", rows), columns={"visits": ColumnSpec(kind="count")})
    with caplog.at_level("INFO"):
        columns = dataset.infer_signature(dataset.open(), None).columns
    assert columns is not None
    assert [(column.name, column.kind, column.log) for column in columns.columns] == [
        ("age", "number", False),
        ("town", "category", False),
        ("page", "hashed", False),
        ("visits", "number", True),
    ]
    (said,) = [record.getMessage() for record in caplog.records if "guessed" in record.getMessage()]
    assert said.endswith("t.csv: {age: number, town: category, page: hashed, note: ignore}")


def test_rows_are_read_once_and_again_only_when_their_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: List[str] = []
    stream_rows = feature_store.stream_rows
    monkeypatch.setattr(feature_store, "stream_rows", lambda path, *rest: read.append(path) or stream_rows(path, *rest))
    path = write_csv(tmp_path / "t.csv", rows_of(60, 0))
    table(train=path).open()
    for other in ({}, {"buckets": 9}, {"min_count": 1}, {"split_seed": 5}, {"val_fraction": 0.4}):
        dataset = table(train=path, **other)
        dataset.infer_signature(dataset.open(), None)  # type: ignore[arg-type]
    assert read == [path]
    write_csv(tmp_path / "t.csv", rows_of(61, 0))
    assert len(table(train=path).open().train.row_N) == 43 and read == [path] * 2


def broken(tmp_path: Path, change: Any) -> str:
    path = tmp_path / "t.csv"
    write_csv(path, rows_of(60, 0))
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines))
    return str(path)


def at(number: int, text: str) -> Any:
    return lambda lines: lines.__setitem__(number - 1, text)


def test_guessed_columns_can_be_typed_with_any_name(tmp_path: Path, caplog: Any) -> None:
    names = ("plain name", "age (years)", "a:b,c", "Größe", "it's", 'so "called"', "true", "back\\slash")
    for count in (1, len(names)):
        row = ",".join("7512345678"[: count + 2]) + "\n"
        (tmp_path / "t.csv").write_text(_row("", *names[:count], "target") + 40 * row + "8,9\n")
        settings = {"train": str(tmp_path / "t.csv"), "others": "guess"}
        with caplog.at_level("INFO"):
            guessed = FeatureTable(**settings).kinds(settings["train"])
        typed = caplog.messages[-1].partition("t.csv: ")[2]
        override = OverridesParser.create().parse_override(f"dataset.columns={typed}")
        assert guessed.keys() == set(names[:count]) and (typed[0] == "{") == (count == 1)
        assert FeatureTable(**{**settings, "others": "ignore", "columns": override.value()}).columns == guessed


def _row(*cells: str) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()


@pytest.mark.parametrize(
    "columns, said",
    [
        ({"age": {"kind": "numbr"}}, "columns.age.kind"),
        ("{a: [}", "columns is no YAML"),
        ("word", "valid dictionary"),
    ],
)
def test_columns_that_cannot_be_are_refused_by_name(columns: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FeatureTable(columns=columns)


def test_rows_of_one_class_are_reported(tmp_path: Path) -> None:
    for last, said in (("1", True), ("0", False)):
        rows = [{**row, "target": "1"} for row in rows_of(60, 0)]
        rows[0]["target"] = last
        dataset = table(train=write_csv(tmp_path / "t.csv", rows), val_fraction=0.01, test_fraction=0.0)
        splits = dataset.open()
        signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]
        assert dataset.remark(signature, splits).endswith(", so there is nothing to tell apart") == said


@pytest.mark.parametrize(
    "change, given, words",
    [
        (at(3, "many,Rome,/p,5,x,1"), {}, "t.csv, line 3: 'age' is 'many', no number. Correct the cell"),
        (at(3, "inf,Rome,/p,5,x,1"), {}, "line 3: 'age' is inf, no finite number"),
        (at(3, "1e39,Rome,/p,5,x,1"), {}, "line 3: 'age' is 1e.39, and the largest number that is read is 3.4e.38"),
        (at(4, "40,Rome,/p,5,x,2"), {}, "line 4: the target is '2'; allowed are '0' and '1'. Correct it, or name"),
        (at(4, "40,Rome,/p,5,x,"), {}, "line 4: the target is empty; allowed are '0' and '1'"),
        (at(4, "40,Rome,/p"), {}, "line 4: it has 3 columns, so there is none for 'visits'"),
        (at(1, "age,twon,page,visits,note,target"), {}, "has no column 'town'. Did you mean 'twon'. It has age, twon"),
        (at(1, "age,town,page,age,note,target"), {}, "t.csv: two columns are called 'age'"),
        (at(1, "age,town,page,visits,note,goal"), {}, "dataset.target: .*t.csv has no column 'target'.* It has age"),
        (lambda lines: None, {"train": None}, "dataset.train: name the file of training rows"),
        (lambda lines: None, {"train": "gone.csv"}, "gone.csv: there is no such file"),
        (lambda lines: None, {"train": "t.txt"}, "t.txt: there is no such file"),
        (lambda lines: lines.clear(), {}, "t.csv is empty: there are no columns"),
        (lambda lines: lines.__delitem__(slice(1, None)), {"columns": {}}, "t.csv: behind its header there is no row"),
        (lambda lines: None, {"train": str(Path(__file__).parent)}, "is a folder, and a file is needed: test_"),
        (at(1, "age;town;page;visits;note;target"), {}, "line 2: it has 1 column, so there is none for 'town'"),
        (lambda lines: None, {"columns": {}, "others": "ignore"}, "no column is left to predict 'target' from"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, change: Any, given: Any, words: str) -> None:
    path = broken(tmp_path, change)
    with pytest.raises(DataError, match=words):
        open_splits(table(**{"train": path, **given}))


def test_a_check_names_every_row_that_is_wrong(tmp_path: Path, check: Any) -> None:
    def change(lines: List[str]) -> None:
        lines[2], lines[4], lines[6] = "many,Rome,/p,5,x,1", "1,Rome,/p,5,x,yes", "1,Rome"
        lines[8] = lines[9]

    dataset = table(train=broken(tmp_path, change), val_fraction=0.3)
    found = check(dataset)
    assert found[:3] == [("short_row", "t.csv", 7), ("not_a_number", "t.csv", 3), ("label_range", "t.csv", 5)]
    assert len(found) == 4 and found[3][0].startswith("duplicate")
    assert sum(check.census.num_samples.values()) == 57
    assert [name for name in check.census.class_names] == ["0", "1"] and check.census.class_counts["train"].all()
    path = write_csv(tmp_path / "t.csv", rows_of(60, 0))
    assert check(table(train=path)) == []


def test_a_check_finds_wrong_rows_also_in_columns_that_are_guessed(tmp_path: Path, check: Any) -> None:
    def change(lines: List[str]) -> None:
        lines[2], lines[6] = "many,Rome,/p,5,x,1", "1,Rome"

    dataset = FeatureTable(train=broken(tmp_path, change))
    assert check(dataset) == [("short_row", "t.csv", 7), ("not_a_number", "t.csv", 3)]
    with pytest.raises(DataError, match="line 7: it has 2 columns|line 3: 'age' is 'many'.*columns={age: category}"):
        dataset.open()


def test_targets_may_be_words_or_numbers_in_any_spelling(tmp_path: Path) -> None:
    rows = rows_of(60, 0)
    for number, row in enumerate(rows):
        row["target"] = ("0.0", "1.0")[number % 2]
    path = write_csv(tmp_path / "t.csv", rows)
    assert table(train=path).open().train.read_labels().mean() == pytest.approx(0.5, abs=0.05)
    for number, row in enumerate(rows):
        row["target"] = ("good", "bad")[number % 3 == 0]
    dataset = table(train=write_csv(tmp_path / "t.csv", rows), classes=["good", "bad"])
    splits = dataset.open()
    assert splits.class_names == ["good", "bad"] and splits.train.read_labels().mean() == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("classes", [["0", "1"], [0, 1], [False, True], ["True", "False"]])
def test_false_and_true_are_0_and_1_in_any_case(tmp_path: Path, classes: Any) -> None:
    rows = [{**row, "target": ("False", "TRUE")[number % 3 == 0]} for number, row in enumerate(rows_of(60, 0))]
    share = table(train=write_csv(tmp_path / "t.csv", rows), classes=classes).open().train.read_labels().mean()
    assert share == pytest.approx(2 / 3 if classes[0] == "True" else 1 / 3, abs=0.05)
    with pytest.raises(DataError, match=r"no row has the target '1' or '2'.* Type 'dataset.classes=..False.,.TRUE..'"):
        table(train=str(tmp_path / "t.csv"), classes=[1, 2]).open()


def test_cells_that_are_numbers_may_be_typed_as_numbers(tmp_path: Path) -> None:
    dataset = table(train="t.csv", missing=["", -999, -1.5])
    assert dataset.missing == ["", "-999", "-1.5"]
    with pytest.raises(pydantic.ValidationError, match="valid string"):
        table(train="t.csv", missing=[float("nan")])


def test_too_many_values_are_refused_with_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "MAX_VALUES", 5)
    with pytest.raises(DataError, match=r"are of 'town'. Hash that column: type dataset.columns=\{town: hashed\}"):
        table(train=write_csv(tmp_path / "t.csv", rows_of(60, 0))).open()


def criteo_line(number: int, label: str = "1") -> str:
    counts = ["" if place == number % 13 else str(place * number - 1) for place in range(13)]
    categories = [
        "" if place == number % 26 else f"{(place + number % 3) * 2654435761 % 2**32:08x}" for place in range(26)
    ]
    return "\t".join([label, *counts, *categories])


@pytest.mark.parametrize("categories", ["hashed", "category"])
def test_criteos_lines(tmp_path: Path, categories: Any) -> None:
    lines = [criteo_line(number, str(number % 2)) for number in range(60)]
    (tmp_path / "train.txt").write_text("\n".join(lines[:40]) + "\n")
    with gzip.open(tmp_path / "day_0.gz", "wt") as stream:
        stream.write("\n".join(lines[40:]) + "\n")
    dataset = Criteo(
        train=[str(tmp_path / "train.txt"), str(tmp_path / "day_0.gz")],
        val_fraction=0.5,
        test_fraction=0.0,
        categories=categories,
        buckets=11,
        min_count=2,
    )
    splits = dataset.open()
    columns, id_BF, number_BN = encoded(dataset, splits.val)
    assert [column.name for column in columns.columns] == [*COUNTS, *CATEGORIES] and splits.test is None
    cells = [lines[number].split("\t") for number in splits.val.row_N]
    trained = [lines[number].split("\t") for number in splits.train.row_N]
    begin = np.cumsum([0, *columns.field_sizes])[:26]
    for place in range(26):
        texts = [row[14 + place] for row in cells]
        if categories == "hashed":
            own = [1 + zlib.crc32(text.encode()) % 11 if text else 0 for text in texts]
        else:
            vocabulary = columns.fields[place].vocabulary
            assert set(vocabulary) == {
                v for v in {r[14 + place] for r in trained} - {""} if [r[14 + place] for r in trained].count(v) >= 2
            }
            own = [0 if not text else 2 + vocabulary.index(text) if text in vocabulary else 1 for text in texts]
        assert (id_BF[:, place] - begin[place]).tolist() == own
    second = np.array([np.log1p(max(float(row[2]), 0)) for row in trained if row[2]])
    expected = [(np.log1p(max(float(row[2]), 0)) - second.mean()) / second.std() if row[2] else 0 for row in cells]
    at = columns.numbers[0].num_numbers
    assert columns.numbers[1].indicator and any(not row[2] for row in cells)
    np.testing.assert_allclose(number_BN[:, at], expected, rtol=1e-4, atol=1e-5)
    assert number_BN[:, at + 1].tolist() == [float(not row[2]) for row in cells]


@pytest.mark.parametrize("begin", [0, 1])
def test_criteos_lines_to_predict_for_may_have_no_label(tmp_path: Path, begin: int) -> None:
    path = tmp_path / "test.txt"
    (tmp_path / "train.txt").write_text("\n".join(criteo_line(n, str(n % 2)) for n in range(40)) + "\n")
    dataset = Criteo(train=str(tmp_path / "train.txt"))
    signature = dataset.infer_signature(dataset.open(), None)  # type: ignore[arg-type]
    path.write_text("\n".join("\t".join(criteo_line(n).split("\t")[1 - begin :]) for n in (7, 8)) + "\n")
    source, places = dataset.open_inputs([str(path)], signature, False, {})
    assert isinstance(source, FeatureRows) and places == [f"{path}:1", f"{path}:2"]
    whole = dataset.open()
    everything = FeatureRows(whole.train.stores)  # type: ignore[attr-defined]
    encoder = FeatureEncoder(signature.columns)  # type: ignore[arg-type]
    for found, same in zip(encoder(source, np.arange(2)), encoder(everything, np.array([7, 8]))):
        assert (found == same).all()
    path.write_text("1\t2\n")
    with pytest.raises(DataError, match="line 1 has 2 columns; a line of Criteo's has 39, or 40 with the label"):
        dataset.open_inputs([str(path)], signature, False, {})


def test_vocabulary_has_frequent_values_in_order_of_frequency(tmp_path: Path) -> None:
    towns = [town for town, count in (("two", 2), ("b three", 3), ("a three", 3), ("four", 4)) for _ in range(count)]
    rows = [{**row, "town": towns[n % len(towns)] if n < len(towns) else ""} for n, row in enumerate(rows_of(60, 0))]
    dataset = table(
        train=write_csv(tmp_path / "t.csv", rows), val=write_csv(tmp_path / "v.csv", rows_of(9, 1)), test_fraction=0.0
    )
    for min_count, wanted_towns in ((3, ("four", "a three", "b three")), (2, ("four", "a three", "b three", "two"))):
        dataset = dataset.model_copy(update={"min_count": min_count})
        columns = dataset.infer_signature(dataset.open(), None).columns
        assert columns is not None and columns.fields[0].vocabulary == wanted_towns


def test_criteos_lines_that_cannot_be_used(tmp_path: Path, check: Any) -> None:
    lines = [criteo_line(number, str(number % 2)) for number in range(40)]
    lines[3], lines[5] = lines[3].replace("\t", "\tmany\t", 1), criteo_line(5, "2")
    lines[7] = "\t".join(lines[7].split("\t")[:39])
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    dataset = Criteo(train=str(tmp_path / "train.txt"))
    found = check(dataset)
    assert found == [
        ("long_row", "train.txt", 4),
        ("short_row", "train.txt", 8),
        ("not_a_number", "train.txt", 4),
        ("label_range", "train.txt", 6),
    ]
    with pytest.raises(DataError, match="line 8: it has 39 columns|line 4: the row has 41 cells, and the first row 40"):
        dataset.open()
    (tmp_path / "train.txt").write_text("\n".join([*lines[:3], lines[5]]) + "\n")
    with pytest.raises(DataError, match="line 4: the target is '2'; allowed are '0' and '1'. .*two classes, by defin"):
        dataset.open()
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(DataError, match="train.txt leaves no training samples: there is none in it.$"):
        dataset.open()
    (tmp_path / "train.txt").write_text("\n".join(lines[:7]) + "\n")
    with pytest.raises(DataError, match="line 4: the row has 41 cells, and the first row 40.*'[0-9a-f]{8}' is in none"):
        dataset.open()
    (tmp_path / "train.txt").write_text("\n".join(lines[:3]).replace("\t", "\tmany\t", 1) + "\n")
    with pytest.raises(DataError, match="train.txt, line 1 has 41 columns; a line of Criteo's has 39, or 40"):
        dataset.open()
    (tmp_path / "train.txt").write_text("\n".join(lines[:3]).replace("\t", ",") + "\n")
    with pytest.raises(DataError, match="train.txt, line 1 has 1 columns.*separated by tabs"):
        dataset.open()


def small_table(tmp_path: Path, header: str, rows: Sequence[str], name: str = "t.csv") -> str:
    (tmp_path / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(tmp_path / name)


def numbers_of(path: str, **given: Any) -> Dict[str, List[float]]:
    store = FeatureTable(train=path, val_fraction=0.2, test_fraction=0.0, **given).open().train.stores[0]
    return {name: store.number_RN[:, place].tolist() for place, name in enumerate(store.numbers)}


@pytest.mark.parametrize(
    "missing", ["None", "#N/A", "\\N", "-", "NaN", "null", "N/A", "<NA>", "", "n/a", "?", "NULL", "#NA"]
)
def test_missing_spellings_leave_a_column_of_numbers(tmp_path: Path, missing: str) -> None:
    rows = [f"{missing if number % 4 == 3 else number + 0.5},{number % 2}" for number in range(40)]
    found = numbers_of(small_table(tmp_path, "age,target", rows))["age"]
    assert np.isnan(found[3::4]).all() and found[:3] == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    "text, value",
    [
        ('"$1,013.15"', 1013.15),
        ("12.5%", 12.5),
        ('"1,234"', 1234.0),
        ("\u22123.5", -3.5),
        ('"(1,200)"', -1200.0),
        ("€5", 5.0),
        ("-$5.5", -5.5),
        ("1'234.5", 1234.5),
        ("1\u00a0234", 1234.0),
    ],
)
def test_formatted_numbers_are_read_and_reported(tmp_path: Path, text: str, value: float, caplog: Any) -> None:
    rows = [f"{text},{number % 2}" for number in range(30)]
    for _ in range(2):  # the second time from what was prepared
        caplog.clear()
        with caplog.at_level("INFO"):
            found = numbers_of(small_table(tmp_path, "fare,target", rows))["fare"]
        assert found == pytest.approx([value] * 30)
        assert any("numbers of 'fare' are read without their signs" in said for said in caplog.messages)
    assert ("If the comma is a decimal sign" in caplog.text) == (text in ('"1,234"', '"(1,200)"'))


@pytest.mark.parametrize(
    "texts, kind",
    [
        (["10_2", "11_3", "12_1"], "category"),
        (["1_0", "2_0"], "category"),
        (["02134", "10001"], "category"),
        (["12", "12%"], "category"),
        (["$5", "€5"], "category"),
        (["１２", "３４"], "category"),
        (["infinity", "1"], "category"),
        (["1e5", "2E-3", "+.5", "7."], "number"),
        (["0x1F", "0x2A"], "category"),
    ],
)
def test_texts_that_only_python_takes_for_numbers_are_not_numeric(tmp_path: Path, texts: List[str], kind: str) -> None:
    rows = [f"{texts[number % len(texts)]},{number % 2}" for number in range(24)]
    found = FeatureTable(train=small_table(tmp_path, "code,target", rows)).kinds(str(tmp_path / "t.csv"))
    assert found["code"].kind == kind


def test_decimal_commas_are_named_and_read(tmp_path: Path) -> None:
    rows = [f"{1 + number % 9}.234,5;{number % 2}" for number in range(30)]
    path = small_table(tmp_path, "preis;target", rows)
    with pytest.raises(DataError, match=r"'preis' has numbers with the decimal sign ','.*\"dataset.decimal=','\""):
        FeatureTable(train=path).open()
    assert numbers_of(path, decimal=",")["preis"][:3] == [1234.5, 2234.5, 3234.5]
    with pytest.raises(DataError, match=r"line 2: 'preis' is '1.234,5', no number \(with a decimal comma"):
        FeatureTable(train=path, columns={"preis": ColumnSpec(kind="number")}).open()


def test_percent_signs_in_some_cells_are_one_problem(tmp_path: Path, check: Any) -> None:
    rows = [f"{number}{'%' * (number > 9)},{number % 2}" for number in range(40)]
    columns = {"share": ColumnSpec(kind="number")}
    dataset = FeatureTable(train=small_table(tmp_path, "share,target", rows), columns=columns)
    assert check(dataset) == [("not_a_number", "t.csv", 12)]


def test_ids_of_rows_are_not_learned_from(tmp_path: Path) -> None:
    rows = [f"{number},{number * 7},{number % 5},{number},{number % 2}" for number in range(30)]
    path = small_table(tmp_path, "Unnamed: 0,PassengerId,shop_id,grid,target", rows)
    assert list(FeatureTable(train=path).kinds(path)) == ["shop_id", "grid"]


def test_rows_with_ids_are_no_duplicates(tmp_path: Path, check: Any) -> None:
    rows = [f"{number},{number % 5},{number % 2}" for number in range(40)]
    path = small_table(tmp_path, "PassengerId,age,target", rows)
    assert check(FeatureTable(train=path)) == [] and check(NumberTable(train=path)) == []
    path = small_table(tmp_path, "PassengerName,age,target", [row.replace(",", "x,", 1) for row in rows])
    ignored = {"PassengerName": ColumnSpec(kind="ignore")}
    assert any(kind.startswith("duplicate") for kind, *_ in check(FeatureTable(train=path, columns=ignored)))


def test_dates_and_numbers_with_words_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    rows = [f"{1 + number % 28:02d}.01.2020,{number} kg,{number % 2}" for number in range(150)]
    path = small_table(tmp_path, "day,weight,target", rows)
    FeatureTable(train=path).kinds(path)
    assert [record.levelname for record in caplog.records if "read as texts" in record.getMessage()] == ["WARNING"] * 2


@pytest.mark.parametrize(
    "texts, classes",
    [
        (["no", "yes"], ["no", "yes"]),
        (["Yes", "no", "NO"], ["no", "Yes"]),
        (["2", "1"], ["1", "2"]),
        (["-1", "1"], ["-1", "1"]),
        (["0.0", "1"], ["0", "1"]),
        (["TRUE", "false"], ["0", "1"]),
        (["stay", "leave"], ["leave", "stay"]),
    ],
)
def test_two_texts_are_the_classes_of_a_target(
    tmp_path: Path, texts: List[str], classes: List[str], caplog: Any
) -> None:
    rows = [f"{number},{texts[number % len(texts)]}" for number in range(42)]
    path = small_table(tmp_path, "age,target", rows)
    with caplog.at_level("INFO"):
        splits = FeatureTable(train=path).open()
    assert splits.class_names == classes and ("is the positive class" in caplog.text) == (classes != ["0", "1"])
    positive = {text for text in texts if text.casefold() in (classes[1].casefold(), "true")}
    wanted = [texts[number % len(texts)] in positive for number in splits.train.row_N]  # type: ignore[attr-defined]
    assert splits.train.read_labels().tolist() == wanted  # type: ignore[attr-defined]


def test_classes_are_found_in_sorted_rows(tmp_path: Path) -> None:
    rows = [f"{number},{'no' if number < 1500 else 'yes'}" for number in range(1600)]
    assert FeatureTable(train=small_table(tmp_path, "age,target", rows)).open().class_names == ["no", "yes"]


@pytest.mark.parametrize(
    "texts, given, words",
    [
        (["no"], {}, "'target' has 1 value: 'no'. There is nothing to tell apart"),
        ([f"n{number}" for number in range(101)], {}, "has 101 values: .* At most 100 .* List them in dataset.classes"),
        ([f"n{number}" for number in range(1001)], {}, "has more than 1,000 values: .* dataset.classes"),
        (["no", "yes"], {"classes": [0, 1]}, r"no row has the target '0' or '1'.*Type dataset.classes=\[no,yes\]"),
        (["1.5", "2.5", "3.5"], {}, "has 3 values: .* Type task=regression to predict a number"),
    ],
)
def test_targets_without_classes_are_one_problem(
    tmp_path: Path, check: Any, texts: List[str], given: Any, words: str
) -> None:
    rows = [f"{number},{texts[number % len(texts)]}" for number in range(max(900, 2 * len(texts)))]
    dataset = FeatureTable(train=small_table(tmp_path, "age,target", rows), **given)
    with pytest.raises(DataError, match=words):
        dataset.open()
    assert [kind for kind, *_ in check(dataset)] == ["cannot_open"]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_separator_of_a_csv_is_that_of_its_header(tmp_path: Path, mark: str) -> None:
    rows = [mark.join((str(number), f'"a{mark}b,c"', str(number % 2))) for number in range(30)]
    path = small_table(tmp_path, mark.join(("age", "town", "target")), rows)
    store = FeatureTable(train=path).open().train.stores[0]  # type: ignore[attr-defined]
    assert list(store.texts["town"]) == [f"a{mark}b,c"] and store.number_RN[:3, 0].tolist() == [0, 1, 2]
    lines = [mark.join(("age", "target")), *(f"{number}{mark}{number % 2}" for number in range(30))]
    path = small_table(tmp_path, f"sep={mark}", lines)
    assert FeatureTable(train=path).open().train.stores[0].number_R[:2].tolist() == [3, 4]  # type: ignore[attr-defined]


def test_columns_without_a_name_at_the_end_are_left_out(tmp_path: Path) -> None:
    path = small_table(tmp_path, "age,target,,", [f"{number},{number % 2},," for number in range(30)])
    assert list(FeatureTable(train=path).kinds(path)) == ["age"]


@pytest.mark.parametrize("mark, name", [("\t", "t.tsv"), (",", "t.csv")])
def test_a_header_without_the_name_of_row_names_is_refused(tmp_path: Path, mark: str, name: str) -> None:
    """R's write.table writes so; each cell would be below the name of the one to its right."""
    rows = [mark.join((str(number + 1), str(number % 7), str(number % 2))) for number in range(30)]
    words = f"{name}, line 2: the row has more cells .*'1' is below 'age', and '0' below"
    for dataset in (FeatureTable, NumberTable):
        with pytest.raises(DataError, match=words):
            dataset(train=small_table(tmp_path, mark.join(("age", "target")), rows, name)).open()
    rows = [row + mark for row in rows]
    path = small_table(tmp_path, mark.join(("row", "age", "target")), rows, name)  # which ends lines with a separator
    assert len(FeatureTable(train=path).open().train.stores[0]) == 30  # type: ignore[attr-defined]


def test_a_later_row_with_a_comma_too_many_is_refused(tmp_path: Path) -> None:
    """Cells after the comma would be read into the wrong columns; `data check` lists all such rows."""
    path = tmp_path / "rows.csv"
    path.write_text("age,town,target\n30,York,0\n40,York, North,1\n50,York,1,\n")
    words = r"rows\.csv, line 3: the row has more cells .*'40' is below 'age', and '1' below"
    with pytest.raises(DataError, match=words):
        read_columns(path, ["age", "town", "target"], header=True)
    path.write_text("age,town,target\n30,York,0\n50,York,1,\n")  # an empty cell behind the last says nothing
    assert len(read_columns(path, ["age", "town", "target"], header=True)) == 2
