"""Weights & Biases, online or offline."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Literal, Mapping, Optional, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection

if TYPE_CHECKING:
    import wandb


class Wandb(Tracker):
    """Sends a run to Weights & Biases. The key is in WANDB_API_KEY, or where `wandb login` has stored it."""

    service: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"
    install: ClassVar[str] = "wandb>=0.26,<1"

    project: str = "mxtrain"
    """Name of the project."""
    entity: Optional[str] = None
    """User or team; null: the default of the account."""
    mode: Optional[Literal["online", "offline"]] = None
    """offline writes files into wandb/ in the run directory, which `wandb sync` uploads; null: WANDB_MODE, else online
    if there is a key."""

    @property
    def destination(self) -> str:
        return f"{os.environ.get('WANDB_BASE_URL', 'wandb')} {self.entity or ''}/{self.project}"

    @property
    def is_local(self) -> bool:
        return (self.mode or os.environ.get("WANDB_MODE")) == "offline"

    def connect(self, run: TrackedRun) -> TrackerConnection:
        import wandb

        mode = self.mode or os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        wandb_run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=run.name,
            # The id is chosen here, because offline no service gives one, and a resumed run has to find its own again.
            id=run.remote_id or uuid.uuid4().hex[:12],
            resume="allow",
            dir=str(run.run_dir),
            mode=mode,
            config=dict(run.settings),
            allow_val_change=True,
            # Neither this process' console nor the packages and the source of whoever started it are part of a run.
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        # wandb's own step must rise with every call, and points that are sent after a resume have older steps.
        wandb_run.define_metric("*", step_metric="step")
        files = run.run_dir / "wandb" / "offline-run-*"
        remark = f"offline: `wandb sync {files}` uploads it" if mode == "offline" else ""
        return WandbConnection(wandb_run, remark)


class WandbConnection(TrackerConnection):
    """A run of Weights & Biases."""

    def __init__(self, run: wandb.Run, remark: str) -> None:
        self._run, self.remote_id, self.remark = run, run.id, remark

    def log(self, points: Sequence[Point]) -> None:
        steps: Dict[int, Dict[str, Any]] = {}
        for tag, value, step, time_ms in points:
            steps.setdefault(step, {"step": step, "_timestamp": time_ms / 1000})[tag] = value
        for step in sorted(steps):
            self._run.log(steps[step])

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        self._run.summary.update({"state": state, **metrics})
        self._run.finish(exit_code=0 if state in ("finished", "stopped_early") else 1)
