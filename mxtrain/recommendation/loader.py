"""Batches of interactions: of each a user, and the item among others that the user has not, or its rating.

Legend: N samples, B batch, C candidates (the item, then others), H items of a history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.recommendation.joined_rows import JoinedRows
from mxtrain.recommendation.source import Interactions
from mxtrain.recommendation.user_items import HISTORY, NOTHING
from mxtrain.types import NamedInt

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays


class RecommendationDraw(NamedInt):
    """Random streams of recommendation; see `mxtrain.data.loading.randomness.Draw`."""

    CANDIDATES = 750
    """Items that an evaluation compares with the held-out one."""
    HISTORY = HISTORY
    """Items of a user that enter a network with a limit on their number."""
    NEGATIVE_ITEM = 2000
    """This and all larger numbers: items sampled as negatives of a user."""


class InteractionLoader(BatchLoader):
    """Users (B,), candidates (B, C) and, for networks that read it, histories (B, H), all int32, and their lengths
    (B,), or for networks for features ids and numbers of users and candidates (`JoinedRows`); against the candidates
    (B, C), `NOTHING` where there is none, or ratings (B,).

    The first candidate is the sample's own item. In training the others are items that the user has not in training, a
    function of (seed, epoch, sample); else items that the user has in no split, a function of `split_seed` and user.
    A history is that of training without the sample's own item.

    Args:
        source: samples.
        options: of all loaders.
        num_others: candidates besides the item itself; None: ratings are to be predicted.
        max_history: H at most; 0: the network reads none.
        split_seed: chooses what evaluations compare with.
        joined: what a network for features reads of all users and items.
    """

    def __init__(
        self, source: Interactions, options: LoaderOptions, *, num_others: Optional[int], max_history: int,
        split_seed: int, joined: Optional[JoinedRows] = None,
    ) -> None:  # fmt: skip
        super().__init__(len(source), options)
        self._source, self._joined = source, joined
        self._num_others, self._max_history, self._split_seed = num_others, max_history, split_seed

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        """For each sample, the items of its user in all splits but its own one: (B,) of arrays."""
        found, source = np.empty(len(index_B), object), self._source
        for row, (user, item) in enumerate(zip(source.user_N[index_B].tolist(), source.item_N[index_B].tolist())):
            found[row] = source.seen.without(user, item)
        return found

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[HostArrays, HostArrays]:  # fmt: skip
        user_B, item_BC = self._source.user_N[share_B], self._candidates(share_B, epoch)
        inputs = [user_B.astype(np.int32), np.maximum(item_BC, 0)]
        if self._joined is not None:
            inputs = self._joined.inputs(user_B, np.maximum(item_BC, 0))
        if self._max_history:
            inputs += self._histories(share_B, index_B, epoch)
        target = item_BC if self._num_others is not None else self._source.rating_N[share_B]
        return tuple(inputs), (target,)

    def _candidates(self, share_B: np.ndarray, epoch: int) -> np.ndarray:
        source = self._source
        user_B, own_B1 = source.user_N[share_B], source.item_N[share_B][:, None].astype(np.int32)
        if not self._num_others or (own_B1 == NOTHING).any():
            return own_B1
        if self.train:
            draw = RecommendationDraw.NEGATIVE_ITEM
            others_BN = source.known.draw_missing(user_B, share_B, self._num_others, self.seed, epoch, draw)
        else:
            draw = RecommendationDraw.CANDIDATES
            others_BN = source.seen.draw_different(user_B, self._num_others, self._split_seed, draw)
        return np.concatenate([own_B1, others_BN], axis=1)

    def _histories(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[np.ndarray, np.ndarray]:
        source, most = self._source, self._max_history
        # As wide as the longest of the whole batch, whoever computes which part of it.
        longest = int(source.known.count_U[source.user_N[index_B]].max())
        user_B = source.user_N[share_B]
        key_BN = np.zeros((len(share_B), 1), np.float32)
        if longest > most and self.train:
            key_BN = uniform_rows(self.seed, epoch, share_B, RecommendationDraw.HISTORY, longest)
        elif longest > most:
            key_BN = uniform_rows(self._split_seed, 0, user_B, RecommendationDraw.HISTORY, longest)
        item_BH = np.zeros((len(share_B), max(min(longest, most), 1)), np.int32)
        rows = source.known.rows(user_B, key_BN, source.item_N[share_B], most)
        for row, items in enumerate(rows):
            item_BH[row, : len(items)] = items
        return item_BH, np.array(list(map(len, rows)), np.float32)
