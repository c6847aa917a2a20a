"""A callback that notes when steps and validations were over. It asks the device nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from mxtrain.types import Callback, Progress, Result, Validation

OVERRIDE = "+callback.clock._target_=bench_parts.clock.Clock"


def overrides(path: Path) -> List[str]:
    """What adds the clock to a run; it writes to `path` at the end."""
    return [OVERRIDE, f"+callback.clock.path={path}"]


class Clock(Callback):
    """Writes {"steps": [[step, seconds], ...], "validations": [[step, seconds], ...]} when the run ends.

    It is the last callback, so the loggers' work for the same event lies before the noted time. Rows are handed over
    when their numbers have been read from the device: their steps are done.
    """

    def __init__(self, path: str):
        self._path = Path(path)
        self._events: Dict[str, List[Tuple[int, float]]] = {"steps": [], "validations": []}

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        self._events["steps"].append((rows[-1]["step"], time.perf_counter()))

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._events["validations"].append((validation.row["step"], time.perf_counter()))

    def on_end(self, result: Result) -> None:
        self._path.write_text(json.dumps(self._events))


def seconds_per_step(path: Path, warm_up: int, steps: int) -> float:
    """Mean over the window that begins with the first look at the device at or after step `warm_up`, `steps` long.

    The runner looks at most 3 steps behind: the window may begin that much before `warm_up`, and end as much earlier.
    """
    events = json.loads(path.read_text())["steps"]
    behind = 3
    first_step, began = next(event for event in events if event[0] >= warm_up - behind)
    last_step, ended = next(event for event in events if event[0] >= first_step + steps)
    return (ended - began) / (last_step - first_step)


def epoch_seconds(path: Path) -> List[float]:
    """From the end of one validation to the end of the next: whole epochs, all but the first."""
    times = [seconds for _, seconds in json.loads(path.read_text())["validations"]]
    return [after - before for before, after in zip(times, times[1:])]
