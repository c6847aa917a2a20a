"""Copies through reused buffers, with CPU devices in the place of page-locked memory and of a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mxtrain.dataset.loading import placing
from mxtrain.dataset.loading.placing import Placer, copy_to
from mxtrain.dataset.loading.staging import Staging
from mxtrain.engine.backend import mx, nd

HOST, DEVICE = mx.cpu(0), mx.cpu(1)


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


def test_buffers_are_few_whatever_the_lengths() -> None:
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


def test_views_and_strides_and_nothing() -> None:
    staging = Staging(HOST, DEVICE)
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(staging.copy(array.transpose(2, 0, 1)).asnumpy(), array.transpose(2, 0, 1))
    np.testing.assert_array_equal(staging.copy(array[:, ::2]).asnumpy(), array[:, ::2])


def test_only_gpus_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        """As far as `copy_to` looks."""

        device_type = "gpu"

    used = []
    monkeypatch.setattr(placing, "staging_for", lambda device: used.append(device) or Staging(HOST, DEVICE))
    assert copy_to(np.ones(3, np.float32), DEVICE).context == DEVICE and not used
    gpu = Gpu()
    assert copy_to(np.ones(3, np.float32), gpu).asnumpy().tolist() == [1, 1, 1] and used == [gpu]


def test_scale_and_shift_reach_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placer = Placer(3, (3, 4, 4), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], DEVICE)
    shapes = []
    monkeypatch.setattr(placing, "copy_to", lambda array, device: shapes.append(array.shape) or copy_to(array, device))
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), np.uint8)
    for _ in range(3):
        found = placer._finish_on_device(image).asnumpy()
    assert shapes == [(2, 3, 4, 4), (1, 3, 1, 1), (1, 3, 1, 1), (2, 3, 4, 4), (2, 3, 4, 4)]
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    np.testing.assert_allclose(found, (image / 255 - mean) / std, rtol=1e-5, atol=1e-5)
