"""Bounds of requests and batches, and the elements of an input that are read for its drift."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, List, Sequence

import numpy as np
import prometheus_client
import pydantic
import pytest
import served_folders
from PIL import Image
from served_here import ask

from mxtrain.config import libraries
from mxtrain.errors import DataError
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.serving import service
from mxtrain.serving.batching import Batcher
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generation import Generation
from mxtrain.serving.generators import TextPiece, require_described
from mxtrain.serving.logs import SERVED
from mxtrain.serving.metrics import InputDrift, ServerMetrics
from mxtrain.serving.models import ServedModel, TensorSpec
from mxtrain.serving.protocol import MAX_ID, parse_generate, parse_infer, parse_json
from mxtrain.serving.readers import require_tokenizer_libraries
from mxtrain.serving.service import PendingBodies
from mxtrain.serving.spec import ServeSettings

SPEC = TensorSpec("x", "float32", "FP32", ("batch", 2))
MODEL: Any = SimpleNamespace(name="m", is_batched=True, inputs=[SPEC], outputs=[SPEC], statistics={}, generator=None)


def body(shape: Sequence[int], data: List[float], **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(shape), "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def test_longest_id() -> None:
    assert parse_infer(body((1, 2), [1, 2], id="i" * MAX_ID), None, MODEL, 10_000).id == "i" * MAX_ID
    with pytest.raises(RequestError, match="at most 200 characters"):
        parse_infer(body((1, 2), [1, 2], id="i" * (MAX_ID + 1)), None, MODEL, 10_000)


def test_longest_json() -> None:
    sent = body((1, 2), [1, 2])
    for header in (None, str(len(sent))):
        np.testing.assert_array_equal(parse_infer(sent, header, MODEL, len(sent)).inputs["x"], [[1, 2]])
    with pytest.raises(RequestError) as caught:
        parse_infer(sent, None, MODEL, len(sent) - 1)
    assert caught.value.status == 413
    with pytest.raises(RequestError, match=f"'{len(sent) + 1}'; it must be the bytes"):
        parse_infer(sent, str(len(sent) + 1), MODEL, 10_000)


def test_sizes_out_of_range() -> None:
    for size in (0, -1):
        with pytest.raises(RequestError, match="must be a list of sizes above 0"):
            parse_infer(body((size, 2), []), None, MODEL, 10_000)
    with pytest.raises(RequestError, match="must be a list of sizes"):
        parse_infer(body((2**31, 2), []), None, MODEL, 10_000)


def collected(*rows: int) -> List[List[int]]:
    """Returns the sizes of the requests of each batch if at most 4 samples share one."""

    async def collect() -> List[List[int]]:
        batcher = Batcher(MODEL, ServeSettings(max_batch=4), ServerMetrics([MODEL]))
        waiting = [asyncio.ensure_future(batcher.compute({"x": np.zeros((count, 2))}, count)) for count in rows]
        await asyncio.sleep(0)
        batches = []
        while batcher._waiting:
            jobs = await batcher._collect()
            batches.append([job.rows for job in jobs])
            for job in jobs:
                job.answer.set_result(job.inputs)
        await asyncio.gather(*waiting)
        await batcher.close()
        return batches

    return asyncio.run(collect())


def test_batches_are_filled() -> None:
    assert collected(2, 2, 1) == [[2, 2], [1]]
    assert collected(3, 2, 1) == [[3, 1], [2]]
    assert collected(5, 1) == [[5], [1]]  # a request is never divided


def test_drift_reads_all_columns() -> None:
    registry = prometheus_client.CollectorRegistry()
    drift = InputDrift({"m": {"x": (0.5, 0.5)}}, prometheus_client, {"registry": registry, "labelnames": ["model"]})
    drift.observe("m", {"x": np.tile(np.float32([0, 1]), (5000, 1))})  # 10,000 numbers: every third one is read
    assert registry.get_sample_value("mxtrain_input_mean", {"model": "m", "input": "x"}) == pytest.approx(0.5, abs=1e-3)


def test_drift_is_measured_in_standard_deviations_of_the_proof() -> None:
    registry = prometheus_client.CollectorRegistry()
    drift = InputDrift({"m": {"x": (0.5, 0.25)}}, prometheus_client, {"registry": registry, "labelnames": ["model"]})
    drift.observe("m", {"x": np.float32([[0.5, 1.5]] * 50)})  # mean 1, standard deviation 0.5
    found = {
        name: registry.get_sample_value(f"mxtrain_input_{name}", {"model": "m", "input": "x"})
        for name in ("mean", "deviation", "drift", "spread")
    }
    assert found == pytest.approx({"mean": 1, "deviation": 0.5, "drift": 2, "spread": 2})


def test_half_of_a_surrogate_pair_is_refused() -> None:
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        parse_json(b'{"a": "\\ud83d"}')


def test_inputs_that_the_network_refuses_are_the_fault_of_the_request() -> None:
    def refuse(names: Any, inputs: Any, options: Any) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : odd")

    async def answer() -> Any:
        model = SimpleNamespace(**{**vars(MODEL), "session": SimpleNamespace(run=refuse)})
        batcher = Batcher(model, ServeSettings(), ServerMetrics([model]))  # type: ignore[list-item,arg-type]
        batcher.start()
        try:
            await asyncio.wait_for(batcher.compute({"x": np.zeros((1, 2))}, 1), 20)
        finally:
            await batcher.close()

    with pytest.raises(RequestError, match="the network refuses these inputs: .*odd") as caught:
        asyncio.run(answer())
    assert caught.value.status == 422


@pytest.mark.parametrize("count, is_counted", [(100, True), (101, False)])
def test_answers_are_counted_by_class_up_to_a_number_of_classes(tmp_path: Path, count: int, is_counted: bool) -> None:
    names = ["no", "yes", *map(str, range(count - 2))]
    folder = served_folders.write_rows(tmp_path / "rows", class_names=names)
    model = ServedModel("rows", str(folder), 1, False, 8, 4.0)
    sent = json.dumps({"town": "Bonn", "age": 48.5, "visits": 6}).encode()
    (status, answer, _), (_, figures, _) = ask(
        [model],
        ("POST", "/v2/models/rows/predict", {"content-type": "application/json"}, sent),
        ("GET", "/metrics", {}, b""),
    )
    assert status == 200 and json.loads(answer)["class"] in names
    assert (b'mxtrain_predicted_total{class_name="' in figures) == is_counted


def test_samples_of_files_are_described_in_a_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: List[bool] = []

    def note(*given: Any) -> Any:
        used.append(threading.current_thread() is not threading.main_thread())
        return describe_sample(*given)

    describe_sample = service.describe_sample
    monkeypatch.setattr(service, "describe_sample", note)
    model = ServedModel("pixels", str(served_folders.write_pixels(tmp_path / "pixels")), 1, False, 8, 4.0)
    image = io.BytesIO()
    Image.new("L", (4, 4)).save(image, "png")
    array = {"input": [[[[0] * 4] * 4]]}
    path = "/v2/models/pixels/predict"
    found = ask(
        [model],
        ("POST", path, {"content-type": "image/png"}, image.getvalue()),
        ("POST", path, {"content-type": "application/json"}, json.dumps(array).encode()),
    )
    assert [status for status, _, _ in found] == [200, 200], found
    assert used == [True, False]


def test_a_request_without_an_answer_in_time_is_refused() -> None:
    async def wait() -> None:
        batcher = Batcher(MODEL, ServeSettings(timeout_s=0.05), ServerMetrics([MODEL]))  # computes nothing
        try:
            await asyncio.wait_for(batcher.compute({"x": np.zeros((1, 2))}, 1), 20)
        finally:
            await batcher.close()

    with pytest.raises(RequestError, match=r"no answer within 0\.05 s") as caught:
        asyncio.run(wait())
    assert caught.value.status == 504


class Defaults(pydantic.BaseModel):
    max_tokens: int = 8
    temperature: float = 1.0


def test_unknown_fields_of_generate_are_named() -> None:
    generator: Any = SimpleNamespace(defaults=Defaults(), most_tokens=None)
    call = parse_generate(b'{"text_input": "a", "parameters": {"max_tokens": 3}}', generator, False, 100)
    assert (call.text, call.parameters) == ("a", Defaults(max_tokens=3))
    with pytest.raises(RequestError, match="no field 'text_inputs'. Did you mean 'text_input'"):
        parse_generate(b'{"text_inputs": "a"}', generator, False, 100)
    with pytest.raises(RequestError, match="no parameter 'max_token'. Did you mean 'max_tokens'"):
        parse_generate(b'{"text_input": "a", "parameters": {"max_token": 3}}', generator, False, 100)


def test_a_text_that_takes_too_long_is_refused() -> None:
    def generate(folder: Any, text: str, parameters: Any) -> Iterator[Any]:
        while folder._reason is None:  # as a long call of the network, which `stop` ends
            time.sleep(0.01)
        yield TextPiece("late", 1, "")

    async def first_piece() -> Any:
        generator = SimpleNamespace(generate=generate)
        model: Any = SimpleNamespace(**{**vars(MODEL), "signature": {}, "generator": generator})
        call: Any = SimpleNamespace(text="", parameters=None)
        with ThreadPoolExecutor(1) as threads:
            generation = Generation(model, call, threads, 0.05, ServerMetrics([MODEL]))
            pieces = generation.pieces()
            assert (await pieces.__anext__()).text == "late"
            await asyncio.wait_for(pieces.__anext__(), 20)

    with pytest.raises(RequestError, match=r"the text took longer than 0\.05 s") as caught:
        asyncio.run(first_piece())
    assert caught.value.status == 504


def test_after_a_defect_requests_are_refused_and_later_ones_computed(caplog: pytest.LogCaptureFixture) -> None:
    async def answer() -> Any:
        session = SimpleNamespace(run=lambda names, inputs, options: [inputs["x"]])
        model: Any = SimpleNamespace(**{**vars(MODEL), "session": session})
        batcher = Batcher(model, ServeSettings(), ServerMetrics([model]))
        answer_jobs, failed = batcher._answer, []

        async def fail_once(jobs: Any) -> None:
            if not failed:
                failed.append(jobs)
                raise KeyError("a defect")
            await answer_jobs(jobs)

        batcher._answer = fail_once  # type: ignore[method-assign]
        batcher.start()
        try:
            with pytest.raises(RequestError, match="Its log says more") as caught:
                await asyncio.wait_for(batcher.compute({"x": np.zeros((1, 2))}, 1), 5)
            assert caught.value.status == 500
            return await asyncio.wait_for(batcher.compute({"x": np.ones((1, 2))}, 1), 5)
        finally:
            await batcher.close()

    SERVED.addHandler(caplog.handler)
    try:
        outputs, _ = asyncio.run(answer())
    finally:
        SERVED.removeHandler(caplog.handler)
    assert outputs["x"].tolist() == [[1, 1]]
    (record,) = {id(one): one for one in caplog.records}.values()
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "error")
    assert record.__dict__["fields"] == {"model": "m", "error": "'a defect'"}
    assert record.exc_info and isinstance(record.exc_info[1], KeyError)


def test_requests_of_clients_that_have_left_are_not_computed() -> None:
    async def collect() -> int:
        batcher = Batcher(MODEL, ServeSettings(), ServerMetrics([MODEL]))
        left, waiting = (asyncio.ensure_future(batcher.compute({"x": np.zeros((1, 2))}, 1)) for _ in range(2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        jobs = await batcher._collect()
        for job in jobs:
            if not job.answer.done():
                job.answer.set_result(job.inputs)
        await waiting
        await batcher.close()
        return len(jobs)

    assert asyncio.run(collect()) == 1


def test_closing_ends_the_thread_of_a_model() -> None:
    model: Any = SimpleNamespace(**{**vars(MODEL), "name": "closed"})
    batcher = Batcher(model, ServeSettings(), ServerMetrics([model]))
    (thread,) = (one for one in threading.enumerate() if one.name == "run-closed")
    asyncio.run(batcher.close())
    thread.join(5)
    is_alive = thread.is_alive()
    batcher._thread.close()  # otherwise a failure would keep the interpreter
    assert not is_alive


def test_bodies_in_memory_are_limited_together() -> None:
    shown: List[int] = []
    bodies = PendingBodies(100, SimpleNamespace(set=shown.append))
    bodies.add(60)
    bodies.add(40)
    with pytest.raises(RequestError, match="too many bodies are in memory") as caught:
        bodies.add(1)
    assert caught.value.status == 503
    bodies.add(-40)
    bodies.add(1)
    assert shown == [60, 100, 60, 61]


def test_inputs_of_parts_match_the_signature_and_have_a_largest_size() -> None:
    session = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="x")])

    def check(name: str, *shape: Any) -> None:
        require_described("step", {"inputs": [{"name": name, "shape": list(shape)}]}, session)

    check("x", "rows", 1 << 13, 1 << 13)
    with pytest.raises(UnusableFolder, match="the inputs of step have the shape"):
        check("x", "rows", (1 << 26) + 1)
    with pytest.raises(UnusableFolder, match=r"the inputs of step are not those of step\.onnx"):
        check("y", "rows", 2)


@pytest.mark.parametrize("file, needed", [("t.json", "tokenizers"), ("t.model", "sentencepiece")])
def test_other_versions_of_tokenizers_are_refused(monkeypatch: pytest.MonkeyPatch, file: str, needed: str) -> None:
    monkeypatch.setattr(libraries, "wrong_versions", lambda texts: ((text, "it", "0.1") for text in texts))
    with pytest.raises(DataError, match=f"^this network's tokenizer needs {needed}.*, and it 0.1 is installed"):
        require_tokenizer_libraries({"facts": {"tokenizer": {"file": file}}})
