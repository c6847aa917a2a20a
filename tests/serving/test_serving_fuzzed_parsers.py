"""Malformed bodies and headers, in this process: each gets an error message, none the status 500."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List

import pytest
import served_folders
from served_here import ask

from mxtrain.serving.models import ServedModel

pytestmark = pytest.mark.slow
LENGTH = "inference-header-content-length"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> List[ServedModel]:
    folder = tmp_path_factory.mktemp("fuzzed")
    paths = [served_folders.write_pixels(folder / "pixels"), served_folders.write_ids(folder / "ids")]
    return [ServedModel(path.name, str(path), 1, False, 8, 4.0) for path in paths]


def infer(body: Any, model: str = "ids", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return "POST", f"/v2/models/{model}/infer", {name.replace("_", "-"): one for name, one in headers.items()}, content


TENSOR = {"name": "ids", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}
HALVES: Dict[str, Any] = {
    "id": {"inputs": [TENSOR], "id": "\ud800"},
    "name of an input": {"inputs": [{**TENSOR, "name": "\udfff"}]},
    "name of an output": {"inputs": [TENSOR], "outputs": [{"name": "a\ud800b"}]},
    "key": {"\ud800": 1},
    "datatype": {"inputs": [{**TENSOR, "datatype": "\ud83d"}]},
    "data": {"inputs": [{**TENSOR, "data": ["\ud800"]}]},
    "size": {"inputs": [{**TENSOR, "parameters": {"binary_data_size": "\ud800"}}]},
    "ends": {"inputs": [TENSOR], "id": "\ude00\ud83d"},
}


@pytest.mark.parametrize("action", ["infer", "predict", "generate"])
def test_half_of_a_surrogate_pair_is_refused(models: List[ServedModel], action: str) -> None:
    requests = [
        ("POST", f"/v2/models/ids/{action}", {"content-type": "application/json"}, json.dumps(body).encode())
        for body in HALVES.values()
    ]
    raw = [
        (*request[:3], json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        for request, body in zip(requests, HALVES.values())
    ]
    for status, content, _ in ask(models, *requests, *raw):
        said = json.loads(content)["error"]
        assert status == 400 and ("half of a surrogate" in said or "UTF-8" in said or "writes no text" in said), said
    whole = infer({"inputs": [TENSOR], "id": "\U0001f600 \\ud800"})
    ((status, content, _),) = ask(models, whole)
    assert status == 200 and json.loads(content)["id"] == "\U0001f600 \\ud800"


LENGTHS = ("9" * 5000, "0" * 5000, "9" * 20, "1" * 16, "-1", "+5", "1e3", "", " 5", "5 ", "٣", "0x10", "NaN", "1_0")


def test_absurd_length_headers_are_refused(models: List[ServedModel]) -> None:
    body = json.dumps({"inputs": [TENSOR]}).encode()
    texts = [one for one in LENGTHS if one.isascii()]
    for text, (status, content, _) in zip(
        texts, ask(models, *(infer(body, **{"inference_header_content_length": text}) for text in texts))
    ):
        assert status == 400 and "must be the bytes of the JSON" in json.loads(content)["error"], text
    exact, padded, beyond = ask(
        models,
        *(
            infer(body, **{"inference_header_content_length": text})
            for text in (str(len(body)), f"{len(body):015}", str(len(body) + 1))
        ),
    )
    assert (exact[0], padded[0], beyond[0]) == (200, 200, 400)


STRANGE = (
    None,
    True,
    0,
    -1,
    1.5,
    1e400,
    10**400,
    2**31,
    2**63,
    2**64,
    "",
    "x",
    "\ud800",
    "\0",
    "é",
    [],
    {},
    [[]],
    [{}],
    [None],
    ["a"],
    {"a": 1},
    [[1], [2, 3]],
    [2**31 - 1] * 16,
    [0, 2**31 - 1, 2**31 - 1, 2**31 - 1],
    [1] * 40,
    "9" * 5000,
)
FULL: Dict[str, Any] = {
    "inputs": [{**TENSOR, "parameters": {"binary_data_size": 8}}],
    "id": "a",
    "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
    "parameters": {"binary_data_output": True},
    "text_input": "x",
}


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with something strange at a random place."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice(list(value))
        return {**value, draw.choice((key, key, "x", "\ud800")): mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(STRANGE)


def bodies(count: int) -> List[bytes]:
    draw = random.Random(1)
    found = []
    for number in range(count):
        content = json.dumps(mutated(FULL, draw)).encode()
        if number % 3 == 1:
            place = draw.randrange(len(content))
            content = content[:place] + draw.randbytes(draw.randrange(4)) + content[place + draw.randrange(3) :]
        if number % 7 == 0:
            content = content.decode("latin-1").encode(draw.choice(("utf-8", "utf-16", "utf-32")))
        found.append(content)
    return found


TYPES = (
    "application/json",
    "text/plain",
    "text/csv",
    "image/png",
    "image/jpg",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "application/x-www-form-urlencoded",
    "application/octet-stream",
    "",
)


def test_strange_bodies_are_answered_with_a_sentence(models: List[ServedModel]) -> None:
    draw, requests = random.Random(2), []
    for number, body in enumerate(bodies(600)):
        action = ("infer", "predict", "generate", "generate_stream")[number % 4]
        headers = {"content-type": draw.choice(TYPES)}
        if number % 5 == 0:
            headers[LENGTH] = draw.choice([one for one in LENGTHS if one.isascii()] + [str(len(body) // 2)])
        requests.append(("POST", f"/v2/models/{draw.choice(('ids', 'pixels', 'none', '%00'))}/{action}", headers, body))
    for request, (status, content, _) in zip(requests, ask(models, *requests)):
        assert status < 500, (request, content)
        if status >= 400:
            assert len(json.loads(content)["error"]) > 10, (request, content)


@pytest.mark.parametrize("shape", [[0, 2**31 - 1, 2**31 - 1, 2**31 - 1], [0], [1, 0], [-1], [2**31]])
def test_sizes_that_no_array_has_are_refused(models: List[ServedModel], shape: List[int]) -> None:
    ((status, content, _),) = ask(models, infer({"inputs": [{**TENSOR, "shape": shape, "data": []}]}))
    assert status == 400 and "must be a list of sizes above 0" in json.loads(content)["error"]
