"""Population-based training: who takes over what, and how settings change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mxtrain.errors import ConfigError
from mxtrain.tuning.folder import StudyDescription
from mxtrain.tuning.population import check_population, members_at, mutate, next_rung
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings

LR = TunedSetting("optimizer.lr", "float", low=1e-4, high=1e-1, log=True)
FIRST = [{"optimizer.lr": 1e-3 * (number + 1)} for number in range(8)]


def describe(direction: str = "max", seed: int = 0, min_epochs: int = 2) -> StudyDescription:
    settings = TuneSettings(sampler="pbt", n_trials=8, seed=seed, min_epochs=min_epochs)
    return StudyDescription("x", [], [], "/", settings, Space([LR]), ["val/accuracy"], [direction], 6)


def test_the_worst_quarter_takes_over_from_the_best_and_changes_its_settings() -> None:
    values = [0.5, 0.9, 0.1, math.nan, 0.6, 0.8, 0.4, 0.7]
    reported = [{2: value} for value in values]
    members = members_at(describe(), FIRST, reported, 1)
    assert [member.number for member in members if member.source is not None] == [2, 3]  # 0.1, and no number
    for member in members:
        if member.source is None:
            assert (member.run, member.values) == (str(member.number), FIRST[member.number])
        else:
            assert member.source in (1, 5) and member.run == f"{member.number}.2"
            factor = member.values["optimizer.lr"] / FIRST[member.source]["optimizer.lr"]
            assert factor == pytest.approx(0.8) or factor == pytest.approx(1.25)
    assert members_at(describe(), FIRST, reported, 1) == members  # whoever asks
    best_of_least = {one.source for one in members_at(describe("min"), FIRST, reported, 1) if one.source is not None}
    assert best_of_least <= {2, 6}


def test_values_are_handed_on_over_rungs() -> None:
    reported = [{2: float(number), 4: float(-number)} for number in range(8)]
    second = members_at(describe(), FIRST, reported, 2)
    after_first = members_at(describe(), FIRST, reported, 1)
    for member in second:
        if member.number in (6, 7):
            assert member.run == f"{member.number}.4" and member.source in (0, 1)
            # Its source had itself taken over a checkpoint before.
            assert after_first[member.source].run == f"{member.source}.2"
            assert member.values != after_first[member.source].values
        else:
            assert member.source is None and member.values == after_first[member.number].values
    assert next_rung(describe(), [{2: 0.1}, {}, {2: 0.1, 4: 0.3}]) == {0: 1, 1: 0, 2: 2}
    assert describe().budget(2) is None and describe().budget(1) == 4


def test_settings_stay_in_their_range() -> None:
    space = Space(
        [
            LR,
            TunedSetting("optimizer.a", "int", low=1, high=3),
            TunedSetting("loss.b", "choice", ("x", "y")),
            TunedSetting("loss.c", "float", low=0, high=1, step=0.25),
        ]
    )
    values = {"optimizer.lr": 0.09, "optimizer.a": 2, "loss.b": "x", "loss.c": 0.0}
    found = [mutate(space, values, np.random.RandomState(seed)) for seed in range(60)]
    assert {round(one["optimizer.lr"], 6) for one in found} == {0.072, 0.1}
    assert {one["optimizer.a"] for one in found} == {1, 3} and {one["loss.c"] for one in found} == {0.0, 0.25}
    drawn = sum(one["loss.b"] == "y" for one in found)
    assert 1 <= drawn <= 20


def test_settings_fixed_during_training_are_refused() -> None:
    with pytest.raises(ConfigError, match="model.hidden cannot change while a network is trained"):
        check_population(TuneSettings(sampler="pbt"), Space([TunedSetting("model.hidden", "choice", ("[8]",))]))
    with pytest.raises(ConfigError, match="at least 4 members"):
        check_population(TuneSettings(sampler="pbt", n_trials=3), Space([LR]))
