"""Computes metric sums on the device and reads them in bulk, so that training steps do not wait for the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import ConfigError, LossWeightError
from mxtrain.metric.spec import Metric

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, LossBlock, OperatorModule


class LossWeights(NamedTuple):
    """Sample weights of a loss."""

    are_given: bool = False
    """True if the loss returns a weight for each sample; otherwise all weights are 1."""
    least: float = 0.0
    """Lower bound on the sum of the weights of a global batch."""
    parts: Tuple[str, ...] = ()
    """Names of further arrays (B,) that the loss returns after the weight; they are only logged."""
    zero_weight_is_error: bool = False
    """True if it is an error that all weights are 0: set for losses of users, which compute the weights."""
    are_of_samples: bool = False
    """True if the dataset gives weights: they are the last target, and metrics weight samples by them."""

    @classmethod
    def from_loss(cls, loss: LossBlock) -> LossWeights:
        """Reads the attributes of a loss, see `LossBlock`; Gluon's own losses have none of them."""
        return cls(
            getattr(loss, "weighted", False),
            getattr(loss, "least_weight", 0.0),
            getattr(loss, "parts", ()),
            getattr(loss, "zero_weight_is_error", False),
            getattr(loss, "sample_weighted", False),
        )


class MeterOutputs(NamedTuple):
    """Layout of the network outputs that are passed to a `Meter`."""

    num_arrays: int = 1
    """Number of arrays; the arrays after them are targets."""
    num_read: Optional[int] = None
    """Metrics read only the first `num_read` arrays; None = all."""
    scale: Tuple[float, float] = (0.0, 1.0)
    """Mean and standard deviation that convert normalized outputs to the units of the targets."""
    is_binary: bool = False
    """True if the first output is one score (B, 1), of the second of two classes. Metrics read scores (B, 2), of which
    the first is 0: their softmax is the sigmoid of the score."""


UNWEIGHTED, ONE_OUTPUT = LossWeights(), MeterOutputs()


