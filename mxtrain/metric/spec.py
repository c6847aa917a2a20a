"""Settings of the group `metric`: the base class of metrics.

A metric sums a small vector over samples and computes its value from the totals. Sums add up across batches and
workers, so a metric over a whole split is exact, not a mean of per-batch values.

Legend: B batch, K classes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Optional, Sequence

from mxtrain.types import Spec
from mxtrain.types.kinds import ClassIndex, Takes

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


def ratio(total: float, count: float) -> float:
    """Returns a mean; NaN without samples, so that it is neither the best value nor part of another mean."""
    return float(total / count) if count > 0 else math.nan


class Metric(Spec):
    """Base class of metrics: `sums` or `measure` per batch on the device, `value` from the totals on the host."""

    direction: ClassVar[Literal["max", "min", "unknown"]] = "unknown"
    """The direction in which the metric gets better; see `better_direction`."""
    takes: ClassVar[Takes] = Takes(ClassIndex)
    """Kinds of targets that the metric accepts; empty = any."""

    takes_weights: ClassVar[bool] = False
    """True if samples count by their weights where the dataset gives some; otherwise each sample counts once. Metrics
    on the device then define `measure_weighted`, those on the host `compute_weighted`."""
    in_training: ClassVar[bool] = True
    """If true, it is measured in every training step; otherwise only in evaluations."""
    on_host: ClassVar[bool] = False
    """If true, it needs predictions on the host (see `metric.host`), and training steps do not measure it."""

    better: Optional[Literal["max", "min"]] = None
    """max = larger values of the metric are better; min = smaller values; null = the direction of its class. A
    monitored metric of your own needs this setting, or `direction` in its class."""

    @property
    def better_direction(self) -> Literal["max", "min", "unknown"]:
        """Returns the direction in which the metric gets better: `better`, or that of the class."""
        return self.better or self.direction

    @property
    def signature(self) -> str:
        """Returns the settings that distinguish variants of the metric in publications; empty if there is one only."""
        return ""

    def constant_by(self, num_choices: int) -> str:
        """Returns the setting that makes the metric 1 for every network, e.g. "top_k=5" for 5 classes; "" if none does.

        Args:
            num_choices: number of classes that the network chooses from.
        """
        return ""

    def size(self, num_classes: int) -> int:
        """Returns the length of the vector of sums."""
        return 1

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        """Computes the sums over one batch in float32.

        Args:
            F: mx.nd or mx.sym.
            outputs: all outputs of the network.
            targets: all targets of the batch.
            num_classes: K.

        Returns:
            Vector of shape (size,).
        """
        return self.sums(F, outputs[0], targets[0], num_classes)

    def measure_weighted(
        self,
        F: OperatorModule,
        outputs: Sequence[Array],
        targets: Sequence[Array],
        weight_B: Array,
        num_classes: int,
    ) -> Array:
        """Computes the sums over one batch as `measure` does, in which each sample counts by its weight.

        Args:
            F: mx.nd or mx.sym.
            outputs: all outputs of the network.
            targets: all targets of the batch, without the weights.
            weight_B: weight of each sample.
            num_classes: K.
        """
        raise NotImplementedError

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        """Computes the sums over one batch, (size,), for metrics of the first output and the first target."""
        raise NotImplementedError

    def value(self, sums: np.ndarray, count: float) -> float:
        """Computes the value of the metric; NaN if it is undefined for these samples.

        Args:
            sums: totals over all samples, (size,) float64.
            count: number of samples, or the sum of their weights.
        """
        return ratio(sums[0], count)


class SampleMean(Metric):
    """Base class of weighted means over samples of a value of the first output and the first target."""

    takes_weights: ClassVar[bool] = True

    def sample_values(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        """Computes the value of each sample, (B,)."""
        raise NotImplementedError

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return F.sum(self.sample_values(F, logits_BK, label_B, num_classes)).reshape((1,))

    def measure_weighted(
        self,
        F: OperatorModule,
        outputs: Sequence[Array],
        targets: Sequence[Array],
        weight_B: Array,
        num_classes: int,
    ) -> Array:
        return F.sum(self.sample_values(F, outputs[0], targets[0], num_classes) * weight_B).reshape((1,))
