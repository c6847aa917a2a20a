"""Makes all workers stop and save after the same step."""

from __future__ import annotations

import collections
from typing import Callable, Deque, List, Optional

import numpy as np

from mxtrain.cluster.stopping import Stop, was_told_to_end
from mxtrain.errors import EXIT_BUDGET, EXIT_SIGINT, EXIT_SIGTERM, PeersLost
from mxtrain.kvstore.store import Numbers, Store


class Agreement:
    """Makes all workers stop after the same step, though only one sees the reason (a signal, a clock, a newcomer).

    The requests of all workers are summed with every step and read `lag` steps later, when the sum has arrived, so no
    worker waits for it. A single worker decides at once. Rank 0 checks the time limit for all workers.

    Args:
        store: store that sums over workers.
        lag: number of steps after which a request takes effect.
    """

    KINDS = (
        (EXIT_SIGTERM, "SIGTERM or SIGHUP received by another worker"),
        (EXIT_SIGINT, "SIGINT received by another worker"),
        (EXIT_BUDGET, "SIGUSR1, SIGUSR2 or a notice of preemption received by another worker"),
        (EXIT_BUDGET, "trainer.max_time reached"),
    )
    """Exit code and cause of each kind of stop on workers that did not cause it."""

    def __init__(self, store: Store, lag: int):
        self._store, self._lag = store, lag
        self._pending: Deque[Callable[[], np.ndarray]] = collections.deque()
        self.saves = False
        """True if all workers save after this step, because one of them requested it."""

    def after_step(self, requested: Optional[Stop], save: bool = False) -> Optional[Stop]:
        """Returns the stop that all workers agree on after this step, or None. Called by all workers after every step.

        Args:
            requested: stop that this worker requests, or None.
            save: True to request a checkpoint.
        """
        self.saves = save and self._store.world.size == 1
        if self._store.world.size == 1:
            self._regroup(self._store.membership.wants_regroup())
            return requested
        self._pending.append(self._store.votes_later([*self._votes(requested), float(save)], self._lag))
        # The sum of this step may not have arrived on all workers yet, and waiting for it would cost a round trip.
        if len(self._pending) <= self._lag:
            return None
        *votes, saves = self._pending.popleft()()
        self.saves = bool(saves)
        return self._outcome(votes, requested)

    def now(self, requested: Optional[Stop]) -> Optional[Stop]:
        """Does the same as `after_step` without the lag. Waits for all workers."""
        if self._store.world.size == 1:
            return requested
        return self._outcome(self._store.total(self._votes(requested)), requested)

    def _votes(self, requested: Optional[Stop]) -> List[float]:
        flags = [requested is not None and _is_of_kind(requested, *kind) for kind in self.KINDS]
        return [float(vote) for vote in (*flags, self._store.membership.wants_regroup())]

    def _regroup(self, is_requested: bool) -> None:
        if is_requested:
            raise PeersLost("another worker wants to join")

    def _outcome(self, votes: Numbers, requested: Optional[Stop]) -> Optional[Stop]:
        # The order of KINDS decides between several requests of a step, so that all workers stop with the same exit
        # code.
        for (code, cause), count in zip(self.KINDS, votes):
            if count and requested is not None and _is_of_kind(requested, code, cause):
                return requested
            if count:
                return Stop("interrupted", code, cause)
        # Stops come first: a run that ends lets no worker join.
        self._regroup(bool(votes[len(self.KINDS)]))
        return None


def _is_of_kind(stop: Stop, exit_code: int, cause: str) -> bool:
    return (stop.exit_code, was_told_to_end(exit_code, stop.cause)) == (exit_code, was_told_to_end(exit_code, cause))
