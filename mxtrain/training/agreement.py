"""Makes all workers stop and save after the same step."""

from __future__ import annotations

import collections
from typing import Callable, Deque, List, Optional

import numpy as np

from mxtrain.errors import EXIT_BUDGET, EXIT_SIGINT, EXIT_SIGTERM, PeersLost
from mxtrain.kvstore.store import Numbers, Store
from mxtrain.process.stopping import Stop


class Agreement:
    """Makes all workers stop after the same step, though only one sees the reason (a signal, a clock, a newcomer).

    What each wants travels with every step and is read some steps later, when it has arrived everywhere, so no
    worker waits for it. A worker alone decides at once. Rank 0 looks at the clock for all.

    Args:
        store: sums over workers.
        lag: steps after which a wish counts.
    """

    KINDS = {EXIT_SIGTERM: "SIGTERM received", EXIT_SIGINT: "SIGINT received", EXIT_BUDGET: "trainer.max_time reached"}

    def __init__(self, store: Store, lag: int):
        self._store, self._lag = store, lag
        self._under_way: Deque[Callable[[], np.ndarray]] = collections.deque()
        self.saves = False
        """True if all workers save after this step, because one of them requested it."""

    def after_step(self, wish: Optional[Stop], save: bool = False) -> Optional[Stop]:
        """Returns the stop that all workers agree on after this step, or None; every worker must ask after every step.

        Args:
            wish: the stop that this worker wants.
            save: whether it wants a checkpoint.
        """
        self.saves = save and self._store.world.size == 1
        if self._store.world.size == 1:
            self._regroup(self._store.wants_regroup())
            return wish
        self._under_way.append(self._store.votes_later([*self._votes(wish), float(save)], self._lag))
        if len(self._under_way) <= self._lag:
            return None
        *votes, saves = self._under_way.popleft()()
        self.saves = bool(saves)
        return self._outcome(votes, wish)

    def now(self, wish: Optional[Stop]) -> Optional[Stop]:
        """Agrees as `after_step` does, at once; waits for all workers."""
        if self._store.world.size == 1:
            return wish
        return self._outcome(self._store.total(self._votes(wish)), wish)

    def _votes(self, wish: Optional[Stop]) -> List[float]:
        wishes = [wish is not None and wish.exit_code == code for code in self.KINDS]
        return [float(vote) for vote in (*wishes, self._store.wants_regroup())]

    def _regroup(self, wanted: bool) -> None:
        if wanted:
            raise PeersLost("another worker wants to join")

    def _outcome(self, votes: Numbers, wish: Optional[Stop]) -> Optional[Stop]:
        for (code, cause), count in zip(self.KINDS.items(), votes):
            if count and wish is not None and wish.exit_code == code:
                return wish
            if count:
                return Stop("interrupted", code, f"{cause} by another worker" if code != EXIT_BUDGET else cause)
        self._regroup(bool(votes[len(self.KINDS)]))
        return None
