"""Bounds of requests and batches, and the elements of an input that are read for its drift."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, List, Sequence

import numpy as np
import prometheus_client
import pytest

from mxtrain.serving.batching import Batcher
from mxtrain.serving.errors import RequestError
from mxtrain.serving.metrics import InputDrift, ServerMetrics
from mxtrain.serving.models import TensorSpec
from mxtrain.serving.protocol import MAX_ID, parse_infer
from mxtrain.serving.settings import ServeSettings

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
