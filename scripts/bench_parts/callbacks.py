"""Callbacks that take turns, or note times and memory. None but `Blocks` asks the device anything."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

from bench_parts import memory_side
from bench_parts.turn import Turns
from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.parallel.usage import Usage

if TYPE_CHECKING:
    from mxtrain.types.annotations import UsageReport


class Blocks(Callback):
    """Ends a block after so many steps, whenever else the runner looks at the device."""

    def __init__(self, block_steps: int) -> None:
        self._block_steps = self._end = block_steps
        self._turns, self._last = Turns(), 0

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        from mxtrain.engine.backend import nd
        from mxtrain.training.recorder import STEPS_AHEAD

        if rows[-1]["step"] < self._end - STEPS_AHEAD:  # rows are so much behind what was put to work
            return
        nd.waitall()
        self._end += self._block_steps
        last, self._last = self._last, rows[-1]["step"]
        self._turns.next(self._last - last)


class _Noted(Callback):
    """Writes what it noted when the run ends."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._noted: List[Tuple[float, ...]] = []

    def on_end(self, result: Result) -> None:
        self._path.write_text(json.dumps(self._noted))


class ValidationClock(_Noted):
    """Writes [[step, seconds], ...] of the ends of validations."""

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._noted.append((validation.row["step"], time.perf_counter()))


class StepClock(_Noted):
    """Writes [[step, seconds, seconds of the processor, seconds since 1970], ...] of the steps."""

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        self._noted.append((rows[-1]["step"], time.perf_counter(), time.process_time(), time.time()))


class TrainingClock(_Noted):
    """Writes [steps, seconds, seconds of the processor] of training: validations do not count, and neither do the steps
    until the first rows are read, which compile the network."""

    def __init__(self, path: str):
        super().__init__(path)
        self._last: Optional[Tuple[int, float, float]] = None
        self._sums = (0.0, 0.0, 0.0)

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        now = (rows[-1]["step"], time.perf_counter(), time.process_time())
        if self._last is not None:
            self._sums = tuple(total + b - a for total, a, b in zip(self._sums, self._last, now))  # type: ignore[assignment]
        self._last, self._noted = now, [self._sums]

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._last = (validation.row["step"], time.perf_counter(), time.process_time())


class PeakMemory(_Noted):
    """Writes the most memory that the process ever held, in MiB, in a list."""

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        self._noted = [(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,)]


class StepMemory(_Noted):
    """Writes [[step, MiB before the first step, most MiB so far, seconds], ...] of the process, as steps are read."""

    def on_start(self, run: RunInfo) -> None:
        self._before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._noted.append((rows[-1]["step"], self._before, peak, time.perf_counter()))


class StepsNoted(Callback):
    """Writes the peak memory of the process, and what imports took of it, after each step; see memory_side.py."""

    def __init__(self, path: str):
        self._path = path

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        memory_side.note(self._path)


class Waiting(Callback):
    """Writes what share of the time devices waited in the steps that trainer.profile looks at first."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def on_usage(self, usage: UsageReport) -> None:
        if isinstance(usage, Usage) and not self._path.exists():
            self._path.write_text(json.dumps(usage.bubble))


def epoch_seconds(path: Path) -> List[float]:
    """From the end of one validation to the end of the next: whole epochs, all but the first."""
    times = [seconds for _, seconds in json.loads(path.read_text())]
    return [after - before for before, after in zip(times, times[1:])]
