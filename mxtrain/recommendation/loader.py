"""Loads batches of interactions: users with candidate items, or with ratings.

A sample is a user and candidates, the true item first, so that a user's vector is computed once for all candidates and
each loss knows which negatives belong to which item. Rejection-free draws cost one hash each.

Legend: N samples, B batch, C candidates (the item, then others), H items of a history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.recommendation.joined_rows import JoinedRows
from mxtrain.recommendation.source import Interactions
from mxtrain.recommendation.user_items import HISTORY, NO_ITEM
from mxtrain.types import NamedInt

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays


class RecommendationDraw(NamedInt):
    """Random streams of recommendation; see `mxtrain.data.loading.randomness.Draw`."""

    CANDIDATES = 750
    """Items that an evaluation compares with the held-out item."""
    HISTORY = HISTORY
    """Choice of the items of a history that is too long."""
    FOLLOWERS = 760
    """Items that follow others in generated sequences."""
    LENGTH = 761
    """Length of a generated sequence."""
    IS_NOISE = 762
    """Choice of the items of a generated sequence that are random."""
    RANDOM_ITEM = 763
    """Random items of a generated sequence."""
    NEGATIVE_ITEM = 2000
    """This and all larger numbers: items sampled as negatives of a user."""


class InteractionLoader(BatchLoader):
    """Loads the batches of one split.

    Inputs are users (B,), candidates (B, C) and, for networks with histories, histories (B, H), all int32, and their
    lengths (B,). Networks for features get ids and numbers of users and candidates instead (`JoinedRows`). Targets are
    the candidates (B, C), `NO_ITEM` = padding, or ratings (B,).

    The first candidate is the item of the sample. In training, the others are random items that the user does not have
    in the training split, a function of (seed, epoch, sample); in evaluations items that the user has in no split, a
    function of `split_seed` and user. A history has the user's training items without the item of the sample.

    Args:
        source: samples.
        options: options of all loaders.
        num_negatives: number of candidates besides the item of the sample; None if ratings are predicted.
        max_history: maximum H; 0 = no histories.
        split_seed: seed of the candidates of evaluations.
        joined: features of all users and items, for networks for features.
    """

    def __init__(
        self,
        source: Interactions,
        options: LoaderOptions,
        *,
        num_negatives: Optional[int],
        max_history: int,
        split_seed: int,
        joined: Optional[JoinedRows] = None,
    ) -> None:
        super().__init__(len(source), options)
        self._source, self._joined = source, joined
        self._num_negatives, self._max_history, self._split_seed = num_negatives, max_history, split_seed

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        """Returns an array of arrays (B,): the items of each user in all splits, without the item of the sample."""
        other_items, source = np.empty(len(index_B), object), self._source
        for row, (user, item) in enumerate(zip(source.user_N[index_B].tolist(), source.item_N[index_B].tolist())):
            other_items[row] = source.all_items.without(user, item)
        return other_items

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        user_B, item_BC = self._source.user_N[share_B], self._candidates(share_B, epoch)
        # Padding needs the id of some item; losses and metrics leave it out by the target.
        inputs = [user_B.astype(np.int32), np.maximum(item_BC, 0)]
        if self._joined is not None:
            inputs = self._joined.inputs(user_B, np.maximum(item_BC, 0))
        if self._max_history:
            inputs += self._histories(share_B, index_B, epoch)
        target = item_BC if self._num_negatives is not None else self._source.rating_N[share_B]
        return tuple(inputs), (target,)

    def _candidates(self, share_B: np.ndarray, epoch: int) -> np.ndarray:
        source = self._source
        user_B, positive_B1 = source.user_N[share_B], source.item_N[share_B][:, None].astype(np.int32)
        if not self._num_negatives or (positive_B1 == NO_ITEM).any():
            return positive_B1
        if self.train:
            draw = RecommendationDraw.NEGATIVE_ITEM
            negative_BN = source.train_items.draw_missing(user_B, share_B, self._num_negatives, self.seed, epoch, draw)
        else:
            draw = RecommendationDraw.CANDIDATES
            negative_BN = source.all_items.draw_different(user_B, self._num_negatives, self._split_seed, draw)
        return np.concatenate([positive_B1, negative_BN], axis=1)

    def _histories(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[np.ndarray, np.ndarray]:
        source, max_history = self._source, self._max_history
        # As wide as the longest history of the global batch, so that every placement sees the same shapes.
        longest = int(source.train_items.count_U[source.user_N[index_B]].max())
        user_B = source.user_N[share_B]
        key_BN = np.zeros((len(share_B), 1), np.float32)
        if longest > max_history and self.train:
            key_BN = uniform_rows(self.seed, epoch, share_B, RecommendationDraw.HISTORY, longest)
        elif longest > max_history:
            key_BN = uniform_rows(self._split_seed, 0, user_B, RecommendationDraw.HISTORY, longest)
        item_BH = np.zeros((len(share_B), max(min(longest, max_history), 1)), np.int32)
        rows = source.train_items.rows(user_B, key_BN, source.item_N[share_B], max_history)
        for row, items in enumerate(rows):
            item_BH[row, : len(items)] = items
        return item_BH, np.array(list(map(len, rows)), np.float32)
