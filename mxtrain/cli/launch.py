"""`mxtrain launch for=ENGINE out=FOLDER [overrides]` writes the files with which an engine starts a run: manifests, a
batch script or a Dockerfile, with a README of the next commands. Nothing is trained or sent, and no MXNet is needed."""

from __future__ import annotations

import sys
from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import split_settings
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.console import open_console
from mxtrain.terminal.report import print_commands
from mxtrain.workflows.launch import LaunchSettings, check_settings, launch

COMMAND = Command(
    "launch",
    position=45,
    listed="launch for=ENGINE out=FOLDER",
    help="files with which Kubernetes, Kubeflow, Volcano, Slurm, SkyPilot, SageMaker or Docker starts a run",
    usage="for=ENGINE out=FOLDER [--config-dir DIR] [setting=value ...] [group=option ...] [group.field=value ...]",
    settings="LaunchSettings",
    examples=(
        "launch for=slurm out=job kvstore=dist_sync cluster.workers=2 model=resnet",
        "launch for=kubeflow out=job image=registry.example.com/mxtrain:1 storage=pvc://outputs model=resnet",
        "launch for=docker out=job model=resnet",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Writes the files and prints the next commands; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, LaunchSettings, "launch")
    command_line.no_positionals(parsed, "launch")
    if parsed.multirun:
        raise ConfigError("launch: the files start one run. Leave out -m.")
    check_settings(settings)
    with Composer(parsed.config_dirs) as composer:
        composed, description = compose_and_check(composer, overrides)
    written = launch(description, composed.overrides, settings, command_line.config_flags(parsed.config_dirs))
    console = open_console(sys.stdout)
    console.print(written.summary, soft_wrap=True, highlight=False)
    print_commands(console, written.commands)
    return EXIT_FINISHED
