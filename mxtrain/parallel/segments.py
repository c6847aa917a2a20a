"""Divides the stages of a network into segments whose activations are recomputed. No MXNet here.

candidate positions -> activations of each block between them -> the segments that need the least memory
"""

from __future__ import annotations

import math
from typing import List, Mapping, Sequence, Union

from mxtrain.errors import ConfigError
from mxtrain.model.graph.work import FLOAT_BYTES
from mxtrain.parallel.balance import activation_bytes, cut_positions, partition
from mxtrain.parallel.cut import Cuttable, Tensor
from mxtrain.parallel.layout import Layout, Segments
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.schedule import held
from mxtrain.types import Shape

SLACK = 1.1
"""`auto` takes the smallest number of segments that needs at most this times the memory of the best number: a larger
last segment, which is not recomputed, saves time."""


def choose_segments(graph: Cuttable, layout: Layout, recompute: Union[str, int], objective: Objective) -> Segments:
    """Divides each stage into `recompute` segments. For "auto", chooses the segments that need the least memory.

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
        count = _number_of_segments(graph, shapes, [*candidates, end], num_held, recompute)
        _require_segments(stage, len(bounds) - 1, count, len(candidates), is_last, recompute)
        segments = divide(graph, shapes, [*candidates, end], count)
        needed += needed_bytes(graph, shapes, segments, end, num_held)
        begins += segments
    names = graph.beginnings()
    total = sum(activation_bytes(graph, [], shapes)) * max(layout.num_microbatches, 1)
    return Segments(begins, [names.get(position, "") for position in begins], min(needed / total, 1.0))


def divide(graph: Cuttable, shapes: Mapping[Tensor, Shape], bounds: Sequence[int], count: int) -> List[int]:
    """Returns the first positions of `count` segments, the largest of which is as small as possible.

    Args:
        graph: graph of the network.
        shapes: shape of each tensor.
        bounds: positions at which segments may begin, and the end of the last one.
        count: number of segments.
    """
    sizes = block_bytes(graph, shapes, bounds)
    chosen, _ = partition(len(sizes), min(count, len(sizes)), lambda begin, end: sum(sizes[begin:end]))
    return [bounds[index] for index in chosen[:-1]]


def block_bytes(graph: Cuttable, shapes: Mapping[Tensor, Shape], bounds: Sequence[int]) -> List[int]:
    """Returns the bytes of the activations between consecutive positions."""
    inner = [position for position in bounds if 0 < position < len(graph)]
    sizes = activation_bytes(graph, inner, shapes)
    # The blocks before the first position and behind the last one are not asked for.
    first, end = int(bounds[0] > 0), len(sizes) - int(bounds[-1] < len(graph))
    return sizes[first:end]


def needed_bytes(
    graph: Cuttable, shapes: Mapping[Tensor, Shape], begins: Sequence[int], end: int, num_held: int
) -> int:
    """Returns the bytes of activations of a stage: the tensors before all segments, and the largest segment.

    Args:
        graph: graph of the network.
        shapes: shape of each tensor.
        begins: first position of each segment.
        end: end of the stage.
        num_held: number of microbatches whose tensors are kept at once.
    """
    kept = {tensor for position in begins for tensor in graph.crossing(position)}
    largest = max(block_bytes(graph, shapes, [*begins, end]))
    return num_held * sum(FLOAT_BYTES * math.prod(shapes[tensor]) for tensor in kept) + largest


def _number_of_segments(
    graph: Cuttable, shapes: Mapping[Tensor, Shape], bounds: Sequence[int], num_held: int, recompute: Union[str, int]
) -> int:
    if isinstance(recompute, int):
        return recompute
    needed = [
        needed_bytes(graph, shapes, divide(graph, shapes, bounds, count), bounds[-1], num_held)
        for count in range(1, len(bounds))
    ]
    return next(number for number, size in enumerate(needed, start=1) if size <= SLACK * min(needed))


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
