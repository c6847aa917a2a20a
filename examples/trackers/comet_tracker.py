"""Comet."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Mapping, Optional, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection


class Comet(Tracker):
    """Sends a run to Comet. The key is in COMET_API_KEY, or in ~/.comet.config."""

    service: ClassVar[str] = "comet"
    package: ClassVar[str] = "comet_ml"
    install: ClassVar[str] = "comet-ml>=3.58,<4"

    project: str = "mxtrain"
    """Name of the project."""
    workspace: Optional[str] = None
    """Name of the workspace; null: the default of the account."""
    online: bool = True
    """If false, writes an archive into comet/ in the run directory, which `comet upload` sends."""

    @property
    def destination(self) -> str:
        return f"{os.environ.get('COMET_URL_OVERRIDE', 'comet')} {self.workspace or ''}/{self.project}"

    @property
    def is_local(self) -> bool:
        return not self.online

    def connect(self, run: TrackedRun) -> TrackerConnection:
        import comet_ml

        config = comet_ml.ExperimentConfig(
            name=run.name,
            offline_directory=str(run.run_dir / "comet"),
            log_code=False,
            log_git_metadata=False,
            log_git_patch=False,
            auto_output_logging=False,
            parse_args=False,
            log_env_details=False,
        )
        experiment = comet_ml.start(
            workspace=self.workspace,
            project_name=self.project,
            experiment_key=run.remote_id,
            online=self.online,
            mode="get_or_create",
            experiment_config=config,
        )
        experiment.log_parameters(dict(run.settings))
        return CometConnection(experiment)


class CometConnection(TrackerConnection):
    """An experiment of Comet."""

    def __init__(self, experiment: Any) -> None:
        self._experiment, self.remote_id = experiment, experiment.get_key()

    def log(self, points: Sequence[Point]) -> None:
        for tag, value, step, _ in points:
            self._experiment.log_metric(tag, value, step=step)
        if not self._experiment.flush():
            raise ConnectionError("Comet did not take the points")

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        self._experiment.log_others({"state": state, **metrics})
        self._experiment.end()
