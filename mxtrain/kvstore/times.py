"""Times of the parts of a step: computation, waiting for the slowest worker, exchange of gradients."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional

if TYPE_CHECKING:
    from rich.table import Table

FIRST_STEP, EVERY = 10, 50
"""The steps that are timed: 10, 60, 110, ..."""
PACED = 5
"""Number of steps before a change of shares in which each worker measures its own speed."""
SLOW = 1.25
"""So many times the others' time per step makes a worker a straggler."""


def is_timed(step: int) -> bool:
    """Returns True if step `step` is timed and the times of all workers are exchanged."""
    return step % EVERY == FIRST_STEP


def is_paced(step: int, balance_every: Optional[int]) -> bool:
    """Returns True if each worker measures its own speed in step `step`: in the last steps before a change of shares.

    The step after a change is left out, if there are others: it also plans the memory of the new shapes.
    """
    if balance_every is None:
        return False
    return (step - 1) % balance_every >= max(balance_every - PACED, min(1, balance_every - 1))


@dataclass(frozen=True)
class WorkerTimes:
    """The times of all workers in one step.

    Attributes:
        step: number of the step.
        compute_s: for each worker, seconds from the start of the step until its own gradients are computed.
        sizes: for each worker, number of samples of its share.
        exchange_s: seconds from the end of the slowest worker's computation until all workers have the sums.
    """

    step: int
    compute_s: List[float]
    sizes: List[int]
    exchange_s: float

    @property
    def wait_s(self) -> List[float]:
        """Returns for each worker the seconds of waiting for the slowest one."""
        return [max(self.compute_s) - seconds for seconds in self.compute_s]

    def straggler(self) -> Optional[int]:
        """Returns the rank of the slowest worker if it takes `SLOW` times the median of the others; else None."""
        slowest = max(range(len(self.compute_s)), key=lambda rank: self.compute_s[rank])
        # The slowest worker is left out, since it would raise the median that it is compared with.
        others = [seconds for rank, seconds in enumerate(self.compute_s) if rank != slowest]
        return slowest if others and self.compute_s[slowest] > SLOW * statistics.median(others) else None

    def scalars(self) -> Dict[str, float]:
        """Returns the values by TensorBoard tag: means over workers, and computation and samples of each worker."""
        by_worker: Dict[str, float] = {}
        for rank, (compute_s, size) in enumerate(zip(self.compute_s, self.sizes)):
            by_worker.update({f"perf/worker_{rank}/compute_s": compute_s, f"perf/worker_{rank}/samples": size})
        return {
            "perf/compute_s": statistics.mean(self.compute_s),
            "perf/wait_s": statistics.mean(self.wait_s),
            "perf/exchange_s": self.exchange_s,
            **by_worker,
        }

    def table(self) -> Table:
        """Returns the times as a table for `rich`."""
        from rich.table import Table

        table = Table(title=f"what the workers did in step {self.step}", title_justify="left", box=None)
        for title in ("worker", "samples", "compute", "wait", "exchange"):
            table.add_column(title, justify="right")
        for rank, times in enumerate(zip(self.sizes, self.compute_s, self.wait_s)):
            size, *seconds = times
            cells = [f"{1000 * value:.1f} ms" for value in (*seconds, self.exchange_s)]
            table.add_row(str(rank), str(size), *cells)
        return table
