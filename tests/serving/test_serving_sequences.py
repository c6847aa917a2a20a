"""Histories of items, as the server reads them: without a run, and from folders of strangers."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace
from typing import Any, Dict

import numpy as np
import pytest

from mxtrain.recommendation.served import make_reader
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import TensorSpec
from mxtrain.serving.readers import BodyLimits

ITEMS, WIDTH = 6, 4
SIGNATURE: Dict[str, Any] = {
    "task": "sequential_recommendation",
    "targets": ["NextItem"],
    "signature": {
        "shape": [[WIDTH], []],
        "mean": [],
        "std": [],
        "class_names": [],
        "catalog": {"users": ["u"], "items": [f"i{item}" for item in range(ITEMS)]},
    },
    "facts": {"exclude_seen": False, "baselines": True},
    "inputs": [
        {"name": "items", "dtype": "int32", "shape": ["batch", WIDTH]},
        {"name": "length", "dtype": "float32", "shape": ["batch"]},
    ],
    "outputs": [{"name": "output", "dtype": "float32", "shape": ["batch", ITEMS]}],
}
OPEN = [{**SIGNATURE["inputs"][0], "shape": ["batch", "items"]}, SIGNATURE["inputs"][1]]
"""Inputs of an exported network, which takes histories of any length."""
LIMITS = BodyLimits(1, 8)


def reader_of(**facts: Any) -> Any:
    signature = copy.deepcopy(SIGNATURE)
    signature["facts"].update(facts)
    return made(signature)


def made(signature: Dict[str, Any]) -> Any:
    specs = [TensorSpec(one["name"], one["dtype"], "", tuple(one["shape"])) for one in signature["inputs"]]
    return make_reader(SimpleNamespace(signature=signature), specs)  # type: ignore[arg-type]


def test_history_becomes_inputs_and_scores_become_items() -> None:
    reader = reader_of()
    assert json.loads(reader.example) == {"history": ["i0", "i1"]}
    read = reader.read(b'{"history": ["i5", "i1", "i2", "i2", "i3"]}', "application/json", LIMITS)
    assert {name: array.tolist() for name, array in read.inputs.items()} == {"items": [[1, 2, 2, 3]], "length": [4]}
    assert read.inputs["items"].dtype == np.int32 and read.inputs["length"].dtype == np.float32
    outputs = {"output": np.array([[0.5, 0, 3, 0, 0, 9]], np.float32)}
    items = [{"item": "i5", "score": 9.0}, {"item": "i2", "score": 3.0}, {"item": "i0", "score": 0.5}]
    assert reader.describe(read.inputs, outputs, read.about) == {"items": items}
    named = reader.read(b'{"user": 7, "history": ["i1"]}', "application/json", LIMITS)
    assert reader.describe(named.inputs, outputs, named.about) == {"user": "7", "items": items}
    assert named.inputs["items"].tolist() == [[1, 0, 0, 0]]
    assert reader.describe(read.inputs, outputs, None) is None
    strict = reader_of(exclude_seen=True)
    found = strict.describe(read.inputs, outputs, read.about)
    assert [one["item"] for one in found["items"]] == ["i0", "i4"]
    titled = made({**SIGNATURE, "signature": {**SIGNATURE["signature"], "item_titles": list("abcdef")}})
    (first, *_) = titled.describe(read.inputs, outputs, read.about)["items"]
    assert first == {"item": "i5", "title": "f", "score": 9.0}
    with pytest.raises(RequestError, match="not one score for each item"):
        reader.describe(read.inputs, {"output": np.zeros((1, 3), np.float32)}, read.about)


def test_histories_are_padded_for_an_open_axis() -> None:
    read = made({**SIGNATURE, "inputs": OPEN}).read(b'{"history": ["i5"]}', "application/json", LIMITS)
    assert read.inputs["items"].tolist() == [[5, 0, 0, 0]]


@pytest.mark.parametrize("history", ["[]", '["i66"]', '"i1"', "[[1]]", "1]", "null"])
def test_wrong_bodies_are_refused_without_ids_of_others(history: str) -> None:
    with pytest.raises(RequestError) as error:
        reader_of().read(f'{{"history": {history}}}'.encode(), "application/json", LIMITS)
    assert error.value.status == 400 and "Did you mean" not in str(error.value)


WRONG: Dict[str, Any] = {
    "width": (("signature", "shape"), [[WIDTH + 1], []], "not that of the network's inputs"),
    "none": (("inputs",), OPEN, "the network reads 0 items of a history"),
    "large": (("inputs",), OPEN, "the network reads 2,097,152 items of a history"),
    "lengths": (("inputs",), SIGNATURE["inputs"][:1], "not that of the network's inputs"),
    "more": (("inputs",), [*SIGNATURE["inputs"], SIGNATURE["inputs"][1]], "not that of the network's inputs"),
    "outputs": (("outputs",), [], "the network has no output"),
    "twice": (("signature", "catalog", "items"), ["i0", "i0"], "users or items are missing or there twice"),
    "facts": (("facts",), {}, "exclude_seen"),
    "titles": (("signature", "item_titles"), ["a"], "it has 1 titles for 6 items"),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_signatures_are_refused(name: str) -> None:
    path, value, said = WRONG[name]
    signature = copy.deepcopy(SIGNATURE)
    place = signature
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is OPEN:
        signature["signature"]["shape"] = [[0 if name == "none" else 1 << 21], []]
    with pytest.raises(ValueError, match=re.escape(said)):
        made(signature)
