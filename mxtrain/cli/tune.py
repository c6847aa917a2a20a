"""`mxtrain tune` trains many trials of one description, looks for the best settings, and stops bad trials early.

STUDY is a folder. Settings with ranges differ between trials: `optimizer.lr=log(1e-4,1e-1)`,
`model=choice(mlp,lenet)`, `range(1,9,2)` (without the end), `interval(0,0.5)`, `int(1,8)`, `log_int(8,512)`. The same
command continues a study, as does `tune STUDY` alone; `tune worker STUDY` adds a worker, here or on another machine;
`tune show STUDY` prints the table. Each trial is a run directory of its own, named by its number."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

from mxtrain.cli import arguments as command_line
from mxtrain.cli.arguments import Arguments
from mxtrain.cli.commands import COMMANDS, Command
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.cluster.launch.outcome import print_cause
from mxtrain.cluster.launch.study import begin_study, open_study, refuse_other_settings, require_trusted_storage
from mxtrain.cluster.stopping import exit_code_of_signal
from mxtrain.config.override_text import code_arguments, key_of
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, did_you_mean
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program, tensorboard
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.report import print_commands
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.space import overrides_of_trial
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.trial_display import TrialDisplay
from mxtrain.tuning.trials import require_optuna
from mxtrain.types import expand_path
from mxtrain.workflows.tune import StudyResult, read_result, resume_study, train_study

QUIET_S = 2.0
"""Seconds before a line says that the ranges are checked, if the output is no terminal."""
MAX_CAUSE = 60
"""Characters of a cause on a terminal; elsewhere the whole cause is printed."""


COMMAND = Command(
    "tune",
    position=140,
    listed="tune STUDY [ranges]",
    help="look for the best settings with many runs; tune worker STUDY, tune show STUDY",
    usage="STUDY [setting=value ...] [group.field=RANGE ...] [group.field=value ...] | worker STUDY | show STUDY",
    settings="TuneSettings",
    examples=(
        "tune studies/lr 'optimizer.lr=log(1e-4,1e-1)' n_trials=30 pruner=asha",
        "tune studies/all 'model=choice(mlp,lenet)' 'optimizer.lr=log(1e-4,1e-1)' sampler=random",
        "tune worker studies/lr",
        "tune show studies/lr",
    ),
    subcommands=("worker", "show"),
)


def run(arguments: Sequence[str]) -> int:
    """Runs a study, a worker, or prints the table; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    if parsed.multirun:
        raise ConfigError("tune is a sweep of its own: leave out -m.")
    settings, overrides = split_settings(parsed, TuneSettings, "tune")
    refuse_misspelled_groups(overrides, "tune", parsed.config_dirs)
    subcommand, folder = study_of(parsed)
    require_optuna()
    given_keys = [key_of(word) for word in parsed.overrides]
    if subcommand:
        refuse_overrides([word for word in parsed.overrides if key_of(word) != "storage"], subcommand)
    if subcommand == "show":
        refuse_other_settings(folder, settings, given_keys)
        description = folder.read()
        require_trusted_storage(folder, description, settings, parsed.trusts_code)
        with interrupted_study(folder):
            print_study(read_result(folder, description))
        return EXIT_FINISHED
    if not subcommand and not (folder.exists and not overrides and settings.space is None):
        description = begin_study(folder, settings, overrides, parsed.config_dirs, check_display)
    else:
        description = open_study(folder, settings, given_keys, parsed.config_dirs, parsed.trusts_code)
    return train(folder, description if subcommand else resume_study(folder, description, settings))


def study_of(parsed: Arguments) -> Tuple[str, StudyFolder]:
    """Returns the subcommand, or an empty string, and the folder of the study.

    Raises:
        ConfigError: no folder was named, or several.
    """
    positionals, names = list(parsed.positionals), COMMANDS["tune"].subcommands
    subcommand = positionals.pop(0) if positionals and positionals[0] in names else ""
    if len(positionals) != 1:
        count = f"{len(positionals)} were given ({', '.join(positionals)})" if positionals else "none was given"
        usage = f"{subcommand} STUDY" if subcommand else "STUDY RANGES n_trials=20"
        near = did_you_mean(positionals[0], names) if len(positionals) > 1 else ""
        raise ConfigError(
            f"tune takes the folder of one study, and {count}. Type `tune {usage}`, where STUDY is a folder.{near}"
        )
    return subcommand, StudyFolder(Path(expand_path(positionals[0])))


def refuse_overrides(overrides: Sequence[str], subcommand: str) -> None:
    """Rejects overrides of `tune worker` and `tune show`: study.json defines the study.

    Raises:
        ConfigError: `overrides` is not empty.
    """
    for word in overrides:
        raise ConfigError(
            f"tune {subcommand}: {word}: what is trained is written in the study's folder. Leave it out; "
            "`tune STUDY n_trials=N` changes the number of trials."
        )


def check_display() -> ProgressDisplay:
    """Returns the progress display that is shown while the ranges are checked."""
    return ProgressDisplay(quiet_s=0.0 if sys.stderr.isatty() else QUIET_S)


def train(folder: StudyFolder, description: StudyDescription) -> int:
    """Trains until the study is complete and prints its table; returns the exit code."""
    with interrupted_study(folder) as stopped:
        result = train_study(folder, description, lambda line: print(line, flush=True), TrialDisplay)
        print_study(result)
        reason = result.reason_without_result()
        if reason:
            print_cause(reason, EXIT_CRASHED)
            return EXIT_CRASHED
    return stopped[0] if stopped else EXIT_FINISHED


@contextmanager
def interrupted_study(folder: StudyFolder) -> Iterator[List[int]]:
    """Turns a signal into a message and an exit code, which is put into the list."""
    stopped: List[int] = []
    try:
        yield stopped
    except KeyboardInterrupt as error:
        stopped.append(exit_code_of_signal(error))
        sys.stdout.flush()
        print_cause(f"the study was interrupted; `{program()} tune {folder.path}` continues it", stopped[0])


def print_study(result: StudyResult) -> None:
    """Prints all trials, best first, and commands to evaluate and retrain the best one and to compare all."""
    titles, rows = result.cells()
    console = open_console(sys.stdout)
    if console.is_terminal:
        rows = [[*row[:-1], row[-1][:MAX_CAUSE]] for row in rows]
    console.print()
    print_rows(titles, rows, {number: BEST for number, trial in enumerate(result.trials) if trial.is_best})
    console.print(result.summary(), soft_wrap=True, highlight=False)
    print_commands(console, next_steps(result))
    sys.stdout.flush()


def next_steps(result: StudyResult) -> List[Tuple[str, str]]:
    """Returns the commands that a user may want next, as pairs of a purpose and a command."""
    steps: List[Tuple[str, str]] = []
    description, best = result.description, result.best_trial
    folder = shlex.quote(os.path.relpath(result.path))
    if not result.is_complete:
        steps.append(("a further worker, here or on a machine with this folder", f"{program()} tune worker {folder}"))
    if best is not None:
        arguments = [*description.flags, *description.overrides, *overrides_of_trial(best.active)]
        own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(arguments))
        run_dir = os.path.join(os.path.relpath(result.path), best.path.name)
        steps.append(("evaluate the best", f"{program()} eval {shlex.quote(run_dir)}{own_code}"))
        if description.settings.sampler != "pbt":  # whose weights come from several runs
            steps.append(("train the best again", " ".join([program(), *map(shlex.quote, arguments)])))
    if any(result.path.glob("*/events.out.tfevents.*")):
        steps.append(("compare", f"{tensorboard()} --logdir {folder}"))
    return steps
