"""Detects stragglers among the workers and rebalances their shares of each batch.

All workers compute this from the same times, so that they agree on the shares without communication.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from typing import Deque, List, Optional

from mxtrain.kvstore.times import WorkerTimes
from mxtrain.kvstore.world import World

REMEMBERED = 5
"""Number of timed steps of which the median is taken."""
MIN_RELATIVE_SPEED = 0.05
"""Lower bound of a worker's speed relative to the mean, so that every worker gets samples and can be timed."""
MIN_GAIN = 0.05
"""Relative gain of a step's time below which shares are kept: with new shapes, the next step plans its memory anew."""


class Stragglers:
    """Finds slow workers from the shared compute times, and gives them fewer samples with `cluster.balance=speed`.

    Args:
        by_speed: True to give slower workers fewer samples.
        can_balance: True if balancing is possible in this run, so that a warning may suggest it.
    """

    def __init__(self, by_speed: bool = False, can_balance: bool = True):
        self.by_speed, self._can_balance = by_speed, can_balance
        self._times: Deque[WorkerTimes] = deque(maxlen=REMEMBERED)
        self._slow: Optional[int] = None
        self._last: Optional[WorkerTimes] = None
        self.forget()

    def forget(self) -> None:
        """Clears all times after workers have joined or left: a new worker does not know the earlier ones."""
        self._times.clear()
        self._in_a_row, self._slow, self._reported = 0, None, -1

    def note(self, times: WorkerTimes) -> bool:
        """Records the times of a step. Returns False if they were recorded before."""
        if times is self._last:
            return False
        self._last = times
        self._times.append(times)
        slow = times.straggler()
        self._in_a_row = self._in_a_row + 1 if slow is not None and slow == self._slow else 1
        self._slow = slow
        return True

    def restart(self, times: WorkerTimes) -> None:
        """Records times that were measured over several steps, and forgets older ones."""
        self._times.clear()
        self.note(times)

    def remark(self) -> str:
        """Returns a warning if a worker is slow for the second time in a row, once per worker; else ""."""
        slow = self._slow
        if slow is None or self._in_a_row < 2 or self._reported == slow:
            return ""
        self._reported = slow
        times = self._times[-1]
        median_s = statistics.median([compute_s for rank, compute_s in enumerate(times.compute_s) if rank != slow])
        is_new = self._can_balance and not self.by_speed
        advice = "; cluster.balance=speed gives it fewer samples" if is_new else ""
        return (
            f"worker {slow} is slow: it computed for {1000 * times.compute_s[slow]:.0f} ms in step {times.step}, the "
            f"others for {1000 * median_s:.0f} ms and then waited{advice}"
        )

    def share(self, world: World) -> World:
        """Returns `world` with new relative speeds, or the same object if they would save less than `MIN_GAIN`."""
        timed_steps = self._times
        if not self.by_speed or not timed_steps:
            return world
        speeds: List[float] = []
        for rank in range(world.size):
            samples_per_s = [times.sizes[rank] / times.compute_s[rank] for times in timed_steps if times.sizes[rank]]
            speeds.append(statistics.median(samples_per_s) if samples_per_s else 0.0)
        mean = statistics.mean(speeds)
        shares = [max(speed, MIN_RELATIVE_SPEED * mean) for speed in speeds]
        shares = [share / sum(shares) for share in shares]
        old_shares = [speed / sum(world.speeds) for speed in world.speeds] or [1 / world.size] * world.size
        # A step takes as long as its slowest worker: now the largest share / speed, with the new shares the same for
        # all workers.
        step_s = max(old / max(new, 1e-9) for old, new in zip(old_shares, shares))
        if step_s < 1 / (1 - MIN_GAIN):
            return world
        # The next change is then decided by steps with the new shares only.
        self._times.clear()
        return dataclasses.replace(world, speeds=tuple(shares))
