"""Loads batches of sequences: the items of users so far, and the next one.

Legend: N samples, B batch, H items of a history, C candidates (the next item, then others).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.recommendation.loader import RecommendationDraw
from mxtrain.recommendation.sequences import SequenceSamples
from mxtrain.recommendation.user_items import NO_ITEM

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays


class SequenceLoader(BatchLoader):
    """Loads the batches of one split.

    Inputs are histories (B, H) int32 and their lengths (B,). Targets are candidates (B, C): the next item, then random
    items that the user does not have, in training a function of (seed, epoch, sample), in evaluations of `split_seed`
    and user. `NO_ITEM` = padding, and the next item of a sample for prediction.

    Args:
        source: samples.
        options: options of all loaders.
        max_history: H.
        num_negatives: C - 1.
        split_seed: seed of the candidates of evaluations.
    """

    def __init__(
        self, source: SequenceSamples, options: LoaderOptions, max_history: int, num_negatives: int, split_seed: int
    ) -> None:
        super().__init__(len(source), options)
        self._source, self._item_N = source, source.item_N
        self._max_history, self._num_negatives, self._split_seed = max_history, num_negatives, split_seed

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """Returns an array of arrays (B,): the items of each history except the next item; None in training."""
        if self.train:
            return None
        has_B = np.empty(len(index_B), object)
        for row, index in enumerate(index_B.tolist()):
            items = np.unique(self._source.history_of(index))
            has_B[row] = items[items != self._item_N[index]]
        return has_B

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        return self._source.histories(share_B, self._max_history), (self._candidates(share_B, epoch),)

    def _candidates(self, share_B: np.ndarray, epoch: int) -> np.ndarray:
        source, item_B1 = self._source, self._item_N[share_B][:, None]
        if not self._num_negatives or (item_B1 == NO_ITEM).any():
            return item_B1
        user_B, draw = source.user_N[share_B], RecommendationDraw.NEGATIVE_ITEM
        items, index_B, seed = source.train_items, share_B, self.seed
        if not self.train:
            items, index_B, seed, epoch = source.all_items, user_B, self._split_seed, 0
        negative_BN = items.draw_missing(user_B, index_B, self._num_negatives, seed, epoch, draw)
        return np.concatenate([item_B1, negative_BN], axis=1)
