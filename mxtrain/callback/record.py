"""Writes into train.log what the console draws in its own way: validations, messages and the result."""

from __future__ import annotations

import logging
from typing import Mapping

from mxtrain.types import Callback, Progress, Result, RunInfo, Validation

log = logging.getLogger("mxtrain.record")


class RunRecord(Callback):
    """Logs to `mxtrain.record`, which goes to train.log only (conf/hydra/job_logging)."""

    def on_start(self, run: RunInfo) -> None:
        resumed = f"continues at step {run.resumed_step}" if run.resumed_step else "begins"
        log.info("run %s: %s steps, %d an epoch", resumed, run.total_steps or "unlimited", run.steps_per_epoch)

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        row = validation.row
        values = {name: value for name, value in row.items() if name not in ("step", "epoch", "split")}
        log.info("%s epoch=%s step=%s %s", row["split"], row["epoch"], row["step"], _text(values))

    def on_message(self, text: str) -> None:
        log.info("%s", text)

    def on_end(self, result: Result) -> None:
        level = logging.ERROR if result.state == "failed" else logging.INFO
        cause = f": {result.cause}" if result.cause else ""
        best = _text(result.best) if result.best else "none"
        log.log(
            level, "%s (exit code %d)%s; step=%d best: %s; %s",
            result.state, result.exit_code, cause, result.step, best, _text(result.metrics),
        )  # fmt: skip


def _text(values: Mapping[str, object]) -> str:
    shown = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return " ".join(f"{name}={text}" for name, text in shown.items())
