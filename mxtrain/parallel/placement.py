"""Shows the placement of a network as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional

from mxtrain.parallel.planner import Layout

if TYPE_CHECKING:
    from rich.table import Table

    from mxtrain.parallel.balance import StageCost


def placement_table(layout: Layout) -> Optional[Table]:
    """A rich table: one row per stage, and the expected bubble. None if there is nothing to tell: the network is
    whole on each device."""
    from rich.table import Table

    cut, devices, microbatches = layout.cut, layout.devices, layout.num_microbatches
    if cut is None:
        return None
    slowest, total = max(stage.seconds for stage in cut.stages), sum(stage.seconds for stage in cut.stages)
    caption = (
        f"{len(devices)} replica{'s' * (len(devices) > 1)} x {len(cut.stages)} stages, {microbatches} "
        f"microbatch{'es' * (microbatches > 1)}; expected: devices wait {cut.predicted.bubble:.0%} of a step; cut by "
        "what the operators have to do, which is the same on every machine with this kind of device; by hand: "
        f"parallel.cut_before=[{','.join(cut.layers)}]"
    )
    table = Table(caption=caption, caption_justify="left")
    for title in ("stage", "layers", "devices"):
        table.add_column(title, overflow="fold")
    for title in ("of the work", "of the slowest", "memory"):
        table.add_column(title, justify="right")
    for number, stage in enumerate(cut.stages):
        table.add_row(
            str(number), _layers(stage), ", ".join(str(stages[number]) for stages in devices),
            f"{stage.seconds / total:.0%}", f"{stage.seconds / slowest:.0%}",
            f"{(stage.parameter_bytes + stage.activation_bytes) / 2**20:.1f} MiB",
        )  # fmt: skip
    return table


def _layers(stage: StageCost) -> str:
    ends: List[str] = [stage.first, stage.last]
    return ends[0] if ends[0] == ends[1] else " to ".join(name or "(network)" for name in ends)
