"""`mxtrain replay BUNDLE` repeats the step at which a run failed, on one device and layer by layer.

When a loss or weight becomes non-finite, or a step raises an error, a run writes the step below replay/ in its
directory and prints this command. It prints smallest, largest and mean value and the share of non-finite values of
each layer's outputs, names the first layer with a non-finite output, and the parameters with non-finite gradients.

`mxtrain replay RUN` reads the batch again from the dataset, and the weights from the last checkpoint before the step:
for a process that was killed, which could not write its step, or for any other step of a run (step=N)."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.composing.replayed import StepRestorer
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.files.durable import encode_json
from mxtrain.workflows.output_file import open_output_file
from mxtrain.workflows.replay import ReplaySettings, find_step, replay_step

COMMAND = Command(
    "replay",
    position=120,
    listed="replay BUNDLE",
    help="repeat the step at which a run failed, with statistics of each layer",
    usage="BUNDLE [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
    settings="ReplaySettings",
    examples=("replay outputs/2030-01-31/12-00-00-abcd/replay/step-00000120", "replay BUNDLE output=statistics.json"),
)


def run(arguments: Sequence[str]) -> int:
    """Repeats and prints; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, ReplaySettings, "replay")
    refuse_misspelled_groups(overrides, "replay", parsed.config_dirs)
    if len(parsed.positionals) != 1:
        raise ConfigError(
            f"replay takes one bundle or run directory, and {len(parsed.positionals)} were given. A run's bundles are "
            "the folders in its replay/."
        )
    typed = Path(parsed.positionals[0])
    path, source = find_step(typed, settings.step)
    if path != typed:
        print(f"the run wrote this step to {path}")
    restorer = StepRestorer(overrides, parsed.config_dirs, parsed.trusts_code, ReplaySettings.model_fields)
    result = replay_step(source, restorer)
    print(result, flush=True)
    if settings.output:
        with open_output_file(settings.output) as stream:
            stream.write(encode_json(result.repeated.to_json(), indent=2).decode() + "\n")
    return EXIT_FINISHED
