"""The gradients of a parameter that a store sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class Reduction:
    """The gradients of one parameter that must be summed.

    Attributes:
        name: structural name.
        replicas: one gradient per replica, each on its device.
        owner: index of the replica that updates the parameter; the sum is written to its gradient.
    """

    name: str
    replicas: Sequence[NDArray]
    owner: int
