"""Reads the sums of training steps from the device, a few steps late so that the device never waits, as metric rows.

At most three steps wait in the engine's queue, which bounds memory and hides the host's work. The sums of many steps
are read in one transfer every `trainer.log_interval` steps. metrics.jsonl gets one row per step; TensorBoard and the
console get means. Rows are written before the checkpoint that follows them, and a resumed run removes rows after its
checkpoint, so none is missing and none occurs twice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.callback.protocol import OF_EPOCH
from mxtrain.engine.backend import nd
from mxtrain.metric.meter import Meter, read_vectors

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow

# Steps in the engine's queue before the host waits: enough to hide the host's work, few enough to bound the memory.
STEPS_AHEAD = 3
GLANCE_INTERVAL_S = 2.0
"""Seconds without new rows after which displays get an early row of the newest finished step."""


@dataclass(frozen=True)
class Entry:
    """A step whose sums have not been read yet."""

    step: int
    epoch: int
    size: int
    lr: float
    sums: nd.NDArray
    grad_norm: Optional[nd.NDArray] = None
    """L2 norm of the gradients (1,), if gradients are clipped."""


Point = Tuple[int, Dict[str, float]]
"""A step, and values by TensorBoard tag."""


class Recorder:
    """Builds the rows of metrics.jsonl for training steps, and the points of their curves.

    A point covers the steps since the previous point. It is due after every `log_interval` steps or every epoch,
    whichever is shorter, and at the end of the run. An epoch with several points also gets values of the whole epoch,
    with separate tags, because a mean over more steps would look like a jump of the loss. Points therefore depend on
    the steps alone, not on when rows are read or where a run was interrupted.

    Args:
        meter: defines the layout of the sums.
        epoch_sums: [samples, *sums] of the current epoch; modified in place, since it is part of the run's state.
        window_sums: the same since the last point.
        log_interval: steps between points.
        total_steps: number of steps of the run; None if unknown.
    """

    def __init__(
        self,
        meter: Meter,
        epoch_sums: List[float],
        window_sums: Optional[List[float]] = None,
        log_interval: int = 50,
        total_steps: Optional[int] = None,
    ):
        self._meter = meter
        self._entries: List[Entry] = []
        self._epoch_sums = epoch_sums
        if epoch_sums and len(epoch_sums) != 1 + meter.width:
            epoch_sums.clear()  # written by a version with another layout
        self._window_sums = [] if window_sums is None else window_sums
        if self._window_sums and len(self._window_sums) != 1 + meter.width:
            self._window_sums.clear()
        self._log_interval, self._total_steps = log_interval, total_steps
        self._ends: List[int] = []
        self._last: Optional[int] = None
        self._read_step: Optional[int] = None
        self.points: List[Point] = []
        """Points of the curves, for the rows of the last `read`."""
        self._read_at: Optional[float] = None
        self._seen_at = 0.0
        self.samples, self.seconds = 0, 0.0
        self.scalars: Dict[str, float] = {}
        """Further values of the last step that was read, by TensorBoard tag."""

    def begin(self) -> None:
        """Starts the clock if it was paused. Call before each step."""
        if self._read_at is None:
            self._read_at = self._seen_at = time.monotonic()

    def add(self, entry: Entry, ends_epoch: bool = False) -> None:
        """Adds a step, and waits until at most `STEPS_AHEAD` steps are queued. Call `begin` before the step.

        Args:
            entry: the step.
            ends_epoch: True if it is the last step of an epoch.
        """
        if self._entries and self._entries[-1].step == entry.step:
            # Another chunk of the same step: the step has one row, the mean over both.
            previous = self._entries.pop()
            entry = replace(entry, sums=previous.sums + entry.sums, size=previous.size + entry.size)
        self._entries.append(entry)
        if ends_epoch:
            self._ends.append(entry.step)
        if len(self._entries) > STEPS_AHEAD:
            # Waiting for an old step keeps newer ones in the queue, so that the device is never idle.
            self._entries[-1 - STEPS_AHEAD].sums.wait_to_read()

    def end_epoch(self) -> None:
        """Counts the newest step as the last one of its epoch, of which this worker may have taken no chunk."""
        if self._entries:
            self._ends.append(self._entries[-1].step)

    def read(self, everything: bool) -> List[MetricRow]:
        """Returns the rows of finished steps, in order; with `everything`, of all steps, which are waited for."""
        last = len(self._entries) if everything else len(self._entries) - STEPS_AHEAD
        entries, self._entries = self._entries[: max(last, 0)], self._entries[max(last, 0) :]
        self.points = []
        if not entries:
            return []
        # One transfer for many steps, because each transfer is a round trip to the device.
        vectors = read_vectors([entry.sums for entry in entries])
        samples_per_s = self._rate(self._progress(entries))
        last_entry = entries[-1]
        self.scalars = {"perf/samples_per_s": samples_per_s}
        if last_entry.grad_norm is not None:
            self.scalars["train/grad_norm"] = float(last_entry.grad_norm.asscalar())  # does not wait: step is finished
        for entry, sums in zip(entries, vectors):
            self._count(entry, sums)
        return [self._row(entry, sums, samples_per_s) for entry, sums in zip(entries, vectors)]

    def glance(self) -> Optional[MetricRow]:
        """Returns an early row of the newest finished step, if no row was read for a while; `read` returns it again.

        Does not wait, since `add` has already waited for the step.
        """
        now = time.monotonic()
        if now - self._seen_at < GLANCE_INTERVAL_S or len(self._entries) <= STEPS_AHEAD:
            return None
        self._seen_at = now
        finished = self._entries[:-STEPS_AHEAD]
        seconds = max(now - (self._read_at or now), 1e-9)
        sums = finished[-1].sums.asnumpy().astype(np.float64)
        return self._row(finished[-1], sums, sum(entry.size for entry in finished) / seconds)

    def pause(self) -> None:
        """Stops the clock during validation or saving. Call after `read(True)`."""
        self._read_at = None

    def epoch_values(self) -> Dict[str, float]:
        """Returns loss and metrics over the current epoch so far."""
        if not self._epoch_sums:
            return {}
        return self._meter.values(np.array(self._epoch_sums[1:]), int(self._epoch_sums[0]))

    def _progress(self, entries: Sequence[Entry]) -> int:
        """Returns the samples of all workers in the steps up to the last entry, since the entries before."""
        last = entries[-1]
        steps = len(entries) if self._read_step is None else last.step - self._read_step
        self._read_step = last.step
        # The steps between two entries are those of other workers, with batches of the same size.
        return sum(entry.size for entry in entries) if steps == len(entries) else steps * last.size

    def _rate(self, samples: int) -> float:
        now = time.monotonic()
        seconds = max(now - (self._read_at or now), 1e-9)
        self._read_at = self._seen_at = now
        self.samples += samples
        self.seconds += seconds
        return samples / seconds

    def _row(self, entry: Entry, sums: np.ndarray, samples_per_s: float) -> MetricRow:
        return {
            "step": entry.step,
            "epoch": entry.epoch,
            "split": "train",
            **self._meter.values(sums, entry.size),
            "lr": entry.lr,
            "samples_per_s": samples_per_s,
        }

    def _count(self, entry: Entry, sums: np.ndarray) -> None:
        # Add row by row: a resumed epoch then adds in the same order and gets the same totals bit for bit.
        for totals in (self._epoch_sums, self._window_sums):
            totals.extend([0.0] * (1 + len(sums) - len(totals)))
            for position, value in enumerate([entry.size, *sums]):
                totals[position] += float(value)
        self._maybe_add_point(entry)

    def _maybe_add_point(self, entry: Entry) -> None:
        ends_epoch = entry.step in self._ends
        is_whole_epoch = ends_epoch and self._window_sums[0] == self._epoch_sums[0]
        point: Dict[str, float] = {}
        # Steps of which this worker took no chunk have no entry, and may have been multiples of the interval.
        is_due = (
            entry.step // self._log_interval
            > (entry.step - 1 if self._last is None else self._last) // self._log_interval
        )
        self._last = entry.step
        if is_whole_epoch or is_due or entry.step == self._total_steps:
            size, *sums = self._window_sums
            values = self._meter.values(np.array(sums), int(size))
            point = {**{f"train/{name}": value for name, value in values.items()}, "train/lr": entry.lr}
            # Cleared in place, because the list is a part of the run's state.
            self._window_sums.clear()
        if ends_epoch and not is_whole_epoch:
            point.update({f"train/{name}{OF_EPOCH}": value for name, value in self.epoch_values().items()})
        if point:
            self.points.append((entry.step, point))
        self._ends = [step for step in self._ends if step > entry.step]


def first_nonfinite(rows: Sequence[MetricRow]) -> Optional[int]:
    """Returns the first step whose loss is infinite or not a number."""
    return next((row["step"] for row in rows if not math.isfinite(row["loss"])), None)
