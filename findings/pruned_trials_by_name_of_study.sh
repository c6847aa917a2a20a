#!/usr/bin/env bash
# optuna 4.5.0
# Guess: two studies with the same seeded sampler, pruner and objective prune the same trials.
# What happened: HyperbandPruner draws the bracket of a trial from a hash of the name of the study and its number, and a
# study without a name gets a random one. So the same search prunes other trials each time; it repeats only with a
# study_name.
# Source: optuna/pruners/_hyperband.py, _get_bracket_id (crc32). Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q optuna==4.5.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(9):
        trial.report(x + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def pruned(name, pruner):
    """Returns one letter for each trial: C (complete) or P (pruned), and the parameters of the trials."""
    study = optuna.create_study(study_name=name, sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=40)
    return "".join(trial.state.name[0] for trial in study.trials), [trial.params for trial in study.trials]


def hyperband(name):
    """Returns the same with Hyperband."""
    return pruned(name, optuna.pruners.HyperbandPruner(1, 9, 3))


median = [pruned(None, optuna.pruners.MedianPruner()) for _ in range(2)]
named, unnamed = [hyperband("a"), hyperband("a")], [hyperband(None), hyperband(None), hyperband("b")]
print(f"optuna {optuna.__version__}: trials of the same seed, C complete, P pruned")
for name, (letters, _) in [
    ("name a", named[0]),
    ("name a", named[1]),
    ("no name", unnamed[0]),
    ("no name", unnamed[1]),
    ("name b", unnamed[2]),
]:
    print(f"  Hyperband, {name:8} {letters}")
assert median[0] == median[1] and named[0] == named[1]
assert all(params == named[0][1] for _, params in unnamed) and len({letters for letters, _ in [*named, *unnamed]}) > 2
PYTHON
