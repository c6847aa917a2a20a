"""A value of a cell is the same in training, `predict`, `run.predict`, the exported folder and the server."""

from __future__ import annotations

import csv
import datetime
import io
import json
import sys
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from served_folders import write_rows

from mxtrain.data.class_rows import binary_row, ranked_classes
from mxtrain.data.exported_folder import UnseenWarning
from mxtrain.data.features.exported_rows import predict, read_table
from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, measure_columns
from mxtrain.data.features.feature_store import FeatureLayout, FeatureStore, ReadColumn, open_store, store_rows
from mxtrain.data.table.cell_text import canonical, known_spelling, mixed_truth, text_of
from mxtrain.data.table.column_kinds import guess_kinds
from mxtrain.data.table.columns import stream_rows
from mxtrain.data.table.unseen_values import UnseenValues
from mxtrain.errors import DataError
from mxtrain.exporting import standalone
from mxtrain.recommendation.exported_users import ExportedCatalog
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits
from mxtrain.tables.number_table import NumberTable
from mxtrain.tables.served import RowReader

KINDS = {"vip": "category", "code": "category", "day": "category", "town": "hashed", "age": "number"}
Row = Dict[str, Any]
DAY = datetime.date(2026, 1, 31)
ROWS: List[Row] = [
    {"vip": True, "code": 1, "day": DAY, "town": "Ulm", "age": 31.5},
    {"vip": False, "code": 2, "day": datetime.date(2025, 12, 1), "town": "2", "age": -4.0},
    {"vip": True, "code": 30, "day": DAY, "town": 'a,"b"', "age": 1e-7},
    {"vip": None, "code": 1, "day": None, "town": None, "age": None},
    {"vip": False, "code": 2, "day": DAY, "town": "1", "age": 123456.0},
]
LIMITS = BodyLimits(1, 100)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps prepared rows apart from those of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def as_csv(rows: Sequence[Row], spell: Callable[[Any], str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(KINDS)
    writer.writerows([[spell(row[name]) for name in KINDS] for row in rows])
    return file.getvalue().encode()


def as_lines(rows: Sequence[Row], spell: Callable[[Any], Any]) -> bytes:
    return "".join(json.dumps({name: spell(value) for name, value in row.items()}) + "\n" for row in rows).encode()


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


def of_pandas(value: Any) -> str:
    """Writes whole numbers as floats, as `to_csv` does in columns with missing cells."""
    return "" if value is None else str(float(value) if type(value) is int else value)


def of_excel(value: Any) -> str:
    return "#N/A" if value is None else str(value).upper() if isinstance(value, bool) else str(value)


def with_time(value: Any) -> Any:
    is_day = isinstance(value, datetime.date)
    return f"{value.isoformat()}T00:00:00.000" if is_day else float(value) if type(value) is int else value


def as_parquet(rows: Sequence[Row], names: Iterable[str] = KINDS) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in names}), file)
    return file.getvalue()


FILES: Dict[str, Callable[[Sequence[Row]], bytes]] = {
    "str.csv": lambda rows: as_csv(rows, lambda value: "NA" if value is None else str(value)),
    "json.csv": lambda rows: as_csv(rows, lambda value: "" if value is None else str(text_of(value))),
    "pandas.csv": lambda rows: as_csv(rows, of_pandas),
    "excel.csv": lambda rows: as_csv(rows, of_excel, ";"),
    "tabs.tsv": lambda rows: as_csv(rows, lambda value: "null" if value is None else f" {value} ", "\t"),
    "bom.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows, of_pandas).replace(b"\r\n", b"\n"),
    "plain.jsonl": lambda rows: as_lines(rows, plain),
    "times.jsonl": lambda rows: as_lines(rows, with_time),
    "texts.jsonl": lambda rows: as_lines(rows, lambda value: None if value is None else str(value)),
    "nan.jsonl": lambda rows: as_lines(rows, lambda value: float("nan") if value is None else plain(value)),
    "parquet.parquet": as_parquet,
}
"""The same rows, as programs write them."""
OBJECTS: Dict[str, Callable[[Any], Any]] = {
    "Python": lambda value: value,
    "text": lambda value: None if value is None else str(value),
    "NumPy": lambda value: np.float64("nan")
    if value is None
    else np.array(value)[()]
    if type(value) in (bool, int, float)
    else value,
    "Decimal": lambda value: Decimal(value) if type(value) is int else value,
    "upper case": lambda value: str(value).upper() if isinstance(value, bool) else value,
}


