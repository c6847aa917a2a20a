"""The tracker that `push` sends to."""

from __future__ import annotations

from typing import Optional, Sequence

from mxtrain.composing.composer import Composer
from mxtrain.config.specs import build_spec
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.logger.spec import Logger
from mxtrain.logger.tracker import Tracker

FILES = ("default", "console", "csv", "jsonl", "tensorboard")
"""Options of the group `logger` that are no trackers."""
_LOGGER = "logger."


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
