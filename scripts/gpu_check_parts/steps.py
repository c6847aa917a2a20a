"""Computations on a single device, with one JSON object on standard output, in a process of its own, which may
crash.

python -m gpu_check_parts.steps kernel|gradients|statistics|skipped|dropout|feeding|memory cpu|gpu NUMBER
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

SEED, BATCH, SIZE = 0, 8, 32
FED, FED_MB = 20, 8
"""Arrays that are sent to a device, and the megabytes of each."""
HELD_MB = 256
OVERFLOWS = 2.0**140
"""A loss scale with which no float32 gradient is finite."""


def kernel(device: Any) -> Dict[str, Any]:
    """Seconds to the first number of a convolution, with loading code and making the context, and of the next."""
    from mxtrain.engine.backend import nd

    def convolve() -> float:
        begun = time.perf_counter()
        data, weight = nd.ones((1, 3, 8, 8), ctx=device), nd.ones((4, 3, 3, 3), ctx=device)
        value = nd.Convolution(data, weight, num_filter=4, kernel=(3, 3), no_bias=True).sum().asscalar()
        if value != 4 * 36 * 27:
            raise ArithmeticError(f"a convolution of ones gave {value:g} where {4 * 36 * 27} is right")
        return time.perf_counter() - begun

    return {"first_s": convolve(), "next_s": convolve()}


def gradients(device: Any) -> Dict[str, Any]:
    """The largest difference of any gradient from the CPU's in that precision, over that gradient's largest value."""
    from mxtrain.engine.backend import mx

    return {
        dtype: max(_differences(_gradients(mx.cpu(0), dtype), _gradients(device, dtype)))
        for dtype in ("float32", "float64")
    }


def statistics(device: Any) -> Dict[str, Any]:
    """Compares mean and variance of batch norm after one batch with NumPy: the largest difference of the mean, of the
    variance divided by n, and of the variance divided by n - 1."""
    from mxtrain.engine.backend import autograd, gluon, nd

    norm = gluon.nn.BatchNorm(in_channels=5, momentum=0.9, prefix="checked_")
    norm.initialize(ctx=device)
    image = np.random.RandomState(SEED).randn(BATCH, 5, 3, 3).astype(np.float32) * 2 + 1
    with autograd.record():
        loss = norm(nd.array(image, ctx=device)).square().sum()
    loss.backward()
    nd.waitall()
    mean, variance = (getattr(norm, f"running_{name}").data().asnumpy() for name in ("mean", "var"))
    by_n, by_n1 = (image.var(axis=(0, 2, 3), ddof=less) for less in (0, 1))
    return {
        "mean": float(np.abs(mean - 0.1 * image.mean(axis=(0, 2, 3))).max()),
        "n": float(np.abs(variance - 0.9 - 0.1 * by_n).max()),
        "n-1": float(np.abs(variance - 0.9 - 0.1 * by_n1).max()),
    }


def dropout(device: Any) -> Dict[str, Any]:
    """Checks that a layer and an operator drop the same after the same seed, and something else without it."""
    from mxtrain.engine.backend import autograd, gluon, mx, nd

    layer, data = gluon.nn.Dropout(0.5), nd.ones((64, 64), ctx=device)
    layer.hybridize()

    def drawn() -> np.ndarray:
        with autograd.train_mode():
            return np.stack([layer(data).asnumpy(), nd.Dropout(data, p=0.5).asnumpy()])

    found = []
    for _ in range(2):
        mx.random.seed(7, ctx=device)
        mx.random.seed(7)
        found.append(drawn())
    return {"same": bool((found[0] == found[1]).all()), "anew": bool((drawn() != found[0]).any())}


def skipped(device: Any) -> Dict[str, Any]:
    """Checks that steps with overflowing gradients leave every parameter and statistic unchanged, to the bit."""
    from mxtrain.amp.scaling import DynamicScaling
    from mxtrain.engine.backend import gluon, mx, nd
    from mxtrain.kvstore.mxnet_store import MXNetStore
    from mxtrain.loss.losses import SoftmaxCrossEntropy
    from mxtrain.metric.meter import Meter
    from mxtrain.optimizer.ema import NoAverage
    from mxtrain.optimizer.updater import Updater
    from mxtrain.parallel.grid import Grid
    from mxtrain.parallel.objective import Objective
    from mxtrain.parallel.spec import Single
    from mxtrain.training.network import hybridize
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch

    network, shape = gluon.nn.HybridSequential(prefix="checked_"), (3, SIZE, SIZE)
    with network.name_scope():
        for channels in (16, 32, 64):
            network.add(gluon.nn.Conv2D(channels, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        network.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Flatten(), gluon.nn.Dense(10))
    network.initialize(mx.init.Xavier(), ctx=device)
    network(nd.zeros((1, *shape), ctx=device))
    loss = SoftmaxCrossEntropy().build(10, training=True)
    strategy = Grid(Objective(hybridize(network), loss, Meter({}, 10), shape, BATCH), [[device]], Single(), 1)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(mx.optimizer.SGD(), weights, dict.fromkeys(weights, (1.0, 1.0)))
    scaling = DynamicScaling(OVERFLOWS, 100, largest=OVERFLOWS)
    step = TrainingStep(strategy, MXNetStore("local"), updater, NoAverage(), None, None, scaling)
    before, draw = {name: one.asnumpy() for name, one in strategy.values.items()}, np.random.RandomState(SEED)
    for number in range(1, 6):
        image = nd.array(draw.randn(BATCH, *shape), ctx=device)
        step(Batch((image,), (nd.array(draw.randint(10, size=BATCH), ctx=device),), BATCH), 0.1, number)
    changed = [name for name, one in strategy.values.items() if (one.asnumpy() != before[name]).any()]
    return {"skipped": scaling.to_json()["num_skipped"], "changed": changed}


def feeding(device: Any) -> Dict[str, Any]:
    """Checks that arrays arrive unchanged through a few reused buffers while the device computes; measures gigabytes
    per second with and without them."""
    from mxtrain.data.loading.placing import staging_for
    from mxtrain.data.loading.staging import Staging, copy_and_wait
    from mxtrain.engine.backend import mx, nd

    staging = staging_for(device) if device.device_type == "gpu" else Staging(mx.cpu(0), device)
    array = np.zeros((FED_MB, 250_000), np.float32)
    side, sent = 2048 if device.device_type == "gpu" else 128, []
    busy = nd.ones((side, side), ctx=device)
    for number in range(FED):
        busy = nd.dot(busy, busy) * 1e-3
        array[:] = number  # what was sent before may still be on its way
        sent.append(staging.copy(array))
    same = all(float(one.min().asscalar()) == float(one.max().asscalar()) == n for n, one in enumerate(sent))
    sent.clear()
    nd.waitall()

    def rate(send: Callable[[np.ndarray], Any]) -> float:
        begun = time.perf_counter()
        for _ in range(FED):
            found = send(array)
        found.wait_to_read()
        nd.waitall()
        return FED * array.nbytes / 1e9 / (time.perf_counter() - begun)

    return {
        "same": same,
        "buffers": staging.num_bytes > 0 and not staging.is_refused,
        "gb_per_s": rate(staging.copy),
        "waiting_gb_per_s": rate(lambda array: copy_and_wait(array, device)),
    }


def memory(device: Any) -> Dict[str, Any]:
    """Returns the shown memory of the device while this process holds some, and how its GPU is identified."""
    from mxtrain.engine.backend import nd
    from mxtrain.runtime.gpu_memory import GpuMemoryMeter, bus_id_of

    held = nd.ones((HELD_MB, 250_000), ctx=device)
    held.wait_to_read()
    found = GpuMemoryMeter([device.device_id]).read() if device.device_type == "gpu" else []
    shown = [{"used_mb": one.used_mb, "is_own": one.is_own} for one in found]
    return {"shown": shown, "bus_id": bus_id_of(device.device_id)}


def _gradients(device: Any, dtype: str) -> List[Tuple[str, np.ndarray]]:
    from mxtrain.engine.backend import autograd, gluon, mx, nd

    nn = gluon.nn
    network = nn.HybridSequential(prefix="checked_")
    with network.name_scope():
        network.add(
            nn.Conv2D(16, 3, padding=1, use_bias=False, in_channels=3),
            nn.BatchNorm(in_channels=16),
            nn.Activation("relu"),
            nn.MaxPool2D(),
            nn.Conv2D(32, 3, padding=1, in_channels=16),
            nn.Activation("relu"),
            nn.GlobalAvgPool2D(),
            nn.Flatten(),
            nn.LayerNorm(in_channels=32),
            nn.Dense(10, in_units=32),
        )
    draw = np.random.RandomState(SEED)
    network.initialize(ctx=device)
    network.cast(dtype)
    for _, parameter in sorted(network.collect_params().items()):
        if parameter.grad_req != "null":
            parameter.set_data(nd.array(0.3 * draw.randn(*parameter.shape), ctx=device, dtype=dtype))
    network.hybridize(static_alloc=True)
    image = nd.array(draw.randn(BATCH, 3, SIZE, SIZE), ctx=device, dtype=dtype)
    label = nd.array(draw.randint(10, size=BATCH), ctx=device, dtype=dtype)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(network(image), label)
    loss.backward()
    mx.nd.waitall()
    parameters = sorted(network.collect_params().items())
    return [(name, one.grad().asnumpy()) for name, one in parameters if one.grad_req != "null"]


def _differences(wanted: List[Tuple[str, np.ndarray]], found: List[Tuple[str, np.ndarray]]) -> List[float]:
    return [
        float(np.abs(a - b).max() / np.abs(a).max()) if np.isfinite(b).all() else float("inf")
        for (_, a), (_, b) in zip(wanted, found)
    ]


def main() -> None:
    from mxtrain.engine.backend import mx

    steps = (kernel, gradients, statistics, skipped, dropout, feeding, memory)
    chosen = {step.__name__: step for step in steps}[sys.argv[1]]
    print(json.dumps(chosen(mx.Context(sys.argv[2], int(sys.argv[3])))))


if __name__ == "__main__":
    main()
