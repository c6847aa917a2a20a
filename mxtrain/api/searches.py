"""Trains many runs and compares them: `sweep` and `tune`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from typing_extensions import Unpack

from mxtrain.api.arguments import AnyPath, absolute_path, override_of_dir, read_call, require_flag, without_none
from mxtrain.api.run import Run
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing.parts import Parts, with_parts
from mxtrain.config.override_text import key_of
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError
from mxtrain.terminal.tables import format_cell, rows_text
from mxtrain.workflows.result_table import ResultTable

if TYPE_CHECKING:
    from mxtrain.cluster.launch.outcome import Outcome
    from mxtrain.workflows.tune import StudyResult


@with_parts(Parts)
def sweep(
    *overrides: str, dir: Optional[AnyPath] = None, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]
) -> Sweep:
    """Trains a run for each combination of values, one after the other; as ``python -m mxtrain -m OVERRIDES``.

    All jobs are checked before the first one starts. A job that fails does not end the sweep. The same call with the
    same ``dir`` skips the jobs that have finished, and continues the others.

    Args:
        overrides: as on the command line; values with commas between them are swept: ``"optimizer.lr=0.1,0.01"``.
        dir: the folder of the sweep, with a run directory for each job; default: ``multirun/DATE/TIME``.
        config_dir: folder with further groups and options.
        parts: groups by name, as for `train`; objects cannot be swept.

    Returns:
        The jobs, best first, with the run of each; ``rows()`` and ``frame()`` return them as a table.

    Raises:
        ConfigError: a job is invalid, an object was given, or nothing is swept; no job was started.
        DataError: the files of a dataset are missing.
        RunDirectoryError: another sweep uses the folder.

    >>> found = mxtrain.sweep("model=mlp,lenet", "optimizer.lr=0.1,0.01", dir="outputs/sweep")
    >>> found.best_run, [(job.overrides, job.best) for job in found.jobs]
    """
    from mxtrain.cluster.launch.job import train_sweep

    call = read_call(sweep, overrides, config_dir, parts)
    if call.objects:
        raise ConfigError(
            f"sweep: {next(iter(call.objects.values))} is an object, and Hydra composes jobs from names. Name its "
            'class, e.g. "model._target_=package.Class", or call train() for each value.'
        )
    words = [*call.overrides, *override_of_dir(dir, "sweep", "hydra.sweep.dir")]
    with call.composer() as composer:
        end = train_sweep(composer, words)
    return Sweep(Path(os.path.abspath(end.folder)), end.exit_code, end.outcomes, config_dir)


@dataclass(frozen=True)
class Sweep(ResultTable):
    """Result of `sweep`; its text is a table of the jobs, and `frame` returns this as a pandas DataFrame.

    Attributes:
        path: folder of the sweep.
        exit_code: 0 if all jobs finished; otherwise that of the first job that failed.
        jobs: the jobs, best by ``trainer.monitor`` first: ``number``, ``overrides``, ``run_dir``, ``state``,
            ``exit_code``, ``cause``, ``step``, and ``best`` with ``metric``, ``value`` and ``step`` or None.
    """

    path: Path
    exit_code: int
    jobs: Sequence[Outcome]
    config_dir: Optional[AnyPath] = None

    @property
    def runs(self) -> List[Run]:
        """Returns the run of each job, in the order of `jobs`."""
        return [self._run_of(job) for job in self.jobs]

    @property
    def best_run(self) -> Optional[Run]:
        """The run with the best value; None if no job was validated."""
        return self._run_of(self.jobs[0]) if self.jobs and self.jobs[0].best is not None else None

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each job, for `pandas.DataFrame`: number, swept settings, state, metric, best and step."""
        return [
            {
                "job": job.number,
                **{key_of(word): word.partition("=")[2] for word in job.overrides if key_of(word) in job.swept},
                "state": job.state,
                "metric": None if job.best is None else job.best["metric"],
                "best": None if job.best is None else job.best["value"],
                "step": job.step,
            }
            for job in self.jobs
        ]

    def __str__(self) -> str:
        rows = self.rows()
        titles = list(dict.fromkeys(key for row in rows for key in row))
        return rows_text(titles, [[format_cell(row.get(title)) for title in titles] for row in rows])

    __repr__ = __str__

    def _run_of(self, job: Outcome) -> Run:
        return Run(Path(job.run_dir), config_dir=self.config_dir, trust_code=True)  # the caller named the classes


def tune(
    study: AnyPath,
    *overrides: str,
    n_trials: Optional[int] = None,
    report: Callable[[str], object] = lambda line: None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
    **settings: Any,
) -> StudyResult:
    """Looks for the best settings over many trials, as ``mxtrain tune``. The same call continues a study.

    Each trial is trained in a process of its own; it writes a run directory below the folder of the study.
    KeyboardInterrupt ends it after the current run has saved.

    Args:
        study: folder of the study.
        overrides: ranges, e.g. ``"optimizer.lr=log(1e-4,1e-1)"`` or ``"model=choice(mlp,lenet)"``, and overrides of
            all trials; none continues the study in the folder.
        n_trials: trials of the study in all; default: 20, or a whole grid. A larger number later adds some.
        report: receives a line about each trial, e.g. ``print``.
        trust_code: whether code that only an existing study names may run.
        config_dir: folder with further groups and options.
        settings: further ones of the command: ``sampler``, ``pruner``, ``reduction``, ``min_epochs``, ``min_steps``,
            ``objectives``, ``seed``, ``space``, ``storage``.

    Returns:
        The study: ``best_run`` and ``best_trial`` (None if no trial was trained to its end), ``trials``, best first,
        each with ``settings``, ``values``, ``state``, ``step`` and ``path``; ``rows()`` and ``frame()`` as a table.

    Raises:
        ConfigError: the study is invalid, or differs from the one in the folder; nothing was started.
        MxtrainError: a trial was refused, or its process received a signal.

    >>> found = mxtrain.tune("outputs/study", "optimizer.lr=choice(0.01,0.1)", "model=mlp", "debug=fast", n_trials=2)
    >>> found.best_run, found.best_trial.settings["optimizer.lr"], len(found.trials)
    """
    from mxtrain.cluster.launch.study import begin_study, open_study
    from mxtrain.tuning.folder import StudyFolder
    from mxtrain.tuning.spec import TuneSettings
    from mxtrain.tuning.trials import require_optuna
    from mxtrain.workflows.tune import resume_study, train_study

    call = read_call(tune, overrides, config_dir)
    require_flag(trust_code, "tune: trust_code")
    if not callable(report):
        raise ConfigError(f"tune: report={report!r:.60}: it must be a function of one line of text, such as print.")
    given = {**settings, **without_none(n_trials=n_trials)}
    chosen = validate_arguments(TuneSettings, given, "tune")
    require_optuna()
    folder = StudyFolder(Path(absolute_path(study, "tune: study")))
    with preserved_process():
        if folder.exists and not call.overrides and chosen.space is None:
            description = open_study(folder, chosen, list(given), call.folders, trust_code)
        else:
            description = begin_study(folder, chosen, call.overrides, call.folders)
        return train_study(folder, resume_study(folder, description, chosen), report)
