"""Recommendation by the server without a run: parts of a batch, and folders of strangers."""

from __future__ import annotations

import re
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.data.features import exported_rows
from mxtrain.data.table import cells
from mxtrain.recommendation.exported_users import ExportedRecommender
from mxtrain.recommendation.served import make_user_reader
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import TensorSpec
from mxtrain.serving.readers import BodyLimits

NUM_USERS, NUM_ITEMS, CANDIDATES = 5, 20, 6
DRAW = np.random.default_rng(0)
TABLE = DRAW.normal(size=NUM_USERS + 4 + NUM_ITEMS + 6).astype(np.float32)
"""A weight of each id: users, 4 of towns, items, 6 of kinds."""
TOWN_U = DRAW.integers(0, 4, (NUM_USERS, 1)).astype(np.int32)
AGE_U = DRAW.normal(size=(NUM_USERS, 1)).astype(np.float32)
KIND_I = DRAW.integers(0, 6, (NUM_ITEMS, 1)).astype(np.int32)
NO_NUMBERS = np.zeros((NUM_ITEMS, 0), np.float32)
USERS = [
    {"name": "town", "kind": "category", "vocabulary": ["Ulm", "Bonn"]},
    {"name": "age", "kind": "number", "mean": 30.0, "std": 10.0},
]
ITEMS = [{"name": "kind", "kind": "hashed", "buckets": 5}]


class Folder:
    """A network that adds a weight of each id of a candidate and its user, and twice the age."""

    def __init__(self, batch: Any = "batch") -> None:
        self.arrays = {
            "user_features.npz": {"ids": TOWN_U, "numbers": AGE_U},
            "item_features.npz": {"ids": KIND_I, "numbers": NO_NUMBERS},
        }
        self.rows: List[int] = []
        own = {
            "shape": [[2 + CANDIDATES * 2], [CANDIDATES]],
            "mean": [],
            "std": [],
            "class_names": [],
            "user_columns": USERS,
            "item_columns": ITEMS,
            "catalog": {
                "users": [f"u{k}" for k in range(NUM_USERS)],
                "items": [f"i{k}" for k in range(NUM_ITEMS)],
                "origin": [],
            },
        }
        self.signature: Dict[str, Any] = {
            "task": "recommendation",
            "signature": own,
            "facts": {"max_history": 3, "split_seed": 0},
            "inputs": [
                {"name": "input0", "dtype": "int32", "shape": [batch, 2 + CANDIDATES * 2]},
                {"name": "input1", "dtype": "float32", "shape": [batch, CANDIDATES]},
            ],
        }

    @property
    def specs(self) -> List[TensorSpec]:
        return [TensorSpec(one["name"], one["dtype"], "", tuple(one["shape"])) for one in self.signature["inputs"]]

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        id_BK, number_BC = inputs["input0"], inputs["input1"]
        assert id_BK.dtype == np.int32 and number_BC.dtype == np.float32
        self.rows.append(len(id_BK))
        of_user = TABLE[id_BK[:, :2]].sum(axis=1, keepdims=True)
        of_item = TABLE[id_BK[:, 2:].reshape(-1, CANDIDATES, 2)].sum(axis=2)
        return {"output": of_user + of_item + 2 * number_BC}

    def read(self, name: str) -> bytes:
        raise AssertionError(name)

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        return self.arrays.get(name, {})


def expected_scores(user: int, town: int, age: float) -> np.ndarray:
    first_item = NUM_USERS + 4
    of_item = TABLE[first_item : first_item + NUM_ITEMS] + TABLE[first_item + NUM_ITEMS + KIND_I[:, 0]]
    return TABLE[user] + TABLE[NUM_USERS + town] + of_item + 2 * age


@pytest.mark.parametrize("batch, rows", [("batch", [4]), (1, [1] * 4)])
def test_scores_match_numpy(batch: Any, rows: List[int]) -> None:
    folder = Folder(batch)
    network = ExportedRecommender(folder)
    request = network.request({"user": "u2", "history": ["i7"]}, "here")
    score_I = network.scores(request, network.all_items())
    np.testing.assert_allclose(score_I, expected_scores(2, TOWN_U[2, 0], AGE_U[2, 0]), rtol=1e-5)
    assert folder.rows == rows
    newer = network.request({"user": "u2", "history": [], "features": {"town": "Bonn", "age": 45}}, "here")
    np.testing.assert_allclose(network.scores(newer, network.all_items()), expected_scores(2, 3, 1.5), rtol=1e-5)
    unseen = network.request({"user": "u2", "history": [], "features": {"town": "Rome", "age": None}}, "here")
    np.testing.assert_allclose(network.scores(unseen, network.all_items()), expected_scores(2, 1, 0.0), rtol=1e-5)


WRONG_LINES: Dict[str, Any] = {
    "name": ({"features": {"town": "Ulm", "aeg": 1}}, "no feature 'aeg'. Did you mean 'age'"),
    "missing": ({"features": {"town": "Ulm"}}, "the feature 'age' is missing; null says that it is not known"),
    "bool": ({"features": {"town": "Ulm", "age": True}}, "'true' in column 'age' is no number"),
    "text": ({"features": {"town": "Ulm", "age": "old"}}, "'old' in column 'age' is no number"),
    "digits": ({"features": {"town": "Ulm", "age": "1_0"}}, "'1_0' in column 'age' is no number"),
    "infinite": ({"features": {"town": "Ulm", "age": "inf"}}, "'inf' in column 'age' is no finite number"),
    "list": ({"features": [1]}, "features must be a JSON object with town, age"),
    "key": ({"feature": {}}, "no key 'feature'. Did you mean 'features'"),
    "user": ({"user": "u22"}, "no user 'u22'. Did you mean 'u2'"),
    "item": ({"history": ["i99x"]}, "no item 'i99x'"),
}


