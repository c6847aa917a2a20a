"""Plans replicas x stages: which device computes which stage, how batches are divided, and who updates a parameter.

A plan consists of names and numbers, without arrays, and imports no MXNet; devices are compared and passed on.
`placement_table` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from mxtrain.parallel.schedule import StageAction, timetable
from mxtrain.parallel.shares import split
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context
    from rich.table import Table

    from mxtrain.parallel.balance import Cut, StageCost
    from mxtrain.parallel.spec import Parallel

Shares = List[List[Batch]]
"""[replica][microbatch]"""


@dataclass(frozen=True)
class Layout:
    """Placement of a network on replicas x stages devices.

    Attributes:
        devices: mxnet Contexts, [replica][stage].
        num_microbatches: number of microbatches of each replica's share of a batch, or of a part of it.
        num_parts: number of parts of a batch, computed one after the other (gradient accumulation).
        batch_norm: as `Parallel.batch_norm`; per_device if a single shard has all samples of a batch.
        schedule: order of forward and backward passes, see `Microbatched.schedule`.
        cut: cut of the network into stages; None if each device has the whole network.
    """

    devices: List[List[Context]]
    num_microbatches: int = 1
    num_parts: int = 1
    batch_norm: str = "per_device"
    schedule: str = "gpipe"
    cut: Optional[Cut] = None

    @property
    def cut_before(self) -> List[str]:
        """Returns the first layer of each stage but the first; empty if each device has the whole network."""
        return self.cut.layers if self.cut else []

    @property
    def num_replicas(self) -> int:
        return len(self.devices)

    @property
    def num_stages(self) -> int:
        return len(self.devices[0])

    @property
    def num_devices(self) -> int:
        return sum(map(len, self.devices))

    @property
    def gpus(self) -> List[int]:
        """Returns the sorted ids of the GPUs in use."""
        return sorted({device.device_id for row in self.devices for device in row if device.device_type == "gpu"})

    @property
    def accumulates(self) -> bool:
        """Returns True if a parameter's gradient is the sum of several backward passes."""
        return self.num_parts * self.num_microbatches > 1

    def microbatch_size(self, batch_size: int) -> int:
        """Returns the largest number of samples that a stage computes at once for a batch of `batch_size` samples."""
        return -(-batch_size // (self.num_replicas * self.num_parts * self.num_microbatches))

    def divide(self, batch: Batch) -> List[Shares]:
        """Returns the shares of a batch, [part][replica][microbatch]; empty for an empty batch."""
        return [
            [list(split(share, self.num_microbatches)) for share in split(part, self.num_replicas)]
            for part in (split(batch, self.num_parts) if batch.size else ())
        ]

    def order(self, num_microbatches: int) -> List[StageAction]:
        """Returns the forward and backward passes of one replica, in the order of the schedule."""
        # Only the order is used, so the durations may be rough: a backward pass takes about two forward passes.
        return timetable(self.schedule, num_microbatches, [1.0] * self.num_stages, [2.0] * self.num_stages).actions


def plan(parallel: Parallel, devices: List[List[Context]], num_parts: int, is_alone: bool) -> Layout:
    """Returns the layout of a placement whose network is not cut yet.

    Args:
        parallel: description of the placement.
        devices: devices as [replica][stage].
        num_parts: number of parts of a batch, for gradient accumulation.
        is_alone: True if no other worker has samples of a batch, and none can join.
    """
    num_microbatches = parallel.num_microbatches()
    has_one_shard = is_alone and len(devices) * num_microbatches == 1
    return Layout(
        devices,
        num_microbatches,
        num_parts,
        "per_device" if has_one_shard else parallel.batch_norm,
        getattr(parallel, "schedule", "gpipe"),
    )


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
    load = [0] * num_replicas
    owners = {}
    for name, size in sizes.items():
        owners[name] = load.index(min(load))
        load[owners[name]] += size
    return {name: 0 if name in with_first else owner for name, owner in owners.items()}


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
