"""Collects metric sums on the device and reads them in bulk."""

from __future__ import annotations

from typing import Dict, List, Mapping

import numpy as np

from mxtrain.engine.backend import gluon, nd
from mxtrain.metric.metrics import Metric


class Meter(gluon.HybridBlock):
    """(loss (B,), *outputs, *targets) -> one vector: the sum of the loss, then each metric's sums.

    Args:
        metrics: name -> metric.
        num_classes: K, the width of the first output.
        dense: whether the first target is (B, K) probabilities, as mixed samples have; the likeliest class counts then.
        num_outputs: how many arrays the network returns; what follows them are targets.
    """

    def __init__(self, metrics: Mapping[str, Metric], num_classes: int, dense: bool = False, num_outputs: int = 1):
        super().__init__()
        self._metrics, self._num_classes, self._dense = dict(metrics), num_classes, dense
        self._num_outputs = num_outputs
        self._sizes = [metric.size(num_classes) for metric in self._metrics.values()]
        self.width = 1 + sum(self._sizes)
        self.hybridize(static_alloc=True)

    def hybrid_forward(self, F, loss_B, *arrays):
        outputs, (target, *more) = arrays[: self._num_outputs], arrays[self._num_outputs :]
        targets = [F.argmax(target, axis=-1) if self._dense else target, *more]
        outputs, targets = ([F.cast(array, "float32") for array in found] for found in (outputs, targets))
        parts = [m.measure(F, outputs, targets, self._num_classes) for m in self._metrics.values()]
        return F.concat(F.sum(F.cast(loss_B, "float32")).reshape((1,)), *parts, dim=0)

    def direction(self, name: str) -> str:
        """Which way is better for "loss" or a metric's name: "max" or "min"."""
        return "min" if name == "loss" else self._metrics[name].direction

    def values(self, sums: np.ndarray, count: int) -> Dict[str, float]:
        """Loss and metrics from total sums (float64, of length `width`) over `count` samples."""
        found = {"loss": float(sums[0] / count)}
        start = 1
        for (name, metric), size in zip(self._metrics.items(), self._sizes):
            found[name] = metric.value(sums[start : start + size], count)
            start += size
        return found


def read_vectors(vectors: List[nd.NDArray]) -> np.ndarray:
    """All vectors in one transfer, as float64 (len(vectors), width). This waits for the device."""
    return nd.stack(*vectors).asnumpy().astype(np.float64)
