"""Input fields of users and items, for recommendation networks. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

if TYPE_CHECKING:
    from mxtrain.types import Shape


class RecommenderFields(NamedTuple):
    """Sizes of the features of users and items, whose ids share one joined table: fields of users, then of items. The
    ids of a field begin at the sum of the sizes of the previous fields.

    Attributes:
        user_sizes: number of ids of each field of users, of which the first is the user itself.
        item_sizes: number of ids of each field of items, of which the first is the item itself.
        user_numbers, item_numbers: number of numeric features of a user, and of an item.
    """

    user_sizes: Tuple[int, ...]
    item_sizes: Tuple[int, ...]
    user_numbers: int = 0
    item_numbers: int = 0

    @property
    def sizes(self) -> Tuple[int, ...]:
        """Returns the sizes of all fields."""
        return self.user_sizes + self.item_sizes

    @property
    def num_numbers(self) -> int:
        """Returns the number of numeric features of a user and an item together."""
        return self.user_numbers + self.item_numbers

    def shapes(self, num_candidates: int) -> Tuple[Shape, ...]:
        """Returns the input shapes of a sample: ids and, if there are numeric features, numbers."""
        ids = len(self.user_sizes) + num_candidates * len(self.item_sizes)
        return ((ids,), (num_candidates * self.num_numbers,))[: 1 + bool(self.num_numbers)]
