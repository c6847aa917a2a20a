"""Placement of a network on replicas x stages devices, and the shares of a batch: names and numbers, without arrays.

Imports no MXNet; devices are compared and passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, List, Optional

from mxtrain.kvstore.world import bounds
from mxtrain.parallel.schedule import StageAction, Timetable, timetable
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context

Shares = List[List[Batch]]
"""[replica][microbatch]"""


def split(batch: Batch, num_parts: int) -> Iterator[Batch]:
    """Yields at most `num_parts` parts of a batch, as views, whose sizes differ by at most one."""
    num_parts = min(num_parts, batch.size)
    if num_parts == 1:
        yield batch
        return
    for part in range(num_parts):
        begin, end = bounds(batch.size, num_parts, part)
        yield batch.slice(begin, end)


@dataclass(frozen=True)
class StageCost:
    """Estimated cost of one stage.

    Attributes:
        first, last: structural names of its first and last layer.
        forward_s, backward_s: seconds for one microbatch on a device with the rates `mxtrain.parallel.cost.RATES`,
            including the transfer of the stage's input. Only ratios between stages are meaningful.
        held: number of microbatches whose activations the stage holds at the same time.
        parameter_bytes: memory of the parameters and their gradients.
        activation_bytes: memory of the activations of all held microbatches.
        input_bytes: size of the tensors that the previous stage sends for one microbatch; 0 for the first stage.
    """

    first: str
    last: str
    forward_s: float
    backward_s: float
    held: int
    parameter_bytes: int
    activation_bytes: int
    input_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Returns the seconds of the forward and backward pass together."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Cut:
    """Cut of a network into stages, and its expected cost.

    Attributes:
        positions: positions in the graph, one fewer than stages.
        layers: first layer of each stage but the first: the value of `parallel.cut_before` for this cut.
        stages: cost of each stage.
        predicted: expected timetable of a batch.
    """

    positions: List[int]
    layers: List[str]
    stages: List[StageCost]
    predicted: Timetable


@dataclass(frozen=True)
class Segments:
    """Segments of the stages, whose activations are computed again for the backward pass (`Parallel.recompute`).

    Attributes:
        begins: first position of each segment in the graph, including those of stages.
        layers: first layer of each segment; "" for the network's first operator if it belongs to no layer.
        share: part of the bytes of all activations that is in memory at once.
    """

    begins: List[int]
    layers: List[str]
    share: float


@dataclass(frozen=True)
class Layout:
    """Placement of a network on replicas x stages devices.

    Attributes:
        devices: mxnet Contexts, [replica][stage].
        num_microbatches: number of microbatches into which each replica's share of a part is divided.
        num_parts: number of parts into which a batch is divided, computed one after the other (gradient accumulation).
        batch_norm: see `Parallel.batch_norm`; always "per_device" if one device gets all samples of a batch.
        schedule: order of forward and backward passes, see `Microbatched.schedule`.
        cut: cut of the network into stages; None if each device has the whole network.
        segments: segments whose activations are recomputed; None if all activations are kept.
    """

    devices: List[List[Context]]
    num_microbatches: int = 1
    num_parts: int = 1
    batch_norm: str = "per_device"
    schedule: str = "gpipe"
    cut: Optional[Cut] = None
    segments: Optional[Segments] = None

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
