"""Reads status.json, the progress and the result of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional, Tuple, Union

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.run_records import MAX_STATUS_BYTES
from mxtrain.files.json_text import parse_json
from mxtrain.files.regular_files import read_with_status

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

_MAX_METRICS = 1000
DAMAGED = "damaged"
"""State of a run whose status.json cannot be read."""


@dataclass(frozen=True)
class RunStatus:
    """Content of status.json; a value of another type than the run writes counts as absent."""

    state: str
    """running, finished, stopped_early, interrupted, failed or `PRUNED`; `DAMAGED` if the file cannot be read."""
    exit_code: Optional[int] = None
    """Exit code of the last process; None while it runs, or if it was killed."""
    cause: str = ""
    epoch: int = 0
    step: int = 0
    monitor: str = ""
    """Name of the monitored value, e.g. val/accuracy; "" if it was not measured."""
    best: Optional[float] = None
    best_step: Optional[int] = None
    direction: str = ""
    """"max" or "min": which values of `best` are better; "" in files of earlier versions."""
    samples_per_s: Optional[float] = None
    wall_s: Optional[float] = None
    metrics: Mapping[str, Optional[float]] = field(default_factory=dict)
    """Last measured values by tag, e.g. test/accuracy."""
    weights_sha256: str = ""
    written_at: float = 0.0
    """Time of the last change of the file, in seconds since the epoch."""


def read_status(run_dir: Union[str, Path]) -> Optional[RunStatus]:
    """Reads status.json of a run directory; returns None if there is none."""
    try:
        content, written_at = _read_object(run_dir)
    except FileNotFoundError:
        return None
    except OSError:
        return RunStatus(DAMAGED)
    return RunStatus(DAMAGED, written_at=written_at) if content is None else _status_of(content, written_at)


def read_status_object(run_dir: Union[str, Path]) -> JsonObject:
    """Returns the object in status.json of a run directory as it is, with values of any type; empty if the file is
    missing or damaged."""
    try:
        return _read_object(run_dir)[0] or {}
    except OSError:
        return {}


def _read_object(run_dir: Union[str, Path]) -> Tuple[Optional[JsonObject], float]:
    """Returns the object in status.json, None if it holds none, and the time of its last change.

    Raises:
        OSError: the file is missing, cannot be read or is too large.
    """
    content, file = read_with_status(os.path.join(run_dir, STATUS_FILE), MAX_STATUS_BYTES)
    try:
        parsed = parse_json(content)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else None, file.st_mtime


def _status_of(content: JsonObject, written_at: float) -> RunStatus:
    best = content.get("best")
    best = best if isinstance(best, dict) else {}
    metrics = content.get("metrics")
    metrics = metrics if isinstance(metrics, dict) and len(metrics) <= _MAX_METRICS else {}
    direction = _text(content.get("direction"))
    return RunStatus(
        state=_text(content.get("state")) or DAMAGED,
        exit_code=_integer(content.get("exit_code")),
        cause=_text(content.get("cause")),
        epoch=_integer(content.get("epoch")) or 0,
        step=_integer(content.get("step")) or 0,
        monitor=_text(best.get("metric")),
        best=_number(best.get("value")),
        best_step=_integer(best.get("step")),
        direction=direction if direction in ("max", "min") else "",
        samples_per_s=_number(content.get("samples_per_s")),
        wall_s=_number(content.get("wall_s")),
        metrics={name: _number(value) for name, value in metrics.items()} if metrics else {},
        weights_sha256=_text(content.get("weights_sha256")),
        written_at=written_at,
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Json) -> Optional[int]:
    # True is an instance of int.
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Json) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
