"""Measures the peak FLOPS and memory bandwidth of this machine, with the engine and threads of this process."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Sequence

import numpy as np

from mxtrain.engine.backend import nd

if TYPE_CHECKING:
    from mxnet import Context


@dataclass(frozen=True)
class Limits:
    """Peak speed of a device.

    Attributes:
        flops: floating-point operations per second in float32; a multiplication and an addition are two.
        low_flops: the same in the low precision of the run; equal to `flops` without mixed precision.
        bytes_per_s: bytes read and written per second, together.
    """

    flops: float
    low_flops: float
    bytes_per_s: float


class Effort(NamedTuple):
    """Sizes and repetitions of a measurement.

    Attributes:
        side: rows and columns of the matrices that are multiplied.
        elements: elements of the arrays that are copied; more than the caches can store.
        calls: number of calls that are timed together.
        attempts: number of timings, of which the best counts.
    """

    side: int
    elements: int
    calls: int
    attempts: int


THOROUGH, QUICK = Effort(2048, 32 << 20, 4, 5), Effort(1024, 8 << 20, 1, 3)
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""The dtype as MXNet describes it to NumPy, which has no bfloat16."""


def measure_limits(devices: Sequence[Context], low_dtype: str, quick: bool = False) -> Limits:
    """Measures the limits of devices. Keeps all of them busy for one or two seconds, or a tenth of that if `quick`.

    Args:
        devices: devices that compute at the same time. The limits are those of each one while all are busy.
        low_dtype: dtype of `Limits.low_flops`, e.g. "bfloat16".
        quick: whether to use smaller sizes and fewer repetitions.
    """
    effort = QUICK if quick else THOROUGH
    # Measured in the process of the run: a processor's nominal peak ignores the number of threads and other load.
    flops = low = _flops_per_s(devices, "float32", effort)
    if low_dtype != "float32":
        low = _flops_per_s(devices, low_dtype, effort)
    moves = [functools.partial(build, elements=effort.elements) for build in (_copy, _add)]
    # Copy and addition use different kernels; the faster one is the limit that an operator can reach.
    fastest_s = min(_best_s(devices, move, effort) for move in moves)
    # Each element has 4 bytes, and is read once and written once.
    return Limits(flops, low, 2.0 * 4 * effort.elements / fastest_s)


def _flops_per_s(devices: Sequence[Context], dtype: str, effort: Effort) -> float:
    return 2.0 * effort.side**3 / _best_s(devices, lambda device: _product(device, dtype, effort.side), effort)


def _product(device: Context, dtype: str, side: int) -> Callable[[], None]:
    number_format = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    x, weight, y = (nd.ones((side, side), ctx=device).astype(number_format) for _ in range(3))
    # nd.dot does not support bfloat16 on a CPU.
    return lambda: nd.FullyConnected(x, weight, no_bias=True, num_hidden=side, out=y)


def _copy(device: Context, elements: int) -> Callable[[], None]:
    x, y = (nd.zeros((elements,), ctx=device) for _ in range(2))
    return lambda: x.copyto(y)


def _add(device: Context, elements: int) -> Callable[[], None]:
    x, y = (nd.zeros((elements,), ctx=device) for _ in range(2))
    return lambda: nd.elemwise_add(x, x, out=y)  # reads one array, writes another


def _best_s(devices: Sequence[Context], build: Callable[[Context], Callable[[], None]], effort: Effort) -> float:
    """Returns the best time of a call in seconds, while all devices run their own calls at the same time."""
    calls = [build(device) for device in devices]
    times_s: List[float] = []
    for _ in range(effort.attempts + 1):
        nd.waitall()
        # The engine runs ahead of the host, so both ends of a timing wait for it.
        begin = time.perf_counter()
        for _ in range(effort.calls):
            for call in calls:
                call()
        nd.waitall()
        times_s.append((time.perf_counter() - begin) / effort.calls)
    return min(times_s[1:])  # the first attempt also allocates memory and creates the kernels
