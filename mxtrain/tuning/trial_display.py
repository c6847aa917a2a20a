"""Shows the progress of a trial while its process trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, TextIO

from mxtrain.archive.run_records import last_rows, read_meta_object
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.report import format_value
from mxtrain.tuning.folder import StudyDescription
from mxtrain.tuning.trials import SPEED, TrialProgress, read_progress

INTERVAL_S = 10.0
"""Seconds before the first plain line, and between two of them."""


class TrialDisplay(ProgressDisplay):
    """Shows epoch, step and the newest values of the objectives of a trial, as its run directory has them.

    Args:
        title: beginning of the line, e.g. "trial 3 (4 of 20)".
        run_dir: run directory, which need not exist yet.
        description: description of the study.
        budget: budget of the rung; None for the last one.
        stream: output stream; default: standard output, as for the other lines of a worker.
    """

    def __init__(
        self,
        title: str,
        run_dir: Path,
        description: StudyDescription,
        budget: Optional[int],
        stream: Optional[TextIO] = None,
    ) -> None:
        stream = stream or sys.stdout
        super().__init__(stream, quiet_s=0.0 if stream.isatty() else INTERVAL_S, refresh_s=1.0)
        self._run_dir, self._description, self._steps_per_epoch = run_dir, description, 0
        in_steps = description.settings.min_steps is not None
        self._max_steps = budget if in_steps else None
        self._max_epochs = description.max_epochs if in_steps or budget is None else budget
        self.begin(title, 0)

    def line(self) -> str:
        """Reads the progress of the run and returns it in one line."""
        progress, rows = read_progress(self._run_dir), last_rows(self._run_dir)
        step = max([progress.step, *(number for number in _integers(rows, "step"))])
        parts: List[str] = []
        if step:
            epoch = max([progress.epoch, *_integers(rows, "epoch")])
            max_steps = self._find_max_steps()
            self._done, self._total = step, max_steps or 0
            parts.append(f"epoch {epoch}{_of(self._max_epochs)}, step {step:,}{_of(max_steps)}")
            parts += [
                f"{name}={text}"
                for name in self._description.objectives
                if (text := newest_value(name, rows, progress)) is not None
            ]
        else:
            parts.append("starting")
        return f"{self._part}: {', '.join(parts)}, {format_seconds(time.monotonic() - self._began_s)}"

    def _find_max_steps(self) -> Optional[int]:
        """Returns the number of steps at the end of the rung; None if it is not known."""
        if self._max_steps is not None or self._max_epochs is None:
            return self._max_steps
        # The run writes the number once its data are open, so the first lines are without it.
        if not self._steps_per_epoch:
            try:
                value = read_meta_object(self._run_dir).get("steps_per_epoch")
            except (OSError, ValueError):
                return None
            self._steps_per_epoch = value if isinstance(value, int) else 0
        return self._max_epochs * self._steps_per_epoch or None


def newest_value(objective: str, rows: List[Dict[str, Any]], progress: TrialProgress) -> Optional[str]:
    """Returns the newest value of an objective as text; None if it was not measured yet.

    Args:
        objective: e.g. val/accuracy.
        rows: last rows of metrics.jsonl, newest first.
        progress: content of status.json, for runs without rows.
    """
    split, _, name = objective.rpartition("/")
    if objective == SPEED:
        split, name = "train", SPEED
    values = (row[name] for row in rows if row.get("split") == split and name in row)
    value = next(values, progress.value_of(objective))
    return format_value(float(value)) if isinstance(value, (int, float)) else None


def _integers(rows: List[Dict[str, Any]], name: str) -> List[int]:
    return [row[name] for row in rows if isinstance(row.get(name), int)]


def _of(total: Optional[int]) -> str:
    return f" of {total:,}" if total else ""
