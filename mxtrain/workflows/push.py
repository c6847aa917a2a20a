"""`push`: sends what a run has written to a tracker, such as MLflow."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import read_meta_object
from mxtrain.archive.status import read_status_object
from mxtrain.checkpoint import lock_run_directory, open_checkpoint, refuse_links
from mxtrain.checkpoint.folder import CHECKPOINTS
from mxtrain.errors import CheckpointError, DataError
from mxtrain.logger.delivery import Delivery
from mxtrain.logger.jsonl import NO_ROWS
from mxtrain.logger.tracker import Tracker
from mxtrain.logger.tracker_logger import tracked_run
from mxtrain.logger.tracker_points import Position, rows_for_points
from mxtrain.terminal.program import program

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject

STATES = ("finished", "stopped_early", "interrupted", "failed")


@dataclass(frozen=True)
class PushResult:
    """Result of `push`.

    Attributes:
        path: run directory.
        service: name of the service.
        destination: address of the service.
        remote_id: identifier of the run there; None if it was not reached.
        sent: number of points that were sent now.
        continued: True if the run existed there before.
        complete: True if everything has arrived. Otherwise the same call sends the rest; a warning was logged.
        remark: what else happened, e.g. to values that cannot be sent; may be empty.
    """

    path: Path
    service: str
    destination: str
    remote_id: Optional[str]
    sent: int
    continued: bool
    complete: bool
    remark: str

    def __str__(self) -> str:
        kind = "continued" if self.continued else "new"
        rest = "" if self.complete else "; the rest was not sent"
        run = f"{kind} run {self.remote_id}"
        return f"{self.sent} points sent to {self.service} ({self.destination}), {run}{self.remark}{rest}"

    __repr__ = __str__


def push_run(path: Path, tracker: Tracker) -> PushResult:
    """Sends the rows and results of a run. If the run was sent before, only missing points are sent.

    Args:
        path: run directory.
        tracker: tracker to send to; its address never comes from the settings of the run, which may be untrusted.

    Raises:
        DataError: there is no such run, or it wrote no rows.
        RunDirectoryError: a process trains there.
    """
    if not path.is_dir():
        raise DataError(f"{path}: there is no such run directory.")
    if not (path / ROWS_FILE).is_file():
        raise DataError(NO_ROWS.format(path / ROWS_FILE))
    refuse_links(path, (ROWS_FILE,))
    with lock_run_directory(path):
        return _push(path, tracker)


def _push(path: Path, tracker: Tracker) -> PushResult:
    config, steps_per_epoch = description_of(path)
    status = read_status_object(path)
    metrics = status.get("metrics")
    step = status["step"] if type(status.get("step")) is int else 0
    # The status of a killed run is still "running", which is not a final state in a tracker.
    state = status.get("state") if status.get("state") in STATES else "interrupted"
    start_ms, ms_per_step = _times_of(path, status, step)
    before = Position.read(path, tracker.service, tracker.shown_destination)
    catch_up: JsonObject = {
        "file": str(path.absolute() / ROWS_FILE),
        "last_step": None,
        "log_interval": _count((config.get("trainer") or {}).get("log_interval"), 50),
        "steps_per_epoch": steps_per_epoch,
        "total_steps": step or None,
        "start_ms": start_ms,
        "ms_per_step": ms_per_step,
    }
    hint = f"The same command sends the rest: {program()} {tracker.push_arguments(str(path))}"
    delivery = Delivery(tracker, tracked_run(path, config), catch_up, hint)
    is_complete = delivery.close(str(state), step, metrics if isinstance(metrics, Mapping) else {})
    after = Position.read(path, tracker.service, tracker.shown_destination)
    return PushResult(
        path,
        tracker.service,
        after.destination,
        after.remote_id,
        delivery.sent,
        bool(before.remote_id),
        is_complete,
        delivery.remark,
    )


def description_of(path: Path) -> Tuple[Config, int]:
    """Returns the settings of a run and its steps in an epoch, without importing or running what they name."""
    config: Config = {}
    try:
        if (path / CHECKPOINTS).is_dir():
            recorded = open_checkpoint(path, which="last").state["run"]["description"]
            config = recorded if isinstance(recorded, dict) else {}
    except (CheckpointError, KeyError, TypeError):
        pass  # the rows are sent without settings
    last_steps: Dict[int, int] = {}
    for row in rows_for_points(path / ROWS_FILE):
        last_steps[row["epoch"]] = max(row["step"], last_steps.get(row["epoch"], 0))
        if len(last_steps) > 1:  # rows are in order, so all rows of the first epoch were seen
            break
    return config, _count(min(last_steps.values(), default=1), 1)


def _times_of(path: Path, status: Mapping[str, Any], step: int) -> Tuple[float, float]:
    """Returns the start of the run and the duration of a step, in milliseconds, because rows contain no times."""
    try:
        started = read_meta_object(path).get("started")
    except (OSError, ValueError):
        started = None
    try:
        begin = datetime.datetime.strptime(str(started), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        begin = (path / ROWS_FILE).stat().st_mtime
    seconds = status.get("wall_s")
    wall_s = seconds if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0
    return 1000 * begin, 1000 * wall_s / max(step, 1)


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default
