"""`tune`: trains the trials of a study, and reads the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.registry import KILLED, read_run
from mxtrain.errors import ConfigError
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import rows_text
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.space import Value, Values, setting_of
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.trials import Study, read_progress, require_sampler_libraries
from mxtrain.tuning.worker import Display, Worker, no_display
from mxtrain.workflows.result_table import ResultTable

STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "waiting"}


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a study.

    Attributes:
        number: number of the trial, from 0.
        path: its run directory; a member of a population has a new one for each checkpoint it took over.
        state: finished, pruned, failed, waiting, running, interrupted or killed.
        settings: values of the settings that differ between trials, by name.
        values: value of each objective; None if it was not measured. Of a trial that did not finish, the last one.
        step: steps that its run has taken.
        cause: reason for a failure.
        is_best: True for the best trial, or those of the Pareto front for several objectives.
        active: settings and groups that exist in this trial, as the study records them.
    """

    number: int
    path: Path
    state: str
    settings: Mapping[str, Value]
    values: Sequence[Optional[float]]
    step: int
    cause: str
    is_best: bool
    active: Values


@dataclass(frozen=True)
class StudyResult(ResultTable):
    """A study, as its folder holds it now; prints as a table.

    Attributes:
        path: folder of the study.
        description: what is fixed for all trials: ``overrides``, ``settings``, ``space``, ``objectives`` and
            ``directions``.
        trials: the trials, best first, then those that were pruned, then the others.
    """

    path: Path
    description: StudyDescription
    trials: Sequence[StudyTrial]

    @property
    def best_trials(self) -> List[StudyTrial]:
        """The best trial, or the Pareto front for several objectives; empty if none was trained to its end."""
        return [trial for trial in self.trials if trial.is_best]

    @property
    def best_trial(self) -> Optional[StudyTrial]:
        """The best trial by the first objective; None if none was trained to its end."""
        return next(iter(self.best_trials), None)

    @property
    def best_run(self) -> Optional[Path]:
        """Run directory of the best trial, for `load`; None if no trial was trained to its end."""
        return None if self.best_trial is None else self.best_trial.path

    @property
    def is_complete(self) -> bool:
        """True if all trials have ended."""
        have_ended = all(trial.state in ("finished", "pruned", "failed") for trial in self.trials)
        return have_ended and len(self.trials) >= (self.description.settings.n_trials or 0)

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each trial, for `pandas.DataFrame`: trial, settings, state, objectives and step."""
        return [
            {
                "trial": trial.number,
                **{key: trial.settings.get(key) for key in self.description.space.settings},
                "state": trial.state,
                **dict(zip(self.description.objectives, trial.values)),
                "step": trial.step,
            }
            for trial in self.trials
        ]

    def cells(self) -> Tuple[List[str], List[List[str]]]:
        """Returns titles and cells of the table of trials."""
        keys = self.description.space.settings
        titles = ["trial", *keys, "state", *self.description.objectives, "step", ""]
        rows = [
            [
                trial.path.name,
                *(shown_value(trial.settings.get(key, "")) for key in keys),
                trial.state,
                *("-" if value is None else format_value(value) for value in trial.values),
                str(trial.step or "-"),
                "<- best" if trial.is_best else trial.cause,
            ]
            for trial in self.trials
        ]
        return titles, rows

    def summary(self) -> str:
        """Returns the number of trials in each state, and the number of their steps."""
        counts: Dict[str, int] = {}
        for trial in self.trials:
            counts[trial.state] = counts.get(trial.state, 0) + 1
        steps = sum(trial.step for trial in self.trials)
        states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none has begun"
        total = self.description.settings.n_trials
        return f"{len(self.trials)} of {total} trials: {states}; {steps:,} steps in all"

    def reason_without_result(self) -> str:
        """Returns a sentence about a study of which no trial was trained to its end; empty if one was."""
        if any(trial.state == "finished" for trial in self.trials):
            return ""
        pruned = sum(trial.state == "pruned" for trial in self.trials)
        if not pruned:
            return "all trials failed"
        subject = f"all {pruned} trials were"
        if pruned < len(self.trials):
            subject = f"{len(self.trials) - pruned} of {len(self.trials)} trials failed, and the others were"
        return (
            f"{subject} pruned: no trial was trained to its end, so the study has no best one. n_trials=N adds trials; "
            "another study may have a larger min_epochs, or pruner=median"
        )

    def __str__(self) -> str:
        return f"{rows_text(*self.cells())}\n{self.summary()}"

    __repr__ = __str__


def train_study(
    folder: StudyFolder,
    description: StudyDescription,
    say: Callable[[str], object] = lambda line: None,
    display: Display = no_display,
) -> StudyResult:
    """Trains until no trial of a study is left, each in a process of its own.

    Args:
        folder: folder of the study.
        description: its description, which the folder may not change.
        say: receives a line about each trial and rung.
        display: opens the display of a rung.

    Raises:
        ConfigError: a library of the sampler is missing.
        StudyStopped: a trial failed because of wrong input.
        WorkerStopped: the process of a trial received a signal.
        KeyboardInterrupt: this process was told to end; the current run has saved.
    """
    require_sampler_libraries(description.settings.sampler)  # this worker may run on another machine
    worker = Worker(folder, description, say, display)
    worker.run()
    return read_result(folder, description, worker.study)


def resume_study(folder: StudyFolder, description: StudyDescription, settings: TuneSettings) -> StudyDescription:
    """Continues a stopped study, and increases its number of trials; returns its description.

    Raises:
        ConfigError: the requested number of trials is not possible.
    """
    study = Study(folder, description)
    if study.stop_cause:
        study.set_stop_cause("")
    total = settings.n_trials
    if total is None or total == description.settings.n_trials:
        return description
    if description.settings.sampler == "pbt":
        raise ConfigError(f"n_trials={total}: a population keeps its {description.settings.n_trials} members.")
    if description.settings.sampler == "grid" and total > len(description.space.grid()):
        raise ConfigError(
            f"n_trials={total}: the grid has {len(description.space.grid())} combinations. Leave n_trials out."
        )
    if total < len(study.trials):
        raise ConfigError(f"n_trials={total}: {len(study.trials)} trials have begun. Give at least that number.")
    return folder.set_n_trials(description, total)


def read_result(folder: StudyFolder, description: StudyDescription, study: Optional[Study] = None) -> StudyResult:
    """Reads the trials of a study.

    Args:
        folder: folder of the study.
        description: its description.
        study: the study, if it is open already.
    """
    study = study or Study(folder, description, writes=False)
    trials = by_value(study.trials, description.directions)
    best = best_numbers(study, description)
    return StudyResult(folder.path, description, [_trial(folder, description, one, best) for one in trials])


def _trial(folder: StudyFolder, description: StudyDescription, trial: Any, best: Sequence[int]) -> StudyTrial:
    path = folder.run_dir(run_of(trial))
    progress = read_progress(path)
    recorded = trial.user_attrs.get("values", trial.params)
    values = values_of(trial, len(description.objectives))
    if trial.state.name == "RUNNING":  # status.json of the run may be newer than the last rung
        values = progress.values(description, last=description.settings.sampler == "pbt") or values
    return StudyTrial(
        trial.number,
        path,
        state_of(folder, trial),
        {setting_of(key): value for key, value in recorded.items()},
        values,
        progress.step,
        str(trial.user_attrs.get("cause", "")),
        trial.number in best,
        description.space.active(trial.params),
    )


def run_of(trial: Any) -> str:
    """Returns the name of a trial's run directory; a member of a population has a new one for each checkpoint it took
    over."""
    return str(trial.user_attrs.get("run", trial.number))


def shown_value(value: object) -> str:
    """Returns a value as the table shows it; six digits tell a trial's rate from another's."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def state_of(folder: StudyFolder, trial: Any) -> str:
    """Returns the state of a trial, in a word."""
    if trial.state.name == "RUNNING":
        if folder.is_claimed(trial.number):
            return "running"
        return KILLED if read_run(str(folder.run_dir(run_of(trial)))).state == KILLED else "interrupted"
    return STATES[trial.state.name]


