"""Pipeline schedules, GPipe and 1F1B: the order in which stages work on microbatches. No MXNet here.

The host puts all work of a step into the engine's queues in one order; each device runs ready operations first come,
first served, so the order decides both the overlap and how many microbatches a stage holds at once.

Sources: Huang et al., GPipe, https://arxiv.org/abs/1811.06965, figure 2; Narayanan et al., PipeDream-2BW,
https://arxiv.org/abs/2006.09503, section 3.1 (1F1B with a flush at the end of each batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

FORWARD, BACKWARD = "F", "B"


@dataclass(frozen=True)
class StageAction:
    """Forward or backward pass of one microbatch through one stage."""

    kind: str
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Timetable:
    """Simulated execution of a schedule, on devices whose transfers take no time.

    Attributes:
        actions: actions in the order in which they begin.
        makespan: time from the first begin to the last end, in the unit of the durations.
        busy: working time of each stage.
    """

    actions: List[StageAction]
    makespan: float
    busy: List[float]

    @property
    def bubble(self) -> float:
        """Returns the share of the devices' time in which they wait."""
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan)


def stage_order(schedule: str, stage: int, num_stages: int, num_microbatches: int) -> List[StageAction]:
    """Returns the actions of one stage, in its order."""
    ahead = num_microbatches if schedule == "gpipe" else min(num_stages - stage, num_microbatches)
    forwards = [StageAction(FORWARD, stage, m) for m in range(num_microbatches)]
    backwards = [StageAction(BACKWARD, stage, m) for m in range(num_microbatches)]
    order, forwards = forwards[:ahead], forwards[ahead:]
    for backward in backwards:
        order.append(backward)
        if forwards:
            order.append(forwards.pop(0))
    return order


def held(schedule: str, stage: int, num_stages: int, num_microbatches: int) -> int:
    """Returns the largest number of microbatches whose activations a stage holds at once."""
    count = largest = 0
    for action in stage_order(schedule, stage, num_stages, num_microbatches):
        count += 1 if action.kind == FORWARD else -1
        largest = max(largest, count)
    return largest


def timetable(
    schedule: str, num_microbatches: int, forward_s: Sequence[float], backward_s: Sequence[float]
) -> Timetable:
    """Simulates a schedule; returns the actions of all stages in the order in which they begin.

    Args:
        schedule: "gpipe" or "1f1b".
        num_microbatches: at least 1.
        forward_s, backward_s: duration of one microbatch in each stage, in any unit.
    """
    num_stages = len(forward_s)
    waiting = [stage_order(schedule, stage, num_stages, num_microbatches) for stage in range(num_stages)]
    ends: Dict[Tuple[str, int, int], float] = {}
    free = [0.0] * num_stages
    started: List[Tuple[float, int, StageAction]] = []

    def ready_time(action: StageAction) -> float:
        """Returns the time at which the inputs of an action exist; infinity if they are not scheduled yet."""
        unknown = float("inf")
        if action.kind == FORWARD:
            source = (FORWARD, action.stage - 1, action.microbatch)
            return 0.0 if action.stage == 0 else ends.get(source, unknown)
        forward_end = ends.get((FORWARD, action.stage, action.microbatch), unknown)
        if action.stage == num_stages - 1:
            return forward_end
        return max(forward_end, ends.get((BACKWARD, action.stage + 1, action.microbatch), unknown))

    while any(waiting):
        begin, stage = min((max(free[s], ready_time(order[0])), s) for s, order in enumerate(waiting) if order)
        action = waiting[stage].pop(0)
        free[stage] = begin + (forward_s if action.kind == FORWARD else backward_s)[stage]
        ends[(action.kind, stage, action.microbatch)] = free[stage]
        started.append((begin, stage, action))
    busy = [num_microbatches * (f + b) for f, b in zip(forward_s, backward_s)]
    # Sorted by time and stage only: a tie would otherwise compare actions, which have no order.
    return Timetable([action for *_, action in sorted(started, key=lambda item: item[:2])], max(free), busy)
