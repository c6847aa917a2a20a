"""The callback of every tracker: hands the points of a run to `Delivery`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.config.specs import flatten
from mxtrain.errors import RunDirectoryError
from mxtrain.logger.delivery import Delivery
from mxtrain.logger.rows import mean_of_rows
from mxtrain.logger.tracked_run import TrackedRun, TrackedService
from mxtrain.logger.tracker_points import Position, points_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject


class TrackerLogger(Callback):
    """Sends the points that TensorBoard shows, the settings and the result of a run to a service."""

    def __init__(self, tracker: TrackedService) -> None:
        self._tracker = tracker
        self._delivery: Optional[Delivery] = None

    def on_start(self, run: RunInfo) -> None:
        """Starts the thread that connects. A run that begins at its first step begins a new run of the service, too.

        Raises:
            RunDirectoryError: the position in the run directory cannot be read or written.
        """
        tracker, run_dir = self._tracker, Path(run.run_dir)
        position = Position.read(run_dir, tracker.service, tracker.shown_destination)
        if not run.resumed_step:
            position = Position(position.path, tracker.shown_destination)
        try:
            position.write()
        except OSError as error:
            raise RunDirectoryError(f"Cannot write {position.path}: {error.strerror}.") from error
        log_interval = (run.config.get("trainer") or {}).get("log_interval") or 1
        missing: JsonObject = {
            "file": str(run_dir.absolute() / ROWS_FILE),
            "last_step": run.resumed_step,
            "log_interval": log_interval,
            "steps_per_epoch": run.steps_per_epoch,
            "total_steps": run.total_steps,
            "start_ms": time.time() * 1000,
            "ms_per_step": 0,
        }
        advice = f"`{run.command.program} {tracker.push_arguments(str(run_dir))}` sends the rest."
        catch_up = missing if run.resumed_step else None
        self._delivery = Delivery(tracker, tracked_run(run_dir, run.config), catch_up, advice)

    def on_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        if self._delivery:
            self._delivery.add(points_of(scalars, step, int(time.time() * 1000)))

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        row = validation.row
        split = row.get("split", "val")
        self.on_scalars({f"{split}/{name}": value for name, value in mean_of_rows([row]).items()}, row["step"])

    def on_end(self, result: Result) -> None:
        if self._delivery:
            self._delivery.close(result.state, result.step, result.metrics)
            self._delivery = None


def tracked_run(run_dir: Path, config: Config) -> TrackedRun:
    """Returns the description of a run for services: its name is the end of its path."""
    path = run_dir.absolute()
    return TrackedRun("/".join(path.parts[-2:]).lstrip("/"), path, flatten(config))
