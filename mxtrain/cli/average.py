"""`mxtrain average RUN`: the mean of the weights of a run's last checkpoints, which `eval` and `predict` take like any
checkpoint."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.checkpoint import refuse_links
from mxtrain.checkpoint.average import AVERAGED, last_checkpoints, write_average
from mxtrain.checkpoint.folder import CHECKPOINTS
from mxtrain.cli import arguments as command_line
from mxtrain.cli.program import program
from mxtrain.cli.restored import one_run
from mxtrain.cli.settings import split_settings
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.types import Spec


class AverageSettings(Spec):
    """Settings of `average`."""

    last: Annotated[int, pydantic.Field(ge=2)] = 5
    """Number of the run's newest checkpoints to average; they must have been kept (`checkpoint.keep_last`)."""


def run(arguments: Sequence[str]) -> int:
    """Averages and writes; returns the exit code."""
    given = command_line.parse(arguments)
    settings, others = split_settings(given, AverageSettings, "average")
    if others:
        raise ConfigError(f"average takes `last=N` and nothing else, not '{others[0]}'.")
    run_dir = Path(one_run(given, "average"))
    if given.positionals[1:]:
        raise ConfigError(f"average takes one run directory, not also '{given.positionals[1]}'.")
    if not os.path.isdir(run_dir / CHECKPOINTS):
        raise CheckpointError(f"There is no run directory at {run_dir}: it would hold a folder '{CHECKPOINTS}'.")
    refuse_links(run_dir, (CHECKPOINTS, AVERAGED, f"{AVERAGED}/last-{settings.last}"))
    checkpoints = last_checkpoints(run_dir, settings.last)
    try:
        path = write_average(run_dir, checkpoints)
    except OSError as error:
        raise CheckpointError(f"The average cannot be written to {run_dir / AVERAGED}: {error.strerror}.") from error
    print(f"the mean of the weights after steps {', '.join(str(one.step) for one in checkpoints)}: {path}")
    print(f"  {program()} eval {shlex.quote(str(path))}")
    return 0
