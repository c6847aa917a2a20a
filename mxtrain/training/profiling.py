"""Looks at what the engine does in a few steps now and then: after 10, 100, 1000, ... steps of this process, or earlier
where a timeline is wanted of a run whose epochs are shorter."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence

from mxtrain.description.groups import Description
from mxtrain.engine.limits import measure_limits
from mxtrain.engine.trace import EngineTrace, Operation
from mxtrain.files.durable import replace_file
from mxtrain.model.graph.trace import NotTraceable, trace
from mxtrain.model.graph.work import Work, work_by_operator
from mxtrain.model.parameters import is_trained
from mxtrain.parallel.operator_times import OperatorTimes, measure_operators
from mxtrain.parallel.planner import Layout
from mxtrain.parallel.usage import chrome_trace, measure_usage
from mxtrain.types import Batch, Shapes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.annotations import UsageReport

FIRST_STEP = 10
NUM_STEPS = 3
MAX_ATTEMPTS = 5
TIMELINE = "timeline.json"


class Computation(NamedTuple):
    """The computation on the devices: network, inputs and layout.

    Attributes:
        network: a gluon block.
        dtype: in which some operators compute.
        listed: the names of these operators; all others compute in float32.
    """

    network: gluon.Block
    dtype: str
    listed: Sequence[str]


class Seen(NamedTuple):
    """Size and shapes of a step's batch; the batch itself would hold memory of the devices."""

    size: int
    shapes: Shapes
    """The shape of one sample of each input."""

    @classmethod
    def from_batch(cls, batch: Batch) -> Seen:
        return cls(batch.size, tuple(tuple(array.shape[1:]) for array in batch.inputs) if batch.size else ())


class Profiling:
    """Measures how a placement uses its devices.

    While it looks, the host waits for the devices twice and MXNet's profiler runs; else it costs nothing.

    Args:
        layout: the placement.
        computation: the network in it.
        timeline: where to write the first look as a chrome trace, or None; operators are looked at one by one then.
        say: is told in a sentence what could not be done.
        steps_per_epoch: the first look for a timeline is early enough to end within an epoch.
    """

    def __init__(
        self, layout: Layout, computation: Computation, timeline: Optional[Path], say: Callable[[str], None],
        steps_per_epoch: int,
    ):  # fmt: skip
        self._layout, self._computation, self._timeline, self._say = layout, computation, timeline, say
        self._devices = [device for stages in layout.devices for device in stages]
        self._steps_done = 0
        # The look ends when the step after it begins, and a validation breaks it off.
        latest = max(1, steps_per_epoch - NUM_STEPS - 1)
        self._next, self._attempts = FIRST_STEP if timeline is None else min(FIRST_STEP, latest), 0
        self._trace: Optional[EngineTrace] = None
        self._steps: List[Seen] = []

    def step_begins(self, step: int, batch: Batch) -> List[UsageReport]:
        """Call before step number `step`; returns what the steps before it were found to do, once they have been looked
        at: see `Callback.on_usage`."""
        found: List[UsageReport] = []
        if self._trace is not None and len(self._steps) == NUM_STEPS:
            found = self._look(step - NUM_STEPS)
            self._next, self._attempts = 10 * self._next, 0
        if self._trace is None and self._steps_done >= self._next:
            self._trace = EngineTrace()
            self._trace.start()
        if self._trace is not None:
            self._steps.append(Seen.from_batch(batch))
        self._steps_done += 1
        return found

    def break_off(self) -> None:
        """Call before anything else than training runs: steps that were looked at so far don't count, and the next ones
        are looked at, a few times; a run that hardly trains between two validations is left alone then."""
        if self._trace is not None:
            self._stop()
            self._attempts += 1
            if self._attempts == MAX_ATTEMPTS:
                self._next, self._attempts = 10 * self._next, 0

    def end(self) -> None:
        """Call when training is over."""
        self.break_off()
        if self._timeline is not None:
            self._say(
                f"trainer.profile=true: no timeline was written: it takes {NUM_STEPS + 2} steps without a validation "
                "or a checkpoint between them"
            )

    def _look(self, first_step: int) -> List[UsageReport]:
        steps = self._steps
        operations = self._stop()
        usage = measure_usage(self._layout, operations, first_step, [seen.size for seen in steps])
        found: List[UsageReport] = [] if usage is None else [usage]
        if self._timeline is not None and operations:
            found.append(self._operators(operations, steps, first_step))
            try:
                replace_file(self._timeline, json.dumps(chrome_trace(self._layout, operations)).encode())
            except OSError as error:
                self._say(f"the timeline could not be written: {error}")
            self._timeline = None
        return found

    def _operators(self, operations: Sequence[Operation], steps: Sequence[Seen], first_step: int) -> OperatorTimes:
        network, dtype, listed = self._computation
        works = {seen: _work(network, seen, listed) for seen in set(steps)}  # most have the same shapes
        num_elements = sum(math.prod(p.shape) for p in network.collect_params().values() if is_trained(p))
        num_elements *= len(self._layout.devices)
        self._say("trainer.profile=true: the machine's limits are measured, which takes a few seconds")
        limits = measure_limits(self._devices, dtype)
        return measure_operators(
            operations, [works[seen] for seen in steps], num_elements, limits, listed, first_step
        )  # fmt: skip

    def _stop(self) -> List[Operation]:
        assert self._trace is not None
        engine, self._trace, self._steps = self._trace, None, []
        try:
            return engine.stop(self._devices)
        except ValueError as error:
            self._say(str(error))
            return []


def _work(network: gluon.Block, seen: Seen, listed: Sequence[str]) -> Dict[str, Work]:
    """Returns the work of the network's operators in a step; empty if unknown."""
    if not seen.size:
        return {}
    try:
        return work_by_operator(trace(network, seen.shapes, batch_size=seen.size, training=True), listed)
    except NotTraceable:
        return {}


def build_profiling(
    description: Description, network: gluon.Block, layout: Layout, run_dir: Path, steps_per_epoch: int
) -> Optional[Profiling]:
    """Builds the profiling of several devices, which wait for each other; of a single one only if it is asked for."""
    timeline = run_dir / TIMELINE if description.trainer.profile else None
    if layout.num_devices == 1 and timeline is None:
        return None
    computation = Computation(network, description.amp.dtype, description.amp.listed)
    return Profiling(layout, computation, timeline, logging.getLogger("mxtrain").warning, steps_per_epoch)
