"""`mxtrain push RUN tracker=NAME`: sends what a run has written to a tracker, such as MLflow; no MXNet is needed.

A run that had the tracker while it trained goes on there: only what is missing is sent. Keys are read from the
environment, as in training (docs/training/trackers.md)."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.run_files import ROWS_FILE, STATUS_FILE
from mxtrain.archive.run_records import read_meta
from mxtrain.checkpoint import lock_run_directory, open_checkpoint, refuse_links
from mxtrain.checkpoint.folder import CHECKPOINTS
from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composer
from mxtrain.composing.restored import one_run
from mxtrain.composing.settings import split_settings
from mxtrain.config.specs import build_spec
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, CheckpointError, ConfigError, DataError, did_you_mean
from mxtrain.files.json_text import read_json
from mxtrain.logger.delivery import Delivery
from mxtrain.logger.jsonl import NO_ROWS
from mxtrain.logger.spec import Logger
from mxtrain.logger.tracker import Tracker
from mxtrain.logger.tracker_logger import tracked_run
from mxtrain.logger.tracker_points import Position, points_rows
from mxtrain.terminal.program import program
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject

FILES = ("default", "console", "csv", "jsonl", "tensorboard")
"""Options of the group `logger` that are no trackers."""
STATES = ("finished", "stopped_early", "interrupted", "failed")
_LOGGER = "logger."


class PushSettings(Spec):
    """Settings of `push`."""

    tracker: Optional[str] = None
    """Name of the tracker: mlflow, wandb, or one of your own in conf/logger/."""


def run(arguments: Sequence[str]) -> int:
    """Sends the run; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, PushSettings, "push")
    path = Path(one_run(parsed, "push"))
    if parsed.positionals[1:]:
        raise ConfigError(f"push takes one run directory, not also '{parsed.positionals[1]}'.")
    with Composer(parsed.config_dirs) as composer:
        tracker = tracker_of(settings.tracker, overrides, composer)
    if not path.is_dir():
        raise DataError(f"{path}: there is no such run directory.")
    if not (path / ROWS_FILE).is_file():
        raise DataError(NO_ROWS.format(path / ROWS_FILE))
    refuse_links(path, (ROWS_FILE,))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with lock_run_directory(path):
        return _push(path, tracker)


def tracker_of(name: Optional[str], overrides: Sequence[str], composer: Composer) -> Tracker:
    """Builds the tracker from the command line alone, because settings of an untrusted run directory could send your
    keys to another server."""
    known = [option for option in composer.options("logger") if option not in FILES]
    if not name:
        raise ConfigError(f"push needs tracker=NAME, one of {', '.join(known)}.")
    if name not in known:
        near = did_you_mean(name, known)
        raise ConfigError(f"tracker={name}: there is no such tracker.{near} It may be {', '.join(known)}.")
    for word in overrides:
        if not word.startswith(f"{_LOGGER}{name}."):
            key = word.partition("=")[0]
            form = f"{_LOGGER}{name}.FIELD=VALUE"
            raise ConfigError(f"push takes tracker=NAME and settings of that tracker, {form}, not {key}.")
    composed = composer.compose([f"logger=[{name}]", *overrides])
    spec = build_spec(composed.config["logger"][name], f"{_LOGGER}{name}", Logger, composed.where)
    if not isinstance(spec, Tracker):
        raise ConfigError(f"tracker={name}: it writes files and sends nothing.")
    spec.require_usable(f"{_LOGGER}{name}")
    return spec


def _push(path: Path, tracker: Tracker) -> int:
    config, steps_per_epoch = _description_of(path)
    status = _object_in(path / STATUS_FILE)
    metrics = status.get("metrics")
    step = status["step"] if type(status.get("step")) is int else 0
    state = status.get("state") if status.get("state") in STATES else "interrupted"
    start_ms, ms_per_step = _times_of(path, status, step)
    before = Position.read(path, tracker.service, tracker.shown_destination)
    catch_up: JsonObject = {
        "file": str(path.absolute() / ROWS_FILE),
        "last_step": None,
        "log_interval": _count((config.get("trainer") or {}).get("log_interval"), 50),
        "steps_per_epoch": steps_per_epoch,
        "total_steps": step or None,
        "start_ms": start_ms,
        "ms_per_step": ms_per_step,
    }
    hint = f"The same command sends the rest: {program()} {tracker.push_words(str(path))}"
    delivery = Delivery(tracker, tracked_run(path, config), catch_up, hint)
    is_complete = delivery.close(str(state), step, metrics if isinstance(metrics, Mapping) else {})
    after = Position.read(path, tracker.service, tracker.shown_destination)
    if not is_complete:
        return EXIT_CRASHED
    kind = "continued" if before.remote_id else "new"
    print(
        f"{delivery.sent} points sent to {tracker.service} ({after.destination}), {kind} run {after.remote_id}"
        f"{delivery.remark}"
    )
    return EXIT_FINISHED


def _description_of(path: Path) -> Tuple[Config, int]:
    """Returns the settings of a run and its steps in an epoch, without anything that a file could make us do."""
    config: Config = {}
    try:
        if (path / CHECKPOINTS).is_dir():
            recorded = open_checkpoint(path, which="last").state["run"]["description"]
            config = recorded if isinstance(recorded, dict) else {}
    except (CheckpointError, KeyError, TypeError):
        pass  # the rows are sent all the same
    last_steps: Dict[int, int] = {}
    for row in points_rows(path / ROWS_FILE):
        last_steps[row["epoch"]] = max(row["step"], last_steps.get(row["epoch"], 0))
        if len(last_steps) > 1:  # rows are in order, so the first epoch is whole
            break
    return config, _count(min(last_steps.values(), default=1), 1)


def _times_of(path: Path, status: Mapping[str, Any], step: int) -> Tuple[float, float]:
    """Returns when the run began and the time of a step, in milliseconds; rows hold no times."""
    try:
        started = read_meta(path).get("started")
    except (OSError, ValueError):
        started = None
    try:
        begin = datetime.datetime.strptime(str(started), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        begin = (path / ROWS_FILE).stat().st_mtime
    seconds = status.get("wall_s")
    wall_s = seconds if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0
    return 1000 * begin, 1000 * wall_s / max(step, 1)


def _object_in(file: Path) -> Dict[str, Any]:
    try:
        content = read_json(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _count(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default
