"""The jobs of a sweep's folder: what became of those of earlier calls, and the numbers of those of this one."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

from hydra.core.override_parser.types import Override

from mxtrain.cli.config_files import FIRST_JOB, job_folder
from mxtrain.cli.outcome import Outcome, read_outcomes
from mxtrain.errors import ConfigError

OLD_SWEEPER = "hydra/sweeper"


def refuse_optuna_sweeper(parsed: Sequence[Override]) -> None:
    """Raises: ConfigError: the search of Hydra's plugin for Optuna was asked for, in whose place there is `tune`."""
    asked = [one for one in parsed if one.key_or_group == OLD_SWEEPER and "optuna" in str(one.value())]
    if not asked:
        return
    hydra = ("hydra/sweeper", "hydra.")
    ranges = [f"'{one.input_line}'" if one.is_sweep_override() else one.input_line
              for one in parsed if not one.key_or_group.startswith(hydra)]  # fmt: skip
    trials = next((one.value() for one in parsed if one.key_or_group == "hydra.sweeper.n_trials"), 20)
    raise ConfigError(
        f"{asked[0].input_line}: the search with Optuna is a command of its own, which survives kills and stops bad "
        f"trials early. Type `tune STUDY {' '.join([*ranges, f'n_trials={trials}'])}`, where STUDY is a folder."
    )


def earlier_outcomes(file: Path, until: int) -> List[Outcome]:
    """Reads the outcomes of the jobs of earlier calls, one for each run directory.

    Args:
        file: the sweep's list of jobs.
        until: its byte at which this call begins.
    """
    found: Dict[str, Outcome] = {}
    for outcome in read_outcomes(file, 0, until):
        found[outcome.run_dir] = replace(outcome, before=True)
    return list(found.values())


def number_of(run_dir: Path, default: int) -> int:
    """Returns the number of a job by its folder, whose name begins with it; `default` where it does not."""
    found = re.match(r"(\d+)(_|$)", run_dir.name)
    return int(found[1]) if found else default


@contextmanager
def numbered_jobs(parsed: Sequence[Override], folder: Path) -> Iterator[None]:
    """While open, a job whose folder is there has its number, and a new one a number that no other folder has.

    Args:
        parsed: the overrides of the sweep.
        folder: of the sweep.
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
    after = max(names) + 1
    if not all(override.is_discrete_sweep() for override in swept):
        return after
    keys = [override.get_key_element() for override in swept]
    values = [list(map(str, override.sweep_string_iterator())) for override in swept]
    for number, job in enumerate(itertools.islice(itertools.product(*values), after)):
        dirname = ",".join(sorted(f"{key}={value}" for key, value in zip(keys, job)))
        if names.get(number, job_folder(number, dirname)) != job_folder(number, dirname):
            return after
    return 0
