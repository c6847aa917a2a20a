"""Writes status.json: the progress and final state of a run, for people and scripts."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, Optional, Sequence

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.files.durable import write_json_atomic

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow

# Each write calls fsync. Without a limit a run with steps of a millisecond would mostly wait for the disk.
SECONDS_BETWEEN_WRITES = 2.0


class StatusFile(Callback):
    """Replaces status.json atomically with every checkpoint, and otherwise at most every two seconds.

    A full disk does not end the run: the file then keeps its earlier content.

    Args:
        run_dir: directory of the run.
        in_place: returns True if `run_dir` is still the directory that the run has locked.
    """

    def __init__(self, run_dir: Path, in_place: Callable[[], bool] = lambda: True):
        self._path, self._in_place = run_dir / STATUS_FILE, in_place
        self._status: Dict[str, object] = {
            "state": "running",
            "exit_code": None,
            "cause": "",
            "epoch": 0,
            "step": 0,
            "best": None,
            "checkpoint": None,
            "weights_sha256": None,
            "samples_per_s": None,
        }
        self._written_at: Optional[float] = None

    def on_start(self, run: RunInfo) -> None:
        self._status["step"] = run.resumed_step
        self._status["epoch"] = (run.resumed_step - run.epoch_origin) // run.steps_per_epoch
        self._status["direction"] = run.direction  # direction of `best`, for commands that rank runs
        if run.metric_signatures:
            self._status["metric_signatures"] = dict(run.metric_signatures)
        if run.lr_scaling:
            self._status["lr_scaling"] = dict(run.lr_scaling)
        self._write(at_once=True)

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        self._status.update(step=progress.step, epoch=progress.epoch, samples_per_s=rows[-1]["samples_per_s"])
        if progress.gpu_memory:
            self._status["gpu_memory"] = [
                {
                    "device": memory.device,
                    "used_mb": round(memory.used_mb),
                    "peak_mb": round(memory.peak_mb),
                    "of": "process" if memory.is_own else "device",
                }
                for memory in progress.gpu_memory
            ]
        self._write(at_once=False)

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._status["best"] = validation.best
        self._write(at_once=False)

    def on_checkpoint(self, step: int) -> None:
        self._status["step"] = step
        self._write(at_once=True)  # so that the status of a killed run is never older than its last checkpoint

    def on_end(self, result: Result) -> None:
        self._status.update(
            state=result.state,
            exit_code=result.exit_code,
            cause=result.cause,
            step=result.step,
            epoch=result.epoch,
            best=result.best,
            checkpoint=result.checkpoint,
            weights_sha256=result.weights_sha256 or None,
            samples_per_s=result.samples_per_s or self._status["samples_per_s"],
            metrics=dict(result.metrics),
            wall_s=result.wall_s,
            best_checkpoint=result.best_checkpoint,
            measured=dict(result.measured),
        )
        self._write(at_once=True)

    def _write(self, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and self._written_at is not None and now - self._written_at < SECONDS_BETWEEN_WRITES:
            return
        self._written_at = now
        if not self._in_place():
            return  # the run directory was removed or replaced; the run ends with an error about that
        with suppress(OSError):  # the next checkpoint reports the full disk
            write_json_atomic(self._path, self._status)