def layout_of(is_canonical: bool = True) -> FeatureLayout:
    read = tuple(ReadColumn(name, kind, name) for name, kind in KINDS.items())  # type: ignore[arg-type]
    missing = ("", "NA", "null", "#N/A", "NaN")
    return FeatureLayout(read, None, ("0", "1"), missing, canonical=is_canonical)


def store_of(path: Path, is_canonical: bool = True) -> FeatureStore:
    return open_store(str(path), layout_of(is_canonical))


@pytest.fixture(params=FILES)
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> FeatureColumns:
    """The columns of a network that was trained with one of the files."""
    path = tmp_path / request.param
    path.write_bytes(FILES[request.param](ROWS))
    settings = [ColumnSettings(name, kind, 50, canonical=kind == "hashed") for name, kind in KINDS.items()]
    return measure_columns([store_of(path)], None, settings)


class Folder:
    """An exported folder whose network returns its inputs."""

    def __init__(self, columns: FeatureColumns) -> None:
        self.signature = json.loads(
            json.dumps(
                {
                    "task": "tabular",
                    "class_names": ["no", "yes"],
                    "facts": {},
                    "signature": {"columns": columns.to_json(), "class_names": ["no", "yes"], "mean": [], "std": []},
                    "inputs": [{"name": "input0", "dtype": "int32"}, {"name": "input1", "dtype": "float32"}],
                }
            )
        )
        self.runs: List[Mapping[str, np.ndarray]] = []

    def run(self, inputs: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        self.runs.append(inputs)
        return {"output": np.zeros((1, 1), np.float32)}


def joined(runs: Sequence[Mapping[str, np.ndarray]]) -> List[np.ndarray]:
    return [np.concatenate([run[name] for run in runs]) for name in ("input0", "input1")]


def require_equal(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_all_readers_return_the_same_inputs_for_all_files(trained: FeatureColumns, tmp_path: Path) -> None:
    vocabularies = {column.name: set(column.vocabulary) for column in trained.columns}
    assert vocabularies["vip"] == {"true", "false"} and vocabularies["code"] == {"1", "2", "30"}
    expected, media = None, {".csv": "text/csv", ".tsv": "text/tab-separated-values", ".jsonl": "application/jsonl"}
    for name, write in FILES.items():
        path = tmp_path / f"given-{name}"
        path.write_bytes(write(ROWS))
        rows = FeatureRows([store_of(path)])
        found = FeatureEncoder(trained)(rows, np.arange(len(ROWS)))  # training, predict
        expected = expected or found
        require_equal(found, expected)
        assert rows.unseen_sentences(trained) == []
        folder: Any = Folder(trained)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            places = [row["file"] for row in predict(folder, path.read_bytes(), str(path))]  # predict.py
        lines = rows.stores[0].locations(np.arange(len(ROWS))).number_N.tolist()
        assert [int(place.rpartition(":")[2]) for place in places] == lines
        require_equal(joined(folder.runs), expected)
        if path.suffix == ".parquet":  # what clients send is not parsed by pyarrow
            with pytest.raises(RequestError, match="the body is Parquet, which is read only of files whose names end"):
                RowReader(folder).read(path.read_bytes(), "text/csv", LIMITS)
            continue
        read = RowReader(folder).read(path.read_bytes(), media[path.suffix], LIMITS)  # serve
        require_equal([read.inputs["input0"], read.inputs["input1"]], expected)
        assert not any(read.unseen.values())
    assert expected is not None
    for spell in OBJECTS.values():
        rows = [{key: spell(value) for key, value in row.items()} for row in ROWS]
        require_equal(FeatureEncoder(trained)(FeatureRows([store_rows(rows, layout_of())]), np.arange(5)), expected)
    body = json.dumps({"rows": [{key: plain(value) for key, value in row.items()} for row in ROWS]}).encode()
    read = RowReader(Folder(trained)).read(body, "application/json", LIMITS)  # type: ignore[arg-type]
    require_equal([read.inputs["input0"], read.inputs["input1"]], expected)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("True", "true"),
        ("FALSE", "false"),
        ("truth", "truth"),
        ("1.0", "1"),
        ("-12.00", "-12"),
        ("1.50", "1.50"),
        ("01.0", "01.0"),
        ("1.", "1."),
        ("v1.0", "v1.0"),
        ("2026-01-31T00:00:00", "2026-01-31"),
        ("2026-01-31 00:00:00.000", "2026-01-31"),
        ("2026-01-31T10:20:30.500", "2026-01-31 10:20:30.5"),
        ("2026-01-31T00:00:00+00:00", "2026-01-31 00:00:00Z"),
        ("2026-01-31T00:00:00.001", "2026-01-31 00:00:00.001"),
        ("2026-01-31", "2026-01-31"),
        ("", ""),
        ("tall", "tall"),
        ("f", "f"),
    ],
)
def test_canonical_spelling(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected


def test_exact_spelling_wins_in_vocabularies_of_earlier_versions(tmp_path: Path) -> None:
    """Checkpoints of earlier versions may have `True` and `true` as different values."""
    columns = FeatureColumns.from_json(
        [
            {"name": "vip", "kind": "category", "vocabulary": ["True", "true", "1.0"]},
            *({"name": name, "kind": "category", "vocabulary": ["x"]} for name in ("code", "day")),
            {"name": "town", "kind": "hashed", "buckets": 1000},
            {"name": "age", "kind": "number"},
        ]
    )
    path = tmp_path / "old.csv"
    values = ("True", "true", "TRUE", "1", "0")
    path.write_text("vip,code,day,town,age\n" + "".join(f"{vip},x,x,True,1\n" for vip in values))
    ids = [FeatureEncoder(columns)(FeatureRows([store_of(path, kept)]), np.arange(5))[0] for kept in (False, True)]
    assert ids[0][:, 0].tolist() == [2, 3, 3, 4, 1]
    assert (ids[0][:, 3] != ids[1][:, 3]).all(), "hashed values keep their spelling in old checkpoints"
    folder: Any = Folder(columns)
    with pytest.warns(UnseenWarning):
        list(predict(folder, path.read_bytes(), "old.csv"))
    require_equal(joined(folder.runs), FeatureEncoder(columns)(FeatureRows([store_of(path, False)]), np.arange(5)))


def test_unseen_values_are_reported_by_column(tmp_path: Path) -> None:
    unseen = UnseenValues({"town": ["Ulm", "Bonn"], "vip": ["true", "false"]})
    for value in ("ulm", "Rome", None, "Oslo", "Kiel"):
        unseen.count("town", value)
        unseen.count("vip", None)
    (sentence,) = unseen.sentences()
    assert sentence == (
        "0.8 of the values of 'town' (4 of 5) are unknown from training, such as 'ulm' (training has 'Ulm'), 'Rome', "
        "'Oslo'. All unknown values enter the network alike."
    )
    assert unseen.counts == {"town": 4, "vip": 0}


def test_predict_py_warns_and_the_server_counts(tmp_path: Path) -> None:
    opened = standalone.OpenedExport(str(write_rows(tmp_path / "folder")), 1)
    table = b"town,age,visits\nRome,1,0\nUlm,1,0\n,2,1\nbonn,2,1\n"
    with pytest.warns(UnseenWarning) as caught:
        rows = list(predict(opened, table, "new.csv"))
    assert len(rows) == 4
    assert [str(one.message) for one in caught] == [
        "new.csv: 0.5 of the values of 'town' (2 of 4) are unknown from training, such as 'Rome', 'bonn' (training has "
        "'Bonn'). All unknown values enter the network alike."
    ]
    assert RowReader(opened).read(table, "text/csv", LIMITS).unseen == {"town": 2}


def test_training_reports_truth_in_several_spellings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, values = tmp_path / "mixed.csv", ("True", "true", "1", "False", "0")
    path.write_text("vip,code,day,town,age\n" + "".join(f"{one},x,x,x,1\n" for one in values))
    with caplog.at_level("INFO"):
        store_of(path)
    assert "'vip' has the values 'true', '1', 'false', '0': true and false seem to be written in" in caplog.text
    assert mixed_truth(["true", "False", "TRUE"]) == [] and mixed_truth(["1", "0"]) == []
    assert mixed_truth(["1", "0", "2"]) == [] and mixed_truth(["yes", "no", "1.0"]) == ["yes", "no", "1"]


HEAD = b"vip,code,day,town,age\n"
WRONG: Dict[str, Any] = {
    "a further cell": (HEAD + b"a,b,c,d,1,more\n", "text/csv", "the row has more cells than the header"),
    "a later cell": (HEAD + b"a,b,c,d,1\na,b,c,d,1,more\n", "text/csv", "the row has more cells than the header"),
    "a short row": (HEAD + b"a,b,c,d,1\na,b\n", "text/csv", "the body:3 has no column 'day'; the row is too"),
    "two columns of a name": (b"vip,code,day,town,age,vip\na,b,c,d,1,e\n", "text/csv", "two columns are called 'vip'"),
    "two columns of a name alone": (b"vip,code,day,town,age, vip\n", "text/csv", "two columns are called 'vip'"),
    "no header": (b"\n", "text/csv", "has no column 'vip'; it has no text"),
    "no object": (b"[1]\n", "application/jsonl", "the body:1 is no JSON object"),
    "a list": (b'{"vip": [1], "code": 1, "day": 1, "town": 1, "age": 1}', "application/jsonl", "must be a text, a"),
    "a truth as a number": (
        b'{"vip": 1, "code": 1, "day": 1, "town": 1, "age": true}',
        "application/jsonl",
        "'true' in column 'age' is no number",
    ),
    "a quote": (HEAD + b'"a,b,c,d,1\n', "text/csv", "begins a row that cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_refused(name: str) -> None:
    body, media_type, said = WRONG[name]
    columns = FeatureColumns.from_json(
        [{"name": name, "kind": kind, **({"buckets": 5} if kind == "hashed" else {})} for name, kind in KINDS.items()]
    )
    with pytest.raises(RequestError) as caught:
        RowReader(Folder(columns)).read(body, media_type, LIMITS)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_written_numbers_are_read_as_in_training() -> None:
    ((_, cells),) = read_table(b"a\tb\n$1,234.50\t12.5%\n", "x", ".tsv", ["a", "b"])
    assert cells == {"a": "$1,234.50", "b": "12.5%"}
    columns = FeatureColumns.from_json([{"name": "a", "kind": "number"}, {"name": "b", "kind": "number"}])
    folder: Any = Folder(columns)
    folder.signature["inputs"] = folder.signature["inputs"][1:]
    list(predict(folder, b"a\tb\n$1,234.50\t12.5%\n", "x.tsv"))
    assert folder.runs[0]["input1"].tolist() == [[1234.5, 12.5]]


def test_numbers_of_json_have_a_point_for_any_decimal_sign_of_texts(tmp_path: Path) -> None:
    """`1.125` in a text with a decimal comma is 1125."""
    rows: List[Row] = [
        {"a": 1.125, "o": {"b": 2.5}, "c": "3,5"},
        {"a": "1.125", "o": {"b": "2,5"}, "c": 4.5},
        {"a": "0,5", "o": {"b": 1e-7}, "c": "1,5"},
    ]
    lines = as_lines(rows, lambda value: value)
    (tmp_path / "rows.jsonl").write_bytes(lines)
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table(
            {"a": [1.125, 1125.0, 0.5], "o": [{"b": 2.5}, {"b": 2.5}, {"b": 1e-7}], "c": ["3,5", "4.5", "1,5"]}
        ),
        file,
    )
    (tmp_path / "rows.parquet").write_bytes(file.getvalue())
    expected = np.array([[1.125, 2.5, 0], [1125, 2.5, 0], [0.5, 1e-7, 0]], np.float32)
    columns = FeatureColumns.from_json(
        [
            {"name": "a", "kind": "number"},
            {"name": "o.b", "kind": "number"},
            {"name": "c", "kind": "category", "vocabulary": ["3,5", "4.5", "1,5"]},
        ]
    )
    read = tuple(ReadColumn(column.name, column.kind, column.name) for column in columns.columns)
    folder: Any = Folder(columns)
    folder.signature["facts"]["decimal"] = ","
    for name in ("rows.jsonl", "rows.parquet"):
        store = open_store(str(tmp_path / name), FeatureLayout(read, None, ("0", "1"), ("",), decimal=","))
        ids, numbers = FeatureEncoder(columns)(FeatureRows([store]), np.arange(3))
        np.testing.assert_allclose(numbers, expected[:, :2], rtol=1e-6)
        assert ids[:, 0].tolist() == [2, 3, 4]
        folder.runs.clear()
        list(predict(folder, (tmp_path / name).read_bytes(), name))
        require_equal(joined(folder.runs), [ids, numbers])
        regression = open_store(str(tmp_path / name), FeatureLayout(read[1:], "a", (), ("",), decimal=","))
        np.testing.assert_allclose(regression.label_R, expected[:, 0], rtol=1e-6)
        texts = list(stream_rows(tmp_path / name, ["a", "o.b"], True))
        assert texts[0][1] == ("1.125", "2.5")
        table = NumberTable(train=str(tmp_path / name), target="a", features=["o.b"], decimal=",", val_fraction=0.34)
        found = table._read(str(tmp_path / name), ["o.b"])
        np.testing.assert_allclose(found.value_NF[:, 0], expected[:, 1], rtol=1e-6)
        np.testing.assert_allclose(found.target_N, expected[:, 0], rtol=1e-6)
        assert guess_kinds(str(tmp_path / name), ["a", "o.b"], ("",), ",") == {"a": "number", "o.b": "number"}
    body = json.dumps({"rows": rows}).encode()
    read_body = RowReader(folder).read(body, "application/json", LIMITS)
    np.testing.assert_allclose(read_body.inputs["input1"], expected[:, :2], rtol=1e-6)


def test_classes_are_ranked_and_equal_ones_keep_their_order() -> None:
    row = ranked_classes(["a", "b", "c", "d"], np.array([0.1, 0.4, 0.1, 0.4]))
    assert row["top"] == [{"class": name, "probability": share} for name, share in (("b", 0.4), ("d", 0.4), ("a", 0.1))]
    assert (row["class"], row["probability"]) == ("b", 0.4)
    assert len(ranked_classes(["a", "b"], np.array([0.1, 0.9]), 5)["top"]) == 2


@pytest.mark.parametrize("probability, name, own", [(0.03, "no", 0.97), (0.5, "yes", 0.5), (0.8, "yes", 0.8)])
def test_probability_belongs_to_the_named_class(probability: float, name: str, own: float) -> None:
    row = binary_row(["no", "yes"], probability)
    assert (row["class"], row["probability"]) == (name, own)
    found = {one["class"]: one["probability"] for one in row["top"]}
    assert found == {"yes": probability, "no": round(1 - probability, 6)}
    assert row["top"][0]["class"] == name


@pytest.mark.parametrize(
    "given, name",
    [
        ("17", "17"),
        ("17.0", "17"),
        (17, "17"),
        (17.0, "17"),
        (18, "18.0"),
        ("18.0", "18.0"),
        (18.0, "18.0"),
        ("a.0", None),
        ("x", None),
        ("019", None),
        (True, None),
        ([17], None),
        (None, None),
        (float("nan"), None),
        ("17.5", None),
    ],
)
def test_ids_of_recommenders_have_one_spelling(given: Any, name: Any) -> None:
    catalog = ExportedCatalog({"users": ["17", "18.0", "19", "x.0"], "items": ["a"]})
    if name is None:
        with pytest.raises(ValueError, match="there is no user"):
            catalog.number("user", given, "line 1")
        return
    assert catalog.number("user", given, "line 1") == ["17", "18.0", "19"].index(name)
    assert known_spelling(str(given), ["17", "18.0"]) == name


@pytest.mark.parametrize(
    "content, form, said",
    [
        (b'a,b\n"x', ".csv", "line 2 begins a row"),
        (b"PAR1 and PAR1", ".parquet", "cannot be read as Parquet"),
        (as_parquet(ROWS), ".parquet", "t has no column 'a'; it has vip, code, day, town, age"),
        (as_parquet([{**row, "a": b"x"} for row in ROWS], {**KINDS, "a": ""}), ".parquet", "t:0: a cell holds bytes"),
        (as_parquet(ROWS), ".csv", "t is Parquet, which is read only of files whose names end in .parquet"),
    ],
)
def test_damaged_tables_raise_no_error_of_ours(content: bytes, form: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        list(read_table(content, "t", form, ["a"]))
    assert not isinstance(caught.value, DataError)


def test_package_that_reads_parquet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="t: Parquet needs the package pyarrow .* -m pip install 'pyarrow>=14"):
        list(read_table(as_parquet(ROWS), "t", ".parquet", ["vip"]))
