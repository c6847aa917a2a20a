"""`mxtrain.tune`: a study from Python, with its trials and the best run."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import pytest

pytest.importorskip("optuna", minversion="4")

import mxtrain
from mxtrain.cli import main
from mxtrain.errors import ConfigError
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.workflows.tune import StudyResult, StudyTrial, by_value

SMALL = ("debug=fast", "model=mlp", "model.hidden=[8]", "optimizer.lr=choice(0.001,0.05)")


def trial(number: int, state: str = "finished", value: Any = 0.5, best: bool = False) -> StudyTrial:
    return StudyTrial(number, Path(f"s/{number}"), state, {"optimizer.lr": 0.1}, [value], 7, "", best, {})


def result(*trials: StudyTrial, n_trials: int = 2) -> StudyResult:
    description: Any = SimpleNamespace(
        space=Space([TunedSetting("optimizer.lr", "choice", (0.1, 0.2))]),
        objectives=["val/accuracy"],
        settings=TuneSettings(n_trials=n_trials),
    )
    return StudyResult(Path("s"), description, trials)


def test_the_best_trial_and_the_table() -> None:
    found = result(trial(1, value=0.75, best=True), trial(0, "pruned", value=None))
    assert found.best_trial is found.trials[0] and found.best_run == Path("s/1") and found.is_complete
    assert found.rows()[1] == {
        "trial": 0,
        "optimizer.lr": 0.1,
        "state": "pruned",
        "val/accuracy": None,
        "step": 7,
    }
    titles, first, second, summary = str(found).splitlines()
    assert titles.split() == ["trial", "optimizer.lr", "state", "val/accuracy", "step"]
    assert first.split() == ["1", "0.1", "finished", "0.7500", "7", "<-", "best"] and second.split()[3] == "-"
    assert summary == "2 of 2 trials: 1 finished, 1 pruned; 14 steps in all" and repr(found) == str(found)


@pytest.mark.parametrize(
    "states, expected", [(["finished"], False), (["finished", "running"], False), (["failed"] * 3, True)]
)
def test_a_study_is_complete_when_all_trials_have_ended(states: List[str], expected: bool) -> None:
    assert result(*[trial(number, state) for number, state in enumerate(states)]).is_complete is expected


@pytest.mark.parametrize("direction, expected", [("max", [3, 1, 2, 5, 4, 6, 7, 8]), ("min", [1, 3, 2, 4, 5, 6, 7, 8])])
def test_trials_are_listed_by_state_and_value(direction: str, expected: List[int]) -> None:
    def optuna_trial(number: int, state: str, *values: float, rungs: Any = ()) -> Any:
        return SimpleNamespace(
            number=number, state=SimpleNamespace(name=state), values=values, intermediate_values=dict(rungs)
        )

    trials = [
        optuna_trial(8, "FAIL", 0.9),
        optuna_trial(7, "WAITING"),
        optuna_trial(6, "RUNNING", rungs={2: 0.9}),
        optuna_trial(5, "PRUNED", rungs={2: 0.9, 4: 0.2}),
        optuna_trial(4, "PRUNED", rungs={2: 0.1}),
        optuna_trial(3, "COMPLETE", 0.9, 0.1),
        optuna_trial(2, "COMPLETE", math.nan),
        optuna_trial(1, "COMPLETE", 0.5, 0.7),
    ]
    assert [one.number for one in by_value(trials, [direction])] == expected


def test_a_study_without_trials_has_no_best_one() -> None:
    assert result().best_run is None and result().best_trial is None and "none has begun" in str(result())


@pytest.mark.parametrize(
    "words, settings, said",
    [
        ((), {"n_trials": 0}, "tune.n_trials=0: should be greater than 0"),
        ((), {"smapler": "tpe"}, "Did you mean 'tune.sampler'?"),
        (("model=mlp",), {}, "nothing differs between the trials"),
        (("optimizer.lr=log(1e-3,1e-1)", "hydra.run.dir=a"), {}, "each trial has its own"),
        pytest.param(("optimizer.lr=log(1e-3,1e-1)", "modle=mlp"), {}, "Did you mean 'model'?", marks=pytest.mark.slow),
    ],
)
def test_invalid_studies_are_refused(words: Any, settings: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        mxtrain.tune(tmp_path / "study", *words, **settings)
    assert said in str(error.value) and not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_study_is_trained_and_continued(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines: List[str] = []
    found = mxtrain.tune(tmp_path / "study", *SMALL, n_trials=2, sampler="grid", report=lines.append)
    assert capfd.readouterr().out == "" and lines[0].startswith("trial 0 (1 of 2): optimizer.lr=")
    assert [one.state for one in found.trials] == ["finished", "finished"] and found.is_complete
    assert {one.settings["optimizer.lr"] for one in found.trials} == {"0.001", "0.05"}
    (first,), (second,) = (one.values for one in found.trials)
    assert first is not None and second is not None and first >= second and found.trials[0].is_best
    assert mxtrain.load(found.best_run).best["value"] == pytest.approx(first)
    again = mxtrain.tune(tmp_path / "study")
    assert again.rows() == found.rows() and found.frame()["val/accuracy"][0] == first
    with pytest.raises(ConfigError, match="only n_trials may change"):
        mxtrain.tune(tmp_path / "study", sampler="random")
    assert main(["tune", "show", str(tmp_path / "study")]) == 0
    printed = capfd.readouterr().out
    assert all(line.rstrip() in printed for line in str(found).splitlines())
