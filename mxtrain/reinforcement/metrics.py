"""Metrics of reinforcement learning: of finished episodes, and of the policy.

Legend: B batch, O outputs of the network, X facts about a sample.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Sequence, Tuple

from mxtrain.metric.spec import Metric, ratio
from mxtrain.reinforcement.kinds import Returns
from mxtrain.reinforcement.policy import FACTS, Actions, facts_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


MIN_VARIANCE = 2.0**-19
"""Variance, relative to the mean of the squares, below which it may be a rounding error of float32 sums."""


def sums_of(F: OperatorModule, *arrays: Array) -> Array:
    """Returns the sum of each array (B,), concatenated."""
    sums = [F.sum(array, axis=0, keepdims=True) for array in arrays]
    return sums[0] if len(sums) == 1 else F.concat(*sums, dim=0)


class EpisodeMetric(Metric):
    """Base class of means over the episodes that ended with one of the samples; NaN without such episodes.

    The sums are those of all `facts`, so that several metrics share one operator.
    """

    takes: ClassVar[Takes] = Takes(Returns)
    fact: ClassVar[str]
    """Name of the averaged fact."""

    facts: ClassVar[Tuple[str, ...]] = FACTS[FACTS.index("return") : FACTS.index("ended") + 1]

    def size(self, num_classes: int) -> int:
        return len(self.facts)

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        (facts_BX,) = targets
        begin = FACTS.index(self.facts[0])
        return F.sum(F.slice_axis(facts_BX, axis=1, begin=begin, end=begin + len(self.facts)), axis=0)

    def value(self, sums: np.ndarray, count: float) -> float:
        total, ended = (float(sums[self.facts.index(name)]) for name in (self.fact, "ended"))
        return ratio(total, ended)


class EpisodeReturn(EpisodeMetric):
    """Mean return: the sum of an episode's rewards, neither discounted nor normalised."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    fact: ClassVar[str] = "return"


class EpisodeLength(EpisodeMetric):
    """Mean length of an episode in steps."""

    fact: ClassVar[str] = "length"


class PolicyMetric(Metric):
    """Base class of metrics of the policy in training; validations do not have them."""

    takes: ClassVar[Takes] = Takes(Returns)

    actions: Actions


class PolicyEntropy(PolicyMetric):
    """Mean entropy of the policy, in nats."""

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        return sums_of(F, self.actions.entropy(F, outputs[0]))


class ApproximateDivergence(PolicyMetric):
    """Estimates the Kullback-Leibler divergence in nats of the policy from the one that acted: the mean of r - 1 - log
    r over actions, where r is the ratio of their p. Unbiased and never negative.

    Source: J. Schulman, "Approximating KL divergence" (2020), estimator k3.
    """

    direction: ClassVar[Literal["max", "min"]] = "min"

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        (facts_BX,) = targets
        now_B = self.actions.log_probability(F, outputs[0], facts_BX)
        log_ratio_B = now_B - facts_of(F, facts_BX, "log_probability")[0]
        return sums_of(F, F.exp(log_ratio_B) - 1 - log_ratio_B)


class ExplainedVariance(PolicyMetric):
    """Share of the variance of values' targets that values explained when actions were chosen: 1 at best, 0 for a
    constant; NaN if the targets are constant."""

    direction: ClassVar[Literal["max", "min"]] = "max"

    def size(self, num_classes: int) -> int:
        return 4

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        (facts_BX,) = targets
        target_B, value_B = facts_of(F, facts_BX, "value_target", "value")
        error_B = target_B - value_B
        return sums_of(F, target_B, F.square(target_B), error_B, F.square(error_B))

    def value(self, sums: np.ndarray, count: float) -> float:
        target, target_squared, error, error_squared = (ratio(total, count) for total in sums)
        variance = target_squared - target**2
        is_constant = not variance > MIN_VARIANCE * target_squared  # True for NaN
        return math.nan if is_constant else 1.0 - (error_squared - error**2) / variance
