"""Items of each user, as two arrays; also draws items that a user does not have, without a search. Exported folders
have a copy of this module.

Legend: U users, P pairs of user and item, B batch, N items drawn.
"""

from __future__ import annotations

from typing import List

import numpy as np

from mxtrain.data.loading.uniform_hash import uniform, uniform_rows

NOTHING = -1
"""Fills rows of items that are shorter than others."""
HISTORY = 751
"""Stream of random numbers that choose the items of a long history, see `loader.RecommendationDraw`."""


class UserItems:
    """The items of each user, ascending and each once.

    Args:
        user_P, item_P: pairs, in any order; the same pair may be there several times.
        num_users: users are from 0 to this.
        num_items: likewise.
    """

    def __init__(self, user_P: np.ndarray, item_P: np.ndarray, num_users: int, num_items: int) -> None:
        self.num_users, self.num_items = num_users, num_items
        key_P = np.unique(user_P.astype(np.int64) * num_items + item_P)
        self.user_P, self.item_P = (part.astype(np.int32) for part in np.divmod(key_P, num_items))
        self.begin_U = np.searchsorted(self.user_P, np.arange(num_users + 1))
        # Of the item at place j among a user's: how many items below it he has not. These never fall, so that the
        # item of any number among those he has not is found by halving.
        below_P = self.item_P - (np.arange(len(self.item_P)) - self.begin_U[self.user_P])
        self._missing_P = self.user_P.astype(np.int64) * (num_items + 1) + below_P

    def __len__(self) -> int:
        return len(self.item_P)

    @property
    def count_U(self) -> np.ndarray:
        """Returns the number of items of each user."""
        return np.diff(self.begin_U)

    def items_of(self, user: int) -> np.ndarray:
        """The items of a user, ascending."""
        found: np.ndarray = self.item_P[self.begin_U[user] : self.begin_U[user + 1]]
        return found

    def without(self, user: int, item: int) -> np.ndarray:
        """The items of a user but one."""
        found = self.items_of(user)
        return found[found != item]

    def missing_at(self, user_B: np.ndarray, number_BN: np.ndarray) -> np.ndarray:
        """Returns the items with these indices among the items that each user does not have, (B, N)."""
        key_BN = user_B[:, None].astype(np.int64) * (self.num_items + 1) + number_BN
        place_BN = np.searchsorted(self._missing_P, key_BN, side="right")
        found: np.ndarray = number_BN + place_BN - self.begin_U[user_B][:, None]
        return found.astype(np.int32)

    def draw_missing(
        self, user_B: np.ndarray, index_B: np.ndarray, count: int, seed: int, epoch: int, draw: int
    ) -> np.ndarray:  # fmt: skip
        """Items that users have not, each as likely as any other, a function of (seed, epoch, index): (B, count), the
        same one possibly more than once; `NOTHING` for a user who has all."""
        room_B = self.num_items - self.count_U[user_B]
        chosen = [uniform(seed, epoch, index_B, draw + number) for number in range(count)]
        number_BN = (np.stack(chosen, axis=1) * room_B[:, None]).astype(np.int64)
        return np.where(room_B[:, None] > 0, self.missing_at(user_B, number_BN), NOTHING).astype(np.int32)

    def draw_different(self, user_B: np.ndarray, count: int, seed: int, draw: int) -> np.ndarray:
        """Different items that each user has not, all choices as likely: (B, count), a function of seed and user. Each
        must have at least `count` that he has not."""
        room_B = self.num_items - self.count_U[user_B]
        drawn_BN = uniform_rows(seed, 0, user_B, draw, count).astype(np.float64)
        number_BN = np.empty((len(user_B), count), np.int64)
        for row, room in enumerate(room_B.tolist()):
            number_BN[row] = _different(drawn_BN[row], room)
        return self.missing_at(user_B, number_BN)

    def rows(self, user_B: np.ndarray, key_BN: np.ndarray, except_B: np.ndarray, most: int) -> List[np.ndarray]:
        """Returns at most so many items of each user, without one item: all, or the ones with the lowest keys,
        ascending.

        Args:
            user_B: whose.
            key_BN: random numbers, one for each item of the user of the most items, and one more.
            except_B: the item that is left out of each.
            most: items.
        """
        found = []
        for row, (user, left_out) in enumerate(zip(user_B.tolist(), except_B.tolist())):
            items = self.without(user, left_out)
            found.append(with_lowest_keys(items, key_BN[row], most))
        return found


def with_lowest_keys(item_H: np.ndarray, key_N: np.ndarray, most: int) -> np.ndarray:
    """Returns the items of a history, if there are more than `most` the ones with the lowest keys, ascending.

    Args:
        item_H: the items, ascending.
        key_N: a random number for each item, and possibly more.
        most: largest number of items.
    """
    if len(item_H) <= most:
        return item_H
    return np.sort(item_H[np.argsort(key_N[: len(item_H)], kind="stable")[:most]])


def _different(drawn_N: np.ndarray, room: int) -> np.ndarray:
    """Different numbers below `room`, of as many random ones in [0, 1).

    Source: Floyd's algorithm, Bentley and Floyd, "A Sample of Brilliance" (1987).
    """
    count = len(drawn_N)
    found: dict = {}
    for last, drawn in zip(range(room - count, room), drawn_N.tolist()):
        number = int(drawn * (last + 1))
        found[last if number in found else number] = None
    return np.fromiter(found, np.int64, count)
