"""Runs sweeps (`-m`): validates every job before the first one starts, runs them, and prints a table of the results.

A failed job does not end the sweep. Jobs may run in other processes (`hydra/launcher=joblib`), so each job appends its
outcome to jobs.jsonl in the sweep's directory, from which the table is printed.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence, Tuple

from mxtrain.callback.protocol import CommandLine, Result
from mxtrain.checkpoint import refuse_links
from mxtrain.checkpoint.ranking import rank
from mxtrain.checkpoint.run_directory import lock_run_directory
from mxtrain.cluster.launch.outcome import STOPS, Outcome, exit_code_of, print_cause, read_outcomes
from mxtrain.cluster.launch.sweep_jobs import earlier_outcomes, numbered_jobs, refuse_optuna_sweeper, refuse_ranges
from mxtrain.cluster.stopping import exit_code_of_signal
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.config_files import CONFIG_NAME
from mxtrain.composing.environment import compose_and_check
from mxtrain.config.groups import Description
from mxtrain.config.override_text import code_arguments, key_of, quote
from mxtrain.config.rules import require_direction
from mxtrain.data.loading.described_paths import lost_paths
from mxtrain.data.spec import BaseDataset, open_splits
from mxtrain.errors import EXIT_FINISHED, ConfigError, DataError
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_value, print_commands
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.training.resume import find_finished

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from mxtrain.types.annotations import Config, JsonObject

MAX_CHECKED_JOBS = 32
OUTCOMES = "jobs.jsonl"
JOB = "MXTRAIN_SWEEP_JOB"
"""Environment variable with the number and the swept settings of a job, for the worker processes of the job."""


@dataclass
class _SweepState:
    """State of the sweep of this process."""

    is_running: bool = False
    """True while Hydra runs the jobs of a sweep that this process started. A joblib worker, which runs a job of
    another process's sweep, has False: it must not stop that sweep."""


