"""Plans replicas x stages: which device computes which stage, and which replica updates a parameter.

A plan consists of names and numbers, without arrays, and imports no MXNet. `placement_table` shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from mxtrain.kvstore.world import least_loaded

if TYPE_CHECKING:
    from rich.table import Table

    from mxtrain.parallel.layout import Layout, StageCost


def assign_stages(parameters: Iterable[Collection[str]]) -> Dict[str, int]:
    """Returns parameter name -> stage that reads it. `parameters` lists the names of each stage, in order."""
    return {name: stage for stage, names in enumerate(parameters) for name in names}


def assign_owners(sizes: Mapping[str, int], num_replicas: int, with_first: Collection[str] = ()) -> Dict[str, int]:
    """Assigns each parameter to the replica that updates it.

    Each parameter goes to the replica with the fewest elements so far, so that all replicas share the updates.

    Args:
        sizes: structural name -> number of elements, of the trained parameters.
        num_replicas: number of replicas of this worker.
        with_first: parameters that the first replica always updates.
    """
    owners = zip(sizes, least_loaded(list(sizes.values()), num_replicas))
    return {name: 0 if name in with_first else owner for name, owner in owners}


def isolate(alone: Collection[int], cuts: Sequence[int], length: int) -> List[Tuple[int, int]]:
    """Splits a sequence of operators into pieces; returns (first operator, stage) of each piece.

    Args:
        alone: positions of operators that must be separate pieces.
        cuts: first position of each stage but the first.
        length: number of operators.
    """
    begins = sorted({0, *cuts, *alone, *(position + 1 for position in alone)} - {length})
    return [(begin, sum(cut <= begin for cut in cuts)) for begin in begins]


def placement_table(layout: Layout) -> Optional[Table]:
    """Returns a rich table with one row per stage, and the expected bubble; None if the network is not cut."""
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
            str(number),
            _layers(stage),
            ", ".join(str(stages[number]) for stages in devices),
            f"{stage.seconds / total:.0%}",
            f"{stage.seconds / slowest:.0%}",
            f"{(stage.parameter_bytes + stage.activation_bytes) / 2**20:.1f} MiB",
        )
    return table


def _layers(stage: StageCost) -> str:
    ends: List[str] = [stage.first, stage.last]
    return ends[0] if ends[0] == ends[1] else " to ".join(name or "(network)" for name in ends)
