"""Copies through reused buffers, with CPU devices in the place of page-locked memory and of a GPU."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, List

import numpy as np
import pytest

from mxtrain.data.loading import placing, staging
from mxtrain.data.loading.placing import copy_to, place
from mxtrain.data.loading.staging import BUFFERS, Staging
from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.vision.images import placer as placer_of_images
from mxtrain.vision.images.placer import Placer

HOST, DEVICE = mx.cpu(0), mx.cpu(1)
MOMENT_S = 0.3


class Gate(mx.operator.CustomOp):
    """Computes once it is opened."""

    opened = threading.Event()

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        assert self.opened.wait(30)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("mxtrain_test_gate")
class GateProperties(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Gate:
        return Gate()


@pytest.fixture
def standing_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No copy to the device can begin until the event is set: what is copied to is still being written."""
    Gate.opened.clear()

    def copyto(array: nd.NDArray, target: Any) -> nd.NDArray:
        if not isinstance(target, mx.Context):
            return plain(array, target)  # the gate itself copies
        busy = nd.Custom(nd.zeros(array.shape, ctx=target, dtype=array.dtype), op_type="mxtrain_test_gate")
        return plain(array, busy)

    plain = nd.NDArray.copyto
    monkeypatch.setattr(nd.NDArray, "copyto", copyto)
    yield Gate.opened
    Gate.opened.set()
    nd.waitall()


def test_copies_wait_only_when_all_buffers_are_in_use(standing_still: threading.Event) -> None:
    """And then the buffer that is used again still has what was put there first."""
    buffers, array, found = Staging(HOST, DEVICE), np.zeros((64, 33), np.float32), []

    def produce() -> None:
        for number in range(5 * BUFFERS):
            array[:] = number
            found.append(buffers.copy(array))

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(MOMENT_S)
    assert producer.is_alive() and len(found) == BUFFERS
    standing_still.set()
    producer.join(30)
    assert [(one.asnumpy().min(), one.asnumpy().max()) for one in found] == [(n, n) for n in range(5 * BUFFERS)]


@pytest.mark.parametrize("granted", [0, 1])
def test_missing_page_locked_memory_is_reported_once(
    granted: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty, asked = nd.empty, []

    def refuse(shape: Any, ctx: Any = None, dtype: Any = "float32") -> nd.NDArray:
        if ctx.device_type == "cpu_pinned":
            asked.append(ctx.device_id)
            if len(asked) > granted:
                raise mx.MXNetError("Check failed: e == cudaSuccess (2 vs. 0) : CUDA: out of memory")
        return empty(shape, ctx=ctx, dtype=dtype)

    monkeypatch.setattr(staging.nd, "empty", refuse)
    buffers = placing.staging_for.__wrapped__(DEVICE)
    with caplog.at_level(logging.WARNING):
        for number, size in enumerate((10, 11, 12, 13, 14, 1000, 1)):
            assert buffers.copy(np.full(size, number, np.float32)).asnumpy().tolist() == [number] * size
    assert asked == [1] * (granted + 1)  # of the GPU's own number: gpu(0) may be another process's
    assert len(caplog.records) == 1 and "out of memory" in caplog.text and "cpu(1)" in caplog.text


def test_copy_is_bit_exact_and_not_recorded() -> None:
    special = np.array([np.nan, np.inf, -0.0, 1e-42], np.float32)
    with autograd.record():
        found = Staging(HOST, DEVICE).copy(special)
    assert found.asnumpy().tobytes() == special.tobytes()
    with pytest.raises(Exception, match="not part of a computation graph"):
        autograd.get_symbol(found)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32"])
def test_no_array_is_overwritten_before_it_arrived(count: int, dtype: str) -> None:
    """Five hundred copies are put into the engine without waiting for one, each with another content."""
    staging, found = Staging(HOST, DEVICE, count), []
    array = np.zeros((64, 257), dtype)
    for number in range(500):
        array[:] = number % 251
        found.append(staging.copy(array))  # and the array is used again at once
    assert all(one.context == DEVICE and one.dtype == np.dtype(dtype) for one in found)
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one.asnumpy(), np.full((64, 257), number % 251, dtype))


def test_buffers_are_few_for_any_lengths() -> None:
    staging = Staging(HOST, DEVICE, 2)
    for length in [*range(1, 129), *range(1, 129)]:
        assert staging.copy(np.zeros((8, length), np.float32)).shape == (8, length)
    assert staging.num_bytes == 2 * 4 * sum(8 * 2**power for power in range(8))


def test_threads_share_them() -> None:
    staging = Staging(HOST, DEVICE, 2)

    def send(number: int) -> nd.NDArray:
        return staging.copy(np.full((1000,), number, np.float32))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(send, range(400)))
    assert [float(one.asnumpy().min()) for one in found] == [float(one.asnumpy().max()) for one in found]
    assert [int(one.asnumpy()[0]) for one in found] == list(range(400))


def test_views_and_strides_are_copied() -> None:
    staging = Staging(HOST, DEVICE)
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(staging.copy(array.transpose(2, 0, 1)).asnumpy(), array.transpose(2, 0, 1))
    np.testing.assert_array_equal(staging.copy(array[:, ::2]).asnumpy(), array[:, ::2])


def test_only_gpus_have_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        """A device with the attributes that `copy_to` reads."""

        device_type = "gpu"

    used = []
    monkeypatch.setattr(placing, "staging_for", lambda device: used.append(device) or Staging(HOST, DEVICE))
    assert copy_to(np.ones(3, np.float32), DEVICE).context == DEVICE and not used
    gpu = Gpu()
    assert copy_to(np.ones(3, np.float32), gpu).asnumpy().tolist() == [1, 1, 1] and used == [gpu]


def test_scale_and_shift_reach_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placer = Placer(3, (3, 4, 4), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], DEVICE)
    shapes = []
    monkeypatch.setattr(
        placer_of_images, "copy_to", lambda array, device: shapes.append(array.shape) or copy_to(array, device)
    )
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), np.uint8)
    for _ in range(3):
        found = placer._finish_on_device(image).asnumpy()
    assert shapes == [(2, 3, 4, 4), (1, 3, 1, 1), (1, 3, 1, 1), (2, 3, 4, 4), (2, 3, 4, 4)]
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    np.testing.assert_allclose(found, (image / 255 - mean) / std, rtol=1e-5, atol=1e-5)


def test_an_array_that_is_input_and_target_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: List[int] = []
    monkeypatch.setattr(placing, "copy_to", lambda array, device: copied.append(id(array)) or copy_to(array, device))
    token_BT, label_BT, size_B = np.ones((2, 3), np.int32), np.zeros((2, 3), np.float32), np.ones(2, np.float32)
    inputs, targets = place(DEVICE, (token_BT, label_BT), (label_BT, size_B))
    assert copied == [id(token_BT), id(label_BT), id(size_B)] and inputs[1] is targets[0]
    assert inputs[0].dtype == np.int32 and inputs[0].context == targets[1].context == DEVICE
    assert place(DEVICE, inputs, targets) == (inputs, targets) and len(copied) == 3
