"""`mxtrain plan`: measures a few placements of a configuration for seconds, predicts time, memory and traffic of all,
and prints them in their order, with the overrides of each. Nothing is trained."""

from __future__ import annotations

import shlex
import sys
from typing import Literal, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import print_json
from mxtrain.cli.settings import split_settings
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.report import print_commands
from mxtrain.workflows.plan import SHOWN, PlanResult, PlanSettings, plan_placements


class PlanOptions(PlanSettings):
    """Settings of `plan`, and of its output."""

    format: Literal["table", "json"] = "table"
    """table: the fastest placements and the reasons against others; json: all."""


COMMAND = Command(
    "plan",
    position=135,
    listed="plan [overrides]",
    help="time, memory and traffic of all placements of a run, from measurements of a few",
    usage="[setting=value ...] [group=option ...] [group.field=value ...]",
    settings="PlanOptions",
    examples=(
        "plan model=resnet",
        "plan model=resnet workers=16 bandwidth=1 latency=0.2 figure=scaling.png",
        "plan model=resnet dataset.batch_size=256 devices=4 out=profile.json",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Measures and prints; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, PlanOptions, "plan")
    command_line.no_positionals(parsed, "plan")
    if parsed.multirun:
        raise ConfigError("plan: placements of one configuration are compared. Leave out -m.")
    with Composer(parsed.config_dirs) as composer:
        _, description = compose_and_check(composer, overrides)
    found = plan_placements(description, overrides, parsed.config_dirs, settings, ProgressDisplay())
    if settings.format == "json":
        print_json(found.to_json())
    else:
        _print(found)
    return EXIT_FINISHED


def _print(found: PlanResult) -> None:
    profile = found.profile
    print(
        f"{profile.cores} cores of {profile.processor}, batches of {profile.batch_size} samples; memory: peak of the "
        "process; device: its activations, parameters and gradients; traffic: between devices, a step"
    )
    print(found.table())
    fitting = sum(not one.reason for one in found.forecasts)
    if fitting > SHOWN:
        print(f"and {fitting - SHOWN} slower ones (format=json shows all)")
    reasons = {one.reason: one for one in reversed(found.forecasts) if one.reason}
    for reason, one in reasons.items():
        print(f"not {' '.join(one.placement.overrides(found.kind))}: {reason}")
    if found.advice:
        print(found.advice)
    if found.best is None:
        print("no placement fits")
        return
    words = " ".join(map(shlex.quote, found.overrides(found.best)))
    print_commands(open_console(sys.stdout), [("train", f"{program()} {words}")])
