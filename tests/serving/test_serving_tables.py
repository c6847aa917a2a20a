"""Rows of tables by column name: their answers, what is refused, and damaged signatures."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Dict, Iterator

import numpy as np
import pytest
import served_folders
from prometheus_client.parser import text_string_to_metric_families
from served_folders import COLUMNS, Served, probability_of, write_rows

from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.serving.answers import describe_sample
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel
from mxtrain.serving.readers import BodyLimits

PATH = "/v2/models/rows/predict"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(write_rows(tmp_path_factory.mktemp("folders") / "rows"), "max_batch=4") as server:
        yield server
        assert server.end() == 0
        assert not [row for row in server.log if row["event"] == "error"]


def answer(probability: float) -> Dict[str, Any]:
    pairs = sorted([("yes", probability), ("no", 1 - probability)], key=lambda pair: -pair[1])
    top = [{"class": name, "probability": pytest.approx(value, abs=2e-6)} for name, value in pairs]
    return {**top[0], "top": top}


@pytest.mark.slow
def test_answers_for_rows_by_column_name_equal_numpy(served: Served) -> None:
    row = {"visits": 6, "id": "c-17", "age": "48.5", "town": "Bonn"}  # another order, and a further column
    assert served.ask(PATH, row)[:2] == (200, answer(probability_of(3, 48.5, 6)))
    assert served.ask(PATH, {"town": None, "age": None, "visits": "0"})[1] == answer(probability_of(0, None, 0))
    expected = [answer(probability_of(3, 48.5, 6)), answer(probability_of(1, None, 2.5))]
    several = {"rows": [row, {"town": "Rome", "age": "NA", "visits": 2.5}]}
    assert served.ask(PATH, several)[:2] == (200, {"predictions": expected})
    table = "\ufeffvisits,age,town,target\n6,48.5,Bonn,1\n2.5,,Rome,0\n"
    assert served.ask(PATH, table.encode(), "text/csv; charset=utf-8")[:2] == (200, {"predictions": expected})
    lines = b'{"town": "Bonn", "age": 48.5, "visits": 6, "target": 1}\n{"town": "Rome", "age": null, "visits": 2.5}\n'
    assert served.ask(PATH, lines, "application/jsonl")[:2] == (200, {"predictions": expected})
    tabs = table.replace(",", "\t").encode()
    assert served.ask(PATH, tabs, "text/tab-separated-values")[1] == {"predictions": expected}
    arrays = {"input0": [[3]], "input1": [[0.0, 0.0, -0.5]]}
    assert served.ask(PATH, arrays)[1] == answer(probability_of(3, 40, 0))
    described = served.ask("/v2/models/rows")[1]["parameters"]
    kinds = {"town": "category", "age": "number", "visits": "count"}
    assert {column["name"]: column["kind"] for column in described["columns"]} == kinds
    assert described["accepts"] == [
        "application/json",
        "text/csv",
        "text/tab-separated-values",
        "application/jsonl",
        "application/x-ndjson",
    ]
    assert served.ask(PATH, described["example"].encode())[1] == answer(probability_of(2, 40, 1.72))
    counted = {
        sample.labels["class_name"]: sample.value
        for family in text_string_to_metric_families(served.ask("/metrics")[1].decode())
        for sample in family.samples
        if sample.name == "mxtrain_predicted_total"
    }
    assert set(counted) == {"no", "yes"}, "by the class that is more probable"
    assert 'mxtrain_unseen_values_total{column="town",model="rows"} 4.0' in served.ask("/metrics")[1].decode()


ROW = {"town": "Ulm", "age": 40, "visits": 0}
HUGE = 10**400
WRONG: Dict[str, Any] = {
    "missing": ({"town": "Ulm", "aeg": 1, "visits": 0}, "the column 'age' is missing, and 'aeg' is no column"),
    "text": ({**ROW, "age": "old"}, "'old' in column 'age' is no number"),
    "currency": ({**ROW, "age": "4$5"}, "'4$5' in column 'age' is no number"),
    "bool": ({**ROW, "age": True}, "'true' in column 'age' is no number"),
    "list": ({**ROW, "age": [1]}, "the column 'age' must be a text, a number, true, false or null"),
    "infinite": ({**ROW, "age": "inf"}, "'inf' in column 'age' is no finite number of 32 bits"),
    "beyond float32": ({**ROW, "age": 1e39}, "'1e+39' in column 'age' is no finite number of 32 bits"),
    "beyond float64": ({**ROW, "age": "-1e999"}, "'-1e999' in column 'age' is no finite number of 32 bits"),
    "integer": ({**ROW, "age": HUGE}, "in column 'age' is no number"),
    "in rows": ({"rows": [ROW, {**ROW, "visits": "x"}]}, "rows[1]: 'x' in column 'visits' is no number"),
    "no object": ({"rows": [ROW, 7]}, "rows[1] is no JSON object"),
    "no rows": ({"rows": []}, "holds no row"),
    "too many": ({"rows": [ROW] * 5}, "too many rows: at most 4 are taken"),
    "array": ([ROW], "no JSON object"),
    "csv": (b"town,age,visits\nUlm,1,0\nUlm,1e39,0\n", "the body:3: '1e39' in column 'age'"),
    "no column": (b"town,age\nUlm,1\n", "the body has no column 'visits'; it has town, age"),
    "header alone": (b"town,age,visits\n", "holds no row"),
    "nothing": (b" ", "the body has no column 'town'"),
    "no UTF-8": (b"town,age,visits\n\xff,1,0\n", "the body is no UTF-8"),
    "quote": (b'town,age,visits\n"Ulm,1,0\n', "begins a row that cannot be read"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_are_refused_with_a_sentence(served: Served, name: str) -> None:
    body, said = WRONG[name]
    status, found, _ = served.ask(PATH, body, "text/csv" if isinstance(body, bytes) else "application/json")
    assert status == (413 if name == "too many" else 400)
    assert said in found["error"], found


def test_numbers_that_scaling_makes_infinite_are_refused(tmp_path: Path) -> None:
    model = ServedModel("m", str(write_rows(tmp_path / "a", **damaged(std=0.01))), 1, True, 8, 4.0)
    assert model.reader is not None
    with pytest.raises(RequestError, match="'1e38' in column 'age' is too large for this network") as caught:
        model.reader.read(b'{"town": "Ulm", "age": "1e38", "visits": 0}', "application/json", BodyLimits(1, 1))
    assert caught.value.status == 400


def damaged(**changed: Any) -> Dict[str, Any]:
    columns = copy.deepcopy(COLUMNS)
    columns[1].update(changed)
    return {"signature": {"shape": [[1], [3]], "mean": [], "std": [], "class_names": ["no", "yes"], "columns": columns}}


@pytest.mark.parametrize(
    "signature",
    [
        damaged(std=0),
        damaged(std="x"),
        damaged(kind="indexed", buckets=3, length=2),
        damaged(kind="other"),
        damaged(indicator=False),
        damaged(name="town"),
        damaged(extra=1),
        {"class_names": []},
        {"facts": {"missing": 7}},
        {"signature": {"class_names": ["a"], "mean": [0], "std": []}},
        {"signature": []},
    ],
)
def test_damaged_signatures_are_refused(tmp_path: Path, signature: Dict[str, Any]) -> None:
    with pytest.raises(UnusableFolder, match="signature.json is damaged|signature.json: signature is "):
        ServedModel("m", str(write_rows(tmp_path / "a", **signature)), 1, True, 8, 4.0)


def test_a_folder_that_reads_other_files_takes_arrays(tmp_path: Path) -> None:
    for number, more in enumerate(({"reader": "exported_indexed"}, {"predicts": False}, {"task": "other"})):
        model = ServedModel("m", str(write_rows(tmp_path / str(number), **more)), 1, True, 8, 4.0)
        assert model.reader is None and model.accepts == ["application/json"]


@pytest.mark.slow
def test_numbers_of_a_regression_are_in_units_of_the_target(tmp_path: Path) -> None:
    own = {
        "shape": [2],
        "class_names": ["a", "b"],
        "mean": [1, 2],
        "std": [3, 4],
        "target_mean": 100.0,
        "target_std": 7.0,
    }
    folder = served_folders.write_mixing(tmp_path / "a")
    model = ServedModel("m", str(folder), 1, True, 8, 4.0)
    assert model.reader is None
    change = {"task": "regression", "reader": "exported_rows", "class_names": ["a", "b"], "signature": own, "facts": {}}
    said = {**json.loads((folder / "signature.json").read_text()), **change}
    (folder / "signature.json").write_text(json.dumps(said))
    model = ServedModel("m", str(folder), 1, True, 8, 4.0)
    assert model.reader is not None
    read = model.reader.read(b'{"a": 7, "b": 6}', "application/json", BodyLimits(1, 1))
    assert read.inputs["x"].tolist() == [[2.0, 1.0]]
    assert describe_sample(model, read.inputs, {"output": np.full((1, 1), 2.0)}) == {"value": 114.0}


@pytest.mark.slow
def test_numbers_of_texts_and_arrays_are_in_units_of_the_target(tmp_path: Path) -> None:
    folder = served_folders.write_mixing(tmp_path / "a")
    own = {"shape": [2], "target_mean": 100.0, "target_std": 7.0}
    said = {**json.loads((folder / "signature.json").read_text()), "targets": ["Number"], "signature": own}
    (folder / "signature.json").write_text(json.dumps(said))
    model = ServedModel("m", str(folder), 1, True, 8, 4.0)
    assert describe_sample(model, {}, {"output": np.full((1, 1), 2.0)}) == {"value": 114.0}
    assert describe_sample(model, {}, {"output": np.full((1, 2), 2.0)}) == {"output": [2.0, 2.0]}
    assert describe_sample(model, {}, {"other": np.full((1, 1), 2.0)}) == {"other": [2.0]}
    model.signature["signature"] = {"target_mean": "x"}
    with pytest.raises(RequestError, match="signature.json of the network is damaged"):
        describe_sample(model, {}, {"output": np.full((1, 1), 2.0)})
