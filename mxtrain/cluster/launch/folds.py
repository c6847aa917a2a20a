"""Cross validation (`trainer.folds=5`): trains a run for each fold, one after the other, and summarizes their values.

Each fold is an ordinary run directory, `fold-1`, `fold-2`, ..., in the run directory of the command. Nothing else is
needed to continue after a kill: the same command skips the folds that are finished.

A fold is a split of the dataset (`BaseDataset.divide`), written in the description, so resuming, `eval` and placements
need no change.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

from mxtrain.checkpoint import lock_run_directory, refuse_links
from mxtrain.checkpoint.folder import CHECKPOINTS, scan
from mxtrain.cluster.launch import sweep
from mxtrain.cluster.launch.group import find_role
from mxtrain.cluster.launch.outcome import Outcome, exit_code_of, print_cause
from mxtrain.cluster.launch.run import train_once
from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
from mxtrain.cluster.stopping import was_told_to_end
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.config.groups import Description
from mxtrain.config.override_text import key_of, quote
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_FINISHED, ConfigError, MxtrainError, run_dir_setting
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_value, print_commands
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.training.fold_results import FOLDS_FILE, FoldResult, fold_folder, read_fold, write_folds
from mxtrain.training.resume import find_resume_point, require_finished_on_same_data

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject

OWN = ("hydra.run.dir", "trainer.fold")
MAX_SHOWN = 10
"""Maximum number of folds that have a column of their own in the table."""


def train_folds(
    composer: Composer, composed: Composed, description: Description, overrides: Sequence[str], flags: Sequence[str]
) -> Outcome:
    """Trains all folds in `hydra.run.dir`, and prints a table of their values.

    Args:
        composer: composes the configuration of each fold.
        composed: the configuration of the cross validation.
        description: its description.
        overrides: overrides of the command line.
        flags: flags that bring in the user's own configuration.

    Raises:
        MxtrainError: nothing was started; the run directory is as it was.
    """
    trainer = description.trainer
    if find_role(description) is not None:
        raise ConfigError(
            f"trainer.folds={trainer.folds}: this process is one of several that a launcher has started, and each "
            "fold starts its own. Start one process (cluster.launcher), or train one fold: trainer.fold=1."
        )
    folder = Path(os.path.abspath(composed.run_dir))
    before = RunDirRollback(folder)
    results: List[FoldResult] = []
    try:
        names = [fold_folder(number) for number in range(1, trainer.num_folds + 1)]
        refuse_links(folder, (FOLDS_FILE, *names))
        if scan(folder / CHECKPOINTS):
            raise ConfigError(
                f"{folder} holds a run without folds. Choose another {run_dir_setting()}, or leave trainer.folds out."
            )
        for number, name in enumerate(names, start=1):
            if (folder / name).is_dir():  # fails now, not after hours of other folds
                find_resume_point(folder / name, description.checkpoint, _config_of(description, number))
        with lock_run_directory(folder):
            outcome = _train(composer, description, overrides, flags, folder, results)
    except MxtrainError:
        if not results:
            before.restore()
        raise
    if not results:
        before.restore()
    return outcome


def _train(
    composer: Composer,
    description: Description,
    overrides: Sequence[str],
    flags: Sequence[str],
    folder: Path,
    results: List[FoldResult],
) -> Outcome:
    trainer = description.trainer
    outcomes: List[Outcome] = []
    for number in range(1, trainer.num_folds + 1):
        run_dir = folder / fold_folder(number)
        # The group has no state of its own: a fold is finished if its run is, wherever it was trained.
        outcome = _finished_before(run_dir, description, number)
        fold_overrides = overrides_of_fold(description, overrides, number, run_dir)
        if outcome is None:
            print(f"\nfold {number} of {trainer.num_folds}: {run_dir}", flush=True)
            outcome = train_once(*compose_and_check(composer, fold_overrides), flags)
        else:
            if number == 1:  # all folds have the same data
                _, of_fold = compose_and_check(composer, fold_overrides)
                checkpoint = find_resume_point(run_dir, of_fold.checkpoint, of_fold.config).own_checkpoint
                require_finished_on_same_data(checkpoint, of_fold)
            print(f"fold {number} of {trainer.num_folds} is finished: {run_dir}", flush=True)
        is_refused = outcome.exit_code == EXIT_BAD_INPUT and outcome.step == 0  # the other folds would be refused, too
        if is_refused and not results:
            return outcome
        outcomes.append(outcome)
        results.append(read_fold(run_dir, outcome.state, outcome.exit_code, outcome.cause, outcome.step))
        # Written after each fold, so that a kill leaves the summary of all finished folds.
        content = write_folds(folder, trainer, results)
        if is_refused or was_told_to_end(outcome.exit_code, outcome.cause):
            break
    print_folds(content, results, folder)
    code = exit_code_of(outcomes)
    return Outcome(
        None,
        list(overrides),
        str(folder),
        content["state"],
        code,
        content["cause"],
        sum(one.step for one in outcomes),
        None,
    )


def _config_of(description: Description, number: int) -> Config:
    """Returns the configuration of a fold, without composing it."""
    return {**description.config, "trainer": {**description.config["trainer"], "fold": number}}


def _finished_before(run_dir: Path, description: Description, number: int) -> Optional[Outcome]:
    if not run_dir.is_dir():
        return None
    with lock_run_directory(run_dir):
        result = sweep.finished_before(run_dir, _config_of(description, number))
    return None if result is None else Outcome.from_result(None, [], run_dir, result, before=True)


def overrides_of_fold(description: Description, overrides: Sequence[str], number: int, run_dir: Path) -> List[str]:
    """Returns the overrides of a fold's run."""
    fold_overrides = [word for word in overrides if key_of(word) not in OWN]
    if number > 1:  # the loggers of the first fold have shown these
        shown = {
            f"logger.{name}.{setting}": value
            for name, logger in description.logger.items()
            for setting, value in logger.shown_once.items()
        }
        given_keys = set(map(key_of, overrides))
        fold_overrides += [f"{key}={str(value).lower()}" for key, value in shown.items() if key not in given_keys]
    return [*fold_overrides, f"trainer.fold={number}", f"hydra.run.dir={quote(str(run_dir))}"]


