"""Values that a tracker and its process share: points, the description of a run, and the connection to a service."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Protocol, Sequence

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json


class Point(NamedTuple):
    """One value of a curve.

    Attributes:
        tag: name of the curve, as in TensorBoard, e.g. "val/accuracy".
        value: a finite number.
        step: step of the run.
        time_ms: milliseconds since the epoch at which the value was recorded. A point that is sent again keeps it.
    """

    tag: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run for `Tracker.connect`.

    Attributes:
        name: the last two parts of the run directory, e.g. "2030-01-31/12-00-00-abcd".
        run_dir: the run directory, as an absolute path.
        settings: all settings of the run by dotted name, e.g. {"optimizer.lr": 0.1}.
        remote_id: id of the service's run that goes on; None if the service has none yet.
    """

    name: str
    run_dir: Path
    settings: Mapping[str, Json] = field(default_factory=dict)
    remote_id: Optional[str] = None


class TrackerConnection:
    """A run of a service that is open for points. Any exception means that the call is repeated later."""

    remote_id: str
    """The service's id of the run, with which `Tracker.connect` opens it again."""
    remark: str = ""
    """A note for users about the run, e.g. the command that uploads an offline run; empty if there is none."""

    refused: Sequence[str] = ()
    """Settings and points that the service always rejects, for a warning. They are not sent again."""

    def log(self, points: Sequence[Point]) -> None:
        """Sends points; returns when the service, or its client library's own file, has them."""
        raise NotImplementedError

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        """Ends the run of the service.

        Args:
            state: finished, stopped_early, interrupted or failed, as in status.json. The last two may be continued.
            metrics: the final values by tag, e.g. {"test/accuracy": 0.98}.
        """


class TrackedService(Protocol):
    """The members of `Tracker`, which documents them, that sending points needs."""

    @property
    def service(self) -> str: ...

    @property
    def package(self) -> str: ...

    @property
    def drops_repeated_points(self) -> bool: ...

    @property
    def queue_size(self) -> int: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def shown_destination(self) -> str: ...

    def accepted_name(self, name: str) -> str: ...

    def push_arguments(self, run_dir: str) -> str: ...

    def connect(self, run: TrackedRun) -> TrackerConnection: ...

    def model_dump(self, *, mode: str) -> Dict[str, Any]: ...


def position_file(service: str) -> str:
    """Returns the name of the file in the run directory that stores what a service has."""
    return f"tracker-{service}.json"
