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
    from mxtrain.parallel.strategies import Parallel

Shares = List[List[Batch]]
"""[replica][microbatch]"""


@dataclass(frozen=True)
class Layout:
    """Replicas x stages, as they were placed.

    Attributes:
        devices: mxnet Contexts, [replica][stage].
        num_microbatches: of each replica's share of a batch (of a part of it, with gradient accumulation).
        num_parts: of a batch, one after the other.
        batch_norm: as `Parallel.batch_norm`; per_device where no others have samples of the batch.
        schedule: order of forward and backward passes, see `Microbatched.schedule`.
        cut: what the stages are; None if each device has all of the network.
    """

    devices: List[List[Context]]
    num_microbatches: int = 1
    num_parts: int = 1
    batch_norm: str = "per_device"
    schedule: str = "gpipe"
    cut: Optional[Cut] = None

    @property
    def cut_before(self) -> List[str]:
        """Returns the layers that begin a stage, but the first; empty if each device has all of the network."""
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
        """Returns the numbers of the GPUs among them, each once, in order."""
        return sorted({device.device_id for row in self.devices for device in row if device.device_type == "gpu"})

    @property
    def accumulates(self) -> bool:
        """Returns True if a parameter's gradient is the sum of several backward passes."""
        return self.num_parts * self.num_microbatches > 1

    def microbatch_size(self, batch_size: int) -> int:
        """Returns the most samples that a stage computes at once, of a batch of that size."""
        return -(-batch_size // (self.num_replicas * self.num_parts * self.num_microbatches))

    def divide(self, batch: Batch) -> List[Shares]:
        """Returns the shares of a batch, [part][replica][microbatch]; none of an empty one."""
        return [
            [list(split(share, self.num_microbatches)) for share in split(part, self.num_replicas)]
            for part in (split(batch, self.num_parts) if batch.size else ())
        ]  # fmt: skip

    def order(self, num_microbatches: int) -> List[StageAction]:
        """Returns the forward and backward passes of one replica, in the order of the schedule."""
        # A backward takes about twice a forward; only the order is used.
        return timetable(self.schedule, num_microbatches, [1.0] * self.num_stages, [2.0] * self.num_stages).actions


def plan(parallel: Parallel, devices: List[List[Context]], num_parts: int, is_alone: bool) -> Layout:
    """Returns the layout of a placement whose network is not cut yet.

    Args:
        parallel: the placement.
        devices: [replica][stage].
        num_parts: of a batch, by gradient accumulation.
        is_alone: no other worker has samples of a batch, nor will one come.
    """
    num_microbatches = parallel.num_microbatches()
    has_one_shard = is_alone and len(devices) * num_microbatches == 1
    return Layout(
        devices, num_microbatches, num_parts, "per_device" if has_one_shard else parallel.batch_norm,
        getattr(parallel, "schedule", "gpipe"),
    )  # fmt: skip


def assign_stages(parameters: Iterable[Collection[str]]) -> Dict[str, int]:
    """Parameter -> the stage that reads it. `parameters`: of each stage in turn."""
    return {name: stage for stage, names in enumerate(parameters) for name in names}


def assign_owners(sizes: Mapping[str, int], num_replicas: int, with_first: Collection[str] = ()) -> Dict[str, int]:
    """Assigns each parameter to the replica that updates it: in order, each to the one with the fewest elements so far,
    so that all replicas update at the same time.

    Args:
        sizes: structural name -> elements, of the trained parameters.
        num_replicas: of this worker.
        with_first: parameters that the first replica updates in any case.
    """
    load = [0] * num_replicas
    owners = {}
    for name, size in sizes.items():
        owners[name] = load.index(min(load))
        load[owners[name]] += size
    return {name: 0 if name in with_first else owner for name, owner in owners.items()}


def isolate(alone: Collection[int], cuts: Sequence[int], length: int) -> List[Tuple[int, int]]:
    """Splits a sequence of operators, some of which are pieces of their own, into (first operator, stage) of each
    piece.

    Args:
        alone: positions of the operators that are a piece of their own.
        cuts: positions before which a stage begins, but the first.
        length: how many operators there are.
    """
    begins = sorted({0, *cuts, *alone, *(position + 1 for position in alone)} - {length})
    return [(begin, sum(cut <= begin for cut in cuts)) for begin in begins]


def placement_table(layout: Layout) -> Optional[Table]:
    """Returns a rich table: one row per stage, and the expected bubble. None if there is nothing to tell: the network
    is whole on each device."""
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
