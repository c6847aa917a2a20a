"""Callbacks that note when validations were over, or steps done. They ask the device nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple

from mxtrain.types import Callback, Progress, Result, Validation

OVERRIDE = "+callback.clock._target_=bench_parts.clock.Clock"


def overrides(path: Path) -> List[str]:
    """What adds the clock to a run; it writes to `path` at the end."""
    return [OVERRIDE, f"+callback.clock.path={path}"]


class Clock(Callback):
    """Writes [[step, seconds], ...] of the validations when the run ends."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._validations: List[Tuple[int, float]] = []

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._validations.append((validation.row["step"], time.perf_counter()))

    def on_end(self, result: Result) -> None:
        self._path.write_text(json.dumps(self._validations))


class StepClock(Callback):
    """Writes [[step, seconds], ...] of the steps when the run ends."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._steps: List[Tuple[int, float]] = []

    @staticmethod
    def overrides(path: Path) -> List[str]:
        """What adds the clock to a run."""
        return ["+callback.clock._target_=bench_parts.clock.StepClock", f"+callback.clock.path={path}",
                "trainer.log_interval=1"]  # fmt: skip

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        self._steps.append((rows[-1]["step"], time.perf_counter()))

    def on_end(self, result: Result) -> None:
        self._path.write_text(json.dumps(self._steps))


class ProcessorClock(Callback):
    """Writes what the steps behind the first `before` took, or behind some more, as rows come in bulk, to the last of
    training: their number, seconds of the processor, all threads together, and of the clock."""

    def __init__(self, path: str, before: int):
        self._path, self._before = Path(path), before
        self._begin: Tuple[int, float, float] = (0, 0.0, 0.0)
        self._end = self._begin

    @staticmethod
    def overrides(path: Path, before: int) -> List[str]:
        """What adds the clock to a run."""
        target = "+callback.clock._target_=bench_parts.clock.ProcessorClock"
        return [target, f"+callback.clock.path={path}", f"+callback.clock.before={before}"]

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        now = (rows[-1]["step"], time.process_time(), time.perf_counter())
        if now[0] >= self._before and not self._begin[0]:
            self._begin = now
        self._end = now

    def on_end(self, result: Result) -> None:
        steps, processor, clock = (end - begin for begin, end in zip(self._begin, self._end))
        self._path.write_text(json.dumps({"steps": steps, "processor_s": processor, "wall_s": clock}))


def epoch_seconds(path: Path) -> List[float]:
    """From the end of one validation to the end of the next: whole epochs, all but the first."""
    times = [seconds for _, seconds in json.loads(path.read_text())]
    return [after - before for before, after in zip(times, times[1:])]