class Meter(gluon.HybridBlock):
    """Sums the loss and all metrics over a batch into one vector, which one transfer can read.

    Inputs are (loss (B,)[, weight (B,)], *parts (B,), *outputs, *targets). The output of shape (width,) holds the sum
    of the loss, the sum of the weights if the loss is weighted, the sums of its parts, then the sums of each metric. If
    the dataset gives weights of samples, their sum is the last number.

    Args:
        metrics: name -> metric; metrics computed on the host are ignored.
        num_classes: K, the width of the first output.
        weights: sample weights of the loss.
        outputs: layout of the network outputs.
        dense: True if the first target is class probabilities (B, K), as with mixup; metrics then use their argmax.
        training: True for training steps: metrics that are too slow for every step are ignored, and the loss of samples
            whose weights are all 0 is 0. In evaluations it is NaN.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        num_classes: int,
        weights: LossWeights = UNWEIGHTED,
        outputs: MeterOutputs = ONE_OUTPUT,
        dense: bool = False,
        training: bool = False,
    ):
        super().__init__()
        self.weighted, self.least_weight, self._parts, self._zero_weight_is_error, weighs_samples = weights
        self._num_losses = 1 + self.weighted + len(self._parts)
        self._output_scale = outputs.scale
        # A training step whose weights are all 0 changes nothing. A validation without weight must not become the best.
        self._loss_without_weight = 0.0 if training else math.nan
        self._directions = {name: metric.better_direction for name, metric in metrics.items()}
        # Parts of a loss are losses: smaller is better.
        self._directions.update(dict.fromkeys(self._parts, "min"))
        self._metrics = {
            name: metric
            for name, metric in metrics.items()
            if not metric.on_host and (metric.in_training or not training)
        }
        self._is_binary = outputs.is_binary
        num_classes = 2 if outputs.is_binary else num_classes
        self._num_classes, self._dense = num_classes, dense
        self._num_outputs = outputs.num_arrays if outputs.num_read is None else outputs.num_read
        # Positions of the outputs that no metric reads, among all inputs of the block.
        self._unread = slice(self._num_losses + self._num_outputs, self._num_losses + outputs.num_arrays)
        self._sizes = [metric.size(num_classes) for metric in self._metrics.values()]
        self._weighs_samples = weighs_samples and bool(self._metrics)
        self.width = self._num_losses + sum(self._sizes) + self._weighs_samples
        self._dropped = (0, 0)
        self.hybridize(static_alloc=True)

    def drop_unread(self, outputs: int, targets: int) -> None:
        """Drops further arrays that only the loss reads, as those of distillation.

        Args:
            outputs: number of arrays to drop between the outputs and the targets.
            targets: number of arrays to drop at the end of the targets.
        """
        self._dropped = (outputs, targets)

    def __call__(self, *arrays: Array) -> Any:
        # A hybridized block warns about unused inputs, so they are dropped before the call.
        if not self._metrics:
            return super().__call__(*arrays[: self._num_losses])
        num_dropped_outputs, num_dropped_targets = self._dropped
        first_target = self._unread.stop + num_dropped_outputs
        targets = arrays[first_target : len(arrays) - num_dropped_targets]
        return super().__call__(*arrays[: self._unread.start], *targets)

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Array:
        loss_arrays, arrays = arrays[: self._num_losses], arrays[self._num_losses :]
        # Sum in float32: with amp, sums over a batch would overflow float16.
        sums = [F.sum(F.cast(array, "float32")).reshape((1,)) for array in loss_arrays]
        if not arrays:
            return F.concat(*sums, dim=0)
        outputs, targets = arrays[: self._num_outputs], list(arrays[self._num_outputs :])
        sample_weight_B = F.cast(targets.pop(), "float32") if self._weighs_samples else None
        target, *more = targets
        # Metrics compare a mixed sample with the class that has the larger share.
        targets = [F.argmax(target, axis=-1) if self._dense else target, *more]
        mean, std = self._output_scale
        outputs = tuple(F.cast(array, "float32") for array in outputs)
        outputs = outputs if (mean, std) == (0.0, 1.0) else tuple(array * std + mean for array in outputs)
        if self._is_binary:
            outputs = (F.concat(F.zeros_like(outputs[0]), outputs[0], dim=1), *outputs[1:])
        targets = [F.cast(array, "float32") for array in targets]
        parts = []
        for metric in self._metrics.values():
            if sample_weight_B is not None and metric.takes_weights:
                parts.append(metric.measure_weighted(F, outputs, targets, sample_weight_B, self._num_classes))
            else:
                parts.append(metric.measure(F, outputs, targets, self._num_classes))
        if sample_weight_B is not None:
            parts.append(F.sum(sample_weight_B).reshape((1,)))
        return F.concat(*sums, *parts, dim=0)

    def weight(self, sums: nd.NDArray) -> Optional[nd.NDArray]:
        """Returns the sum of the weights, (1,), from an output of this block; None if the loss is not weighted."""
        if not self.weighted:
            return None
        return nd.maximum(sums[1:2], self.least_weight) if self.least_weight else sums[1:2]

    def require_width(self, sums: nd.NDArray) -> nd.NDArray:
        """Returns an output of this block, (width,). Does not wait for the device.

        Raises:
            ConfigError: a metric returns another number of sums than its `size` says.
        """
        if sums.shape != (self.width,):
            sizes = ", ".join(f"{name}={size}" for name, size in zip(self._metrics, self._sizes))
            raise ConfigError(
                f"metric: together, sums and measure return {sums.size - self._num_losses} numbers for a batch, and "
                f"the sizes of the metrics are {sizes}. Return an array of shape (size,), and override "
                "size(num_classes) for more than one number."
            )
        return sums

    def direction(self, name: str) -> str:
        """Returns "max" or "min": the better direction of "loss" or of a metric, by name."""
        return "min" if name == "loss" else self._directions[name]

    def values(self, sums: np.ndarray, count: int) -> Dict[str, float]:
        """Returns name -> value of the loss and the metrics.

        Args:
            sums: totals over all batches, (width,) float64.
            count: number of samples.

        Raises:
            LossWeightError: a user's loss gives all samples the weight 0.
        """
        weight = max(float(sums[1]), self.least_weight) if self.weighted else count
        if self._zero_weight_is_error and count and not weight > 0:
            raise LossWeightError(
                f"loss: the weights of {count:,} samples sum to {weight:g}, so their loss sum(loss) / sum(weight) is "
                "undefined. The second value that the loss returns is the weight of each sample, since it has "
                "weighted = True."
            )
        positions = {"loss": 0, **{name: 1 + self.weighted + number for number, name in enumerate(self._parts)}}
        values = {
            name: float(sums[position] / weight) if weight else self._loss_without_weight
            for name, position in positions.items()
        }
        start = self._num_losses
        for (name, metric), size in zip(self._metrics.items(), self._sizes):
            weighs = self._weighs_samples and metric.takes_weights
            # The sum of weights is a whole number only if all weights are.
            values[name] = metric.value(sums[start : start + size], float(sums[-1]) if weighs else count)
            start += size
        return values


def read_vectors(vectors: List[nd.NDArray]) -> np.ndarray:
    """Reads all vectors in one transfer, as (len(vectors), width) float64. Blocks until they are computed."""
    # Converted to float64 to be summed on the host: in float32, a large sum would no longer change by a small term.
    return nd.stack(*vectors).asnumpy().astype(np.float64)
