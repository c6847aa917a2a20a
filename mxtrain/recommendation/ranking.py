"""Ranking metrics of recommendation: the rank of the held-out item among other items by score.

The rank of an item is the number of other items whose score is not lower, so ties and NaN count against it. A network
with constant scores therefore gets the worst rank, not the best. The set of other items is part of a metric's name and
signature: all items that the user has in no split, or `dataset.sampled_negatives` random ones. Ranks among different
sets are not comparable.

Legend: B batch, C candidates, I all items, N samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Optional, Sequence, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.metric.spec import Metric
from mxtrain.recommendation.kinds import NextItem
from mxtrain.types import Positive
from mxtrain.types.kinds import Preference, Takes

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class RankingMetric(Metric):
    """Base class of metrics of the first `k` ranks."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(Preference, NextItem)

    k: Positive = 10
    """Number of highest-scoring items in which the held-out item must be."""

    def gain(self, rank_N: np.ndarray) -> np.ndarray:
        """Returns the gain of an item at each rank, counted from 0."""
        raise NotImplementedError


class HitRate(RankingMetric):
    """Hit rate HR@k: 1 if the item is among the first k, otherwise 0. Equals recall@k of a single item."""

    def gain(self, rank_N: np.ndarray) -> np.ndarray:
        return (rank_N < self.k).astype(np.float64)

    def constant_by(self, num_choices: int) -> str:
        return f"k={self.k}" if self.k >= num_choices else ""


class NDCG(RankingMetric):
    """NDCG@k of a single item: 1 / log2(rank + 2) if it is among the first k, otherwise 0.

    Source: He et al., "TriRank: Review-aware Explainable Recommendation by Modeling Aspects" (2015).
    """

    def gain(self, rank_N: np.ndarray) -> np.ndarray:
        return np.where(rank_N < self.k, 1 / np.log2(rank_N + 2.0), 0.0)


class ReciprocalRank(RankingMetric):
    """Reciprocal rank MRR@k of a single item: 1 / (rank + 1) if it is among the first k, otherwise 0."""

    def gain(self, rank_N: np.ndarray) -> np.ndarray:
        return np.where(rank_N < self.k, 1 / (rank_N + 1.0), 0.0)


class Ranks(Collected):
    """Collector of the rank of each sample's item among all items that the user has in no split, from 0."""

    width: ClassVar[int] = 1

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch.

        Args:
            index_B: indices of the samples in their split.
            prediction_B: scores of all items (B, I), minus infinity for items that the user already has.
            target_B: candidates (B, C), the first of which is the held-out item.
            meta_B: not used.
        """
        rank_B = ranks_in(np.asarray(prediction_B), target_B[:, 0])
        self._parts.append(np.stack([index_B, np.zeros(len(index_B)), rank_B], axis=1).astype(np.float64))


def ranks_in(score_BI: np.ndarray, item_B: np.ndarray) -> np.ndarray:
    """Returns the number of other items whose score is not lower than that of each sample's item, (B,)."""
    positive_B1 = np.take_along_axis(score_BI, item_B[:, None].astype(np.int64), axis=1)
    # `~(x < y)`, not `x >= y`: comparisons with NaN are False, and NaN must count against the item.
    rank_B: np.ndarray = (~(score_BI < positive_B1)).sum(axis=1) - 1  # the item itself is counted, too
    return rank_B


class AllItemsMetric(RankingMetric, HostMetric):
    """Base class of metrics among all items, computed on the host."""

    collects: ClassVar[Type[Collected]] = Ranks

    @property
    def signature(self) -> str:
        return f"k={self.k},among=all_unseen_items,ties=worst"

    def compute(self, collected: Collected) -> float:
        rows = collected.samples()
        return float(self.gain(rows[:, 2]).mean()) if len(rows) else math.nan


class HitRateAmongAll(AllItemsMetric, HitRate):
    """HR@k among all items that the user has in no split."""


class NDCGAmongAll(AllItemsMetric, NDCG):
    """NDCG@k among all items that the user has in no split."""


class ReciprocalRankAmongAll(AllItemsMetric, ReciprocalRank):
    """MRR@k among all items that the user has in no split."""


class SampledItemsMetric(RankingMetric):
    """Base class of metrics among sampled candidates, computed on the device."""

    takes: ClassVar[Takes] = Takes(Preference)
    in_training: ClassVar[bool] = False

    @property
    def signature(self) -> str:
        return f"k={self.k},among=sampled_unseen_items,ties=worst"

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        score_BC, item_BC = outputs[0], targets[0]
        # Candidates below 0 are no items and do not count. NaN scores count against the item, as in `ranks_in`.
        below_BC = F.broadcast_lesser(score_BC, F.slice_axis(score_BC, axis=1, begin=0, end=1))
        rank_B = F.sum((1 - below_BC) * (item_BC >= 0), axis=1) - 1  # the item itself is counted, too
        return F.sum(self.gain_on_device(F, rank_B)).reshape((1,))

    def gain_on_device(self, F: OperatorModule, rank_B: Array) -> Array:
        """See `gain`."""
        raise NotImplementedError


class HitRateAmongSampled(SampledItemsMetric, HitRate):
    """HR@k among the held-out item and sampled items that the user has in no split."""

    def gain_on_device(self, F: OperatorModule, rank_B: Array) -> Array:
        return rank_B < self.k


class NDCGAmongSampled(SampledItemsMetric, NDCG):
    """NDCG@k among the held-out item and sampled items that the user has in no split."""

    def gain_on_device(self, F: OperatorModule, rank_B: Array) -> Array:
        return (rank_B < self.k) * math.log(2) / F.log(rank_B + 2)
