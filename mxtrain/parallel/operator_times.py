"""Measures the time of each operator in a step, and how near it comes to what the machine can do. No MXNet here.

operations of the engine, work of the graph, limits of the machine -> table, TensorBoard
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.engine.limits import Limits
from mxtrain.model.graph.work import Work, bare, update_work

if TYPE_CHECKING:
    from rich.table import Table

    from mxtrain.engine.trace import Operation

SHOWN = 15
BEYOND = (
    "; above 100%: arrays that stay in caches move faster than memory, which was measured, and some kernels multiply "
    "less often than the formula of the operator says (Winograd's convolution)"
)


@dataclass(frozen=True)
class OperatorTime:
    """One kind of operator in the steps that were looked at.

    Attributes:
        name: the engine's.
        calls, seconds: of all devices together.
        work: its FLOPs and bytes, or None if unknown.
        limits: of a device, with the number format in which it computes in `flops`.
    """

    name: str
    calls: int
    seconds: float
    work: Optional[Work]
    limits: Limits

    @property
    def flops_per_s(self) -> float:
        return self.work.flops / self.seconds if self.work else 0.0

    @property
    def moved_per_s(self) -> float:
        return self.work.moved / self.seconds if self.work else 0.0

    @property
    def share_of_limit(self) -> float:
        """Returns the share of its time that the machine needs at least: for arithmetic or for moving bytes, whichever
        is longer (the roofline model: Williams et al., 2009, doi:10.1145/1498765.1498785)."""
        return max(self._shares)

    @property
    def limit(self) -> str:
        """Returns the limiting resource: "arithmetic" or "memory"."""
        arithmetic, memory = self._shares
        return "arithmetic" if arithmetic >= memory else "memory"

    @property
    def _shares(self) -> Tuple[float, float]:
        return self.flops_per_s / self.limits.flops, self.moved_per_s / self.limits.bytes_per_s


@dataclass(frozen=True)
class OperatorTimes:
    """The times of all operators, by type, longest first."""

    first_step: int
    num_steps: int
    rows: Sequence[OperatorTime]
    limits: Limits
    low: bool
    """True if some operators compute in low precision."""

    def scalars(self) -> Dict[str, float]:
        """Returns the values by TensorBoard tag: ms per step, and the share of the limit if the work is known."""
        values = {}
        for row in self.rows[:SHOWN]:
            values[f"operator_ms/{row.name}"] = 1000 * row.seconds / self.num_steps
            if row.work is not None:
                values[f"operator_limit/{row.name}"] = row.share_of_limit
        return values

    def table(self) -> Table:
        """Returns a rich table: one row per operator."""
        from rich.table import Table

        low = f" ({self.limits.low_flops / 1e9:,.0f} in fewer bits)" if self.low else ""
        beyond = any(row.work is not None and row.share_of_limit > 1 for row in self.rows[:SHOWN])
        table = Table(
            caption=f"operators in steps {self.first_step} to {self.first_step + self.num_steps - 1}; measured limits "
            f"of a device: {self.limits.flops / 1e9:,.0f} GFLOP/s{low}, {self.limits.bytes_per_s / 1e9:,.1f} GB/s; of "
            "the limit: the time that the machine needs at least / the time it took" + (BEYOND if beyond else ""),
            caption_justify="left",
        )
        for title in ("operator", "calls", "ms a step", "of all", "GFLOP/s", "GB/s", "of the limit"):
            table.add_column(title, justify="left" if title == "operator" else "right")
        total = sum(row.seconds for row in self.rows)
        for row in self.rows[:SHOWN]:
            cells = _figures(row.calls / self.num_steps, 1000 * row.seconds / self.num_steps, row.seconds / total)
            flops = f"{row.flops_per_s / 1e9:,.0f}" if row.work and row.work.flops else ""
            work_cells = (
                ["", "", ""]
                if row.work is None
                else [flops, f"{row.moved_per_s / 1e9:,.1f}", f"{row.share_of_limit:.0%} {row.limit}"]
            )
            table.add_row(row.name, *cells, *work_cells)
        hidden_rows = self.rows[SHOWN:]
        if hidden_rows:
            calls, seconds = sum(row.calls for row in hidden_rows), sum(row.seconds for row in hidden_rows)
            cells = _figures(calls / self.num_steps, 1000 * seconds / self.num_steps, seconds / total)
            table.add_row(f"{len(hidden_rows)} others", *cells, "", "", "")
        return table


def measure_operators(
    operations: Sequence[Operation],
    works: Sequence[Mapping[str, Work]],
    num_elements: int,
    limits: Limits,
    low: Sequence[str],
    first_step: int,
) -> OperatorTimes:
    """Sums the times of all operations by operator.

    Args:
        operations: operations of the profiled steps only.
        works: work of the network's operators in each step, summed over all devices.
        num_elements: number of parameter elements that are updated in a step, summed over all devices.
        limits: limits of a device.
        low: operators that compute in low precision.
        first_step: number of the first step.
    """
    calls: Dict[str, int] = defaultdict(int)
    seconds: Dict[str, float] = defaultdict(float)
    for operation in operations:
        calls[operation.name] += 1
        seconds[operation.name] += operation.end_s - operation.begin_s
    rows: List[OperatorTime] = []
    for name, took in seconds.items():
        works_of_operator = [work[name] for work in works if name in work]
        update = update_work(name, num_elements)
        work = sum(works_of_operator, Work()) if works_of_operator else update.times(len(works)) if update else None
        operator_limits = (
            Limits(limits.low_flops, limits.low_flops, limits.bytes_per_s) if bare(name) in low else limits
        )
        # An operator may take less than the profiler's resolution, and rates divide by its time.
        rows.append(OperatorTime(name, calls[name], max(took, 1e-9), work, operator_limits))
    rows.sort(key=lambda row: row.seconds, reverse=True)
    return OperatorTimes(first_step, len(works), rows, limits, bool(low))


def _figures(calls: float, ms: float, share: float) -> List[str]:
    return [f"{calls:,.0f}", f"{ms:,.2f}", f"{share:.1%}"]
