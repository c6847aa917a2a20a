"""`serve`: answers requests for exported networks over HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterable, List, Mapping, Optional, Tuple, Type

from mxtrain.checkpoint import holds_checkpoint
from mxtrain.cluster.process import run_child
from mxtrain.cluster.reported_cause import ReportedCause
from mxtrain.config.libraries import EXTRAS, check_versions, missing_message
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError, DataError
from mxtrain.files.temporary import temporary_root
from mxtrain.files.unused_folders import locked_folder
from mxtrain.serving.spec import ServeSettings
from mxtrain.terminal.durations import format_seconds

if TYPE_CHECKING:
    from mxtrain.serving.models import ServedModel
    from mxtrain.serving.server import InferenceServer

TEMPORARY = "mxtrain-serve-"
"""Prefix of the names of temporary folders, each of which holds the export of a run."""
TOKEN = "MXTRAIN_SERVE_TOKEN"
LOCAL = ("127.0.0.1", "localhost", "::1")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
MIN_TOKEN = 16
"""Minimum number of characters of a token."""
QUIET_S = 2.0
"""Work that takes longer than this, in seconds, is shown."""
DEEPEST, MAX_NAMED = 2, 5
"""Levels below a folder in which exports are searched, and exports that a message names."""

Note = Callable[[str], object]
"""Receives a sentence about finished work."""
Shown = Callable[[str], ContextManager[object]]
"""Opens a display of work that takes long."""


class RunningServer:
    """A server in a thread of this process; a context manager that stops it.

    Attributes:
        url: address of the server, e.g. ``"http://127.0.0.1:8000"``.
        models: names of the models.
    """

    def __init__(self, server: InferenceServer, opened: ExitStack) -> None:
        self.url = server.url
        self.models = [model.name for model in server.models]
        self._server, self._opened = server, opened
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="mxtrain-serve", daemon=True)
        self._thread.start()
        server.is_ready.wait()  # also if the server has ended
        if self._error is not None:
            self.stop()

    def _run(self) -> None:
        try:
            self._server.run()
        except BaseException as error:
            self._error = error
        finally:
            self._server.is_ready.set()

    @property
    def is_running(self) -> bool:
        """True until the server is stopped."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answers the requests that have arrived, and ends the server. A second call does nothing.

        Raises:
            RuntimeError: the server has ended with an error, which is the cause of this one.
        """
        self._server.stop()
        self._thread.join()
        self._opened.close()
        if self._error is not None:
            # Raised once, because the end of a `with` block stops the server again.
            error, self._error = self._error, None
            raise RuntimeError(f"the server has ended: {error}") from error

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "" if self.is_running else ", stopped"
        return f"RunningServer({self.url!r}, models={self.models}{state})"


def serve(*folders: Any, token: str = "", **settings: Any) -> RunningServer:
    """Serves exported networks over HTTP in a thread of this process, as ``mxtrain serve``.

    The protocol is the Open Inference Protocol v2, with ``/v2/models/NAME/predict`` for files. Requests are logged by
    the logger ``mxtrain.serving``.

    Args:
        folders: folders that `Run.export` has written, runs, or dicts from the name of a model to one of these. A run
            is exported first, by a process of its own, into a temporary folder.
        token: bearer token that clients must send, at least 16 ASCII characters; default: none.
        settings: those of the command, e.g. ``port=8000`` (0 takes a free one), ``host="127.0.0.1"``, ``max_batch=32``
            samples, ``threads=0``, ``check=True``, ``timeout_s=30.0`` seconds.

    Returns:
        The server, whose ``url`` is its address. ``stop()`` ends it, as does the end of a ``with`` block.

    Raises:
        ConfigError: an argument is wrong, the address is in use, or a package for serving is not installed.
        DataError: a folder cannot be served, or a run cannot be exported.

    >>> with mxtrain.serve("outputs/mlp", port=0) as server:
    ...     print(server.url, server.models)
    """
    from mxtrain.archive.run_folders import path_in, paths_in  # the command does not need what this imports

    named: List[Tuple[str, str]] = []
    for given in folders:
        if isinstance(given, Mapping):
            named += [(str(name), path_in(folder, "serve")) for name, folder in given.items()]
        else:
            named += [(name_of(path), path) for path in paths_in([given], "serve")]
    chosen = validate_arguments(ServeSettings, settings, "serve")
    check_token(token)
    if not token and chosen.host not in LOCAL:
        warnings.warn(f"host={chosen.host} and no token: whoever reaches this port may use the models.", stacklevel=2)
    opened = ExitStack()
    try:
        return RunningServer(open_server(models_by_name(named), chosen, token, opened), opened)
    except BaseException:
        opened.close()
        raise


def open_server(
    folders: Mapping[str, str],
    settings: ServeSettings,
    token: str,
    opened: ExitStack,
    note: Note = lambda text: None,
    shown: Shown = nullcontext,
) -> InferenceServer:
    """Binds the address, and loads the models.

    Args:
        folders: exported folder or run of each model, by its name.
        settings: of the server.
        token: bearer token that clients must send; empty = none.
        opened: closes the socket and removes temporary folders.
        note: receives a sentence about each finished part of the work.
        shown: opens a display for each part of the work.

    Raises:
        ConfigError: the address is in use, or a package is not installed.
        DataError: a folder cannot be exported or served.
    """
    check_versions(EXTRAS["serve"], "serve", ConfigError)
    try:
        import fastapi  # noqa: F401
        import onnxruntime  # noqa: F401
        import prometheus_client  # noqa: F401

        from mxtrain.serving.server import InferenceServer, bind
    except ImportError as error:
        raise ConfigError(missing_message(error, "serve", "serve")) from error
    # An address that is in use is reported before runs are exported and proofs repeated, which may take minutes.
    listener = opened.enter_context(bind(settings))
    models = [load_model(name, folder, settings, opened, note, shown) for name, folder in folders.items()]
    return InferenceServer(models, settings, token, listener)


def name_of(folder: str) -> str:
    """Returns the name of a model whose folder was given without one."""
    return os.path.basename(os.path.abspath(folder))


def models_by_name(named: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    """Returns the folders to serve, by the names of their models.

    Args:
        named: name and folder of each model.

    Raises:
        ConfigError: there is none, a path is no folder, or two have the same name.
    """
    folder_by_name: Dict[str, str] = {}
    for name, folder in named:
        if not os.path.isdir(folder):
            raise ConfigError(f"serve: there is no folder '{folder}'.")
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"serve: '{name}' is no name of a model: letters, digits, '.', '_' and '-' are. Give it "
                f"another one: NAME={folder}."
            )
        if name in folder_by_name:
            raise ConfigError(f"serve: two models are called '{name}'. Give one another name: NAME={folder}.")
        folder_by_name[name] = folder
    if not folder_by_name:
        raise ConfigError("serve takes exported folders or runs, e.g. `mxtrain serve exported/digits`.")
    return folder_by_name


def check_token(token: str, name: str = "token") -> str:
    """Returns a token, which may be empty.

    Args:
        token: the token.
        name: of the argument or variable.

    Raises:
        ConfigError: it is too short or cannot be sent.
    """
    if not isinstance(token, str) or token and not re.fullmatch(rf"[\x21-\x7e]{{{MIN_TOKEN},1000}}", token):
        raise ConfigError(f"{name} must have at least {MIN_TOKEN} characters, without spaces, all of them ASCII.")
    return token


def load_model(
    name: str, folder: str, settings: ServeSettings, opened: ExitStack, note: Note, shown: Shown
) -> ServedModel:
    """Loads a model; a run is exported first.

    Raises:
        DataError: the folder cannot be exported or served.
    """
    from mxtrain.exporting.standalone import UnusableFolder
    from mxtrain.serving.models import ServedModel

    model_folder = export_if_run(folder, opened, note, shown)
    begin_s = time.monotonic()
    try:
        with shown(f"loading {name}"):
            model = ServedModel(
                name, model_folder, settings.threads, settings.check, settings.max_batch, settings.max_scale
            )
    except UnusableFolder as error:
        raise DataError(f"{error}.") from error
    seconds = time.monotonic() - begin_s
    if seconds > QUIET_S:
        note(f"{name} is loaded, {format_seconds(seconds)}")
    return model


def export_if_run(folder: str, opened: ExitStack, note: Note = lambda text: None, shown: Shown = nullcontext) -> str:
    """Returns an exported folder unchanged. Exports a run to a temporary folder, which `opened` removes.

    Raises:
        DataError: the folder is no run, or the run cannot be exported.
    """
    if is_export(folder):
        return folder
    from mxtrain.exporting.folder import exports_below

    below = exports_below(folder, DEEPEST)[:MAX_NAMED]
    if not holds_checkpoint(folder):
        noun = "folders" if len(below) > 1 else "folder"
        hint = f"; it contains the exported {noun} {', '.join(below)}" if below else ""
        raise DataError(f"serve: '{folder}' is neither an exported folder nor a run with a checkpoint{hint}.")
    temporary = opened.enter_context(locked_folder(Path(temporary_root()), TEMPORARY))
    out = os.path.join(temporary, "export")
    there = f"; {below[0]} is an export that can be served at once" if below else ""
    note(f"{folder} is a run and is exported first{there}")
    # In a process of its own: MXNet and the run's data are not needed afterwards.
    command: List[str] = [sys.executable, "-m", "mxtrain", "export", folder, f"out={out}"]
    with shown(f"exporting {folder}"), ReportedCause() as reported:
        code = run_child(
            command,
            env={**os.environ, **reported.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if code:
        reason = " ".join(reported.cause.split()) or f"exit code {code}"
        raise DataError(f"serve: the run '{folder}' cannot be exported: {reason}")
    return out


def is_export(folder: str) -> bool:
    """Returns True if a folder has files of an exported one."""
    from mxtrain.exporting.standalone import MODEL, SIGNATURE

    return any(os.path.lexists(os.path.join(folder, name)) for name in (MODEL, SIGNATURE))