def values_of(trial: Any, count: int) -> List[Any]:
    """Returns the values of a trial's objectives: the results, or the value at the last rung of one that did not
    finish."""
    if trial.values:
        return list(trial.values)
    rungs = trial.intermediate_values
    return [rungs[max(rungs)] if rungs else None, *[None] * (count - 1)]


def by_value(trials: Sequence[Any], directions: Sequence[str]) -> List[Any]:
    """Sorts trials: finished ones by the first objective, best first, then pruned ones, then the rest."""
    order = {"COMPLETE": 0, "PRUNED": 1, "RUNNING": 2, "WAITING": 3, "FAIL": 4}
    sign = -1.0 if directions[0] == "max" else 1.0

    def key(trial: Any) -> Tuple[int, float, int]:
        value = values_of(trial, 1)[0]
        # NaN compares as False with everything, and would leave the others in any order.
        is_number = value is not None and value == value
        return order[trial.state.name], sign * value if is_number else float("inf"), trial.number

    return sorted(trials, key=key)


def best_numbers(study: Study, description: StudyDescription) -> List[int]:
    """Returns the number of the best trial, or the numbers of the Pareto front for several objectives."""
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not finished:
        return []
    if len(description.objectives) > 1:
        return [trial.number for trial in by_value(study.optuna.best_trials, description.directions)]
    return [by_value(finished, description.directions)[0].number]
