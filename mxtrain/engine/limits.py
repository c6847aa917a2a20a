"""Measures the highest speed of this machine, with the engine, the threads and the kernels of this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, List, Sequence

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.engine.device_limits import Limits

if TYPE_CHECKING:
    from mxnet import Context

SIDE = 2048
"""The side of the matrices that are multiplied."""
ELEMENTS = 32 << 20
"""The size of the arrays that are copied: more than caches hold."""
CALLS, ATTEMPTS = 4, 5
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""MXNet's name for it; numpy has none."""


def measure_limits(devices: Sequence[Context], low_dtype: str) -> Limits:
    """Keeps all devices (mxnet Contexts) busy for a second or two.

    Args:
        devices: those that compute together; the limits are of each of them while all of them work.
        low_dtype: the format of `Limits.low_flops`, e.g. "bfloat16".
    """
    flops = low = _flops_per_s(devices, "float32")
    if low_dtype != "float32":
        low = _flops_per_s(devices, low_dtype)
    # Each element has 4 bytes, and is read once and written once.
    moved = 2.0 * 4 * ELEMENTS / min(_best_s(devices, _copy), _best_s(devices, _scale))
    return Limits(flops, low, moved)


def _flops_per_s(devices: Sequence[Context], dtype: str) -> float:
    return 2.0 * SIDE**3 / _best_s(devices, lambda device: _product(device, dtype))


def _product(device: Context, dtype: str) -> Callable[[], None]:
    number_format = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    x, weight, y = (nd.ones((SIDE, SIDE), ctx=device).astype(number_format) for _ in range(3))
    # Not nd.dot, which has no bfloat16 on a CPU.
    return lambda: nd.FullyConnected(x, weight, no_bias=True, num_hidden=SIDE, out=y)


def _copy(device: Context) -> Callable[[], None]:
    x, y = (nd.zeros((ELEMENTS,), ctx=device) for _ in range(2))
    return lambda: x.copyto(y)


def _scale(device: Context) -> Callable[[], None]:
    x, y = (nd.zeros((ELEMENTS,), ctx=device) for _ in range(2))
    return lambda: nd.elemwise_add(x, x, out=y)  # reads one array, writes another


def _best_s(devices: Sequence[Context], build: Callable[[Context], Callable[[], None]]) -> float:
    """Seconds of a call, each device making its own at the same time."""
    calls = [build(device) for device in devices]
    found: List[float] = []
    for _ in range(ATTEMPTS + 1):
        nd.waitall()
        begin = time.perf_counter()
        for _ in range(CALLS):
            for call in calls:
                call()
        nd.waitall()
        found.append((time.perf_counter() - begin) / CALLS)
    return min(found[1:])  # the first attempt also touches the memory and builds the kernels