def print_folds(content: JsonObject, results: Sequence[FoldResult], folder: Path) -> None:
    """Prints a table: mean, standard deviation and the value of each fold, for each loss and metric."""
    finished = [one for one in results if one.exit_code == EXIT_FINISHED]
    console = open_console(sys.stdout)
    console.print()
    if finished:
        shown = finished if len(finished) <= MAX_SHOWN else []
        titles = [f"of {len(finished)} folds", "mean", "std", *(one.run for one in shown)]
        rows = [
            [name, *map(format_value, (mean, content["std"][name], *(one.values[name] for one in shown)))]
            for name, mean in content["metrics"].items()
        ]
        styles = {number: BEST for number, (name, *_) in enumerate(rows) if name == content["monitor"]}
        print_rows(titles, rows, styles)
        for name, defined in content["defined"].items():
            if defined < len(finished):
                of_others = f"; mean and std are of the other {defined}" if defined else ""
                undefined = f"{name} is undefined in {len(finished) - defined} of {len(finished)} folds"
                console.print(undefined + of_others, soft_wrap=True)
    missing = content["num_folds"] - len(finished)
    if missing:
        console.print(
            f"{missing} of {content['num_folds']} folds are not finished; the same command with "
            f"hydra.run.dir={shlex.quote(str(folder))} continues",
            soft_wrap=True,
        )
    place = shlex.quote(os.path.relpath(folder))
    if len(finished) > 1:
        console.print(f"written to {folder / FOLDS_FILE}", soft_wrap=True)
        print_commands(console, [("evaluate a fold", f"{program()} eval {place}/{finished[0].run} split=val")])
    sys.stdout.flush()


def report_end(outcome: Outcome) -> int:
    """Prints to standard error why a cross validation is not finished, as the last output; returns the exit code."""
    if outcome.exit_code != EXIT_FINISHED and outcome.step:  # otherwise the refusal was already printed
        print_cause(outcome.cause, outcome.exit_code)
    return outcome.exit_code
