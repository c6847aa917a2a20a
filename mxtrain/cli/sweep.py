"""Sweeps: every job is checked before the first one starts, fails alone, and stands in a table at the end.

The jobs may run in other processes (`hydra/launcher=joblib`): what became of them is read from jobs.jsonl in the
sweep's directory, to which each job adds its line.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence, Tuple

from rich.table import Table

from mxtrain.checkpoint import refuse_links
from mxtrain.cli.compose import Composed, Composer
from mxtrain.cli.config_files import CONFIG_NAME
from mxtrain.cli.outcome import STOPS, Outcome, exit_code_of, print_cause, read_outcomes
from mxtrain.cli.program import program, tensorboard
from mxtrain.cli.sweep_jobs import earlier_outcomes, numbered_jobs, refuse_optuna_sweeper
from mxtrain.config.override_text import code_arguments, key_of, quote
from mxtrain.data.base import BaseDataset, open_splits
from mxtrain.data.loading.described_paths import lost_paths
from mxtrain.description.groups import Description
from mxtrain.errors import EXIT_FINISHED, EXIT_SIGINT, EXIT_SIGTERM, ConfigError, DataError
from mxtrain.logger.report import format_value, print_commands
from mxtrain.logger.terminal import open_console
from mxtrain.process.stopping import Terminated
from mxtrain.ranking import rank
from mxtrain.training.resume import find_finished
from mxtrain.types import CommandLine, Result

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from mxtrain.annotations import Config, JsonObject

MAX_CHECKED_JOBS = 32
OUTCOMES = "jobs.jsonl"
JOB = "MXTRAIN_SWEEP_JOB"
"""The number of the job and what is swept, for the processes of a job of several."""

in_this_process = False
"""True if a sweep was started by this very process, and not by the parent of a launcher's worker."""


def run_sweep(
    composer: Composer, overrides: Sequence[str], check: Callable[[Sequence[str]], Description],
    job: Callable[[DictConfig], Optional[float]],
) -> int:  # fmt: skip
    """Checks all jobs, runs them, and returns the exit code.

    Args:
        check: validates one job's overrides.
        job: trains one job; Hydra calls it.

    Raises:
        ConfigError: what is wrong with any of them; nothing was started.
    """
    refuse_optuna_sweeper(composer.parse(overrides))
    first = composer.compose(next(jobs(composer, overrides)))
    listed = [*overrides, *sweeper_params(first, composer, overrides)]
    descriptions: List[Description] = []
    wrong: List[str] = []
    for job_overrides in jobs(composer, listed):
        try:
            descriptions.append(check(job_overrides))
            refuse_other_task(descriptions[0], descriptions[-1])
            if descriptions[-1].dataset not in [one.dataset for one in descriptions[:-1]]:
                refuse_missing_data(descriptions[-1].dataset)
        except (ConfigError, DataError) as error:
            wrong.extend(str(error).splitlines())
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
    folder = first.sweep_dir
    file = folder / OUTCOMES
    refuse_links_in_sweep(folder)
    start = file.stat().st_size if file.is_file() else 0
    earlier = earlier_outcomes(file, start)
    fitted = fit(first, composer, overrides)
    swept = [o.key_or_group for o in composer.parse(listed) if o.is_sweep_override()]
    own = [
        f"hydra.sweep.dir={quote(str(folder))}",
        folder_names(composer, fitted, swept),
    ]
    try:
        with numbered_jobs(composer.parse([*fitted, *sweeper_params(first, composer, overrides)]), folder):
            failure = _call_hydra(composer, [*_without_sweep_dir(composer, fitted), *own], job)
    except Exception:
        # A sweeper that has no result to choose from complains; why each job failed was said when it happened.
        if not _all_failed(read_outcomes(file, start)):
            raise
        failure = EXIT_FINISHED
    finally:
        outcomes = read_outcomes(file, start)
        if outcomes:
            print_table(outcomes, folder, descriptions[0], earlier)
    interrupted = failure and outcomes and outcomes[-1].exit_code in STOPS
    return outcomes[-1].exit_code if interrupted else failure or exit_code_of(outcomes)


def refuse_other_task(first: Description, other: Description) -> None:
    """Refuses sweeps over several tasks: what they measure cannot be ranked, and Hydra, which composes the jobs, does
    not choose the task of a dataset or model.

    Raises:
        ConfigError: the jobs' tasks differ.
    """
    if type(first.task) is not type(other.task):
        raise ConfigError(
            f"the jobs of this sweep are of different tasks: {first.task.name or 'one'} and "
            f"{other.task.name or 'another'}. Sweep over each by itself."
        )


