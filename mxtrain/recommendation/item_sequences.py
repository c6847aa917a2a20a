"""Default data of sequential recommendation: generated sequences of items.

The next item depends on the last item and on the group of the item before it, by a table that is drawn once. All items
are about equally frequent, so popularity knows nothing; the last item alone leaves as many candidates as there are
groups.

Legend: U users, I items, G groups, T steps.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.data.loading.randomness import integers, uniform_rows
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.kinds import NextItem, UserHistories
from mxtrain.recommendation.loader import RecommendationDraw
from mxtrain.recommendation.source import InteractionRows
from mxtrain.types import BatchSize, Fraction, NonNegative, Positive, Range
from mxtrain.types.kinds import Gives, Preference


class ItemSequences(InteractionDataset):
    """Generated users whose last two items decide on the next one, most of the time."""

    gives: ClassVar[Gives] = Gives(UserHistories, NextItem, Preference)

    batch_size: BatchSize = 128
    """Next items per optimizer step, over all devices and workers together."""
    num_users: Positive = 1000
    """Number of users."""
    num_items: Annotated[int, pydantic.Field(ge=20, le=100_000)] = 60
    """Number of items."""
    groups: Annotated[int, pydantic.Field(ge=1, le=1000)] = 6
    """Number of groups of items: so many items follow an item, depending on the group of the item before it."""
    length: Range[Positive] = [5, 20]
    """Least and greatest number of items of a user."""
    noise: Fraction = 0.2
    """Share of items that are random."""
    data_seed: NonNegative = 0
    """Seed of the generated data."""

    @property
    def data_name(self) -> str:
        return "dataset=item_sequences"

    @property
    def says_times(self) -> bool:
        """See `InteractionDataset.says_times`."""
        return False

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        length_U = self._lengths()
        item_UT = self._sequences(int(length_U.max()))
        user_P = np.repeat(np.arange(self.num_users), length_U).astype(np.int32)
        time_P = np.arange(len(user_P)) - np.repeat(np.cumsum(length_U) - length_U, length_U)
        users, items = (
            tuple(f"{name}{number}" for number in range(count))
            for name, count in (("user", self.num_users), ("item", self.num_items))
        )
        locations = DataLocations(list(users), np.zeros(len(user_P), np.int64), user_P, are_records=True)
        item_P, rating_P = item_UT[user_P, time_P].astype(np.int32), np.ones(len(user_P), np.float32)
        return InteractionRows(Catalog(users, items), user_P, item_P, rating_P, time_P.astype(np.float64), locations)

    def _lengths(self) -> np.ndarray:
        low, high = self.length
        draw = RecommendationDraw.LENGTH
        return low + integers(self.data_seed, 0, np.arange(self.num_users), draw, high - low + 1)

    def _sequences(self, length: int) -> np.ndarray:
        """Returns the items of each user, (U, T)."""
        seed, user_U = self.data_seed, np.arange(self.num_users)
        # A permutation for each group, so that all items are about equally frequent.
        follower_GI = np.argsort(
            uniform_rows(seed, 0, np.arange(self.groups), RecommendationDraw.FOLLOWERS, self.num_items),
            axis=1,
            kind="stable",
        )
        is_noise_UT = uniform_rows(seed, 0, user_U, RecommendationDraw.IS_NOISE, length) < self.noise
        random_UT = uniform_rows(seed, 0, user_U, RecommendationDraw.RANDOM_ITEM, length)
        item_UT = (random_UT.astype(np.float64) * self.num_items).astype(np.int64)
        for step in range(2, length):
            follower_U = follower_GI[item_UT[:, step - 2] % self.groups, item_UT[:, step - 1]]
            item_UT[:, step] = np.where(is_noise_UT[:, step], item_UT[:, step], follower_U)
        return item_UT
