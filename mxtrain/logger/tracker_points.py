"""Computes the points of a run's curves from its metrics.jsonl, and stores which of them a service has received.

A run computes its points while it trains (`mxtrain.training.recorder`). The ones that a tracker could not send, or of
a run that had no tracker, are computed again from the rows: at the same steps, with the same tags.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.run_records import read_rows
from mxtrain.callback.protocol import OF_EPOCH
from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_text import read_json
from mxtrain.logger.rows import mean_of_rows
from mxtrain.logger.tracked_run import Point, position_file

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow

_MAX_POSITION_BYTES = 1 << 22
_MAX_TAG_LENGTH = 250
_MAX_VALUES = 1000
"""A row of a real run has tens of values."""


def rows_for_points(path: Path, last_step: Optional[int] = None) -> Iterator[MetricRow]:
    """Yields the rows of a metrics.jsonl that points can be computed from.

    Args:
        path: path of the file.
        last_step: rows of later steps are left out.

    Raises:
        OSError: the file cannot be read.
    """
    for row in read_rows(path):
        if _is_valid_row(row) and (last_step is None or row["step"] <= last_step):
            yield row


def _is_valid_row(row: Mapping[str, Any]) -> bool:
    counts = [row.get("step"), row.get("epoch")]
    return (
        len(row) <= _MAX_VALUES
        and row.get("split") in ("train", "val")
        and all(type(count) is int and count >= 0 for count in counts)
        and all(len(name) <= _MAX_TAG_LENGTH for name in row)
    )


def curves_of(
    rows: Iterable[MetricRow], log_interval: int, steps_per_epoch: int, total_steps: Optional[int]
) -> Iterator[Tuple[int, Dict[str, float]]]:
    """Yields (step, values by tag) of the curves, as a run passes them to `Callback.on_scalars`.

    A value of several steps is the mean of their rows, while a run weights each step by its samples; both differ only
    where batches differ in size.

    Args:
        rows: rows of metrics.jsonl, in order.
        log_interval: `trainer.log_interval`.
        steps_per_epoch: steps per epoch of the run.
        total_steps: steps of the run, whose last one also ends a window; None if unknown.
    """
    interval = min(log_interval, steps_per_epoch)
    window_rows: List[MetricRow] = []
    epoch_rows: List[MetricRow] = []
    for row in rows:
        step = row["step"]
        if row["split"] == "val":
            yield step, {f"val/{name}": value for name, value in mean_of_rows([row]).items()}
            continue
        window_rows.append(row)
        epoch_rows.append(row)
        ends_epoch = step % steps_per_epoch == 0
        # If an epoch is one window, the curve of its means would repeat the points of the other curve.
        is_epoch_window = ends_epoch and len(window_rows) == len(epoch_rows)
        values: Dict[str, float] = {}
        if is_epoch_window or step % interval == 0 or step == total_steps:
            values = {f"train/{name}": value for name, value in mean_of_rows(window_rows).items()}
            values.update({f"train/{name}": row[name] for name in ("lr",) if name in row})
            if "samples_per_s" in row:
                values["perf/samples_per_s"] = row["samples_per_s"]
            window_rows = []
        if ends_epoch and not is_epoch_window:
            means = mean_of_rows(epoch_rows)
            values.update({f"train/{name}{OF_EPOCH}": value for name, value in means.items() if name != "lr"})
        if ends_epoch:
            epoch_rows = []
        if values:
            yield step, values


def points_of(values: Mapping[str, Any], step: int, time_ms: int) -> List[Point]:
    """Returns the finite values as points. Most services refuse NaN and infinity."""
    points = []
    for tag, value in values.items():
        if isinstance(value, (int, float)) or hasattr(value, "item"):
            number = float(value)
            if math.isfinite(number):
                points.append(Point(str(tag), number, int(step), time_ms))
    return points


@dataclass
class Position:
    """The points of a run that a service has received. The position is stored in the run directory before each request.

    Attributes:
        path: path of the file.
        destination: server and project; see `Tracker.destination`.
        remote_id: the service's id of the run; None before the first connection.
        sent: by tag, the last step that was sent or is being sent.
        pending: points being sent; the service may have received them or not.
        complete_step: step up to which the service has all points; -1 if unknown.
    """

    path: Path
    destination: str
    remote_id: Optional[str] = None
    sent: Dict[str, int] = field(default_factory=dict)
    pending: List[Point] = field(default_factory=list)
    complete_step: int = -1

    @classmethod
    def read(cls, run_dir: Path, service: str, destination: str) -> Position:
        """Reads the position of a service; an empty one if there is none for this destination.

        Raises:
            RunDirectoryError: the file cannot be read or is damaged.
        """
        path = run_dir / position_file(service)
        position = cls(path, destination)
        try:
            content = read_json(path, _MAX_POSITION_BYTES)
            if content["destination"] == destination:
                position.remote_id = _text_or_none(content["remote_id"])
                position.sent = {str(tag): int(step) for tag, step in content["sent"].items()}
                position.pending = [
                    Point(str(tag), float(value), int(step), int(time_ms))
                    for tag, value, step, time_ms in content["pending"]
                ]
                position.complete_step = int(content["complete_step"])
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RunDirectoryError(
                f"Cannot read {path}: {error.strerror}. Remove it; a new run is then begun at {service}."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDirectoryError(
                f"{path} is damaged, so nothing says what {service} has. Remove it; a new run is then begun there."
            ) from error
        return position

    def has(self, point: Point) -> bool:
        """Returns True if the service has the point, or may have it."""
        return point.step <= self.sent.get(point.tag, -1)

    @property
    def newest_step(self) -> int:
        """Returns the last step of any sent point; -1 if none was sent."""
        return max(self.sent.values(), default=-1)

    def begin(self, points: Sequence[Point]) -> None:
        """Records that points are being sent."""
        self.pending = list(points)
        for point in points:
            self.sent[point.tag] = max(point.step, self.sent.get(point.tag, -1))

    def write(self) -> None:
        """Replaces the file.

        Raises:
            OSError: the file cannot be written.
        """
        write_json_atomic(
            self.path,
            {
                "destination": self.destination,
                "remote_id": self.remote_id,
                "complete_step": self.complete_step,
                "sent": self.sent,
                "pending": self.pending,
            },
            durable=False,
        )


def _text_or_none(value: object) -> Optional[str]:
    if value is not None and not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= 200):
        raise ValueError("an id of a run is a short text")
    return value
