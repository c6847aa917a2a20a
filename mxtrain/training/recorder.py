"""Turns the sums that steps leave on the device into rows, a few steps behind, without holding the device up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.metric.meter import Meter, read_vectors
from mxtrain.types import OF_EPOCH

if TYPE_CHECKING:
    from mxtrain.annotations import MetricRow

# Steps in the engine's queue before the host waits: enough to hide the host's work, few enough to bound the memory.
STEPS_AHEAD = 3
GLANCE_INTERVAL_S = 2.0
"""Seconds without rows after which those who show a run get to see how far it is."""


@dataclass(frozen=True)
class Entry:
    """One step under way."""

    step: int
    epoch: int
    size: int
    lr: float
    sums: nd.NDArray
    grad_norm: Optional[nd.NDArray] = None
    """(1,), where gradients are clipped by it."""


Point = Tuple[int, Dict[str, float]]
"""A step, and values by TensorBoard tag."""


class Recorder:
    """Rows of metrics.jsonl for training steps, and points of the curves that are drawn of them.

    A point is due after every `log_interval` steps, or after every epoch if that is shorter, and at the end of the
    run: of the steps since the last point. At the end of an epoch that has more than one there are values of the whole
    epoch as well, with tags of their own: beside means over fewer steps they would look like a loss that jumps. So
    points follow from the steps alone, not from when somebody looked or where a run was interrupted.

    Args:
        meter: lays the sums out.
        epoch_sums: [samples, *sums] of the epoch under way; changed in place, so that it can live in the state.
        window_sums: the same since the last point.
        log_interval: steps between points.
        total_steps: of the run, if known.
    """

    def __init__(
        self, meter: Meter, epoch_sums: List[float], window_sums: Optional[List[float]] = None, log_interval: int = 50,
        total_steps: Optional[int] = None,
    ):  # fmt: skip
        self._meter = meter
        self._entries: List[Entry] = []
        self._epoch_sums = epoch_sums
        if epoch_sums and len(epoch_sums) != 1 + meter.width:
            epoch_sums.clear()  # of a version that laid them out otherwise
        self._window_sums = [] if window_sums is None else window_sums
        if self._window_sums and len(self._window_sums) != 1 + meter.width:
            self._window_sums.clear()
        self._log_interval, self._total_steps = log_interval, total_steps
        self._ends: List[int] = []
        self.points: List[Point] = []
        """The points of the curves of the rows that were read last."""
        self._read_at: Optional[float] = None
        self._seen_at = 0.0
        self.samples, self.seconds = 0, 0.0
        self.scalars: Dict[str, float] = {}
        """Further values of the last step that was read, by TensorBoard tag."""

    def begin(self) -> None:
        """A step is about to be put to work: from here on time counts, if it stood still."""
        if self._read_at is None:
            self._read_at = self._seen_at = time.monotonic()

    def add(self, entry: Entry, ends_epoch: bool = False) -> None:
        """Notes a step, and waits until no more than `STEPS_AHEAD` are under way. Call `begin` before the step.

        Args:
            ends_epoch: whether it is the last of an epoch.
        """
        self._entries.append(entry)
        if ends_epoch:
            self._ends.append(entry.step)
        if len(self._entries) > STEPS_AHEAD:
            self._entries[-1 - STEPS_AHEAD].sums.wait_to_read()

    def read(self, everything: bool) -> List[MetricRow]:
        """Rows of the steps that are done, in order; with `everything` of those under way too, which are waited for."""
        last = len(self._entries) if everything else len(self._entries) - STEPS_AHEAD
        entries, self._entries = self._entries[: max(last, 0)], self._entries[max(last, 0) :]
        self.points = []
        if not entries:
            return []
        vectors = read_vectors([entry.sums for entry in entries])
        samples_per_s = self._rate(sum(entry.size for entry in entries))
        last_entry = entries[-1]
        self.scalars = {"perf/samples_per_s": samples_per_s}
        if last_entry.grad_norm is not None:
            self.scalars["train/grad_norm"] = float(last_entry.grad_norm.asscalar())  # done: nothing is waited for
        for entry, sums in zip(entries, vectors):
            self._count(entry, sums)
        return [self._row(entry, sums, samples_per_s) for entry, sums in zip(entries, vectors)]

    def glance(self) -> Optional[MetricRow]:
        """Returns the row of the newest step that is done, if none was shown for a while; it is read once more when its
        turn comes. Nothing is waited for: `add` has."""
        now = time.monotonic()
        if now - self._seen_at < GLANCE_INTERVAL_S or len(self._entries) <= STEPS_AHEAD:
            return None
        self._seen_at = now
        done = self._entries[:-STEPS_AHEAD]
        seconds = max(now - (self._read_at or now), 1e-9)
        sums = done[-1].sums.asnumpy().astype(np.float64)
        return self._row(done[-1], sums, sum(entry.size for entry in done) / seconds)

    def pause(self) -> None:
        """Training stops for a while (validation, saving): that time is not counted. Call after `read(True)`."""
        self._read_at = None

    def epoch_values(self) -> Dict[str, float]:
        """Loss and metrics over the epoch so far."""
        if not self._epoch_sums:
            return {}
        return self._meter.values(np.array(self._epoch_sums[1:]), int(self._epoch_sums[0]))

    def _rate(self, samples: int) -> float:
        now = time.monotonic()
        seconds = max(now - (self._read_at or now), 1e-9)
        self._read_at = self._seen_at = now
        self.samples += samples
        self.seconds += seconds
        return samples / seconds

    def _row(self, entry: Entry, sums: np.ndarray, samples_per_s: float) -> MetricRow:
        return {
            "step": entry.step, "epoch": entry.epoch, "split": "train", **self._meter.values(sums, entry.size),
            "lr": entry.lr, "samples_per_s": samples_per_s,
        }  # fmt: skip

    def _count(self, entry: Entry, sums: np.ndarray) -> None:
        # One row after the other: a resumed epoch adds in the same order, so its totals are the same to the bit.
        for totals in (self._epoch_sums, self._window_sums):
            totals.extend([0.0] * (1 + len(sums) - len(totals)))
            for position, value in enumerate([entry.size, *sums]):
                totals[position] += float(value)
        self._maybe_add_point(entry)

    def _maybe_add_point(self, entry: Entry) -> None:
        ends_epoch = entry.step in self._ends
        is_whole_epoch = ends_epoch and self._window_sums[0] == self._epoch_sums[0]
        point: Dict[str, float] = {}
        if is_whole_epoch or entry.step % self._log_interval == 0 or entry.step == self._total_steps:
            size, *sums = self._window_sums
            values = self._meter.values(np.array(sums), int(size))
            point = {**{f"train/{name}": value for name, value in values.items()}, "train/lr": entry.lr}
            self._window_sums.clear()
        if ends_epoch and not is_whole_epoch:
            point.update({f"train/{name}{OF_EPOCH}": value for name, value in self.epoch_values().items()})
        if point:
            self.points.append((entry.step, point))
        self._ends = [step for step in self._ends if step > entry.step]


def first_nonfinite(rows: Sequence[MetricRow]) -> Optional[int]:
    """Returns the first step whose loss is infinite or not a number."""
    return next((row["step"] for row in rows if not math.isfinite(row["loss"])), None)
