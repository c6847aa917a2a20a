"""Users and items of a recommendation network; a checkpoint stores them.

Ids are texts as in the files, for numbers of any size and for names. Inputs of a network are indices into the catalog,
from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, List, Mapping, Sequence, Tuple

from mxtrain.errors import DamagedCheckpoint

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm

CATALOG_STATE: JsonForm = {"users": [str], "items": [str], "origin?": [[str]]}
"""Schema of a catalog in a checkpoint, which is untrusted. Earlier versions wrote the origin of bundled data."""
_MAX_NAMED = 5


@dataclass(frozen=True)
class Catalog:
    """Users and items in the order of their embeddings.

    Attributes:
        users, items: their ids.
    """

    users: Tuple[str, ...]
    items: Tuple[str, ...]

    @cached_property
    def user_of(self) -> Mapping[str, int]:
        """Returns the index of each user."""
        return {name: number for number, name in enumerate(self.users)}

    def difference_from(self, learned: Catalog) -> str:
        """Describes the first difference from the catalog of a trained network; empty if there is none."""
        if (self.users, self.items) == (learned.users, learned.items):
            return ""
        parts: List[str] = []
        for side, current, previous in (("users", self.users, learned.users), ("items", self.items, learned.items)):
            if current != previous:
                learned_names = set(previous)
                new = [name for name in current if name not in learned_names]
                new_text = f", {len(new):,} of them new: {_some(new)}" if new else ""
                parts.append(f"{len(current):,} {side} instead of {len(previous):,}{new_text}")
        return " and ".join(parts)

    def to_json(self) -> Json:
        """Returns plain values, in the form of `CATALOG_STATE`."""
        return {"users": list(self.users), "items": list(self.items)}

    @classmethod
    def from_json(cls, values: Any) -> Catalog:
        """Restores a catalog from `to_json`.

        Args:
            values: untrusted values in the form of `CATALOG_STATE`.

        Raises:
            DamagedCheckpoint: the values are no catalog.
        """
        users, items = tuple(values["users"]), tuple(values["items"])
        if not users or not items or len(set(users)) < len(users) or len(set(items)) < len(items):
            raise DamagedCheckpoint("The checkpoint cannot be used: its users or items are missing or there twice.")
        return cls(users, items)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
