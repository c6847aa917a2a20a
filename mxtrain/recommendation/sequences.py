"""Interactions of users in the order of time as samples, and their split by leave-last-out.

Legend: N samples, P interactions, U users, B batch, H items of a history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks
from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.errors import DataError
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.padded_histories import pad_histories
from mxtrain.recommendation.source import FEW_ITEMS as FEW_ITEMS
from mxtrain.recommendation.source import MIN_INTERACTIONS, InteractionRows, report_few_items
from mxtrain.recommendation.user_items import NO_ITEM, UserItems


class UserSequences(NamedTuple):
    """The items of all users, each in the order of time.

    Attributes:
        item_P: items, user after user.
        begin_U: position of the first item of each user, and the number of items: (U + 1,).
    """

    item_P: np.ndarray
    begin_U: np.ndarray

    @property
    def count_U(self) -> np.ndarray:
        """Returns the number of interactions of each user."""
        return np.diff(self.begin_U)

    def items_of(self, user: int) -> np.ndarray:
        """Returns the items of a user, oldest first; an item may occur several times."""
        items: np.ndarray = self.item_P[self.begin_U[user] : self.begin_U[user + 1]]
        return items


@dataclass(frozen=True)
class SequenceSamples:
    """The samples of a split: each is an item of a user, to be predicted from the items before it.

    Attributes:
        catalog: ids of users and items. Users of histories that were given for prediction are numbered lines.
        sequences: items of all users in all splits.
        user_N: users.
        position_N: position in the user's sequence of the item to predict; its length in a sample for prediction.
        train_items, all_items: distinct items of each user in the training split and in all splits.
        train_count_U: number of interactions of each user in the training split, (U,).
        locations: source location of each sample.
    """

    catalog: Catalog
    sequences: UserSequences
    user_N: np.ndarray
    position_N: np.ndarray
    train_items: UserItems
    all_items: UserItems
    train_count_U: np.ndarray
    locations: Optional[DataLocations] = None

    def __len__(self) -> int:
        return len(self.user_N)

    @property
    def item_N(self) -> np.ndarray:
        """Returns the item of each sample; `NO_ITEM` in samples for prediction."""
        begin_U = self.sequences.begin_U
        place_N = begin_U[self.user_N] + self.position_N
        is_known_N = place_N < begin_U[self.user_N + 1]
        item_N = np.full(len(self), NO_ITEM, np.int32)
        item_N[is_known_N] = self.sequences.item_P[place_N[is_known_N]]
        return item_N

    def history_of(self, index: int) -> np.ndarray:
        """Returns the items before that of a sample, oldest first."""
        items: np.ndarray = self.sequences.items_of(int(self.user_N[index]))[: int(self.position_N[index])]
        return items

    def histories(self, index_B: np.ndarray, width: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the newest `width` items before those of samples, (B, H) int32, and their numbers, (B,) float32."""
        return pad_histories([self.history_of(index) for index in index_B.tolist()], width)

    def take(self, indices: Sequence[int]) -> SequenceSamples:
        """Returns the samples with these indices; indices beyond the end are ignored."""
        kept = np.array([index for index in indices if index < len(self)], np.int64)
        locations = self.locations and self.locations.take(kept)
        return replace(self, user_N=self.user_N[kept], position_N=self.position_N[kept], locations=locations)

    def checks(self) -> Checks:
        """Returns checks that find nothing more: reading has checked every row."""
        return SequenceChecks(self, self.locations)

    def for_users(self, user_N: np.ndarray) -> SequenceSamples:
        """Returns one sample per user for prediction, whose history are all items of the user."""
        return replace(self, user_N=user_N, position_N=self.sequences.count_U[user_N], locations=None)


class SequenceChecks(SourceChecks):
    """Checks of `SequenceSamples`."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        return Checked()


def rows_in_order(pairs: InteractionRows) -> np.ndarray:
    """Returns the rows of interactions user by user, each in the order of time; rows with equal times keep their
    order."""
    assert pairs.time_P is not None
    order_P: np.ndarray = np.lexsort((np.arange(len(pairs.user_P)), pairs.time_P, pairs.user_P))
    return order_P


def leave_last_out(pairs: InteractionRows, findings: Findings) -> List[SequenceSamples]:
    """Splits the sequences of users into training, validation and test.

    The last item of each user is for testing and the one before it for validation. Each other item is a training
    sample, except the first one, which has no history. Users with fewer than `MIN_INTERACTIONS` interactions are only
    in the training split. Interactions with equal times keep the order of their rows.

    Args:
        pairs: interactions with their times.
        findings: collects users without held-out interactions.

    Raises:
        DataError: no user has an item to train on.
    """
    pairs = pairs.take(rows_in_order(pairs))
    num_users, num_items = len(pairs.catalog.users), len(pairs.catalog.items)
    count_U = np.bincount(pairs.user_P, minlength=num_users)
    report_few_items(pairs, count_U, findings)
    sequences = UserSequences(pairs.item_P, np.concatenate([[0], np.cumsum(count_U)]))
    position_P = np.arange(len(pairs.user_P)) - sequences.begin_U[pairs.user_P]
    train_count_U = np.where(count_U >= MIN_INTERACTIONS, count_U - 2, count_U)
    left_P = position_P - train_count_U[pairs.user_P]  # 0 for validation, 1 for testing
    parts = [np.flatnonzero(chosen_P) for chosen_P in ((left_P < 0) & (position_P > 0), left_P == 0, left_P == 1)]
    if not len(parts[0]):
        raise DataError(
            "No user has an item that is neither the first nor held out, so there is nothing to train on. Give users "
            "with at least 4 interactions."
        )
    is_train_P = left_P < 0
    train_items = UserItems(pairs.user_P[is_train_P], pairs.item_P[is_train_P], num_users, num_items)
    all_items = UserItems(pairs.user_P, pairs.item_P, num_users, num_items)
    return [
        SequenceSamples(
            catalog=pairs.catalog,
            sequences=sequences,
            user_N=pairs.user_P[part],
            position_N=position_P[part],
            train_items=train_items,
            all_items=all_items,
            train_count_U=train_count_U,
            locations=pairs.locations.take(part),
        )
        for part in parts
    ]


def samples_of_histories(
    histories: Sequence[np.ndarray], names: Sequence[str], items: Tuple[str, ...]
) -> SequenceSamples:
    """Returns samples for prediction from given histories.

    Args:
        histories: items of each, oldest first.
        names: name of each history.
        items: ids of all items.
    """
    count_U = np.array([len(history) for history in histories], np.int64)
    user_N = np.arange(len(histories))
    item_P = np.concatenate(histories).astype(np.int32)
    has = UserItems(np.repeat(user_N, count_U), item_P, len(histories), len(items))
    sequences = UserSequences(item_P, np.concatenate([[0], np.cumsum(count_U)]))
    return SequenceSamples(Catalog(tuple(names), items), sequences, user_N, count_U, has, has, count_U)
