"""Outcomes of a sweep's jobs in earlier calls, and the numbers of the jobs of this call."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

from hydra.core.override_parser.types import IntervalSweep, Override

from mxtrain.cluster.launch.outcome import Outcome, read_outcomes
from mxtrain.composing.config_files import FIRST_JOB, job_folder
from mxtrain.composing.hydra_errors import range_outside_tune
from mxtrain.errors import ConfigError

OLD_SWEEPER = "hydra/sweeper"


def refuse_optuna_sweeper(parsed: Sequence[Override]) -> None:
    """Rejects Hydra's sweeper for Optuna, which `tune` replaces.

    Raises:
        ConfigError: it was selected.
    """
    selected = [o for o in parsed if o.key_or_group == OLD_SWEEPER and "optuna" in str(o.value())]
    if not selected:
        return
    hydra = ("hydra/sweeper", "hydra.")
    ranges = [
        f"'{override.input_line}'" if override.is_sweep_override() else override.input_line
        for override in parsed
        if not override.key_or_group.startswith(hydra)
    ]
    trials = next((override.value() for override in parsed if override.key_or_group == "hydra.sweeper.n_trials"), 20)
    raise ConfigError(
        f"{selected[0].input_line}: the search with Optuna is a command of its own, which survives kills and stops bad "
        f"trials early. Type `tune STUDY {' '.join([*ranges, f'n_trials={trials}'])}`, where STUDY is a folder."
    )


def refuse_ranges(parsed: Sequence[Override], sweeper: str) -> None:
    """Rejects ranges of numbers, which Hydra's own sweeper cannot sweep.

    Args:
        parsed: the overrides of the sweep.
        sweeper: class of the sweeper.

    Raises:
        ConfigError: an override is a range.
    """
    for override in parsed:
        if sweeper.endswith(".BasicSweeper") and isinstance(override.value(), IntervalSweep):
            raise ConfigError(range_outside_tune(override.input_line))


def earlier_outcomes(file: Path, end: int) -> List[Outcome]:
    """Reads the outcomes of the jobs of earlier calls, one for each run directory.

    The folder of the sweep may have been moved since, so only the recorded name of a job's directory counts.

    Args:
        file: list of jobs of the sweep.
        end: byte offset at which the jobs of this call begin.
    """
    outcome_of: Dict[str, Outcome] = {}
    for outcome in read_outcomes(file, 0, end):
        moved = Path(os.path.abspath(file)).with_name(Path(outcome.run_dir).name)
        run_dir = str(moved) if moved.is_dir() else outcome.run_dir
        outcome_of[run_dir] = replace(outcome, run_dir=run_dir, before=True)
    return list(outcome_of.values())


def number_of(run_dir: Path, default: int) -> int:
    """Returns the number of a job by its folder, whose name begins with it; `default` where it does not."""
    match = re.match(r"(\d+)(_|$)", run_dir.name)
    return int(match[1]) if match else default


@contextmanager
def numbered_jobs(parsed: Sequence[Override], folder: Path) -> Iterator[None]:
    """Numbers jobs within the context: existing jobs keep the numbers of their folders, new jobs get unused numbers.

    Args:
        parsed: the overrides of the sweep.
        folder: folder of the sweep.
    """
    os.environ[FIRST_JOB] = str(first_number(parsed, folder))
    try:
        yield
    finally:
        del os.environ[FIRST_JOB]


def first_number(parsed: Sequence[Override], folder: Path) -> int:
    """Returns the offset of the numbers of new jobs: 0 in a new folder and for the same sweep again; otherwise the
    first number that no job in the folder has."""
    names = {number_of(path, -1): path.name for path in folder.glob("*") if path.is_dir()}
    names.pop(-1, None)
    if not names:
        return 0
    swept = [override for override in parsed if override.is_sweep_override()]
    next_number = max(names) + 1
    if not all(override.is_discrete_sweep() for override in swept):
        return next_number
    keys = [override.get_key_element() for override in swept]
    values = [list(map(str, override.sweep_string_iterator())) for override in swept]
    # Only as many combinations as there are numbers, because the whole product may be huge.
    for number, job in enumerate(itertools.islice(itertools.product(*values), next_number)):
        dirname = ",".join(sorted(f"{key}={value}" for key, value in zip(keys, job)))
        if names.get(number, job_folder(number, dirname)) != job_folder(number, dirname):
            return next_number
    return 0
