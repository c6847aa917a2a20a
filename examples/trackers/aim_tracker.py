"""Aim: a folder that `aim up` shows, or a server."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection
from mxtrain.types import PathText


class Aim(Tracker):
    """Writes a run into a repository of Aim."""

    service: ClassVar[str] = "aim"
    package: ClassVar[str] = "aim"
    install: ClassVar[str] = "aim>=3.29,<4"

    repo: PathText = "."
    """Folder that contains the repository .aim, which is created if it does not exist; or a server, aim://HOST:PORT."""
    experiment: str = "mxtrain"
    """Name of the experiment."""

    @property
    def destination(self) -> str:
        return f"{self.repo} {self.experiment}"

    @property
    def is_local(self) -> bool:
        return "://" not in self.repo

    def connect(self, run: TrackedRun) -> TrackerConnection:
        import aim

        aim_run = aim.Run(
            run.remote_id,
            repo=self.repo,
            experiment=self.experiment,
            system_tracking_interval=None,
            capture_terminal_logs=False,
        )
        aim_run.name = run.name
        aim_run["settings"] = dict(run.settings)
        return AimConnection(aim_run)


class AimConnection(TrackerConnection):
    """A run of Aim."""

    def __init__(self, run: Any) -> None:
        self._run, self.remote_id = run, run.hash

    def log(self, points: Sequence[Point]) -> None:
        for tag, value, step, _ in points:
            subset, _, name = tag.partition("/")
            self._run.track(value, name=name or subset, step=step, context={"subset": subset})

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        self._run["result"] = {"state": state, **metrics}
        self._run.close()