def refuse_missing_data(dataset: BaseDataset) -> None:
    """Refuses a dataset whose files are not there, as the job would. Only one of whose paths leads nowhere is opened,
    which fails at once.

    Raises:
        DataError: says what is missing, and what to type.
    """
    if lost_paths(dataset):
        open_splits(dataset)


def refuse_links_in_sweep(folder: Path) -> None:
    """Refuses links in the folders of the jobs, before Hydra writes there.

    Raises:
        RunDirectoryError: links stand where files and folders are expected.
    """
    jobs_before = [path for path in folder.glob("*") if path.is_dir()]
    refuse_links(folder, ("multirun.yaml", OUTCOMES, *(path.name for path in jobs_before if path.name.isdigit())))
    for path in jobs_before:
        refuse_links(path)


def _all_failed(outcomes: Sequence[Outcome]) -> bool:
    return bool(outcomes) and all(outcome.exit_code != EXIT_FINISHED for outcome in outcomes)


def _call_hydra(composer: Composer, overrides: Sequence[str], job: Callable[[DictConfig], Optional[float]]) -> int:
    """Runs the jobs through Hydra; returns 0, or the exit code of the signal that ended the whole sweep."""
    global in_this_process
    in_this_process = True
    try:
        composer.hydra.multirun(
            config_name=CONFIG_NAME, task_function=job, overrides=[*overrides, "hydra.mode=MULTIRUN"]
        )
    except KeyboardInterrupt as error:
        code = EXIT_SIGTERM if isinstance(error, Terminated) else EXIT_SIGINT
        print_cause("the sweep was interrupted; the same command and hydra.sweep.dir continue it", code)
        return code
    finally:
        in_this_process = False
    return EXIT_FINISHED


# What the jobs are.


def jobs(composer: Composer, overrides: Sequence[str]) -> Iterator[List[str]]:
    """The override lists of a sweep's jobs, as far as they can be known before it starts: all combinations up to
    `MAX_CHECKED_JOBS`, else each value once. Distributions (interval(...)) are left to the sweeper."""
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
    """The settings that a preset sweeps over by itself (`hydra.sweeper.params`)."""
    given = {override.key_or_group for override in composer.parse(overrides)}
    params = first.hydra.sweeper.get("params") or {}
    return [f"{key}={value}" for key, value in params.items() if key not in given]


def fit(first: Composed, composer: Composer, overrides: Sequence[str]) -> List[str]:
    """The overrides as Hydra must be given them: with the same additions as those of the first job."""
    parsed, ready = composer.parse(overrides), composer.parse(first.overrides)
    given = {override.key_or_group for override in parsed}
    added = [override.input_line for override in ready if override.key_or_group not in given]
    open_keys = {override.key_or_group for override in ready if override.input_line.startswith("++")}
    return [*added, *(_open(o.input_line) if o.key_or_group in open_keys else o.input_line for o in parsed)]


def _open(text: str) -> str:
    return text if text.startswith("+") else "++" + text


def _without_sweep_dir(composer: Composer, overrides: Sequence[str]) -> List[str]:
    return [o.input_line for o in composer.parse(overrides) if o.key_or_group not in ("hydra.sweep.dir", "hydra.mode")]


def direction_of(description: Description, value: str = "") -> str:
    """Direction in which a value such as val/loss, by default `trainer.monitor`, is better: "min" or "max"."""
    name = (value or description.trainer.monitor).split("/", 1)[1]
    return "min" if name == "loss" else description.metric[name].direction


def folder_names(composer: Composer, overrides: Sequence[str], swept: Sequence[str]) -> str:
    """The override that keeps settings which are not swept out of the names of the jobs' folders."""
    fixed = {override.key_or_group for override in composer.parse(overrides)} - set(swept)
    return f"hydra.job.config.override_dirname.exclude_keys=[{','.join(map(quote, sorted(fixed)))}]"


# Jobs of several processes, whose workers know of no sweep.


@contextmanager
def exported_job(command: CommandLine) -> Iterator[None]:
    """While open, the environment tells processes that are started which job of a sweep they are."""
    os.environ[JOB] = " ".join([str(command.job), *command.swept])
    try:
        yield
    finally:
        del os.environ[JOB]


