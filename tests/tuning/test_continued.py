"""Numbers of trials of continued studies, and lengths that all trials share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

pytest.importorskip("optuna", minversion="4")

from mxtrain.cluster.launch.study import describe_study, refuse_unknown_length
from mxtrain.composing.composer import Composer
from mxtrain.errors import ConfigError
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.workflows.tune import resume_study

MODEL = TunedSetting("model", "choice", ("mlp", "lenet"))


class Folder:
    """A folder that notes the number of trials."""

    def set_n_trials(self, description: Any, total: int) -> Any:
        return SimpleNamespace(before=description, total=total)


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Causes of stops that are set for a study with 5 trials; it has been stopped."""
    found: List[str] = []
    study = SimpleNamespace(stop_cause="wrong input", set_stop_cause=found.append, trials=range(5))
    monkeypatch.setattr("mxtrain.workflows.tune.Study", lambda folder, description: study)
    return found


@pytest.mark.parametrize(
    "sampler, total, expected",
    [
        ("random", None, None),
        ("random", 8, None),
        ("random", 5, 5),
        ("random", 9, 9),
        ("grid", 2, "5 trials have begun"),
        ("random", 4, "5 trials have begun. Give at least that number"),
        ("pbt", 9, "a population keeps its 8 members"),
        ("pbt", 8, None),
        ("grid", 9, "the grid has 2 combinations"),
    ],
)
def test_number_of_trials_of_a_continued_study(causes: List[str], sampler: Any, total: Any, expected: Any) -> None:
    folder: Any = Folder()
    description: Any = SimpleNamespace(settings=TuneSettings(n_trials=8, sampler=sampler), space=Space([MODEL]))
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            resume_study(folder, description, TuneSettings(n_trials=total))
    else:
        found: Any = resume_study(folder, description, TuneSettings(n_trials=total))
        assert found is description if expected is None else (found.before, found.total) == (description, expected)
    assert causes == [""]  # it goes on


def trainer(**changes: Any) -> Any:
    values = {"max_epochs": 9, "max_steps": None, "val_interval": 1, "val_interval_unit": "epochs", **changes}
    return SimpleNamespace(trainer=SimpleNamespace(**values))


@pytest.mark.parametrize(
    "settings, changes, said",
    [
        (
            {"pruner": "asha"},
            {"val_interval": 9},
            "min_epochs=9: the first rung must be shorter than trainer.max_epochs=9",
        ),
        ({"pruner": "asha"}, {"val_interval": 8}, ""),
        ({"pruner": "asha", "min_epochs": 9}, {}, "min_epochs=9: the first"),
        ({"pruner": "asha", "min_steps": 9}, {}, ""),
        ({"pruner": "none"}, {"val_interval": 9}, ""),
        ({"sampler": "pbt"}, {"max_epochs": None}, "sampler=pbt: the rungs are parts of trainer.max_epochs"),
        ({"pruner": "median"}, {"max_steps": 5}, "trainer.max_steps=5: with pruner=median the whole length"),
    ],
)
def test_lengths_of_trials(settings: Any, changes: Any, said: str) -> None:
    if said:
        with pytest.raises(ConfigError, match=said):
            refuse_unknown_length(TuneSettings(**settings), trainer(**changes), Space([MODEL]))
    else:
        refuse_unknown_length(TuneSettings(**settings), trainer(**changes), Space([MODEL]))


@pytest.mark.parametrize(
    "name",
    [
        "trainer.max_epochs",
        "trainer.max_steps",
        "trainer.val_interval",
        "trainer.val_interval_unit",
    ],
)
@pytest.mark.parametrize("ending", ["", "#2"])
def test_lengths_have_one_value(name: str, ending: str) -> None:
    space = Space([TunedSetting(f"{name}{ending}", "int", low=1, high=3)])
    with pytest.raises(ConfigError, match=f"^{name}: with pruner=asha all trials have the same length"):
        refuse_unknown_length(TuneSettings(pruner="asha"), trainer(), space)
    refuse_unknown_length(TuneSettings(), trainer(), space)


@pytest.mark.slow
def test_a_description_has_the_interval_of_validations() -> None:
    words = ["model=mlp", "optimizer.lr=log(1e-3,1e-1)", "trainer.max_epochs=9", "trainer.val_interval=2"]
    with Composer() as composer:
        found = describe_study(composer, TuneSettings(pruner="asha"), words, [])
        assert found.val_interval == 2 and [found.budget(rung) for rung in range(3)] == [2, 6, None]
        assert describe_study(composer, TuneSettings(pruner="asha", min_steps=9), words, []).val_interval == 1
