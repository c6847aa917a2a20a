"""ClearML."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection


class ClearMl(Tracker):
    """Sends a run to ClearML. Server and keys are in CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and
    CLEARML_API_SECRET_KEY, or in ~/clearml.conf."""

    service: ClassVar[str] = "clearml"
    package: ClassVar[str] = "clearml"
    install: ClassVar[str] = "clearml>=2.1,<3"

    project: str = "mxtrain"
    """Name of the project."""

    @property
    def destination(self) -> str:
        return f"clearml {self.project}"

    def connect(self, run: TrackedRun) -> TrackerConnection:
        from clearml import Task

        task = Task.init(
            self.project,
            run.name,
            reuse_last_task_id=False,
            continue_last_task=run.remote_id or False,
            auto_connect_frameworks=False,
            auto_connect_arg_parser=False,
            auto_connect_streams=False,
            auto_resource_monitoring=False,
        )
        if run.remote_id:
            task.set_initial_iteration(0)  # else it adds the last step of before to each step
        task.set_parameters(dict(run.settings))
        return ClearMlConnection(task)


class ClearMlConnection(TrackerConnection):
    """A task of ClearML."""

    def __init__(self, task: Any) -> None:
        self._task, self.remote_id = task, task.id

    def log(self, points: Sequence[Point]) -> None:
        for tag, value, step, _ in points:
            series, _, title = tag.partition("/")  # train/loss and val/loss are two series of one plot
            self._task.get_logger().report_scalar(title or series, series, value, step)
        if not self._task.flush(wait_for_uploads=True):
            raise ConnectionError("ClearML did not take the points")

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self._task.get_logger().report_single_value(tag, value)
        self._task.mark_failed(status_reason=state) if state == "failed" else self._task.close()
