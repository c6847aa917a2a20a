"""Interactions of users with items as samples, and their split by leave-one-out.

Legend: N samples, P interactions, U users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import DUPLICATE, DataLocations, Findings, Problem
from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.user_items import NO_ITEM, UserItems

MIN_INTERACTIONS = 3
"""Minimum number of interactions of a user with held-out interactions: one each for training, validation and test."""
FEW_ITEMS = "few_items"
"""Kind of problem: a user has too few interactions to hold any out, so metrics do not include this user."""


class InteractionRows(NamedTuple):
    """Interactions in the order in which they were read.

    Attributes:
        catalog: ids of users and items.
        user_P, item_P: indices in the catalog.
        rating_P: ratings; 1 if there are none.
        time_P: times of the interactions; None if unknown.
        locations: source location of each interaction.
        are_dates: True if the times are dates, in seconds since 1970.
    """

    catalog: Catalog
    user_P: np.ndarray
    item_P: np.ndarray
    rating_P: np.ndarray
    time_P: Optional[np.ndarray]
    locations: DataLocations
    are_dates: bool = False

    def take(self, kept: np.ndarray) -> InteractionRows:
        """Returns the interactions with these indices."""
        time_P = None if self.time_P is None else self.time_P[kept]
        return self._replace(
            user_P=self.user_P[kept],
            item_P=self.item_P[kept],
            rating_P=self.rating_P[kept],
            time_P=time_P,
            locations=self.locations.take(kept),
        )


@dataclass(frozen=True)
class Interactions:
    """The samples of a split, each one interaction of a user with an item.

    Attributes:
        catalog: ids of users and items.
        user_N, item_N: indices in the catalog; the item is `NO_ITEM` in a sample for prediction.
        rating_N: ratings, float32.
        train_items: items of each user that the network may use as input, i.e. those of the training split.
        train_rating_P: rating of each interaction in `train_items`.
        all_items: items of each user in all splits.
        locations: source location of each sample.
    """

    catalog: Catalog
    user_N: np.ndarray
    item_N: np.ndarray
    rating_N: np.ndarray
    train_items: UserItems
    train_rating_P: np.ndarray
    all_items: UserItems
    locations: Optional[DataLocations] = None

    def __len__(self) -> int:
        return len(self.user_N)

    def take(self, indices: Sequence[int]) -> Interactions:
        """Returns the samples with these indices; indices beyond the end are ignored."""
        kept = np.array([index for index in indices if index < len(self)], np.int64)
        return replace(
            self,
            user_N=self.user_N[kept],
            item_N=self.item_N[kept],
            rating_N=self.rating_N[kept],
            locations=self.locations and self.locations.take(kept),
        )

    def checks(self) -> Checks:
        """Returns checks that only compare samples, because reading has already checked every row."""
        return InteractionChecks(self, self.locations)

    def for_users(self, user_N: np.ndarray) -> Interactions:
        """Returns one sample without an item per user, for prediction; all items of a user may be inputs."""
        no_item_N = np.full(len(user_N), NO_ITEM, np.int32)
        return replace(
            self,
            user_N=user_N,
            item_N=no_item_N,
            rating_N=np.zeros(len(user_N), np.float32),
            train_items=self.all_items,
            locations=None,
        )


class InteractionChecks(SourceChecks):
    """Checks for duplicate interactions. All other problems are found while files are read."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        pair = np.array([self._source.user_N[index], self._source.item_N[index]], np.int64)
        return Checked(digest=digest_of(pair.tobytes()))


def keep_last_of_each(pairs: InteractionRows, findings: Findings, reports_dropped: bool) -> InteractionRows:
    """Keeps the last interaction of each pair of user and item; sorts by user and item.

    The last one is determined by time if times are known, otherwise by the order of the rows.

    Args:
        pairs: interactions in the order of reading.
        findings: collects the dropped interactions, if `reports_dropped` is true.
        reports_dropped: True to report dropped interactions. A second rating of an item may be a mistake; a second
            interaction without a rating, such as a visit, is usual.
    """
    # lexsort sorts by its last key first: user, item, time, then order of the rows.
    order = np.lexsort((np.arange(len(pairs.user_P)), *_times(pairs), pairs.item_P, pairs.user_P))
    pairs = pairs.take(order)
    is_last = np.ones(len(order), bool)
    is_last[:-1] = (pairs.user_P[1:] != pairs.user_P[:-1]) | (pairs.item_P[1:] != pairs.item_P[:-1])
    if reports_dropped and findings.keeps_going:
        for index in np.flatnonzero(~is_last).tolist():
            location, catalog = pairs.locations[index], pairs.catalog
            user, item = catalog.users[pairs.user_P[index]], catalog.items[pairs.item_P[index]]
            fact = f"{location}: user {user} rates item {item} once more later; only the last rating counts."
            findings.remark(Problem(DUPLICATE, location, fact, "Remove one of them."))
    return pairs.take(np.flatnonzero(is_last))


