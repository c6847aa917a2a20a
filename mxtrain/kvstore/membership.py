"""Workers that join and leave a run while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


class Membership:
    """A worker's membership in the group of workers. This base class is a group that stays the same until it ends.

    Methods are collective, except for `drain` and `wants_regroup`.
    """

    joined_late: bool = False
    """True if this worker joined while the others were training."""

    @property
    def elastic(self) -> bool:
        """Returns True if workers may join and leave during the run."""
        return False

    def confirm(self, arrays: Sequence[NDArray]) -> None:
        """Checks the results of `Store.reduce` and `Store.all_reduce` before they are used. Elastic groups wait for
        them.

        Raises:
            PeersLost: another worker was lost, and the others can continue without it.
        """

    def drain(self) -> None:
        """Waits, after `PeersLost`, until no operation is pending.

        Until then MXNet does not write to arrays that are outputs of a failed sum.
        """

    def wants_regroup(self) -> bool:
        """Returns True on rank 0 if a worker waits to join."""
        return False

    def regroup(self) -> None:
        """Forms a new `Store.world` of the remaining and waiting workers. Called after `PeersLost` or `wants_regroup`.

        Raises:
            PeersLost: a worker was lost before all had joined.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot lose a worker.")

    def resume_from(self, step: int) -> None:
        """Restores the state of the store. Called after `regroup`, when all workers have the state of step `step`."""


FIXED = Membership()
"""A group of workers that stays the same."""
