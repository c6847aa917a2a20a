"""Pruning of trials: none is pruned before its first validation, and the seed determines the brackets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional

import pytest

pytest.importorskip("optuna", minversion="4")

from scripted_worker import ScriptedWorker, describe_study, end_of_rung

from mxtrain.cluster.launch.study import val_interval_of
from mxtrain.errors import ConfigError
from mxtrain.tuning import population
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.samplers import draw
from mxtrain.tuning.space import Space, TunedSetting, overrides_of_trial
from mxtrain.tuning.spec import TuneSettings, rung_budget
from mxtrain.tuning.trials import Study, build_pruner, recorded_values
from mxtrain.workflows.tune import StudyResult


@pytest.mark.parametrize(
    "val_interval, given, expected",
    [
        (2, {"pruner": "asha"}, [2, 6, None]),
        (2, {"pruner": "asha", "min_epochs": 3}, [4, None]),
        (2, {"pruner": "median"}, [2, 4, 6, 8, None]),
        (4, {"pruner": "hyperband", "reduction": 2}, [4, 8, None]),
        (3, {"sampler": "pbt"}, [3, 6, None]),
        (1, {"pruner": "asha"}, [1, 3, None]),
        (9, {"pruner": "asha"}, [None]),
    ],
)
def test_rungs_end_at_validations(val_interval: int, given: Any, expected: List[Optional[int]]) -> None:
    settings = TuneSettings(**given)
    assert [rung_budget(settings, 9, rung, val_interval) for rung in range(len(expected))] == expected


@pytest.mark.parametrize(
    "unit, min_steps, expected",
    [
        ("epochs", None, 5),
        ("steps", None, 1),
        ("epochs", 10, 1),
        ("steps", 10, 5),
    ],
)
def test_the_interval_counts_in_the_unit_of_the_rungs(unit: str, min_steps: Optional[int], expected: int) -> None:
    trainer = SimpleNamespace(val_interval=5, val_interval_unit=unit)
    description: Any = SimpleNamespace(trainer=trainer)
    assert val_interval_of(TuneSettings(min_steps=min_steps), description) == expected


@pytest.mark.parametrize("value, budgets", [(None, [1, 2, 4, None]), (math.nan, [1, 2, 4, None]), (0.1, [1])])
def test_a_trial_without_a_value_is_not_pruned(
    value: Optional[float], budgets: List[Optional[int]], tmp_path: Path
) -> None:
    """Trial 0 reaches 0.9 in each rung. Optuna would prune NaN."""
    description = describe_study(2, pruner="asha", min_epochs=1, reduction=2)
    made = ScriptedWorker(tmp_path, description, lambda number, budget: end_of_rung(budget, value if number else 0.9))
    made.run()
    assert [budget for number, budget in made.trained if number == 1] == budgets
    _, judged = made.study.trials
    assert judged.state.name == ("PRUNED" if budgets == [1] else "FAIL")
    assert judged.intermediate_values == ({1: 0.1} if budgets == [1] else {})


@pytest.mark.parametrize("strategy, expected", [({"pruner": "asha"}, 0.75), ({"sampler": "pbt"}, 0.5)])
def test_a_rung_reports_the_best_value_and_a_population_the_last(
    strategy: Any, expected: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(population, "take_over", lambda folder, members, before: None)
    description = describe_study(4, min_epochs=3, **strategy)
    made = ScriptedWorker(tmp_path, description, lambda number, budget: end_of_rung(budget, 0.75, last=0.5))
    made.run()
    assert [trial.intermediate_values[3] for trial in made.study.trials] == [expected] * 4


@pytest.mark.parametrize(
    "states, said",
    [
        (["failed", "failed"], "all trials failed"),
        (["pruned"] * 5, "all 5 trials were pruned"),
        (["pruned", "failed", "failed"], "2 of 3 trials failed, and the others were pruned"),
        (["pruned", "finished"], ""),
    ],
)
def test_a_study_without_a_finished_trial_has_a_reason(states: List[str], said: str) -> None:
    trials: Any = [SimpleNamespace(state=state) for state in states]
    description: Any = None
    reason = StudyResult(Path(), description, trials).reason_without_result()
    assert reason.startswith(said) and bool(reason) == bool(said)


def brackets(seed: int) -> List[int]:
    import optuna

    pruner: Any = build_pruner(TuneSettings(pruner="hyperband", seed=seed), 27)
    study = optuna.create_study(pruner=pruner)  # its name is random
    trial = study.ask()
    trial.report(0.5, 1)
    trial.should_prune()
    return [pruner._get_bracket_id(study, SimpleNamespace(number=number)) for number in range(40)]


def test_hyperband_draws_brackets_by_the_seed() -> None:
    assert brackets(5) == brackets(5) != brackets(6)
    assert set(brackets(5)) == {0, 1, 2}


# A setting whose range depends on another one.

CHOICE = TunedSetting("model", "choice", ("mlp", "lenet"))
MLP = TunedSetting("optimizer.lr", "float", low=1e-4, high=1e-2, log=True, when={"model": ("mlp",)})
LENET = TunedSetting("optimizer.lr#2", "float", low=1e-3, high=1e-1, log=True, when={"model": ("lenet",)})


def description_of(space: Space, tmp_path: Path) -> StudyDescription:
    settings = TuneSettings(n_trials=8, sampler="random")
    return StudyDescription("s", [], [], str(tmp_path), settings, space, ["val/loss"], ["min"], 3)


def test_a_setting_may_have_a_range_for_each_value_of_another(tmp_path: Path) -> None:
    space = Space([MLP, LENET, CHOICE])
    assert space.settings == ["model", "optimizer.lr"]
    words = sorted(tuple(overrides_of_trial(values)) for values in space.edges())
    assert words == [
        ("model=lenet", "optimizer.lr=0.001"),
        ("model=lenet", "optimizer.lr=0.1"),
        ("model=mlp", "optimizer.lr=0.0001"),
        ("model=mlp", "optimizer.lr=0.01"),
    ]
    assert Space.from_json(json.loads(json.dumps(space.to_json()))).parameters == space.parameters
    study = Study(StudyFolder(tmp_path), description_of(space, tmp_path))
    lows = {"mlp": 1e-4, "lenet": 1e-3}
    seen = set()
    for _ in range(12):
        values = draw(study.ask(), space)
        seen.add(values["model"])
        (rate,) = (float(value) for key, value in values.items() if key != "model")
        low = lows[str(values["model"])]
        assert low <= rate <= 100 * low and len(overrides_of_trial(values)) == 2
    assert seen == {"mlp", "lenet"}


def test_run_of_a_trial_identifies_its_range(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"argv": ["mxtrain", "train", "model=lenet", "optimizer.lr=0.05"]}')
    assert recorded_values(tmp_path, Space([MLP, LENET, CHOICE])) == {"model": "lenet", "optimizer.lr#2": 0.05}


@pytest.mark.parametrize(
    "second",
    [
        TunedSetting("optimizer.lr#2", "float", low=1, high=2),
        TunedSetting("optimizer.lr#2", "float", low=1, high=2, when={"model": ("lenet", "mlp")}),
    ],
)
def test_ranges_of_one_setting_exclude_each_other(second: TunedSetting) -> None:
    with pytest.raises(ConfigError, match="optimizer.lr: .* can exist at once"):
        Space([MLP, second, CHOICE])


def test_a_file_lists_ranges_of_one_setting(tmp_path: Path) -> None:
    from mxtrain.composing.composer import Composer
    from mxtrain.composing.ranges import split_space

    file = tmp_path / "space.yaml"
    file.write_text(
        "model: [mlp, lenet]\noptimizer.lr:\n"
        "  - {values: 'log(1e-4,1e-2)', when: {model: mlp}}\n  - {values: 'log(1e-3,1e-1)', when: {model: lenet}}\n"
        "model.dropout: [0.1, 0.2]\n"
    )
    with Composer() as composer:
        space = split_space(composer, [], str(file))[1]
        assert [one for one in space.parameters if one.key.startswith("optimizer")] == [MLP, LENET]
        with pytest.raises(ConfigError, match="optimizer.lr: it has both a value and a range"):
            split_space(composer, ["optimizer.lr=1"], str(file))
        file.write_text("optimizer.lr:\n  - {values: 'log(1,2)', when: {model: mlp}}\n  - log(2,3)\n")
        with pytest.raises(ConfigError, match=r"optimizer.lr has several ranges, and log\(2,3\) does not say when"):
            split_space(composer, [], str(file))
