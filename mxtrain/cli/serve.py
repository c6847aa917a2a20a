"""`mxtrain serve FOLDER...` answers requests for exported networks over HTTP, by the Open Inference Protocol v2.

FOLDER is what `mxtrain export` has written; a run is exported to a temporary folder first. The model's name is that of
the folder; NAME=FOLDER gives another one. The variable MXTRAIN_SERVE_TOKEN holds a token that clients must send."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Dict, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import split_settings
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.serving.spec import ServeSettings as ServeSettings  # its help is shown
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.workflows.serve import LOCAL, QUIET_S, TOKEN, check_token, models_by_name, name_of, open_server

COMMAND = Command(
    "serve",
    position=50,
    listed="serve FOLDER...",
    help="answers requests for exported networks over HTTP",
    usage="FOLDER|RUN|NAME=FOLDER... [setting=value ...]",
    settings="ServeSettings",
    examples=(
        "serve exported/digits",
        "serve digits=exported/a letters=exported/b port=9000",
        "serve RUN max_batch=64",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Serves until it is told to end; returns the exit code."""
    parsed = command_line.parse(arguments)
    # A name of a model may be like that of a setting: `ports=FOLDER` is no misspelt port.
    models_first = [word for word in parsed.overrides if _names_folder(word)]
    others = [word for word in parsed.overrides if word not in models_first]
    settings, named_models = split_settings(replace(parsed, overrides=others), ServeSettings, "serve")
    folders = read_folders(parsed.positionals, [*models_first, *named_models])
    token = read_token(settings.host)
    with ExitStack() as opened:
        server = open_server(folders, settings, token, opened, _say, shown)
        from mxtrain.serving.server import run_server  # its packages are installed: `open_server` has looked

        return run_server(server, lambda: _say(f"{', '.join(folders)} at {server.url}"))


def _names_folder(word: str) -> bool:
    name, _, folder = word.partition("=")
    return name not in ServeSettings.model_fields and os.path.isdir(folder)


def read_folders(positionals: Sequence[str], named_models: Sequence[str]) -> Dict[str, str]:
    """Returns the folders to serve, by the names of their models.

    Raises:
        ConfigError: there is none, a word is no folder, or two have the same name.
    """
    for name, _, folder in (word.partition("=") for word in named_models):
        if os.path.isdir(folder):
            continue
        from mxtrain.workflows.passes import PassSettings  # takes time, and is only needed for mistakes

        if name in PassSettings.model_fields:
            raise ConfigError(
                f"serve: {name}={folder}: an exported network answers with one pass. Leave it out, or send mirrored "
                "images or tiles as requests of their own; `eval` and `predict` make several passes."
            )
        near = did_you_mean(name, ServeSettings.model_fields)
        if near:
            raise ConfigError(f"serve: there is no folder '{folder}', nor a setting '{name}'.{near}")
    named = [(name, folder) for name, _, folder in (word.partition("=") for word in named_models)]
    return models_by_name([*((name_of(folder), folder) for folder in positionals), *named])


def read_token(host: str) -> str:
    """Returns the token of the environment; empty if there is none.

    Raises:
        ConfigError: it is too short or cannot be sent.
    """
    token = check_token(os.environ.get(TOKEN, ""), TOKEN)
    if not token and host not in LOCAL:
        print(
            f"mxtrain: host={host} and {TOKEN} is not set: whoever reaches this port may use the models.",
            file=sys.stderr,
        )
    return token


def _say(text: str) -> None:
    print(f"mxtrain: {text}", flush=True)  # on standard output: standard error has the log


def shown(what: str) -> ProgressDisplay:
    """Returns a display of work, which shows it on standard output after `QUIET_S`."""
    display = ProgressDisplay(sys.stdout, quiet_s=QUIET_S)
    display.begin(what, 0)
    return display
