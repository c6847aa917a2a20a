"""Divides the stages of a network into segments whose activations are recomputed. No MXNet here.

candidate positions -> activations of each block between them -> segments

The last segment of the network keeps its activations, since its backward pass follows at once. So `auto` makes it as
large as memory allows: everything before it is computed twice.

    | recomputed | recomputed | recomputed | kept |     memory: tensors at the borders + the largest + the kept
"""

from __future__ import annotations

import math
from typing import List, Mapping, Sequence, Set, Union

from mxtrain.errors import ConfigError
from mxtrain.model.graph.work import FLOAT_BYTES
from mxtrain.parallel.balance import activation_bytes, cut_positions, partition
from mxtrain.parallel.cut import Cuttable, Tensor
from mxtrain.parallel.layout import Layout, Segments
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.schedule import held
from mxtrain.types import Shape

SHARE = 0.25
"""Part of the activations that `auto` may keep in memory. Less would save little next to weights, gradients and the
state of the optimizer, and cost more time."""


def choose_segments(graph: Cuttable, layout: Layout, recompute: Union[str, int], objective: Objective) -> Segments:
    """Divides each stage into `recompute` segments. For "auto", chooses segments of which the fewest operators are
    recomputed.

    Args:
        graph: graph of the network.
        layout: devices, with the cut into stages.
        recompute: `Parallel.recompute`, not "off".
        objective: input shape and batch size.

    Raises:
        ConfigError: a stage cannot be divided in this way.
    """
    cuts = layout.cut.positions if layout.cut else []
    bounds = [0, *cuts, len(graph)]
    positions = cut_positions(graph, recompute if isinstance(recompute, int) else 1)
    shapes = graph.shapes(objective.input_shape, layout.microbatch_size(objective.batch_size))
    begins: List[int] = []
    needed = 0
    for stage, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        candidates = [begin, *(position for position in positions if begin < position < end)]
        num_held = held(layout.schedule, stage, len(bounds) - 1, layout.num_microbatches)
        is_last = end == len(graph)
        memory = StageMemory(graph, shapes, [*candidates, end], num_held, is_last)
        chosen = memory.divide(recompute) if isinstance(recompute, int) else memory.choose(SHARE)
        count = recompute if isinstance(recompute, int) else len(chosen)
        _require_segments(stage, len(bounds) - 1, count, len(candidates), is_last, recompute)
        needed += memory.needed(chosen)
        begins += [candidates[index] for index in chosen]
    names = graph.beginnings()
    total = sum(activation_bytes(graph, [], shapes)) * max(layout.num_microbatches, 1)
    return Segments(begins, [names.get(position, "") for position in begins], min(needed / total, 1.0))


class StageMemory:
    """Bytes of the activations of a stage, by the segments into which it is divided.

    Segments are described by the indices of their first blocks. A block is what is between two bounds.

    Args:
        graph: graph of the network.
        shapes: shape of each tensor.
        bounds: positions at which segments may begin, and the end of the stage.
        num_held: number of microbatches whose tensors are kept at once.
        keeps_last: True if the activations of the last segment are kept.
    """

    def __init__(
        self,
        graph: Cuttable,
        shapes: Mapping[Tensor, Shape],
        bounds: Sequence[int],
        num_held: int,
        keeps_last: bool,
    ):
        self.blocks = block_bytes(graph, shapes, bounds)
        self._num_held, self._keeps_last, self._shapes = num_held, keeps_last, shapes
        self._entering: List[List[Tensor]] = [graph.crossing(position) for position in bounds[:-1]]

    def needed(self, begins: Sequence[int]) -> int:
        """Returns the bytes that the stage needs at once: the tensors before all segments, the largest segment that is
        recomputed, and the last segment if it is kept."""
        sizes = [sum(self.blocks[begin:end]) for begin, end in zip(begins, [*begins[1:], len(self.blocks)])]
        kept = sizes.pop() if self._keeps_last else 0
        tensors: Set[Tensor] = {tensor for begin in begins for tensor in self._entering[begin]}
        kept += sum(FLOAT_BYTES * math.prod(self._shapes[tensor]) for tensor in tensors)
        # The kept segment has static memory, which is not free while the others are recomputed.
        return self._num_held * kept + max(sizes, default=0)

    def divide(self, count: int) -> List[int]:
        """Returns at most `count` segments, the largest of which is as small as possible."""
        blocks = self.blocks
        chosen, _ = partition(len(blocks), min(count, len(blocks)), lambda begin, end: sum(blocks[begin:end]))
        return chosen[:-1]

    def choose(self, share: float) -> List[int]:
        """Returns segments that recompute the fewest blocks, so that at most a share of all activations is needed.

        If no segments need so little, those that need least are returned.
        """
        num_blocks, most = len(self.blocks), share * self._num_held * sum(self.blocks)
        best, least = [0], self.needed([0])
        for num_recomputed in range(1, num_blocks) if self._keeps_last else [num_blocks]:
            last = [num_recomputed] if self._keeps_last else []
            for count in range(1, num_recomputed + 1):
                begins = [*pack(self.blocks[:num_recomputed], count), *last]
                needed = self.needed(begins)
                if needed < least:
                    best, least = begins, needed
            if least <= most:
                break
        return best


def pack(sizes: Sequence[int], count: int) -> List[int]:
    """Returns the first indices of consecutive runs: none is larger than a `count`-th of the sum, or the largest
    size."""
    most = max(max(sizes), sum(sizes) / count)
    begins, filled = [0], 0
    for index, size in enumerate(sizes):
        if filled + size > most:
            begins.append(index)
            filled = 0
        filled += size
    return begins


def block_bytes(graph: Cuttable, shapes: Mapping[Tensor, Shape], bounds: Sequence[int]) -> List[int]:
    """Returns the bytes of the activations between consecutive positions."""
    inner = [position for position in bounds if 0 < position < len(graph)]
    sizes = activation_bytes(graph, inner, shapes)
    # The blocks before the first position and behind the last one are not asked for.
    first, end = int(bounds[0] > 0), len(sizes) - int(bounds[-1] < len(graph))
    return sizes[first:end]


def _require_segments(
    stage: int, num_stages: int, count: int, num_candidates: int, is_last: bool, recompute: Union[str, int]
) -> None:
    """Raises a `ConfigError` if a stage has too few layers for its segments, or if nothing would be recomputed."""
    where = f"stage {stage}" if num_stages > 1 else "the network"
    if count > num_candidates:
        raise ConfigError(
            f"parallel.recompute={recompute}: {where} can be divided before {num_candidates - 1} of its layers, so "
            f"into {num_candidates} segments at most. Type parallel.recompute=auto, or at most {num_candidates}."
        )
    if is_last and num_stages == 1 and count == 1:
        reason = (
            "one segment is the whole network, and the last segment is not recomputed"
            if recompute == 1
            else "no division of this network into segments would save memory"
        )
        raise ConfigError(
            f"parallel.recompute={recompute}: {reason}. Type parallel.recompute=off"
            f"{', or at least 2' if num_candidates > 1 else ''}."
        )
