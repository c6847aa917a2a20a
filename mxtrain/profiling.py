"""Looks at what the engine does in a few steps now and then: after 10, 100, 1000, ... steps of this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, List, Optional

from mxtrain.durable import replace_file
from mxtrain.engine_trace import EngineTrace, Operation
from mxtrain.parallel.base import Layout
from mxtrain.parallel.usage import Usage, chrome_trace, measure_usage

FIRST_STEP = 10
NUM_STEPS = 3
MAX_ATTEMPTS = 5
TIMELINE = "timeline.json"


class Profiling:
    """Measures how a placement uses its devices.

    While it looks, the host waits for the devices twice and MXNet's profiler runs; else it costs nothing.

    Args:
        layout: the placement.
        timeline: where to write the first look as a chrome trace, or None.
        say: is told in a sentence what could not be done.
    """

    def __init__(self, layout: Layout, timeline: Optional[Path], say: Callable[[str], None]):
        self._layout, self._timeline, self._say = layout, timeline, say
        self._steps_done = 0
        self._next, self._attempts = FIRST_STEP, 0
        self._trace: Optional[EngineTrace] = None
        self._sizes: List[int] = []

    def step_begins(self, step: int, size: int) -> Optional[Usage]:
        """Call before step number `step`, of `size` samples; returns what the steps before it were found to do, once
        they have been looked at."""
        usage = None
        if self._trace is not None and len(self._sizes) == NUM_STEPS:
            usage = self._look(step - NUM_STEPS)
            self._next, self._attempts = 10 * self._next, 0
        if self._trace is None and self._steps_done >= self._next:
            self._trace = EngineTrace()
            self._trace.start()
        if self._trace is not None:
            self._sizes.append(size)
        self._steps_done += 1
        return usage

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
                f"trainer.profile=true: no timeline was written, for {NUM_STEPS} steps are looked at after the first "
                f"{FIRST_STEP}, without a validation or a checkpoint between them"
            )

    def _look(self, first_step: int) -> Optional[Usage]:
        sizes = self._sizes
        operations = self._stop()
        if self._timeline is not None and operations:
            try:
                replace_file(self._timeline, json.dumps(chrome_trace(self._layout, operations)).encode())
            except OSError as error:
                self._say(f"the timeline could not be written: {error}")
            self._timeline = None
        return measure_usage(self._layout, operations, first_step, sizes)

    def _stop(self) -> List[Operation]:
        assert self._trace is not None
        trace, self._trace, self._sizes = self._trace, None, []
        try:
            return trace.stop([device for stages in self._layout.devices for device in stages])
        except ValueError as error:
            self._say(str(error))
            return []
