"""Balances a pipeline: chooses cuts that minimise the time of the slowest stage.

candidate positions (crossed by few tensors) -> estimated cost of each block between them -> stages
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, List, Mapping, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.model.graph.work import FLOAT_BYTES
from mxtrain.parallel.cost import piece_costs, rates_of
from mxtrain.parallel.cut import STAGE_ATTRIBUTE, Cuttable, Tensor
from mxtrain.parallel.layout import Cut, Layout, StageCost
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.schedule import held, timetable
from mxtrain.parallel.stage import parameters_by_full_name
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon

MIN_CANDIDATES = 8
SLACK = 1.03
"""If the slowest stages of two cuts differ by less, the cut that needs less memory is chosen."""


@dataclass(frozen=True)
class BlockCost:
    """Cost of the operators between two consecutive candidate positions, for one microbatch on one device."""

    forward_s: float
    backward_s: float
    activation_bytes: int
    parameter_bytes: int


def choose_cut(graph: Cuttable, layout: Layout, cut_before: Sequence[str], objective: Objective) -> Cut:
    """Cuts the network before the layers `cut_before`, or so that stages are balanced.

    The result depends only on the network, the description and the type of device, not on measurements, so the same
    command cuts alike on every machine.

    Args:
        graph: graph of the network, whose parameters are all on the device of the first stage.
        layout: devices of at least 2 stages.
        cut_before: `parallel.cut_before`.
        objective: network, input shape and batch size.

    Raises:
        ConfigError: there are more stages than blocks, or a layer in `cut_before` does not exist.
    """
    num_stages, device_type = layout.num_stages, layout.devices[0][0].device_type
    if cut_before:
        candidates = given_positions(graph, cut_before, num_stages)
    else:
        candidates = find_candidates(graph, num_stages)
    shapes = graph.shapes(objective.input_shape, layout.microbatch_size(objective.batch_size))
    costs = block_costs(graph, candidates, shapes, objective.network, device_type)
    bytes_per_s = rates_of(device_type).sent
    sent_bytes = [FLOAT_BYTES * sum(math.prod(shapes[tensor]) for tensor in graph.crossing(p)) for p in candidates]
    transfer_s = [size / bytes_per_s for size in sent_bytes]
    bounds = list(range(len(candidates) + 2)) if cut_before else balance(costs, transfer_s, num_stages)
    return _describe(graph, layout, candidates, costs, transfer_s, sent_bytes, bounds)


def given_positions(graph: Cuttable, layers: Sequence[str], num_stages: int) -> List[int]:
    """Returns the positions before the layers of `parallel.cut_before`.

    Raises:
        ConfigError: the number of layers is not `num_stages` - 1, or they are not in order.
    """
    if len(layers) != num_stages - 1:
        raise ConfigError(
            f"parallel.cut_before has {len(layers)} layers, but parallel.stages={num_stages} needs {num_stages - 1}: "
            "one for each stage but the first."
        )
    positions = [graph.begin_of(layer) for layer in layers]
    if positions != sorted(set(positions)):
        raise ConfigError(
            f"parallel.cut_before={list(layers)}: these layers don't begin one after the other; give them in the order "
            "in which they compute, each once."
        )
    return positions


def find_candidates(graph: Cuttable, num_stages: int) -> List[int]:
    """Returns the positions where the network may be cut.

    If blocks are marked with `begins_stage`, these are the positions. Otherwise they are beginnings of layers that few
    tensors cross; the limit is raised until there are at least `MIN_CANDIDATES`, or all, positions.

    Raises:
        ConfigError: there are fewer than `num_stages` - 1 positions.
    """
    positions = cut_positions(graph, num_stages - 1)
    if len(positions) >= num_stages - 1:
        return positions
    if graph.marked:
        raise ConfigError(
            f"parallel.stages={num_stages}: the network marks {len(positions)} of its layers with "
            f"{STAGE_ATTRIBUTE}=True ({', '.join(graph.marked)}), which makes {len(positions) + 1} stages at most. "
            f"Mark more, or type parallel.stages={len(positions) + 1}, or name {num_stages - 1} layers in "
            "parallel.cut_before."
        )
    raise ConfigError(
        f"parallel.stages={num_stages}: the network can be cut before {len(positions)} of its layers, so into "
        f"{len(positions) + 1} stages at most. Type parallel.stages={len(positions) + 1} or fewer."
    )


def cut_positions(graph: Cuttable, least: int) -> List[int]:
    """Returns the positions of `find_candidates`, at least `least` of them if the network has so many."""
    if graph.marked:
        return sorted({graph.begin_of(layer, f"{STAGE_ATTRIBUTE}=True") for layer in graph.marked})
    crossing = {p: len(graph.crossing(p)) for p in graph.beginnings() if graph.can_cut(p)}
    num_needed = min(len(crossing), max(least, MIN_CANDIDATES))
    positions: List[int] = []
    # Positions with few crossing tensors come first, since these are transferred for each microbatch, in both
    # directions.
    for limit in sorted(set(crossing.values())):
        positions = [position for position, count in crossing.items() if count <= limit]
        if len(positions) >= num_needed:
            break
    return positions


def balance(costs: Sequence[BlockCost], transfer_s: Sequence[float], num_stages: int) -> List[int]:
    """Returns stage boundaries as block indices, including 0 and `len(costs)`.

    First minimises the time of the slowest stage, then the memory of the largest stage among all cuts whose slowest
    stage takes at most `SLACK` times as long.

    Args:
        costs: cost of each block.
        transfer_s: seconds to transfer the tensors between blocks i and i + 1.
        num_stages: number of stages, at most `len(costs)`.
    """
    times, sizes = _prefix([c.forward_s + c.backward_s for c in costs]), _prefix([_bytes(c) for c in costs])

    def stage_time(begin: int, end: int) -> float:
        # The forward pass transfers the input of the stage, the backward pass its gradient.
        return times[end] - times[begin] + (2 * transfer_s[begin - 1] if begin else 0.0)

    _, fastest = partition(len(costs), num_stages, stage_time)
    limit = fastest * SLACK

    def stage_size(begin: int, end: int) -> float:
        # Cuts that are too slow get an infinite size, so one search serves both criteria.
        return sizes[end] - sizes[begin] if stage_time(begin, end) <= limit else math.inf

    bounds, _ = partition(len(costs), num_stages, stage_size)
    return bounds


def partition(count: int, parts: int, cost: Callable[[int, int], float]) -> Tuple[List[int], float]:
    """Divides `count` items into `parts` non-empty runs by dynamic programming, minimising the largest cost of a run.

    Args:
        count: number of items.
        parts: number of runs.
        cost: cost of the items from begin up to end.

    Returns:
        The boundaries, including 0 and `count`, and the largest cost.
    """
    best: List[List[float]] = [[math.inf] * (count + 1) for _ in range(parts + 1)]
    cut = [[0] * (count + 1) for _ in range(parts + 1)]
    best[0][0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, count - (parts - part) + 1):
            for begin in range(part - 1, end):
                worst = max(best[part - 1][begin], cost(begin, end))
                # If all costs are infinite, keep the first begin, so that the boundaries can be traced back below.
                if worst < best[part][end] or (begin == part - 1 and best[part][end] == math.inf):
                    best[part][end], cut[part][end] = worst, begin
    bounds, end = [count], count
    for part in range(parts, 0, -1):
        end = cut[part][end]
        bounds.append(end)
    return bounds[::-1], best[parts][count]


def _prefix(values: Sequence[float]) -> List[float]:
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums


def _bytes(cost: BlockCost) -> int:
    return cost.activation_bytes + 2 * cost.parameter_bytes  # parameters and their gradients


def _describe(
    graph: Cuttable,
    layout: Layout,
    candidates: Sequence[int],
    costs: Sequence[BlockCost],
    transfer_s: Sequence[float],
    sent_bytes: Sequence[int],
    bounds: Sequence[int],
) -> Cut:
    schedule, microbatches = layout.schedule, layout.num_microbatches
    positions = [0, *candidates, len(graph)]
    num_stages, names = len(bounds) - 1, graph.beginnings()
    stages = []
    for number, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        blocks, transfer = costs[begin:end], transfer_s[begin - 1] if begin else 0.0
        count = held(schedule, number, num_stages, microbatches)
        stages.append(
            StageCost(
                first=names.get(positions[begin], ""),
                last=graph.layers[positions[end] - 1],
                forward_s=sum(c.forward_s for c in blocks) + transfer,
                backward_s=sum(c.backward_s for c in blocks) + transfer,
                held=count,
                parameter_bytes=2 * sum(c.parameter_bytes for c in blocks),
                activation_bytes=count * sum(c.activation_bytes for c in blocks),
                input_bytes=sent_bytes[begin - 1] if begin else 0,
            )
        )
    cuts = [positions[bound] for bound in bounds[1:-1]]
    predicted = timetable(schedule, microbatches, [s.forward_s for s in stages], [s.backward_s for s in stages])
    return Cut(cuts, [names[position] for position in cuts], stages, predicted)


def block_costs(
    graph: Cuttable, candidates: Sequence[int], shapes: Mapping[Tensor, Shape], network: gluon.Block, device_type: str
) -> List[BlockCost]:
    """Returns the cost of each block between consecutive candidate positions."""
    parameters = parameters_by_full_name(network)
    inside = activation_bytes(graph, candidates, shapes)
    return [
        BlockCost(
            *piece_costs(piece, shapes, device_type),
            size,
            FLOAT_BYTES * sum(math.prod(parameters[name].shape) for name in piece.parameters),
        )
        for piece, size in zip(graph.cut(candidates), inside)
    ]


def activation_bytes(graph: Cuttable, candidates: Sequence[int], shapes: Mapping[Tensor, Shape]) -> List[int]:
    """Returns the bytes of the tensors that the operators of each block produce."""
    bounds = [0, *candidates, len(graph)]
    block_of = {
        node: block for block, (begin, end) in enumerate(zip(bounds, bounds[1:])) for node in graph.operators[begin:end]
    }
    sizes = [0] * (len(bounds) - 1)
    for tensor, shape in shapes.items():
        if tensor[0] in block_of:
            sizes[block_of[tensor[0]]] += FLOAT_BYTES * math.prod(shape)
    return sizes
