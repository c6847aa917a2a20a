"""MLflow: a tracking server, or a database file that `mlflow ui` shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Mapping, Optional, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection
from mxtrain.types import PathText

if TYPE_CHECKING:
    from mlflow import MlflowClient

SQLITE = "sqlite:///"
LOCAL = f"{SQLITE}mlflow.db"
_MAX_PARAMETERS = 100
_MAX_VALUE_LENGTH = 500
_STATES = {"finished": "FINISHED", "stopped_early": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class Mlflow(Tracker):
    """Sends a run to MLflow. A server's credentials are in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or in
    MLFLOW_TRACKING_TOKEN."""

    service: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"
    install: ClassVar[str] = "mlflow>=3.1,<4 sqlalchemy>=2,<3"
    drops_repeated_points: ClassVar[bool] = True
    # MLflow also refuses names that are no normal relative paths.
    refused_in_names: ClassVar[str] = r"[^\w\-. :/]|^/|/$|(?<=/)/|(?:(?<=/)|^)\.{1,2}(?=/|$)"

    uri: Optional[PathText] = None
    """Server (http://...) or database (sqlite:///FILE); null: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the
    current folder."""
    experiment: str = "mxtrain"
    """Name of the experiment; it is created if it does not exist."""

    @property
    def destination(self) -> str:
        return f"{self._address} {self.experiment}"

    @property
    def is_local(self) -> bool:
        return self._address.startswith(SQLITE)

    @property
    def _address(self) -> str:
        address = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or LOCAL
        if address.startswith(SQLITE):  # three slashes begin a relative path, four an absolute one
            address = SQLITE + os.path.abspath(address[len(SQLITE) :])
        return address

    def connect(self, run: TrackedRun) -> TrackerConnection:
        # The run repeats requests itself. Without these, a server that hangs would hold one up for an hour.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        import mlflow

        client = mlflow.MlflowClient(self._address)
        if run.remote_id:
            # A continued run would otherwise keep the state with which it ended before.
            client.update_run(run.remote_id, status="RUNNING")
            return MlflowConnection(client, run.remote_id)
        experiment = client.get_experiment_by_name(self.experiment)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self.experiment)
        tags = {"mlflow.source.name": "mxtrain", "mxtrain.run_dir": str(run.run_dir)}
        remote_id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        connection = MlflowConnection(client, remote_id)
        settings = [(name, str(value)[:_MAX_VALUE_LENGTH]) for name, value in run.settings.items()]
        for start in range(0, len(settings), _MAX_PARAMETERS):
            chunk = settings[start : start + _MAX_PARAMETERS]
            connection.send("params", [mlflow.entities.Param(name, value) for name, value in chunk])
        return connection


class MlflowConnection(TrackerConnection):
    """A run of MLflow."""

    def __init__(self, client: MlflowClient, remote_id: str) -> None:
        self._client, self.remote_id, self.refused = client, remote_id, []

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        self.send("metrics", [Metric(tag, value, time, step) for tag, value, step, time in points])

    def send(self, kind: str, entries: Sequence[Any]) -> None:
        """Sends entries together. If MLflow refuses them, sends halves of them, so that only invalid ones are lost.

        Args:
            kind: argument of `log_batch`, params or metrics.
            entries: the entries.

        Raises:
            Exception: a failure that may pass, such as that of a connection.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self.remote_id, **{kind: list(entries)})
        except MlflowException as error:
            if getattr(error, "error_code", "") != "INVALID_PARAMETER_VALUE":
                raise
            half = len(entries) // 2
            if not half:
                self.refused = [*self.refused, f"{entries[0].key} ({' '.join(str(error).split())[:200]})"]
                return
            self.send(kind, entries[:half])
            self.send(kind, entries[half:])

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        self._client.set_terminated(self.remote_id, _STATES[state])
