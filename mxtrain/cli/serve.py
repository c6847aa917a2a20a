"""`mxtrain serve FOLDER...` answers requests for exported networks over HTTP, by the Open Inference Protocol v2.

FOLDER is what `mxtrain export` has written; a run is exported to a temporary folder first. The model's name is that of
the folder; NAME=FOLDER gives another one. The variable MXTRAIN_SERVE_TOKEN holds a token that clients must send."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import Dict, List, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.settings import split_settings
from mxtrain.errors import ConfigError, DataError, did_you_mean
from mxtrain.libraries import missing_message
from mxtrain.serving.settings import ServeSettings as ServeSettings  # its help is shown

TOKEN = "MXTRAIN_SERVE_TOKEN"
LOCAL = ("127.0.0.1", "localhost", "::1")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
LEAST_TOKEN = 16
"""Characters of a token."""


def run(arguments: Sequence[str]) -> int:
    """Serves until it is told to end; returns the exit code."""
    parsed = command_line.parse(arguments)
    named_models = [word for word in parsed.overrides if word.partition("=")[0] not in ServeSettings.model_fields]
    settings, _ = split_settings(parsed, ServeSettings, "serve")
    folders = read_folders(parsed.positionals, named_models)
    token = read_token(settings.host)
    try:
        import fastapi  # noqa: F401
        import onnxruntime  # noqa: F401
        import prometheus_client  # noqa: F401

        from mxtrain.serving import server
    except ImportError as error:
        raise ConfigError(missing_message(error, "serve", "serve")) from error
    from mxtrain.export.standalone import UnusableFolder
    from mxtrain.serving.models import ServedModel

    with ExitStack() as stack:
        listener = stack.enter_context(server.bind(settings))
        models = []
        for name, folder in folders.items():
            try:
                models.append(ServedModel(
                    name, exported(folder, stack), settings.threads, settings.check, settings.max_batch,
                    settings.max_scale,
                ))  # fmt: skip
            except UnusableFolder as error:
                raise DataError(f"{error}.") from error
        return server.run_server(models, settings, token, listener)


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
            raise ConfigError(f"serve: there is no folder '{folder}', nor a setting '{name}'.{near}" if near else
                              f"serve: there is no folder '{folder}'.")  # fmt: skip
        if not NAME.fullmatch(name):
            raise ConfigError(f"serve: '{name}' is no name of a model: letters, digits, '.', '_' and '-' are. Give it "
                              f"another one: NAME={folder}.")  # fmt: skip
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
        print(f"mxtrain: host={host} and {TOKEN} is not set: whoever reaches this port may use the models.",
              file=sys.stderr)  # fmt: skip
    return token


def exported(folder: str, stack: ExitStack) -> str:
    """Returns a folder itself if it is exported; for a run a temporary one, which `stack` removes.

    Raises:
        DataError: the run cannot be exported.
    """
    from mxtrain.export.standalone import MODEL, SIGNATURE

    if any(os.path.lexists(os.path.join(folder, name)) for name in (MODEL, SIGNATURE)):
        return folder
    temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="mxtrain-serve-"))
    out = os.path.join(temporary, "export")
    print(f"mxtrain: {folder} is exported first", flush=True)
    # In a process of its own: MXNet and the run's data are not needed afterwards.
    command: List[str] = [sys.executable, "-m", "mxtrain", "export", folder, f"out={out}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise DataError(f"serve: '{folder}' is neither an exported folder nor a run that can be exported. "
                        f"{lines[-1] if lines else ''}".rstrip())  # fmt: skip
    return out
