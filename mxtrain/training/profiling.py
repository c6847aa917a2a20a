"""Profiles a few training steps, after 10, 100, 1000, ... steps of this process.

The first profile is taken earlier if a timeline is requested and the epochs are shorter.

The work of an operator is counted from the traced graph for the shapes of the profiled batches, and compared with the
peak that is measured in the same run on the same devices. A table of limits by processor would know neither the run's
threads nor other load. Bytes count each array once, so small networks can show more than 100 %.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence

from mxtrain.config.groups import Description
from mxtrain.engine.backend import mx
from mxtrain.engine.limits import measure_limits
from mxtrain.engine.trace import EngineTrace, Operation
from mxtrain.files.durable import replace_file
from mxtrain.model.graph.trace import NotTraceable, trace
from mxtrain.model.graph.work import Work, work_by_operator
from mxtrain.model.parameters import is_trained
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.operator_times import OperatorTimes, measure_operators
from mxtrain.parallel.usage import chrome_trace, measure_usage
from mxtrain.types import Batch, Shapes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import UsageReport

FIRST_STEP = 10
NUM_STEPS = 3
MAX_ATTEMPTS = 5
TIMELINE = "timeline.json"


class Computation(NamedTuple):
    """The computation on the devices: network, inputs and layout.

    Attributes:
        network: a gluon block.
        dtype: data type of the operators in `listed`.
        listed: names of these operators; all others compute in float32.
    """

    network: gluon.Block
    dtype: str
    listed: Sequence[str]


class BatchShape(NamedTuple):
    """Size and shapes of a step's batch. Keeping the batch itself would occupy device memory."""

    size: int
    shapes: Shapes
    """The shape of one sample of each input."""

    @classmethod
    def from_batch(cls, batch: Batch) -> BatchShape:
        return cls(batch.size, tuple(tuple(array.shape[1:]) for array in batch.inputs) if batch.size else ())


class Profiling:
    """Measures how a placement uses its devices.

    During a profile, the host waits for the devices twice and MXNet's profiler runs; otherwise it costs nothing.

    Args:
        layout: placement of the network.
        computation: network and precision.
        timeline: file for the first profile as a Chrome trace, which then also measures each operator; None = no file.
        say: shows a message to the user.
        steps_per_epoch: number of steps of an epoch; the profile for a timeline must fit into one.
    """

    def __init__(
        self,
        layout: Layout,
        computation: Computation,
        timeline: Optional[Path],
        say: Callable[[str], None],
        steps_per_epoch: int,
    ):
        self._layout, self._computation, self._timeline, self._say = layout, computation, timeline, say
        self._devices = [device for stages in layout.devices for device in stages]
        self._steps_done = 0
        # A profile ends when the step after it begins, and a validation discards it.
        latest = max(1, steps_per_epoch - NUM_STEPS - 1)
        self._next, self._attempts = FIRST_STEP if timeline is None else min(FIRST_STEP, latest), 0
        self._trace: Optional[EngineTrace] = None
        self._steps: List[BatchShape] = []

    def before_step(self, step: int, batch: Batch) -> List[UsageReport]:
        """Starts or ends a profile before a step; returns the reports of a profile that ended (`Callback.on_usage`)."""
        reports: List[UsageReport] = []
        if self._trace is not None and len(self._steps) == NUM_STEPS:
            reports = self._report(step - NUM_STEPS)
            # A profile makes the host wait for the devices twice, so the next one is ten times as far away.
            self._next, self._attempts = 10 * self._next, 0
        if self._trace is None and self._steps_done >= self._next:
            engine = EngineTrace()
            engine.start()  # raises what earlier operators failed with: then there is nothing to stop
            self._trace = engine
        if self._trace is not None:
            self._steps.append(BatchShape.from_batch(batch))
        self._steps_done += 1
        return reports

    def discard(self) -> None:
        """Discards the current profile, since validation or saving comes next. Later steps are profiled instead.

        After `MAX_ATTEMPTS` discarded profiles the next attempt is made much later, because such a run trains too few
        steps between two validations.
        """
        if self._trace is not None:
            self._stop_trace()
            self._attempts += 1
            if self._attempts == MAX_ATTEMPTS:
                self._next, self._attempts = 10 * self._next, 0

    def end(self) -> None:
        """Ends profiling after the last step; reports if no timeline was written."""
        self.discard()
        if self._timeline is not None:
            self._say(
                f"trainer.profile=true: no timeline was written: it takes {NUM_STEPS + 2} steps without a validation "
                "or a checkpoint between them"
            )

    def _report(self, first_step: int) -> List[UsageReport]:
        steps = self._steps
        operations = self._stop_trace()
        usage = measure_usage(self._layout, operations, first_step, [shape.size for shape in steps])
        reports: List[UsageReport] = [] if usage is None else [usage]
        if self._timeline is not None and operations:
            reports.append(self._operators(operations, steps, first_step))
            try:
                replace_file(self._timeline, json.dumps(chrome_trace(self._layout, operations)).encode())
            except OSError as error:
                self._say(f"the timeline could not be written: {error}")
            self._timeline = None
        return reports

    def _operators(
        self, operations: Sequence[Operation], steps: Sequence[BatchShape], first_step: int
    ) -> OperatorTimes:
        network, dtype, listed = self._computation
        work_of = {shape: _work(network, shape, listed) for shape in set(steps)}  # most steps have the same shapes
        num_elements = sum(math.prod(p.shape) for p in network.collect_params().values() if is_trained(p))
        num_elements *= len(self._layout.devices)
        self._say("trainer.profile=true: the machine's limits are measured, which takes a few seconds")
        limits = measure_limits(self._devices, dtype)
        return measure_operators(
            operations, [work_of[shape] for shape in steps], num_elements, limits, listed, first_step
        )

    def _stop_trace(self) -> List[Operation]:
        assert self._trace is not None
        engine, self._trace, self._steps = self._trace, None, []
        try:
            return engine.stop(self._devices)
        except (ValueError, OSError, mx.MXNetError) as error:  # a failed step fails again in the wait for the engine
            self._say(str(error).strip().splitlines()[-1])
            return []


def _work(network: gluon.Block, shape: BatchShape, listed: Sequence[str]) -> Dict[str, Work]:
    """Returns the work of the network's operators in a step; empty if unknown."""
    if not shape.size:
        return {}
    try:
        return work_by_operator(trace(network, shape.shapes, batch_size=shape.size, training=True), listed)
    except NotTraceable:
        return {}


def build_profiling(
    description: Description, network: gluon.Block, layout: Layout, run_dir: Path, steps_per_epoch: int
) -> Optional[Profiling]:
    """Builds the profiling of a run; returns None for a single device unless a timeline is requested."""
    timeline = run_dir / TIMELINE if description.trainer.profile else None
    if layout.num_devices == 1 and timeline is None:
        return None
    computation = Computation(network, description.amp.dtype, description.amp.low_operators)
    return Profiling(layout, computation, timeline, logging.getLogger("mxtrain").warning, steps_per_epoch)