SWEEP = _SweepState()


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep.

    Attributes:
        folder: the folder of the sweep.
        exit_code: 0 if all jobs finished.
        outcomes: jobs of this call and of earlier calls in the same folder, best first.
    """

    folder: Path
    exit_code: int
    outcomes: Sequence[Outcome]


def run_sweep(
    composer: Composer,
    overrides: Sequence[str],
    job: Callable[[DictConfig], Optional[float]],
) -> SweepEnd:
    """Validates all jobs, and runs them.

    Args:
        composer: composes configurations from overrides.
        overrides: overrides of the command line, with several values for the swept settings.
        job: trains one job; Hydra calls it.

    Raises:
        ConfigError: a job is invalid; the message lists all errors, and no job was started.
    """
    parsed = composer.parse(overrides)
    refuse_optuna_sweeper(parsed)
    first = composer.compose(next(checked_jobs(composer, overrides)))
    refuse_ranges(parsed, str(first.hydra.sweeper["_target_"]))
    listed = [*overrides, *sweeper_params(first, composer, overrides)]
    descriptions: List[Description] = []
    wrong: List[str] = []
    for job_overrides in checked_jobs(composer, listed):
        try:
            descriptions.append(compose_one(composer, job_overrides, "-m", descriptions))
        except (ConfigError, DataError) as error:
            wrong.extend(str(error).splitlines())
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
    folder = first.sweep_dir
    refuse_links_in_sweep(folder)
    with lock_run_directory(folder, holds="sweep"):  # two sweeps would give their jobs the same numbers
        return _run_jobs(composer, overrides, listed, first, descriptions[0], job)


def _run_jobs(
    composer: Composer,
    overrides: Sequence[str],
    listed: Sequence[str],
    first: Composed,
    description: Description,
    job: Callable[[DictConfig], Optional[float]],
) -> SweepEnd:
    """Runs the valid jobs of a sweep.

    Args:
        composer, overrides, job: see `run_sweep`.
        listed: `overrides` and what a preset sweeps over.
        first: the first job.
        description: its description.
    """
    folder = first.sweep_dir
    file = folder / OUTCOMES
    # A repeated command appends to the same file: outcomes from here on belong to this call.
    start = file.stat().st_size if file.is_file() else 0
    earlier = earlier_outcomes(file, start)
    hydra_overrides = overrides_for_hydra(first, composer, overrides)
    swept = [override.key_or_group for override in composer.parse(listed) if override.is_sweep_override()]
    folder_overrides = [
        f"hydra.sweep.dir={quote(str(folder))}",
        folder_names(composer, hydra_overrides, swept),
    ]
    try:
        with numbered_jobs(composer.parse([*hydra_overrides, *sweeper_params(first, composer, overrides)]), folder):
            hydra_code = _call_hydra(composer, [*_without_sweep_dir(composer, hydra_overrides), *folder_overrides], job)
    except Exception:
        # Sweepers such as Optuna raise if no job has returned a value. Each job has printed its own error already.
        failed = read_outcomes(file, start)
        if not failed or any(outcome.exit_code == EXIT_FINISHED for outcome in failed):
            raise
        hydra_code = EXIT_FINISHED
    finally:
        outcomes = read_outcomes(file, start)
        ranked = rank_jobs(outcomes, earlier, description) if outcomes else []
        if outcomes:
            print_table(outcomes, ranked, folder, description)
    is_job_stopped = hydra_code != EXIT_FINISHED and bool(outcomes) and outcomes[-1].exit_code in STOPS
    # A stopped job says more precisely than the sweep why it was stopped, e.g. by a scheduler's warning.
    code = outcomes[-1].exit_code if is_job_stopped else hydra_code or exit_code_of(outcomes)
    return SweepEnd(folder, code, ranked)


def compose_one(
    composer: Composer, overrides: Sequence[str], command: str, others: Sequence[Description]
) -> Description:
    """Composes and validates one of the runs of a command. Each run sets its own runtime, so the environment of this
    process, which only validates them, is restored.

    Args:
        composer: composes configurations from overrides.
        overrides: overrides of the run.
        command: the command, for messages.
        others: descriptions of runs that were validated before.

    Raises:
        ConfigError: the run is invalid, has another task than the others, or would be several runs itself.
        DataError: its data are missing.
    """
    environment = dict(os.environ)
    try:
        description = compose_and_check(composer, overrides)[1]
        refuse_other_task([*others, description][0], description)
        description.trainer.require_one_run(command)
        description.parallel.require_chosen(command)
        if description.dataset not in [other.dataset for other in others]:
            refuse_missing_data(description.dataset)
        return description
    finally:
        os.environ.clear()
        os.environ.update(environment)


def refuse_other_task(first: Description, second: Description) -> None:
    """Rejects sweeps over several tasks. Their metrics cannot be ranked, and Hydra, which composes the jobs, does not
    select the task of a dataset or model as mxtrain does.

    Raises:
        ConfigError: the jobs have different tasks.
    """
    if type(first.task) is not type(second.task):
        raise ConfigError(
            f"the jobs of this sweep have different tasks: {first.task.name or 'one'} and "
            f"{second.task.name or 'another'}. Start one sweep per task."
        )


def refuse_missing_data(dataset: BaseDataset) -> None:
    """Rejects a dataset whose files are missing, with the message of the job.

    Opening an intact dataset could take minutes, so only a dataset with a missing path is opened: it fails at once.

    Raises:
        DataError: says what is missing, and what to type.
    """
    if lost_paths(dataset):
        open_splits(dataset)


def refuse_links_in_sweep(folder: Path) -> None:
    """Rejects symbolic links in the folders of the jobs before Hydra writes there; see `refuse_links`.

    Raises:
        RunDirectoryError: a file or folder of an earlier job is a link.
    """
    jobs_before = [path for path in folder.glob("*") if path.is_dir()]
    refuse_links(folder, ("multirun.yaml", OUTCOMES, *(path.name for path in jobs_before if path.name.isdigit())))
    for path in jobs_before:
        refuse_links(path)


def _call_hydra(composer: Composer, overrides: Sequence[str], job: Callable[[DictConfig], Optional[float]]) -> int:
    """Runs the jobs with Hydra; returns 0, or the exit code of the signal that ended the sweep."""
    SWEEP.is_running = True
    try:
        composer.hydra.multirun(
            config_name=CONFIG_NAME, task_function=job, overrides=[*overrides, "hydra.mode=MULTIRUN"]
        )
    except KeyboardInterrupt as error:
        code = exit_code_of_signal(error)
        print_cause("the sweep was interrupted; the same command and hydra.sweep.dir continue it", code)
        return code
    finally:
        SWEEP.is_running = False
    return EXIT_FINISHED


# Jobs of a sweep.


def checked_jobs(composer: Composer, overrides: Sequence[str]) -> Iterator[List[str]]:
    """Yields the overrides of the jobs that are validated before the sweep starts.

    These are all combinations, if there are at most `MAX_CHECKED_JOBS`; else each value once beside the first values
    of all other settings. Distributions (`interval(...)`) are left out: only the sweeper knows their values.
    """
    choices: List[List[str]] = []
    for override in composer.parse(overrides):
        if not override.is_sweep_override():
            choices.append([override.input_line])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    count = 1
    for values in choices:
        count *= len(values)
    if count <= MAX_CHECKED_JOBS:
        yield from (list(job) for job in itertools.product(*choices))
        return
    first = [values[0] for values in choices]
    for position, values in enumerate(choices):
        for value in values if len(values) <= MAX_CHECKED_JOBS else (values[0], values[-1]):
            yield [*first[:position], value, *first[position + 1 :]]


def sweeper_params(first: Composed, composer: Composer, overrides: Sequence[str]) -> List[str]:
    """Returns the overrides that a preset sweeps over (`hydra.sweeper.params`), without those of the command line."""
    parsed = {override.key_or_group for override in composer.parse(overrides)}
    params = first.hydra.sweeper.get("params") or {}
    return [f"{key}={value}" for key, value in params.items() if key not in parsed]


def overrides_for_hydra(first: Composed, composer: Composer, overrides: Sequence[str]) -> List[str]:
    """Returns the overrides for Hydra: those of the command line, and what composing the first job has changed.

    The composer adds overrides, such as the task of a dataset, and writes `++` before keys that a group does not have
    by default. Hydra, which composes the jobs, does neither.
    """
    given, composed = composer.parse(overrides), composer.parse(first.overrides)
    given_keys = {override.key_or_group for override in given}
    added = [override.input_line for override in composed if override.key_or_group not in given_keys]
    new_keys = {override.key_or_group for override in composed if override.input_line.startswith("++")}
    return [
        *added,
        *(
            f"++{override.input_line}"
            if override.key_or_group in new_keys and not override.input_line.startswith("+")
            else override.input_line
            for override in given
        ),
    ]


def _without_sweep_dir(composer: Composer, overrides: Sequence[str]) -> List[str]:
    left_out = ("hydra.sweep.dir", "hydra.mode")
    return [override.input_line for override in composer.parse(overrides) if override.key_or_group not in left_out]


def direction_of(description: Description, value: str = "", setting: str = "trainer.monitor") -> str:
    """Returns "min" if smaller values of `value` (e.g. val/loss; default `trainer.monitor`) are better, else "max".

    Raises:
        ConfigError: its metric has no direction; the message names `setting`.
    """
    return require_direction(description, setting, value or description.trainer.monitor)


def folder_names(composer: Composer, overrides: Sequence[str], swept: Sequence[str]) -> str:
    """Returns the override that leaves settings which are not swept out of the folder names of the jobs."""
    fixed = {override.key_or_group for override in composer.parse(overrides)} - set(swept)
    return f"hydra.job.config.override_dirname.exclude_keys=[{','.join(map(quote, sorted(fixed)))}]"


# Jobs with several worker processes, which Hydra does not tell the number of the job.


@contextmanager
def exported_job(command: CommandLine) -> Iterator[None]:
    """Exports the number of a job and the swept settings to child processes for the time of a `with` block."""
    os.environ[JOB] = " ".join([str(command.job), *command.swept])
    try:
        yield
    finally:
        del os.environ[JOB]


def with_exported_job(command: CommandLine) -> CommandLine:
    """Returns the command of a worker with the job number and swept settings of its environment, if there are any."""
    number, *swept = os.environ.get(JOB, "").split() or [""]
    return replace(command, job=int(number), swept=swept) if number else command


# Jobs that have finished in an earlier call.


def finished_before(run_dir: Path, config: Config) -> Optional[Result]:
    """Returns the result of the same job in an earlier call of the same sweep; None if it has not finished."""
    status = find_finished(run_dir, config)
    if status is None:
        return None
    return Result(
        state=status["state"],
        exit_code=EXIT_FINISHED,
        cause=status.get("cause") or "",
        step=status["step"],
        epoch=status["epoch"],
        best=status["best"],
        metrics=status.get("metrics") or {},
    )


def overrides_of(swept: Sequence[str], overrides: Sequence[str]) -> List[str]:
    """Returns the overrides of the settings `swept`."""
    return [text for text in overrides if key_of(text) in swept]


# Table of the results.


def by_rank(outcomes: Sequence[Outcome], direction: str) -> List[Outcome]:
    """Sorts jobs by their best value, best first, then by validation loss and number. Jobs without a value are last."""

    def key(outcome: Outcome) -> Tuple[bool, Tuple[float, float, int]]:
        best = outcome.best
        number = outcome.number or 0
        if best is None or not math.isfinite(best["value"]):
            return True, (0.0, 0.0, number)
        return False, rank(float(best["value"]), best.get("loss"), -number, direction)

    return sorted(outcomes, key=key)


def next_steps(best: Outcome, folder: Path, description: Description) -> List[Tuple[str, str]]:
    """Returns (purpose, command) pairs to suggest after the sweep."""
    steps = [step for logger in description.logger.values() for step in logger.commands_for(folder)]
    if best.best is not None and best.exit_code == EXIT_FINISHED:
        best_run = shlex.quote(os.path.relpath(best.run_dir))
        own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(best.overrides))
        steps.append(("evaluate the best", f"{program()} eval {best_run}{own_code}"))
    return steps


def rank_jobs(outcomes: Sequence[Outcome], earlier: Sequence[Outcome], description: Description) -> List[Outcome]:
    """Returns all jobs of a sweep, best first.

    Args:
        outcomes: jobs of this call.
        earlier: jobs of earlier calls; jobs that were run again or monitored another value are left out.
        description: description of one job.
    """
    repeated = {outcome.run_dir for outcome in outcomes}
    earlier = [
        one
        for one in earlier
        if one.run_dir not in repeated and (one.best is None or one.best["metric"] == description.trainer.monitor)
    ]
    return by_rank([*earlier, *outcomes], direction_of(description))


def print_table(outcomes: Sequence[Outcome], ranked: Sequence[Outcome], folder: Path, description: Description) -> None:
    """Prints a table of the jobs: swept settings, state, best value of `trainer.monitor` and its step.

    Args:
        outcomes: jobs of this call.
        ranked: all jobs, best first.
        folder: directory of the sweep.
        description: description of one job.
    """
    swept = list(dict.fromkeys(key for outcome in ranked for key in outcome.swept))
    rows: List[List[str]] = []
    for position, outcome in enumerate(ranked):
        best: JsonObject = outcome.best or {}
        value = format_value(best["value"]) if best else "-"
        state = outcome.state if outcome.exit_code == EXIT_FINISHED else f"{outcome.state} ({outcome.exit_code})"
        value_of = {key_of(text): text.partition("=")[2] for text in outcome.overrides}
        swept_values = [value_of.get(key, "") for key in swept] or [" ".join(outcome.overrides)]
        rows.append(
            [
                str(outcome.number),
                *swept_values,
                state + (", before" if outcome.before else ""),
                value,
                str(best.get("step", "-")),
                "<- best" if position == 0 and best else "",
            ]
        )
    console = open_console(sys.stdout)
    console.print()
    titles = ["job", *(swept or ["overrides"]), "state", description.trainer.monitor, "step", ""]
    print_rows(titles, rows, {0: BEST} if ranked[0].best else {})
    print_commands(console, next_steps(ranked[0], folder, description))
    failed = sum(outcome.exit_code != EXIT_FINISHED for outcome in outcomes)
    if failed:
        console.print(
            f"{failed} of {len(outcomes)} jobs did not finish; the same command with "
            f"hydra.sweep.dir={folder} runs only those again",
            soft_wrap=True,
        )
    sys.stdout.flush()
