"""Input fields of users and items, for recommendation networks. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

if TYPE_CHECKING:
    from mxtrain.types import Shape


class RecommenderFields(NamedTuple):
    """Users and items as rows of features, of whose ids one table is joined: fields of users, then of items; ids of a
    field begin at the sum of the sizes of those before it.

    Attributes:
        user_sizes: ids of each field of a user, of which the first is the user itself.
        item_sizes: the same of items.
        user_numbers, item_numbers: how many numbers each has.
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
        """Returns the count of numbers of a user and an item together."""
        return self.user_numbers + self.item_numbers

    def shapes(self, num_candidates: int) -> Tuple[Shape, ...]:
        """Shapes of what enters a network of one sample: ids, and numbers where there are any."""
        ids = len(self.user_sizes) + num_candidates * len(self.item_sizes)
        return ((ids,), (num_candidates * self.num_numbers,))[: 1 + bool(self.num_numbers)]
