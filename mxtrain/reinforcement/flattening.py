"""Composed observations (Dict, Tuple, choices) as one vector: its order, and the name of each number.

The order is that of gymnasium's `flatten`. Exported folders have a copy of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np

Key = Union[str, int]
KINDS = {"Box": "numbers", "MultiBinary": "numbers", "Discrete": "choices", "MultiDiscrete": "choices"}


@dataclass(frozen=True)
class Leaf:
    """A part of a composed observation that is an array.

    Attributes:
        path: keys of dictionaries and numbers of tuples that lead to it.
        kind: "numbers", which enter as they are, or "choices", each of which enters as ones and zeros.
        shape: shape of the array.
        counts: number of choices of each element; empty for numbers.
        starts: first choice of each element; empty for numbers.
    """

    path: Tuple[Key, ...]
    kind: str
    shape: Tuple[int, ...]
    counts: Tuple[int, ...] = ()
    starts: Tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Returns the number of numbers of the vector."""
        return sum(self.counts) if self.kind == "choices" else int(np.prod(self.shape, dtype=int))

    def names(self) -> List[str]:
        """Returns the name of each number, e.g. `arm.angle[0]`, or `mode=2` for a choice."""
        path = ".".join(map(str, self.path)) or "observation"
        places = [f"{path}[{','.join(map(str, place))}]" if place else path for place in np.ndindex(self.shape)]
        if self.kind == "numbers":
            return places
        return [
            f"{place}={start + choice}"
            for place, count, start in zip(places, self.counts, self.starts)
            for choice in range(count)
        ]

    def read(self, observation: Any) -> np.ndarray:
        """Returns the numbers of this part of an observation, float32.

        Raises:
            ValueError: the observation lacks the part, or it has another shape or a value that is no choice.
        """
        name, value = ".".join(map(str, self.path)) or "the observation", observation
        for key in self.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"lacks {name}") from error
        try:
            array = np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"holds no numbers in {name}") from error
        if array.shape != self.shape:
            raise ValueError(f"has the shape {array.shape} in {name}; it is {self.shape}")
        if self.kind == "numbers":
            return array.reshape(-1)
        parts = []
        for number, count, start in zip(array.reshape(-1).tolist(), self.counts, self.starts):
            if number not in range(start, start + count):
                raise ValueError(f"has {number:g} in {name}; it is a whole number from {start} to {start + count - 1}")
            parts.append(np.arange(start, start + count) == number)
        return np.concatenate(parts).astype(np.float32)

    def to_json(self) -> Dict[str, Any]:
        """Returns plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Dict[str, Any]) -> Leaf:
        """Restores a leaf from `to_json`."""
        path, kind, *counts = (values[name] for name in ("path", "kind", "shape", "counts", "starts"))
        shape, choices, starts = (tuple(int(number) for number in numbers) for numbers in counts)
        return cls(tuple(path), str(kind), shape, choices, starts)


def leaves_of(space: Any, path: Tuple[Key, ...] = ()) -> List[Leaf]:
    """Returns the leaves of a gymnasium space, in the order in which they enter the vector.

    Raises:
        ValueError: a leaf is of a type whose numbers have no names.
    """
    parts = getattr(space, "spaces", None)
    if parts is not None:
        items = parts.items() if hasattr(parts, "items") else enumerate(parts)
        return [leaf for key, part in items for leaf in leaves_of(part, (*path, key))]
    kind = KINDS.get(type(space).__name__)
    if kind is None:
        raise ValueError(f"{space!r:.80} has no names")
    shape = tuple(int(size) for size in space.shape)
    if kind == "numbers":
        return [Leaf(path, kind, shape)]
    counts = np.asarray(getattr(space, "nvec", getattr(space, "n", None)), np.int64).reshape(-1)
    starts = np.broadcast_to(np.asarray(getattr(space, "start", 0), np.int64).reshape(-1), counts.shape)
    return [Leaf(path, kind, shape, tuple(counts.tolist()), tuple(starts.tolist()))]


def read_leaves(leaves: Sequence[Leaf], observation: Any) -> np.ndarray:
    """Returns a composed observation as one vector, float32.

    Raises:
        ValueError: see `Leaf.read`.
    """
    return np.concatenate([leaf.read(observation) for leaf in leaves])
