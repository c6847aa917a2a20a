"""Notifies the callbacks of a run in order, and writes their events into train.log.

At the end all callbacks are notified, even if one of them raises.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Set

from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation, require_known_events
from mxtrain.callback.status import StatusFile
from mxtrain.checkpoint.run_directory import held_lock
from mxtrain.config.groups import Description
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, MEMORY_ADVICE, ConfigError, describe_out_of_memory
from mxtrain.logger.spec import Logger

_LOG = logging.getLogger(__name__)


STOP_BY_ACTION = "a callback cannot stop a run. Give an mxtrain.callback.Action, whose hooks call run.stop(REASON)"


def call_hook(owner: object, hook: str, values: Sequence[object], instead: str, warned: Set[str]) -> None:
    """Calls a method of a callback or an action. If it tries to stop the run as in other libraries, explains the
    supported way.

    Args:
        owner: the callback or action.
        hook: name of the method.
        values: its arguments.
        instead: sentence about the supported way to stop a run.
        warned: hooks with a warning in this run; updated.

    Raises:
        RuntimeError: it raised StopIteration.
    """
    name = f"{type(owner).__name__}.{hook}"
    try:
        result = getattr(owner, hook)(*values)
    except StopIteration as error:  # a generator around it would replace the message
        raise RuntimeError(f"{name} raised StopIteration: {instead}.") from error
    if result is True and name not in warned:
        warned.add(name)
        _LOG.warning("%s returned True, which stops nothing: %s.", name, instead)


class CallbackList:
    """The callbacks of a run, in the order in which they are notified.

    Attributes:
        callbacks: the callbacks; may be changed before the run begins.
    """

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = list(callbacks)
        self._warned: Set[str] = set()

    def notify(self, event: str, *values: object) -> None:
        """Calls the method `event` of each.

        Raises:
            Exception: whatever one of them raised; those after it are not told.
        """
        for callback in self.callbacks:
            call_hook(callback, event, values, STOP_BY_ACTION, self._warned)

    def end(self, result: Result, error: Optional[BaseException]) -> Result:
        """Notifies all callbacks of the end of the run, and returns the result.

        Args:
            error: what broke the run, raised again when all were told.

        Raises:
            BaseException: `error`, or the first that a callback's own `on_end` raised; those after it are told of it.
        """
        for callback in self.callbacks:
            try:
                callback.on_end(result)
            except BaseException as problem:  # also of Ctrl-C: the later ones include the status of the run
                _LOG.exception("%s.on_end failed", type(callback).__name__)
                error = error or problem
                if result.exit_code == EXIT_FINISHED:
                    result = replace(result, state="failed", exit_code=EXIT_CRASHED, cause=describe_error(problem))
        if error is not None:
            raise error
        return result


LAYOUT_CHECKS = ("Check failed: !is_view", "IsDefaultData()")
"""Checks of MXNet 1.9.1 that an operator without oneDNN kernels fails on arrays in oneDNN's memory layouts."""
LAYOUT_REMEDY = (
    "MXNet fails on the memory layout of an array behind a convolution, e.g. if a network's own code calls BatchNorm "
    "on the output of Conv1D or Conv3D, or with axis=3. Use mxnet.gluon.nn.BatchNorm() for it, or set "
    "MXNET_MKLDNN_ENABLED=0 in the environment."
)


def describe_error(error: BaseException, less_memory: str = MEMORY_ADVICE) -> str:
    """Returns the class and the message, as the last line of a traceback has them; where memory was the cause a
    sentence, and what to do about it."""
    try:
        message = str(error)
    except Exception:  # an exception of the user's own class
        message = "its message cannot be shown"
    if any(check in message for check in LAYOUT_CHECKS):
        message = f"{message.strip()}\n{LAYOUT_REMEDY}"
    return describe_out_of_memory(error, less_memory) or f"{type(error).__name__}: {message}"


def build_callbacks(description: Description, run_dir: Path) -> List[Callback]:
    """Builds the callbacks, in the order in which they are notified."""
    # The status after the user's own callbacks: if one of them fails at the end, it can say so.
    configured = [spec.build() for spec in description.callback.values() if not spec.acts]
    loggers = [build_logger(name, spec) for name, spec in description.logger.items()]
    lock = held_lock(run_dir)
    status = StatusFile(run_dir, lock.is_in_place) if lock else StatusFile(run_dir)
    return [*configured, status, RunRecord(), *loggers]


def build_logger(name: str, spec: Logger) -> Callback:
    """Builds the callback of a logger.

    Args:
        name: name of the logger in the group `logger`, for messages.
        spec: its settings.

    Raises:
        ConfigError: `spec.build` returns no callback, or the callback has a misspelt event.
    """
    callback = spec.build()
    path = f"logger.{name}"
    if not isinstance(callback, Callback):
        raise ConfigError(
            f"{path}: {type(spec).__name__}.build returned {callback!r:.100}, and must return an object of a subclass "
            "of mxtrain.types.Callback."
        )
    require_known_events(type(callback), path)
    return callback


_RECORD = logging.getLogger("mxtrain.record")
"""Goes to train.log only (conf/hydra/job_logging): the console shows the same events in its own form."""


class RunRecord(Callback):
    """Logs validations, messages and the result into train.log."""

    def on_start(self, run: RunInfo) -> None:
        resumed = f"continues at step {run.resumed_step}" if run.resumed_step else "begins"
        _RECORD.info("run %s: %s steps, %d an epoch", resumed, run.total_steps or "unlimited", run.steps_per_epoch)

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        row = validation.row
        values = {name: value for name, value in row.items() if name not in ("step", "epoch", "split")}
        _RECORD.info("%s epoch=%s step=%s %s", row["split"], row["epoch"], row["step"], _text(values))

    def on_message(self, text: str) -> None:
        _RECORD.info("%s", text)

    def on_end(self, result: Result) -> None:
        level = logging.ERROR if result.state == "failed" else logging.INFO
        cause = f": {result.cause}" if result.cause else ""
        best = _text(result.best) if result.best else "none"
        _RECORD.log(
            level,
            "%s (exit code %d)%s; step=%d best: %s; %s",
            result.state,
            result.exit_code,
            cause,
            result.step,
            best,
            _text(result.metrics),
        )


def _text(values: Mapping[str, object]) -> str:
    shown = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return " ".join(f"{name}={text}" for name, text in shown.items())
