"""The table of a study, its best trial, and the commands to go on with."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any, Dict, List, Sequence, Tuple

from mxtrain.archive.registry import KILLED, read_run
from mxtrain.config.override_text import code_arguments
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program, tensorboard
from mxtrain.terminal.report import format_value, print_commands
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.space import Values, override_words, setting_of
from mxtrain.tuning.trials import Study, read_progress

STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "waiting"}
MAX_CAUSE = 60
"""Characters of a cause on a terminal; elsewhere the whole cause is printed."""


def print_study(folder: StudyFolder, description: StudyDescription, study: Study) -> None:
    """Prints all trials, best first, and commands to evaluate and retrain the best one and to compare all."""
    trials = by_value(study.trials, description.directions)
    best = best_numbers(study, description)
    keys = description.space.settings
    rows: List[List[str]] = []
    for trial in trials:
        progress = read_progress(folder.run_dir(run_of(trial)))
        recorded = trial.user_attrs.get("values", trial.params)
        trial_values = {setting_of(key): value for key, value in recorded.items()}
        values = values_of(trial, len(description.objectives))
        if trial.state.name == "RUNNING":  # its run may know more than the last rung
            values = progress.values(description, last=description.settings.sampler == "pbt") or values
        note = "<- best" if trial.number in best else str(trial.user_attrs.get("cause", ""))
        rows.append(
            [
                run_of(trial),
                *(shown_value(trial_values.get(key, "")) for key in keys),
                state_of(folder, trial),
                *(format_value(value) if value is not None else "-" for value in values),
                str(progress.step or "-"),
                note,
            ]
        )
    console = open_console(sys.stdout)
    if console.is_terminal:
        rows = [[*row[:-1], row[-1][:MAX_CAUSE]] for row in rows]
    console.print()
    styles = {number: BEST for number, trial in enumerate(trials) if trial.number in best}
    print_rows(["trial", *keys, "state", *description.objectives, "step", ""], rows, styles)
    console.print(summary(trials, description, folder), soft_wrap=True, highlight=False)
    print_commands(console, next_steps(folder, description, trials, best))
    sys.stdout.flush()


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


def summary(trials: Sequence[Any], description: StudyDescription, folder: StudyFolder) -> str:
    """Returns the number of trials in each state, and the number of their steps."""
    counts: Dict[str, int] = {}
    steps = 0
    for trial in trials:
        state = state_of(folder, trial)
        counts[state] = counts.get(state, 0) + 1
        steps += read_progress(folder.run_dir(run_of(trial))).step
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none has begun"
    return f"{len(trials)} of {description.settings.n_trials} trials: {states}; {steps:,} steps in all"


def next_steps(
    folder: StudyFolder, description: StudyDescription, trials: Sequence[Any], best: Sequence[int]
) -> List[Tuple[str, str]]:
    """Returns the commands that a user may want next, as pairs of a purpose and a command."""
    steps: List[Tuple[str, str]] = []
    place = shlex.quote(os.path.relpath(folder.path))
    if any(not trial.state.is_finished() for trial in trials) or len(trials) < (description.settings.n_trials or 0):
        steps.append(("a further worker, here or on a machine with this folder", f"{program()} tune worker {place}"))
    if best:
        trial = trials_by_number(trials)[best[0]]
        values: Values = description.space.active(trial.params)
        words = [*description.flags, *description.overrides, *override_words(values)]
        own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(words))
        run_dir = os.path.join(os.path.relpath(folder.path), run_of(trial))
        steps.append(("evaluate the best", f"{program()} eval {shlex.quote(run_dir)}{own_code}"))
        if description.settings.sampler != "pbt":  # whose weights come from several runs
            steps.append(("train the best again", " ".join([program(), *map(shlex.quote, words)])))
    if any(folder.path.glob("*/events.out.tfevents.*")):
        steps.append(("compare", f"{tensorboard()} --logdir {place}"))
    return steps


def trials_by_number(trials: Sequence[Any]) -> Dict[int, Any]:
    """Returns the trials by their numbers."""
    return {trial.number: trial for trial in trials}
