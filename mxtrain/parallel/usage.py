"""Measures how well a placement uses its devices, from what the engine did in a few steps. No MXNet here.

operations of the engine -> per device: computing, updating, exchanging, waiting -> table, TensorBoard, timeline
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from statistics import mean
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from mxtrain.parallel.layout import Layout

if TYPE_CHECKING:
    from rich.table import Table

    from mxtrain.engine.trace import Operation
    from mxtrain.types.annotations import Json

COMPUTE, UPDATE, EXCHANGE = "compute", "update", "exchange"
COLORS = {COMPUTE: "thread_state_running", UPDATE: "thread_state_iowait", EXCHANGE: "thread_state_runnable"}
"""Kind -> a colour of the chrome trace format's fixed set."""

Interval = Tuple[float, float]


def kind_of(name: str) -> str:
    """Returns the kind of an operation of the engine, by its name: exchange is copies and the store's sums. Optimizers
    without an operator count as compute."""
    if name.startswith(("Copy", "KVStore", "_CrossDeviceCopy")):
        return EXCHANGE
    return UPDATE if name.endswith(("_update", "_mxtrain_adamw", "_mxtrain_sgd")) or "_update_" in name else COMPUTE


@dataclass(frozen=True)
class DeviceUse:
    """One device's part in a number of steps; times are shares of the steps' time.

    Attributes:
        device: e.g. "cpu(1)".
        replica, stage: its place.
        samples_per_s: of its replica, of which each sample passes all stages.
        compute, update, exchange, waiting: shares of the time. What overlaps counts for each kind, so that they can
            add up to more than 1; waiting is the time in which nothing ran.
        microbatch_s: time for one microbatch, forward and backward. Copies count where they start (the prediction
            counts them where they end), those to other replicas, too.
    """

    device: str
    replica: int
    stage: int
    samples_per_s: float
    compute: float
    update: float
    exchange: float
    waiting: float
    microbatch_s: float


@dataclass(frozen=True)
class Usage:
    """The use that a placement made of its devices.

    Attributes:
        layout: the placement.
        first_step, num_steps: which steps were looked at.
        devices: replica by replica, stage by stage.
    """

    layout: Layout
    first_step: int
    num_steps: int
    devices: Sequence[DeviceUse]

    @property
    def bubble(self) -> float:
        """Returns the share of the devices' time in which nothing ran on them."""
        return mean(device.waiting for device in self.devices)

    def scalars(self) -> Dict[str, float]:
        """Returns the values by TensorBoard tag: shares of time, and samples/s."""
        values = {"perf/bubble": self.bubble, "perf/exchange": mean(device.exchange for device in self.devices)}
        for device in self.devices:
            name = device.device.replace("(", "").replace(")", "")
            values[f"perf/{name}/samples_per_s"] = device.samples_per_s
            values[f"perf/{name}/busy"] = 1 - device.waiting
            values[f"perf/{name}/exchange"] = device.exchange
        return values

    def table(self) -> Table:
        """Returns a rich table with one row per device; for stages, with expected shares and measured times."""
        from rich.table import Table

        cut = self.layout.cut
        expected = f" (expected: {cut.predicted.bubble:.0%})" if cut else ""
        last = self.first_step + self.num_steps - 1
        caption = (
            f"measured in steps {self.first_step} to {last}: devices wait {self.bubble:.0%} of the time{expected}"
            + ("; times are forward and backward of one microbatch" if cut else "")
        )
        table = Table(caption=caption, caption_justify="left")
        for title in ("device", "replica", "stage", "samples/s", "computes", "updates", "exchanges", "waits"):
            table.add_column(title, justify="left" if title == "device" else "right")
        if cut:
            slowest = max(stage.seconds for stage in cut.stages)
            table.add_column("expected of the slowest", justify="right")
            table.add_column("measured", justify="right")
        for use in self.devices:
            cells = [use.device, str(use.replica), str(use.stage), f"{use.samples_per_s:,.0f}"]
            cells += [f"{share:.1%}" for share in (use.compute, use.update, use.exchange, use.waiting)]
            if cut:
                cells += [f"{cut.stages[use.stage].seconds / slowest:.0%}", f"{1000 * use.microbatch_s:.2f} ms"]
            table.add_row(*cells)
        return table


def measure_usage(
    layout: Layout, operations: Sequence[Operation], first_step: int, sizes: Sequence[int]
) -> Optional[Usage]:
    """Computes how the devices were used from a trace of operations.

    Args:
        layout: placement of the network.
        operations: operations of the profiled steps only.
        first_step: number of the first profiled step.
        sizes: number of samples of each step's global batch.

    Returns:
        The usage; None without operations.
    """
    if not operations:
        return None
    wall_s = max(o.end_s for o in operations) - min(o.begin_s for o in operations)
    num_replicas = len(layout.devices)
    devices = []
    for replica, stages in enumerate(layout.devices):
        samples = sum(size // num_replicas + (replica < size % num_replicas) for size in sizes)
        for stage, device in enumerate(map(str, stages)):
            device_operations = [o for o in operations if o.device == device]
            times = {kind: _covered(o for o in device_operations if kind_of(o.name) == kind) for kind in COLORS}
            shards = len(sizes) * layout.num_parts * layout.num_microbatches
            # Updates and sums over replicas are not part of the predicted time of a stage.
            stage_s = _covered(
                o for o in device_operations if kind_of(o.name) != UPDATE and not o.name.startswith("KVStore")
            )
            devices.append(
                DeviceUse(
                    device,
                    replica,
                    stage,
                    samples / wall_s,
                    waiting=1 - _covered(device_operations) / wall_s,
                    microbatch_s=stage_s / shards,
                    **{kind: times[kind] / wall_s for kind in COLORS},
                )
            )
    return Usage(layout, first_step, len(sizes), devices)


def chrome_trace(layout: Layout, operations: Sequence[Operation]) -> Mapping[str, Json]:
    """Returns a timeline to open in ui.perfetto.dev or chrome://tracing: one process per device, further lines where
    operations overlap.

    Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("complete" events, times
    in microseconds).
    """
    begin_s = min((operation.begin_s for operation in operations), default=0.0)
    rows: Dict[str, int] = {}
    events: List[Mapping[str, Json]] = []
    for replica, stages in enumerate(layout.devices):
        for stage, device in enumerate(map(str, stages)):
            rows[device] = len(rows)
            name = f"{device}: replica {replica}, stage {stage}"
            events.append({"ph": "M", "name": "process_name", "pid": rows[device], "args": {"name": name}})
    free: Dict[Tuple[str, int], float] = {}  # (device, line) -> when its last operation ends
    for operation in operations:
        line = next(n for n in count() if free.get((operation.device, n), -1.0) <= operation.begin_s)
        free[operation.device, line] = operation.end_s
        kind = kind_of(operation.name)
        events.append(
            {
                "ph": "X",
                "pid": rows[operation.device],
                "tid": line,
                "name": operation.name,
                "cat": kind,
                "cname": COLORS[kind],
                "ts": round(1e6 * (operation.begin_s - begin_s), 1),
                "dur": round(1e6 * (operation.end_s - operation.begin_s), 1),
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _covered(operations: Iterable[Operation]) -> float:
    """Returns the seconds in which at least one operation ran."""
    total = 0.0
    current: Optional[Interval] = None
    for begin, end in sorted((o.begin_s, o.end_s) for o in operations):
        if current is None or begin > current[1]:
            total += current[1] - current[0] if current else 0.0
            current = (begin, end)
        else:
            current = (current[0], max(current[1], end))
    return total + (current[1] - current[0] if current else 0.0)
