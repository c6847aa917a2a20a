"""Requests to a real server: what is answered, and what is refused with which words."""

from __future__ import annotations

import io
import json
import re
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import prometheus_client
import pytest
import served_folders
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from served_folders import CLASSES, TABLE, Served, pixels_of

from mxtrain.serving.metrics import InputDrift

pytestmark = pytest.mark.slow

X = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of four models."""
    folder = tmp_path_factory.mktemp("folders")
    makers = {
        "pixels": served_folders.write_pixels,
        "ids": served_folders.write_ids,
        "mixing": served_folders.write_mixing,
        "slow": served_folders.write_slow,
    }
    for name, make in makers.items():
        make(folder / name)
    with Served(*(folder / name for name in makers), "max_body_mb=1", "max_batch=8", "max_pixels=1000000") as server:
        yield server
        assert server.end() == 0
        assert not [row for row in server.log if row["event"] == "error"]


def tensor(**changed: Any) -> Dict[str, Any]:
    """An infer request for `pixels` with something changed."""
    given = {"name": "input", "shape": [1, 1, 4, 4], "datatype": "UINT8", "data": X.ravel().tolist(), **changed}
    return {"inputs": [{name: value for name, value in given.items() if value is not None}]}


def test_metadata_and_health(served: Served) -> None:
    assert served.ask("/v2")[1]["extensions"] == ["binary_tensor_data", "generate"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/pixels/ready", "/v2/models/ids/versions/1/ready"):
        assert served.ask(path)[0] == 200
    _, found, _ = served.ask("/v2/models/pixels")
    assert found["inputs"] == [{"name": "input", "datatype": "UINT8", "shape": [-1, 1, 4, 4]}]
    assert [one["name"] for one in found["outputs"]] == ["output", "probabilities"]
    listed = {one["name"]: one["parameters"] for one in served.ask("/v2/models")[1]["models"]}
    assert {name: one["is_batched"] for name, one in listed.items()} == {
        "pixels": True,
        "ids": True,
        "slow": True,
        "mixing": False,
    }
    assert "image/png" in listed["pixels"]["accepts"] and listed["ids"]["accepts"] == ["application/json"]


def test_json_and_binary_tensors_equal_numpy(served: Served) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 1, 4, 4), dtype=np.uint8)
    expected = pixels_of(images)
    status, found = served.infer("pixels", "input", images, "UINT8")
    assert status == 200
    by_name = {one["name"]: one for one in found["outputs"]}
    assert by_name["probabilities"]["shape"] == [3, 3]
    np.testing.assert_allclose(np.reshape(by_name["probabilities"]["data"], (3, 3)), expected, rtol=1e-5)
    nested = tensor(shape=[3, 1, 4, 4], data=images.tolist())
    assert served.ask("/v2/models/pixels/infer", nested)[1] == found
    head = json.dumps(
        {
            "id": "a-1",
            "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}],
            **tensor(shape=[3, 1, 4, 4], data=None, parameters={"binary_data_size": 48}),
        }
    ).encode()
    status, body, headers = served.ask(
        "/v2/models/pixels/versions/1/infer",
        head + images.tobytes(),
        "application/octet-stream",
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    size = int(headers["inference-header-content-length"])
    said = json.loads(body[:size])
    assert (status, said["id"], said["outputs"][0]["parameters"]) == (200, "a-1", {"binary_data_size": 36})
    np.testing.assert_allclose(np.frombuffer(body[size:], "<f4").reshape(3, 3), expected, rtol=1e-5)


def png(image_HW: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_HW).save(file, "PNG")
    return file.getvalue()


def test_predict_reads_images_and_arrays(served: Served) -> None:
    image = np.random.default_rng(2).integers(0, 256, (4, 4), dtype=np.uint8)
    expected = pixels_of(image[None, None])[0]
    status, found, _ = served.ask("/v2/models/pixels/predict", png(image), "image/png; x=y")
    assert (status, found["class"]) == (200, CLASSES[expected.argmax()])
    assert found["probability"] == pytest.approx(expected.max(), abs=1e-6) and len(found["top"]) == 3
    assert served.ask("/v2/models/pixels/predict", {"input": image[None, None].tolist()})[1] == found
    both = served.ask("/v2/models/pixels/predict", {"input": [X[0].tolist(), image[None].tolist()]})[1]["predictions"]
    assert both[1] == found and both[0]["class"] == CLASSES[pixels_of(X)[0].argmax()]
    ids = served.ask("/v2/models/ids/predict", {"ids": [[1, 2, 3]]})[1]
    np.testing.assert_allclose(ids["output"], TABLE[1:4].mean(axis=0), rtol=1e-5)


def test_concurrent_clients_get_their_own_answers_in_batches(served: Served) -> None:
    wrong: List[str] = []

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(25):
            rows, length = rng.integers(1, 4), rng.choice([3, 7])
            ids = rng.integers(0, 10, (rows, length)).astype(np.int32)
            status, found = served.infer("ids", "ids", ids, "INT32")
            expected = TABLE[ids].mean(axis=1).ravel()
            if status != 200 or not np.allclose(found["outputs"][0]["data"], expected, atol=1e-6):
                wrong.append(f"{status} {found}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    figures = metrics_of(served)
    batches = figures["mxtrain_batch_rows_count", "ids"]
    assert figures["mxtrain_batch_rows_sum", "ids"] > 1.5 * batches, "requests were computed together"


def test_a_refused_request_fails_alone(served: Served) -> None:
    """An id beyond the table fails its whole batch in onnxruntime; the others are computed again."""
    found: Dict[int, Any] = {}

    def client(number: int) -> None:
        ids = np.full((1, 5), 99 if number == 5 else number % 10, np.int32)
        found[number] = served.infer("ids", "ids", ids, "INT32")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[5][0] == 422 and "the network refuses these inputs" in found[5][1]["error"]
    for number in set(range(12)) - {5}:
        np.testing.assert_allclose(found[number][1]["outputs"][0]["data"], TABLE[number % 10], rtol=1e-5)


def metrics_of(served: Served) -> Dict[Any, float]:
    """(name, model) -> value."""
    text = served.ask("/metrics")[1].decode()
    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


NAN = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[%s,1]}]}'
WRONG = {
    "name": ("pixels", tensor(name="inptu"), "no input 'inptu'. Did you mean 'input'"),
    "missing input": ("pixels", {"inputs": []}, "'input' is missing"),
    "type": ("pixels", tensor(datatype="FP32"), "must be UINT8"),
    "rank": ("pixels", tensor(shape=[16]), "has 1 dimensions"),
    "size": ("pixels", tensor(shape=[1, 1, 2, 8]), r"must be \[batch, 1, 4, 4\]"),
    "rows": ("pixels", tensor(shape=[0, 1, 4, 4], data=[]), "must be"),
    "count": ("pixels", tensor(data=[1, 2]), "are 2 numbers; its shape needs 16"),
    "uneven": ("pixels", tensor(data=[[1, 2], [3]]), "nested unevenly"),
    "large": ("pixels", tensor(data=[256] + [0] * 15), "beyond UINT8"),
    "negative": ("pixels", tensor(data=[-1] + [0] * 15), "beyond UINT8"),
    "huge": ("pixels", tensor(data=[10**400] + [0] * 15), "beyond UINT8"),
    "text": ("pixels", tensor(data=["1"] + [0] * 15), "hold str"),
    "float": ("pixels", tensor(data=[1.5] + [0] * 15), "hold float"),
    "bool": ("pixels", tensor(data=[True] + [0] * 15), "hold bool"),
    "null": ("pixels", tensor(data=[None] + [0] * 15), "hold NoneType"),
    "no data": ("pixels", tensor(data=None), "no list of numbers"),
    "overflowing shape": ("pixels", tensor(shape=[2**31, 2**31]), "list of sizes"),
    "product": ("pixels", tensor(shape=[2**30] * 16), "its shape needs"),
    "bool shape": ("pixels", tensor(shape=[True, 1, 4, 4]), "list of sizes"),
    "binary size": ("pixels", tensor(data=None, parameters={"binary_data_size": 10**9}), "need 16 bytes"),
    "no binary": ("pixels", tensor(data=None, parameters={"binary_data_size": 16}), "0 bytes are left"),
    "output": ("pixels", {**tensor(), "outputs": [{"name": "no"}]}, "no output 'no'"),
    "id": ("pixels", {**tensor(), "id": "x" * 300}, "id must be"),
    "twice": ("pixels", {"inputs": tensor()["inputs"] * 2}, "a name of its own"),
    "NaN": ("mixing", NAN % b"NaN", "holds NaN"),
    "infinity": ("mixing", NAN % b"1e999", "not finite"),
    "beyond float32": ("mixing", NAN % b"1e300", "not finite"),
    "no JSON": ("mixing", b"{", "no JSON"),
    "list": ("mixing", b"[]", "no JSON object"),
    "deep": ("mixing", b'{"a":' * 100_000, "nested too deeply"),
    "long number": ("mixing", b'{"a":' + b"1" * 10_000 + b"}", "no JSON"),
    "bytes": ("mixing", b"\xff\xfe\x00{", "no "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_are_refused_with_a_sentence(served: Served, name: str) -> None:
    model, body, said = WRONG[name]
    status, found, headers = served.ask(f"/v2/models/{model}/infer", body)
    assert status == 400
    assert re.search(said, found["error"]), found
    assert "retry-after" not in headers


def test_other_wrong_requests_are_refused(served: Served) -> None:
    def refused(path: str, *rest: Any, **more: Any) -> Any:
        status, found, _ = served.ask(path, *rest, **more)
        return status, found["error"]

    assert refused("/v2/models/pixel") == (
        404,
        "there is no model 'pixel'. Did you mean 'pixels'? Models: pixels, ids, mixing, slow.",
    )
    assert refused("/v2/models/pixels/versions/2")[0] == 404
    assert refused("/v3")[0] == 404 and refused("/v2", {})[0] == 405
    assert refused("/v2/models/pixels/predict", b"x", "text/plain")[0] == 415
    assert refused("/v2/models/pixels/infer", tensor(), headers={"Content-Encoding": "gzip"})[0] == 415
    assert refused("/v2/models/pixels/infer", tensor(shape=[9, 1, 4, 4], data=[0] * 144))[0] == 413
    status, said = refused(
        "/v2/models/ids/infer", {"inputs": [{"name": "ids", "shape": [1, 25], "datatype": "INT32", "data": [0] * 25}]}
    )
    assert (status, said) == (413, "the input 'ids' has the length 25; at most 24 are taken.")
    for length in ("x", "-1", "99999", "9" * 100, "+1"):
        head = {"Inference-Header-Content-Length": length}
        assert refused("/v2/models/pixels/infer", b"{}", headers=head)[0] == 400
    status, said = refused(
        "/v2/models/pixels/infer",
        json.dumps(tensor()).encode() + b"rest",
        headers={"Inference-Header-Content-Length": str(len(json.dumps(tensor())))},
    )
    assert (status, said) == (400, "4 bytes at the end of the body belong to no input.")
    for body in (b"{}" + b" " * 1_100_000, iter([b" " * 100_000] * 20)):  # the second one without Content-Length
        assert refused("/v2/models/pixels/infer", body) == (413, "the body has more than 1,000,000 bytes.")


def bomb(side: int) -> bytes:
    """A PNG of side x side pixels in a few kB."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packed, packer = b"", zlib.compressobj(9)
    for _ in range(side):
        packed += packer.compress(bytes(1 + side // 8))
    packed += packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_image_bombs_and_broken_images(served: Served) -> None:
    status, found, _ = served.ask("/v2/models/pixels/predict", bomb(8000), "image/png")
    said = "the body cannot be read as an image (it has 8000 x 8000 pixels, and at most 1,000,000 are read)."
    assert (status, found["error"]) == (413, said)
    assert served.ask("/v2/models/pixels/predict", bomb(800), "image/png")[0] == 200
    whole = png(np.random.default_rng(3).integers(0, 256, (40, 40), dtype=np.uint8))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    for broken in (whole[:800], whole[:60], b"", b"GIF89a", eps, b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        status, found, _ = served.ask("/v2/models/pixels/predict", broken, "image/png")
        assert status == 400 and "cannot be read as an image" in found["error"], found


def test_metrics_count_and_show_drift(served: Served) -> None:
    def counted() -> Dict[Any, float]:
        text = served.ask("/metrics")[1].decode()
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    key = ("mxtrain_requests_total", "/v2/models/{name}/infer", "200", "pixels")
    before = counted()
    served.infer("pixels", "input", np.full((1, 1, 4, 4), 120, np.uint8), "UINT8")
    between = counted()
    assert between[key] == before[key] + 1
    for _ in range(60):
        served.infer("pixels", "input", np.full((8, 1, 4, 4), 255, np.uint8), "UINT8")
    after = counted()
    drift = ("mxtrain_input_drift", "input", "pixels")
    assert after[drift] > between[drift] + 2
    paths = {key[1] for key in after if key[0] == "mxtrain_requests_total"}
    assert len(paths) < 20, "a client's text is never a label"


def test_one_request_of_huge_numbers_does_not_decide_the_drift() -> None:
    expected = {"m": {"x": (5.0, 2.0)}}
    drift = InputDrift(
        expected,
        prometheus_client,
        {"registry": (registry := prometheus_client.CollectorRegistry()), "labelnames": ["model"]},
    )
    values = np.array([3.0, 7.0], np.float32)
    drift.observe("m", {"x": values})
    drift.observe("m", {"x": np.array([3e38, 3e38], np.float32)})

    def value(name: str) -> float:
        return registry.get_sample_value(f"mxtrain_input_{name}", {"model": "m", "input": "x"}) or 0.0

    mean = 0.99 * 5 + 0.01 * 25
    assert (value("mean"), value("drift")) == (pytest.approx(mean), pytest.approx((mean - 5) / 2))
    deviation = (0.99 * 29 + 0.01 * 625 - mean**2) ** 0.5
    assert value("spread") == pytest.approx(deviation / 2)
    for _ in range(300):
        drift.observe("m", {"x": values})
    assert value("drift") < 0.01


def test_logs_are_json_lines_for_any_request(served: Served) -> None:
    served.ask("/v2/models/x%0a%7b%22event%22:%22fake%22%7d", headers={"X-Request-ID": "my-id"})
    end = time.monotonic() + 10  # the answer may arrive before the line
    while not (rows := [row for row in served.log if row.get("request_id") == "my-id"]) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(rows) == 1 and rows[0]["status"] == 404 and rows[0]["event"] == "request"
    assert not [row for row in served.log if row["event"] == "fake"]


def test_openapi_lists_all_routes_and_page_is_self_contained(served: Served) -> None:
    described = served.ask("/openapi.json")[1]
    assert "/v2/models/{name}/infer" in described["paths"] and "/metrics" in described["paths"]
    body = described["paths"]["/v2/models/{name}/predict"]["post"]["requestBody"]["content"]
    assert {"application/json", "image/png"} <= set(body)
    status, page, headers = served.ask("/")
    assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in page and b"https://" not in page
    assert served.ask("/docs")[0] == 404  # FastAPI's loads scripts from another host


def test_the_server_needs_no_mxnet(served: Served) -> None:
    maps = Path(f"/proc/{served.process.pid}/maps").read_text()
    assert "onnxruntime" in maps and "libmxnet" not in maps
