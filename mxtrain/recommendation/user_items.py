"""Stores the items of each user in two arrays, and samples items that a user does not have without rejection. Exported
folders have a copy of this module.

Legend: U users, P pairs of user and item, B batch, N sampled items.
"""

from __future__ import annotations

from typing import List

import numpy as np

from mxtrain.data.loading.uniform_hash import uniform, uniform_rows

NO_ITEM = -1
"""Padding of rows of items."""
HISTORY = 751
"""Random stream that chooses the items of a long history, see `loader.RecommendationDraw`."""


class UserItems:
    """Items of each user, ascending and without duplicates.

    Args:
        user_P, item_P: pairs in any order, duplicates allowed.
        num_users: number of users; users are numbered from 0.
        num_items: number of items; items are numbered from 0.
    """

    def __init__(self, user_P: np.ndarray, item_P: np.ndarray, num_users: int, num_items: int) -> None:
        self.num_users, self.num_items = num_users, num_items
        # One integer for each pair: `unique` sorts by user and item, and removes duplicates.
        key_P = np.unique(user_P.astype(np.int64) * num_items + item_P)
        self.user_P, self.item_P = (part.astype(np.int32) for part in np.divmod(key_P, num_items))
        self.begin_U = np.searchsorted(self.user_P, np.arange(num_users + 1))
        # For each item of a user, the number of smaller items that the user does not have. Within a user these numbers
        # never decrease, so a binary search finds the n-th item that the user does not have.
        num_missing_P = self.item_P - (np.arange(len(self.item_P)) - self.begin_U[self.user_P])
        self._missing_P = self.user_P.astype(np.int64) * (num_items + 1) + num_missing_P

    def __len__(self) -> int:
        return len(self.item_P)

    @property
    def count_U(self) -> np.ndarray:
        """Returns the number of items of each user."""
        return np.diff(self.begin_U)

    def items_of(self, user: int) -> np.ndarray:
        """Returns the items of a user, ascending."""
        items: np.ndarray = self.item_P[self.begin_U[user] : self.begin_U[user + 1]]
        return items

    def without(self, user: int, item: int) -> np.ndarray:
        """Returns the items of a user except `item`."""
        items = self.items_of(user)
        return items[items != item]

    def missing_at(self, user_B: np.ndarray, number_BN: np.ndarray) -> np.ndarray:
        """Returns the items with these indices among the items that each user does not have, (B, N)."""
        key_BN = user_B[:, None].astype(np.int64) * (self.num_items + 1) + number_BN
        position_BN = np.searchsorted(self._missing_P, key_BN, side="right")
        item_BN: np.ndarray = number_BN + position_BN - self.begin_U[user_B][:, None]
        return item_BN.astype(np.int32)

    def draw_missing(
        self, user_B: np.ndarray, index_B: np.ndarray, count: int, seed: int, epoch: int, draw: int
    ) -> np.ndarray:
        """Samples items that each user does not have, uniformly with replacement, by (seed, epoch, index).

        Returns:
            Items (B, count); `NO_ITEM` for users who have all items.
        """
        missing_B = self.num_items - self.count_U[user_B]
        random_BN = np.stack([uniform(seed, epoch, index_B, draw + number) for number in range(count)], axis=1)
        number_BN = (random_BN * missing_B[:, None]).astype(np.int64)
        return np.where(missing_B[:, None] > 0, self.missing_at(user_B, number_BN), NO_ITEM).astype(np.int32)

    def draw_different(self, user_B: np.ndarray, count: int, seed: int, draw: int) -> np.ndarray:
        """Samples items that each user does not have, uniformly without replacement, as a function of seed and user.

        Each user must lack at least `count` items.

        Returns:
            Items (B, count).
        """
        missing_B = self.num_items - self.count_U[user_B]
        # In float32, the product with a limit could round up to the limit.
        random_BN = uniform_rows(seed, 0, user_B, draw, count).astype(np.float64)
        number_BN = np.empty((len(user_B), count), np.int64)
        for row, missing in enumerate(missing_B.tolist()):
            number_BN[row] = sample_distinct(random_BN[row], missing)
        return self.missing_at(user_B, number_BN)

    def rows(self, user_B: np.ndarray, key_BN: np.ndarray, except_B: np.ndarray, max_items: int) -> List[np.ndarray]:
        """Returns items of each user without one item, ascending: all, or the `max_items` items with the lowest keys.

        Args:
            user_B: users.
            key_BN: random sort keys; N is at least the largest number of items of a user.
            except_B: item to exclude for each user.
            max_items: maximum number of items per user.
        """
        item_rows = []
        for row, (user, excluded) in enumerate(zip(user_B.tolist(), except_B.tolist())):
            items = self.without(user, excluded)
            item_rows.append(with_lowest_keys(items, key_BN[row], max_items))
        return item_rows


def with_lowest_keys(item_H: np.ndarray, key_N: np.ndarray, max_items: int) -> np.ndarray:
    """Returns the items of a history, if there are more than `max_items` the ones with the lowest keys, ascending.

    Args:
        item_H: the items, ascending.
        key_N: a random number for each item, and possibly more.
        max_items: largest number of items.
    """
    if len(item_H) <= max_items:
        return item_H
    return np.sort(item_H[np.argsort(key_N[: len(item_H)], kind="stable")[:max_items]])


def sample_distinct(random_N: np.ndarray, limit: int) -> np.ndarray:
    """Converts N random numbers in [0, 1) to N distinct integers below `limit`.

    Source: Floyd's algorithm, Bentley and Floyd, "A Sample of Brilliance" (1987).
    """
    count = len(random_N)
    sampled: dict = {}  # a dict keeps the order, unlike a set, so the result is reproducible
    for last, random in zip(range(limit - count, limit), random_N.tolist()):
        number = int(random * (last + 1))
        sampled[last if number in sampled else number] = None
    return np.fromiter(sampled, np.int64, count)
