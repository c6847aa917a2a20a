"""`mxtrain serve FOLDER...` answers requests for exported networks over HTTP, by the Open Inference Protocol v2.

FOLDER is what `mxtrain export` has written; a run is exported to a temporary folder first. The model's name is that of
the folder; NAME=FOLDER gives another one. The variable MXTRAIN_SERVE_TOKEN holds a token that clients must send."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Sequence

from mxtrain.checkpoint import holds_checkpoint
from mxtrain.composing import arguments as command_line
from mxtrain.composing.settings import split_settings
from mxtrain.config.libraries import EXTRAS, check_versions, missing_message
from mxtrain.errors import ConfigError, DataError, did_you_mean
from mxtrain.files.temporary import temporary_place
from mxtrain.files.unused_folders import locked_folder
from mxtrain.serving.spec import ServeSettings as ServeSettings  # its help is shown
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import ProgressDisplay

if TYPE_CHECKING:
    from mxtrain.serving.models import ServedModel

TEMPORARY = "mxtrain-serve-"
"""Beginning of the names of temporary folders, each of which holds the export of a run."""
TOKEN = "MXTRAIN_SERVE_TOKEN"
LOCAL = ("127.0.0.1", "localhost", "::1")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
LEAST_TOKEN = 16
"""Characters of a token."""
QUIET_S = 2.0
"""Seconds of work after which it is shown."""
DEEPEST, MOST_NAMED = 2, 5
"""Levels below a folder in which exports are searched, and exports that a message names."""


def run(arguments: Sequence[str]) -> int:
    """Serves until it is told to end; returns the exit code."""
    parsed = command_line.parse(arguments)
    # A name of a model may be like that of a setting: `ports=FOLDER` is no misspelt port.
    models_first = [word for word in parsed.overrides if _names_folder(word)]
    others = [word for word in parsed.overrides if word not in models_first]
    settings, named_models = split_settings(replace(parsed, overrides=others), ServeSettings, "serve")
    folders = read_folders(parsed.positionals, [*models_first, *named_models])
    token = read_token(settings.host)
    check_versions(EXTRAS["serve"], "serve", ConfigError)
    try:
        import fastapi  # noqa: F401
        import onnxruntime  # noqa: F401
        import prometheus_client  # noqa: F401

        from mxtrain.serving import server
    except ImportError as error:
        raise ConfigError(missing_message(error, "serve", "serve")) from error
    with ExitStack() as stack:
        listener = stack.enter_context(server.bind(settings))
        models = [load_model(name, folder, settings, stack) for name, folder in folders.items()]
        return server.run_server(models, settings, token, listener)


def _names_folder(word: str) -> bool:
    name, _, folder = word.partition("=")
    return name not in ServeSettings.model_fields and os.path.isdir(folder)


def read_folders(positionals: Sequence[str], named_models: Sequence[str]) -> Dict[str, str]:
    """Returns the folders to serve, by the names of their models.

    Raises:
        ConfigError: there is none, a word is no folder, or two have the same name.
    """
    if not positionals and not named_models:
        raise ConfigError("serve takes exported folders or runs, e.g. `mxtrain serve exported/digits`.")
    pairs = [(os.path.basename(os.path.abspath(folder)), folder) for folder in positionals]
    pairs += [(name, folder) for name, _, folder in (word.partition("=") for word in named_models)]
    folder_by_name: Dict[str, str] = {}
    for name, folder in pairs:
        if not os.path.isdir(folder):
            near = did_you_mean(name, ServeSettings.model_fields) if f"{name}={folder}" in named_models else ""
            raise ConfigError(
                f"serve: there is no folder '{folder}', nor a setting '{name}'.{near}"
                if near
                else f"serve: there is no folder '{folder}'."
            )
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"serve: '{name}' is no name of a model: letters, digits, '.', '_' and '-' are. Give it "
                f"another one: NAME={folder}."
            )
        if name in folder_by_name:
            raise ConfigError(f"serve: two models are called '{name}'. Give one another name: NAME={folder}.")
        folder_by_name[name] = folder
    return folder_by_name


def read_token(host: str) -> str:
    """Returns the token of the environment; empty if there is none.

    Raises:
        ConfigError: it is too short or cannot be sent.
    """
    token = os.environ.get(TOKEN, "")
    if token and not re.fullmatch(rf"[\x21-\x7e]{{{LEAST_TOKEN},1000}}", token):
        raise ConfigError(f"{TOKEN} must have at least {LEAST_TOKEN} characters, without spaces, all of them ASCII.")
    if not token and host not in LOCAL:
        print(
            f"mxtrain: host={host} and {TOKEN} is not set: whoever reaches this port may use the models.",
            file=sys.stderr,
        )
    return token


def load_model(name: str, folder: str, settings: ServeSettings, stack: ExitStack) -> ServedModel:
    """Loads a model, and says so if it takes long. The line is on standard output: standard error has the log.

    Raises:
        DataError: the folder cannot be exported or served.
    """
    from mxtrain.exporting.standalone import UnusableFolder
    from mxtrain.serving.models import ServedModel

    exported_folder = exported(folder, stack)
    begin_s = time.monotonic()
    try:
        with shown(f"loading {name}"):
            model = ServedModel(
                name, exported_folder, settings.threads, settings.check, settings.max_batch, settings.max_scale
            )
    except UnusableFolder as error:
        raise DataError(f"{error}.") from error
    seconds = time.monotonic() - begin_s
    if seconds > QUIET_S:
        print(f"mxtrain: {name} is loaded, {format_seconds(seconds)}", flush=True)
    return model


def shown(what: str) -> ProgressDisplay:
    """Returns a display of work, which shows it on standard output after `QUIET_S`."""
    display = ProgressDisplay(sys.stdout, quiet_s=QUIET_S)
    display.begin(what, 0)
    return display


def exported(folder: str, stack: ExitStack) -> str:
    """Returns a folder itself if it is exported; for a run a temporary one, which `stack` removes.

    Raises:
        DataError: the folder is no run, or the run cannot be exported.
    """
    if is_export(folder):
        return folder
    from mxtrain.exporting.folder import exports_below

    below = exports_below(folder, DEEPEST)[:MOST_NAMED]
    if not holds_checkpoint(folder):
        noun = "folders" if len(below) > 1 else "folder"
        hint = f"; it contains the exported {noun} {', '.join(below)}" if below else ""
        raise DataError(f"serve: '{folder}' is neither an exported folder nor a run with a checkpoint{hint}.")
    temporary = stack.enter_context(locked_folder(Path(temporary_place()), TEMPORARY))
    out = os.path.join(temporary, "export")
    there = f"; {below[0]} is an export that can be served at once" if below else ""
    print(f"mxtrain: {folder} is a run and is exported first{there}", flush=True)
    # In a process of its own: MXNet and the run's data are not needed afterwards.
    command: List[str] = [sys.executable, "-m", "mxtrain", "export", folder, f"out={out}"]
    with shown(f"exporting {folder}"):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.rpartition("error: ")[2].split())
        raise DataError(f"serve: the run '{folder}' cannot be exported: {reason or f'exit code {done.returncode}'}")
    return out


def is_export(folder: str) -> bool:
    """Returns True if a folder has files of an exported one."""
    from mxtrain.exporting.standalone import MODEL, SIGNATURE

    return any(os.path.lexists(os.path.join(folder, name)) for name in (MODEL, SIGNATURE))
