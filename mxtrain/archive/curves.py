"""Reads metrics.jsonl as curves of limited length."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Tuple

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import read_rows

MAX_READ_BYTES = 1 << 28
_MAX_CURVES, _MAX_POINTS = 100, 600
_LARGEST = 1e100
"""Larger values are of runs that diverged. Differences of two such values overflow, so they count as not finite."""
_NO_CURVE = ("step", "epoch", "samples_per_s")

Row = Dict[str, object]


@dataclass
class Curve:
    """Values of a metric by step. Beyond `_MAX_POINTS` points, neighbours are replaced by their mean."""

    points: List[Tuple[float, float]] = field(default_factory=list)
    """(step, value) pairs."""
    is_averaged: bool = False
    num_non_finite: int = 0
    _stride: int = 1
    _sums: List[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def add(self, step: int, value: float) -> None:
        """Adds a value; steps must rise."""
        # Not `abs(value) > _LARGEST`, which is False for NaN.
        if not abs(value) <= _LARGEST:
            self.num_non_finite += 1
            return
        self._sums = [self._sums[0] + 1, self._sums[1] + step, self._sums[2] + value]
        if self._sums[0] >= self._stride:
            self.flush()
        # Halving at twice the limit keeps memory bounded however long the run is, without knowing its length.
        if len(self.points) >= 2 * _MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2])
            self.points = [((one[0] + two[0]) / 2, (one[1] + two[1]) / 2) for one, two in pairs]
            self._stride, self.is_averaged = 2 * self._stride, True

    def flush(self) -> None:
        """Adds the mean of the values that do not fill a point yet."""
        count, steps, values = self._sums
        if count:
            self.points.append((steps / count, values / count))
            self._sums = [0.0, 0.0, 0.0]


def read_curves(run_dir: str) -> Dict[Tuple[str, str], Curve]:
    """Returns the curves of a run by split and metric, e.g. ("val", "loss"); empty if it has no rows."""
    curves: Dict[Tuple[str, str], Curve] = {}
    for row in rising_rows(run_dir):
        step, split = row["step"], str(row.get("split"))[:40]
        for name, value in row.items():
            if name in _NO_CURVE or isinstance(value, (str, bool)) or not isinstance(value, (int, float, type(None))):
                continue
            key = split, name[:80]
            # The file may be untrusted, and each new name is a chart, so their number is limited.
            if key not in curves and len(curves) >= _MAX_CURVES:
                continue
            number = math.nan if value is None else float(value)
            curves.setdefault(key, Curve()).add(step, number)  # type: ignore[arg-type]
    for curve in curves.values():
        curve.flush()
    return {key: curve for key, curve in curves.items() if curve.points or curve.num_non_finite}


def is_cut(run_dir: str) -> bool:
    """Returns True if metrics.jsonl is too long to be read whole."""
    try:
        return os.stat(os.path.join(run_dir, ROWS_FILE)).st_size > MAX_READ_BYTES
    except OSError:
        return False


def rising_rows(run_dir: str) -> Iterator[Row]:
    """Yields the rows of metrics.jsonl whose step rises; damaged lines, and all beyond 256 MB, are left out."""
    last = -1
    try:
        for row in read_rows(os.path.join(run_dir, ROWS_FILE), MAX_READ_BYTES):
            step = row.get("step")
            # A resumed run cuts later rows off, so steps fall only in a damaged file, or one that is no run's.
            if isinstance(step, int) and not isinstance(step, bool) and step >= last:
                last = step
                yield row
    except OSError:
        return