def _times(pairs: InteractionRows) -> Tuple[np.ndarray, ...]:
    return () if pairs.time_P is None else (pairs.time_P,)


def leave_one_out(pairs: InteractionRows, split_seed: int, findings: Findings) -> List[Interactions]:
    """Splits interactions into training, validation and test.

    The last interaction of each user is for testing, the one before it for validation; without times, two random ones
    are. Users with fewer than `MIN_INTERACTIONS` interactions are only in the training split.

    Args:
        pairs: interactions, each pair of user and item once.
        split_seed: seed of the random choice.
        findings: collects users without held-out interactions.
    """
    num_users, num_items = len(pairs.catalog.users), len(pairs.catalog.items)
    keys = _times(pairs) or (bits(split_seed, 0, np.arange(len(pairs.user_P)), Draw.SPLIT),)
    order = np.lexsort((np.arange(len(pairs.user_P)), *keys, pairs.user_P))
    pairs = pairs.take(order)
    count_U = np.bincount(pairs.user_P, minlength=num_users)
    end_U = np.cumsum(count_U)
    from_end_P = end_U[pairs.user_P] - 1 - np.arange(len(pairs.user_P))
    is_measured_P = count_U[pairs.user_P] >= MIN_INTERACTIONS
    report_few_items(pairs, count_U, findings)
    is_test, is_val = is_measured_P & (from_end_P == 0), is_measured_P & (from_end_P == 1)
    parts = [np.flatnonzero(~is_test & ~is_val), np.flatnonzero(is_val), np.flatnonzero(is_test)]
    train = parts[0]
    train_items = UserItems(pairs.user_P[train], pairs.item_P[train], num_users, num_items)
    # In the order of `train_items`, which sorts by user, then item.
    rating_P = pairs.rating_P[train[np.lexsort((pairs.item_P[train], pairs.user_P[train]))]]
    all_items = UserItems(pairs.user_P, pairs.item_P, num_users, num_items)
    return [
        Interactions(
            catalog=pairs.catalog,
            user_N=pairs.user_P[part],
            item_N=pairs.item_P[part],
            rating_N=pairs.rating_P[part],
            train_items=train_items,
            train_rating_P=rating_P,
            all_items=all_items,
            locations=pairs.locations.take(part),
        )
        for part in parts
    ]


def report_few_items(pairs: InteractionRows, count_U: np.ndarray, findings: Findings) -> None:
    """Reports users who have too few interactions to hold any out.

    Args:
        pairs: interactions, sorted by user.
        count_U: number of interactions of each user.
        findings: collects these users.
    """
    if not findings.keeps_going:
        return
    end_U = np.cumsum(count_U)
    for user in np.flatnonzero((count_U < MIN_INTERACTIONS) & (count_U > 0)).tolist():
        location = pairs.locations[int(end_U[user]) - 1]
        name, count = pairs.catalog.users[user], count_U[user]
        fact = f"{location}: user {name} has {count} items, and {MIN_INTERACTIONS} are needed to hold any out."
        findings.remark(Problem(FEW_ITEMS, location, fact, "Nothing is measured for this user."))


def filter_by_count(pairs: InteractionRows, fewest_items: int, fewest_users: int) -> InteractionRows:
    """Removes users with fewer than `fewest_items` items and items with fewer than `fewest_users` users.

    Each removal can push other users or items below the limit, so this repeats until nothing changes (k-core).
    """
    while True:
        of_user, of_item = (np.bincount(ids) for ids in (pairs.user_P, pairs.item_P))
        is_kept = (of_user[pairs.user_P] >= fewest_items) & (of_item[pairs.item_P] >= fewest_users)
        if is_kept.all():
            break
        pairs = pairs.take(np.flatnonzero(is_kept))
    users, user_P = np.unique(pairs.user_P, return_inverse=True)
    items, item_P = np.unique(pairs.item_P, return_inverse=True)
    catalog = replace(
        pairs.catalog,
        users=tuple(pairs.catalog.users[number] for number in users.tolist()),
        items=tuple(pairs.catalog.items[number] for number in items.tolist()),
    )
    return pairs._replace(catalog=catalog, user_P=user_P.astype(np.int32), item_P=item_P.astype(np.int32))
