#!/usr/bin/env bash
# optuna 4.5.0
# Guess: a trial that is alone in its study is not pruned by a pruner that compares trials, whatever it reports.
# What happened: SuccessiveHalvingPruner, which lets the only trial go on with any number, prunes it at the first NaN.
# MedianPruner, PercentilePruner and PatientPruner let it go on for ever. So a loss of NaN ends all trials of a search,
# or none, by the pruner.
# Source: optuna/pruners/_successive_halving.py, prune. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optuna==4.5.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import math

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
pruners = {
    "SuccessiveHalving": optuna.pruners.SuccessiveHalvingPruner(min_resource=1),
    "Median": optuna.pruners.MedianPruner(n_startup_trials=0),
    "Percentile": optuna.pruners.PercentilePruner(50, n_startup_trials=0),
    "Patient": optuna.pruners.PatientPruner(None, patience=1),
}
print(f"optuna {optuna.__version__}: should_prune of the only trial of a study that reports 1, 1, 1 and NaN, NaN, NaN")
found = {}
for name, pruner in pruners.items():
    answers = []
    for value in (1, math.nan):
        trial = optuna.create_study(study_name="a", pruner=pruner).ask()
        for step in (1, 2, 3):
            trial.report(value, step)
            answers.append(trial.should_prune())
    found[name] = answers
    print(f"  {name:18} {answers[:3]} {answers[3:]}")
assert all(not any(answers[:3]) for answers in found.values())
assert [name for name, answers in found.items() if all(answers[3:])] == ["SuccessiveHalving"]
PYTHON
