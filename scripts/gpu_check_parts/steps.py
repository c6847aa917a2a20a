"""What is computed on a device by itself, one JSON object on standard output: a process of its own, which may crash.

python -m gpu_check_parts.steps kernel|gradients cpu|gpu NUMBER
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np

SEED, BATCH, SIZE = 0, 8, 32


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


def _gradients(device: Any, dtype: str) -> List[Tuple[str, np.ndarray]]:
    from mxtrain.engine.backend import autograd, gluon, mx, nd

    nn = gluon.nn
    network = nn.HybridSequential(prefix="checked_")
    with network.name_scope():
        network.add(
            nn.Conv2D(16, 3, padding=1, use_bias=False, in_channels=3), nn.BatchNorm(in_channels=16),
            nn.Activation("relu"), nn.MaxPool2D(), nn.Conv2D(32, 3, padding=1, in_channels=16), nn.Activation("relu"),
            nn.GlobalAvgPool2D(), nn.Flatten(), nn.LayerNorm(in_channels=32), nn.Dense(10, in_units=32),
        )  # fmt: skip
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

    found = {"kernel": kernel, "gradients": gradients}[sys.argv[1]](mx.Context(sys.argv[2], int(sys.argv[3])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
