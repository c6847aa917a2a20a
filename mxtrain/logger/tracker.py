"""Base class of trackers: loggers that send the points of a run to a service such as MLflow.

A new tracker is a subclass of `Tracker` with one method, `connect`, and a `TrackerConnection` that it returns. The base
sends from a process of its own (`mxtrain.logger.delivery`), so neither can slow, hang or end a run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shlex
from typing import TYPE_CHECKING, ClassVar

import pydantic

from mxtrain.callback.protocol import Callback
from mxtrain.config.libraries import check_versions, install_command
from mxtrain.config.override_text import quote
from mxtrain.config.secret_values import hide_secrets, holds_credentials
from mxtrain.errors import ConfigError
from mxtrain.logger.spec import Logger
from mxtrain.logger.tracked_run import Point as Point
from mxtrain.logger.tracked_run import TrackedRun as TrackedRun
from mxtrain.logger.tracked_run import TrackerConnection as TrackerConnection
from mxtrain.logger.tracked_run import position_file
from mxtrain.types import Positive, PositiveFloat

if TYPE_CHECKING:
    pass


class Tracker(Logger):
    """Sends curves, settings and results to a service. Its keys come from the environment, never from settings."""

    service: ClassVar[str] = ""
    """Name of the service in messages, and of the file in the run directory that stores the position."""
    package: ClassVar[str] = ""
    """Module of the client library, which is imported in another process only; empty if none is needed."""
    install: ClassVar[str] = ""
    """Arguments of pip that install it."""
    drops_repeated_points: ClassVar[bool] = False
    """True if the service ignores a second point with the same tag, step and time. Points whose delivery was
    interrupted are then sent again; otherwise they are skipped, so that no point is stored twice."""

    refused_in_names: ClassVar[str] = r"[\x00-\x1f\x7f]"
    """Regular expression for characters that the service does not accept in names of settings and curves."""
    longest_name: ClassVar[int] = 250
    """Largest number of characters in a name."""

    queue_size: Positive = 20_000
    """Points that wait in memory while the service does not answer; later ones are left to `push`."""
    timeout_s: PositiveFloat = 10.0
    """Seconds that the end of a run waits for an answer; a minute if the destination is a file on this machine."""

    @property
    def destination(self) -> str:
        """Returns server and project as text. If it differs from the destination of the points that were already sent
        from a run directory, a new run is created at the service."""
        return self.service

    @property
    def is_local(self) -> bool:
        """Returns True if no network is involved. The timeout is then one minute, enough to create a database."""
        return False

    def accepted_name(self, name: str) -> str:
        """Returns a name that the service accepts: the same name if possible, otherwise a unique replacement.

        The result depends only on the name, so a resumed run uses the same one.
        """
        accepted = re.sub(self.refused_in_names, "_", name)
        if accepted == name and len(name) <= self.longest_name:
            return name
        suffix = "-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
        return accepted[: self.longest_name - len(suffix)] + suffix

    def push_arguments(self, run_dir: str) -> str:
        """Returns the arguments of `mxtrain push` that send the remaining points of a run to this destination."""
        changed = {
            name: value
            for name, value in self
            if name not in ("queue_size", "timeout_s") and value != type(self).model_fields[name].get_default()
        }
        settings = [f"logger.{self.service}.{name}={_override_value(value)}" for name, value in changed.items()]
        return shlex.join(["push", run_dir, f"tracker={self.service}", *settings])

    @property
    def shown_destination(self) -> str:
        """Returns the destination without credentials that the environment may have put into it."""
        return hide_secrets(self.destination)

    @property
    def writes_to(self) -> str:
        return position_file(self.service)

    def connect(self, run: TrackedRun) -> TrackerConnection:
        """Creates a run at the service, or opens the run `run.remote_id` again. Called in another process.

        Raises:
            Exception: any failure; the call is repeated later.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to connect.")

    def build(self) -> Callback:
        """Builds the callback, which is the same for all trackers."""
        from mxtrain.logger.tracker_logger import TrackerLogger

        return TrackerLogger(self)

    @pydantic.model_validator(mode="after")
    def _hold_no_credentials(self) -> Tracker:
        for name, value in self:
            if isinstance(value, str) and holds_credentials(value):
                raise ValueError(  # the value is not repeated: messages end up in logs
                    f"{name} holds a user name or a password, and settings are stored in every checkpoint. Leave it "
                    "out of the address; docs/training/trackers.md names the variable of the environment for it"
                )
        return self

    def require_usable(self, path: str) -> None:
        """Checks that another process can import the class and its client library.

        Args:
            path: key of the logger in the configuration, e.g. "logger.mlflow".

        Raises:
            ConfigError: it cannot.
        """
        tracker_class = type(self)
        if not self.service:
            raise ConfigError(f'{path}: {tracker_class.__name__} needs a name: service: ClassVar[str] = "NAME".')
        if tracker_class.__module__ == "__main__" or "<" in tracker_class.__qualname__:
            raise ConfigError(
                f"{path}: a tracker runs in a process of its own, which cannot import {tracker_class.__name__}. Define "
                "the class at the top level of a module."
            )
        # The library is looked up and not imported: MLflow's import takes 3 to 10 s of processor time.
        if self.package and importlib.util.find_spec(self.package.partition(".")[0]) is None:
            command = install_command(*self.install.split())
            raise ConfigError(f"{path}: the package {self.package} is not installed here: {command}")
        check_versions(self.install.split(), path, ConfigError)


def _override_value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value) if re.fullmatch(r"[\w./:-]+", str(value)) else quote(str(value))