@pytest.mark.parametrize("name", WRONG_LINES)
def test_wrong_lines_are_named(name: str) -> None:
    more, said = WRONG_LINES[name]
    with pytest.raises(ValueError, match=re.escape(said)):
        ExportedRecommender(Folder()).request({"user": "u2", "history": [], **more}, "here")


def test_cells_are_read_by_dataset_settings() -> None:
    folder = Folder()
    folder.signature["facts"].update(missing=["-9"], decimal=",")
    network = ExportedRecommender(folder)
    for town, age, expected in (
        ("-9", "37,5", (0, 0.75)),
        ("NA", "-9", (1, 0.0)),
        ("Ulm", 45.0, (2, 1.5)),
        ("Ulm", "-", (2, 0.0)),
    ):
        request = network.request({"user": "u2", "history": [], "features": {"town": town, "age": age}}, "here")
        score_I = network.scores(request, network.all_items())
        np.testing.assert_allclose(score_I, expected_scores(2, *expected), rtol=1e-5)
    with pytest.raises(ValueError, match=r"'1\.23' in column 'age' is no number"):
        network.request({"user": "u2", "history": [], "features": {"town": "Ulm", "age": "1.23"}}, "here")
    assert exported_rows.MISSING_CELLS == frozenset(cells.MISSING_CELLS)
    assert exported_rows.MISSING_NUMBERS == frozenset(cells.MISSING_NUMBERS)


def test_a_body_is_read_in_parts_of_the_allowed_rows() -> None:
    folder = Folder()
    reader = make_user_reader(folder, folder.specs)
    assert reader is not None and reader.example == '{"user": "u0", "history": ["i0", "i1"]}'
    read = reader.read(b'{"user": "u4", "history": ["i1", "i19"]}', "application/json", BodyLimits(1, 3))
    inputs = [read.inputs, *read.rest]
    assert [len(one["input0"]) for one in inputs] == [3, 1]
    output = np.concatenate([folder.run(one)["output"] for one in inputs])
    row = reader.describe(read.inputs, {"output": output}, read.about)
    score_I = expected_scores(4, TOWN_U[4, 0], AGE_U[4, 0])
    score_I[[1, 19]] = -np.inf
    best = np.argsort(-score_I)[:3]
    assert row == {
        "user": "u4",
        "items": [{"item": f"i{k}", "score": pytest.approx(float(score_I[k]), abs=1e-5)} for k in best],
    }
    for body in (b"[]", b'{"user": "u4"}', b'{"user": 4, "history": []}', b'{"user": "u4", "history": [[]]}'):
        with pytest.raises(RequestError) as error:
            reader.read(body, "application/json", BodyLimits(1, 3))
        assert error.value.status == 400
    with pytest.raises(RequestError, match="no score for some items"):
        reader.describe(read.inputs, {"output": output[:2]}, read.about)


WRONG: Dict[str, Any] = {
    "shape": (KIND_I[:-1], NO_NUMBERS),
    "range": (KIND_I + 6, NO_NUMBERS),
    "negative": (KIND_I - 9, NO_NUMBERS),
    "type": (KIND_I.astype(np.int64), NO_NUMBERS),
    "numbers": (KIND_I, NO_NUMBERS.astype(np.float64)),
}


@pytest.mark.parametrize("name", WRONG)
def test_features_that_do_not_fit_are_refused(name: str) -> None:
    folder = Folder()
    folder.arrays["item_features.npz"] = dict(zip(("ids", "numbers"), WRONG[name]))
    with pytest.raises(ValueError, match="item_features.npz does not hold the features of 20 items"):
        make_user_reader(folder, folder.specs)
    folder.arrays["user_features.npz"] = {"ids": TOWN_U, "numbers": AGE_U * np.nan}
    with pytest.raises(ValueError, match="user_features.npz does not hold the features of 5 users"):
        ExportedRecommender(folder)


def test_signatures_of_unknown_origin_are_refused() -> None:
    folder = Folder()
    folder.signature["signature"]["user_columns"] = [{"name": "x", "kind": "indexed", "buckets": 3, "length": 2}]
    with pytest.raises(ValueError, match="kinds of columns with features are category, hashed, number"):
        make_user_reader(folder, folder.specs)
    folder = Folder()
    folder.signature["inputs"][0]["shape"][1] = 1 << 30
    with pytest.raises(ValueError, match="more than 1,048,576 numbers"):
        make_user_reader(folder, folder.specs)
    folder = Folder()
    folder.signature["signature"]["catalog"]["users"] = ["u0", "u0"]
    with pytest.raises(ValueError, match="users or items are missing or there twice"):
        make_user_reader(folder, folder.specs)
    folder = Folder()
    folder.signature["facts"] = {}
    with pytest.raises(ValueError, match="'facts.max_history' is missing"):
        make_user_reader(folder, folder.specs)
    folder = Folder()
    folder.signature["facts"]["max_history"] = 0
    with pytest.raises(ValueError, match="max_history is 0"):
        make_user_reader(folder, folder.specs)
    folder.signature["inputs"].pop()
    folder.signature["inputs"][0]["shape"].append(4)
    assert make_user_reader(folder, folder.specs) is None