def with_exported_job(command: CommandLine) -> CommandLine:
    """The command of a worker, with the job of a sweep that it is, if it is one."""
    number, *swept = os.environ.get(JOB, "").split() or [""]
    return replace(command, job=int(number), swept=swept) if number else command


# Jobs that need not run again.


def finished_before(run_dir: Path, config: Config) -> Optional[Result]:
    """The result of the same job in an earlier call of the same sweep, or None."""
    status = find_finished(run_dir, config)
    if status is None:
        return None
    return Result(
        state=status["state"], exit_code=EXIT_FINISHED, cause=status.get("cause") or "", step=status["step"],
        epoch=status["epoch"], best=status["best"], metrics=status.get("metrics") or {},
    )  # fmt: skip


def overrides_of(swept: Sequence[str], overrides: Sequence[str]) -> List[str]:
    """The overrides that give a value to one of these settings."""
    return [text for text in overrides if key_of(text) in swept]


# What is shown.


def by_rank(outcomes: Sequence[Outcome], direction: str) -> List[Outcome]:
    """Sorts jobs by their best value, the best first, equal ones by their validation loss; those without a value last.
    What is equal after that is ordered by its number."""

    def key(outcome: Outcome) -> Tuple[bool, Tuple[float, float, int]]:
        best = outcome.best
        number = outcome.number or 0
        if best is None or not math.isfinite(best["value"]):
            return True, (0.0, 0.0, number)
        return False, rank(float(best["value"]), best.get("loss"), -number, direction)

    return sorted(outcomes, key=key)


def _next_steps(best: Outcome, folder: Path, description: Description) -> List[Tuple[str, str]]:
    """Pairs of a purpose and a command, to go on with after the sweep."""
    steps = []
    if any(type(logger).__name__ == "TensorBoard" for logger in description.logger.values()):
        steps.append(("compare", f"{tensorboard()} --logdir {shlex.quote(str(folder))}"))
    if best.best is not None and best.exit_code == EXIT_FINISHED:
        place = shlex.quote(os.path.relpath(best.run_dir))
        own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(best.overrides))
        steps.append(("evaluate the best", f"{program()} eval {place}{own_code}"))
    return steps


def print_table(
    outcomes: Sequence[Outcome], folder: Path, description: Description, earlier: Sequence[Outcome] = ()
) -> None:
    """The jobs, the best by `trainer.monitor` first: what was swept, state, best value and where it was reached.

    Args:
        outcomes: of this call.
        folder: of the sweep.
        description: of one of its jobs.
        earlier: jobs of earlier calls; those that were run again or monitored something else are left out.
    """
    again = {outcome.run_dir for outcome in outcomes}
    earlier = [
        one for one in earlier
        if one.run_dir not in again and (one.best is None or one.best["metric"] == description.trainer.monitor)
    ]  # fmt: skip
    ranked = by_rank([*earlier, *outcomes], direction_of(description))
    swept = list(dict.fromkeys(key for outcome in ranked for key in outcome.swept))
    table = Table(box=None, pad_edge=False)
    for title in ("job", *(swept or ["overrides"]), "state", description.trainer.monitor, "step", ""):
        table.add_column(title)
    for place, outcome in enumerate(ranked):
        best: JsonObject = outcome.best or {}
        value = format_value(best["value"]) if best else "-"
        state = outcome.state if outcome.exit_code == EXIT_FINISHED else f"{outcome.state} ({outcome.exit_code})"
        given = {key_of(text): text.partition("=")[2] for text in outcome.overrides}
        tried = [given.get(key, "") for key in swept] or [" ".join(outcome.overrides)]
        is_best = place == 0 and bool(best)
        row = [str(outcome.number), *tried, state + (", before" if outcome.before else ""), value,
               str(best.get("step", "-")), "<- best" if is_best else ""]  # fmt: skip
        table.add_row(*row, style="bold green" if is_best else None)
    console = open_console(sys.stdout)
    console.print()
    console.print(table)
    print_commands(console, _next_steps(ranked[0], folder, description))
    failed = sum(outcome.exit_code != EXIT_FINISHED for outcome in outcomes)
    if failed:
        console.print(f"{failed} of {len(outcomes)} jobs did not finish; the same command with "
                      f"hydra.sweep.dir={folder} runs only those again", soft_wrap=True)  # fmt: skip
    sys.stdout.flush()
