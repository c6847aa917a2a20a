"""`mxtrain reproduce RUN` trains a run again, in a new directory, and compares the results to the bit.

It composes the description that meta.json of the run contains, with overrides on top, and compares versions, code, data
and machine with those of the run before it starts. With all of them equal, weights and metrics are the same bits.
Exit code 0: the same result. 1: another result. 2: with strict=true, something differs, and nothing was started."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Sequence

from mxtrain.archive.meta import read_recorded_run
from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import one_run
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.composing.composer import Composer
from mxtrain.composing.recorded import compose_recorded
from mxtrain.config.override_text import quote
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.workflows.reproduce import Conditions, ReproduceResult, ReproduceSettings, reproduce_run

COMMAND = Command(
    "reproduce",
    position=100,
    listed="reproduce RUN",
    help="train a run again, say first what differs, and compare the results to the bit",
    usage="RUN [--config-dir DIR | --trust-code] [setting=value ...] [group=option ...] [group.field=value ...]",
    settings="ReproduceSettings",
    examples=(
        "reproduce outputs/2030-01-31/12-00-00-abcd",
        "reproduce RUN strict=true dir=outputs/again",
        "reproduce RUN dataset.root=FOLDER tolerance=1e-3",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Compares, trains and compares again; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, ReproduceSettings, "reproduce")
    refuse_misspelled_groups(overrides, "reproduce", parsed.config_dirs)
    recorded = read_recorded_run(Path(one_run(parsed, "reproduce")))
    if parsed.positionals[1:]:
        raise ConfigError(f"reproduce takes one run directory, not also {shlex.quote(parsed.positionals[1])}.")
    if parsed.multirun:
        raise ConfigError("reproduce trains one run: leave out -m.")
    if settings.dir is not None:
        overrides = [*overrides, f"hydra.run.dir={quote(settings.dir)}"]
    with Composer(parsed.config_dirs) as composer:
        composed = compose_recorded(recorded, overrides, composer, parsed.config_dirs, parsed.trusts_code)
        # Takes time to load: only from here on.
        from mxtrain.cluster.launch.run import prepare_run

        prepared = prepare_run(*composed, command_line.config_flags(parsed.config_dirs))
        return show(reproduce_run(recorded, prepared, settings, show_conditions))


def show_conditions(conditions: Conditions) -> None:
    """Prints what differs from the run, before the new one starts."""
    print(conditions, flush=True)


def show(result: ReproduceResult) -> int:
    """Prints the comparison of the results; returns the exit code."""
    if result.results is None:
        print(result)
        return result.exit_code
    print(f"\n{result}")
    return EXIT_FINISHED if result.passed else EXIT_CRASHED
