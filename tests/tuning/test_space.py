"""Search spaces: what is read from the command line and from YAML, conditions, grids and edges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Iterator

import pytest

from mxtrain.composing.composer import Composer
from mxtrain.composing.ranges import long_form, split_space
from mxtrain.errors import ConfigError
from mxtrain.tuning.space import Space, TunedSetting, overrides_of_trial
from mxtrain.tuning.spec import TuneSettings, budget_text, rung_budget


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with Composer() as made:
        yield made


def space_of(composer: Composer, *overrides: str, file: str = "") -> Space:
    return split_space(composer, overrides, file)[1]


@pytest.mark.parametrize(
    "text, kind, low, high, step, log",
    [
        ("a=interval(0,0.5)", "float", 0.0, 0.5, None, False),
        ("a=log(1e-4,1e-1)", "float", 1e-4, 1e-1, None, True),
        ("a=tag(log,interval(1e-4,1e-1))", "float", 1e-4, 1e-1, None, True),
        ("a=int(1,8)", "int", 1, 8, None, False),
        ("a=int(interval(1,8))", "int", 1, 8, None, False),
        ("a=log_int(8,512)", "int", 8, 512, None, True),
        ("a=range(1,9,2)", "int", 1, 7, 2, False),  # as -m: the end is not in it
        ("a=range(0.1,0.6,0.1)", "float", 0.1, 0.5, 0.1, False),
    ],
)
def test_ranges(composer, text, kind, low, high, step, log) -> None:
    (found,) = space_of(composer, text).parameters
    assert (found.key, found.kind, found.low, found.high, found.step, found.log) == ("a", kind, low, high, step, log)


@pytest.mark.parametrize(
    "text, choices",
    [
        ("model=mlp,lenet", ("mlp", "lenet")),
        ("model=choice(mlp,lenet)", ("mlp", "lenet")),
        ("model.hidden=choice([64],[128,64])", ("[64]", "[128,64]")),
        ("a='x,y',z", ("'x,y'", "z")),
        ("optimizer.lr=choice(1e-3,0.1)", ("0.001", "0.1")),
    ],
)
def test_choices_are_typed_again_as_they_were(composer, text, choices) -> None:
    (found,) = space_of(composer, text).parameters
    assert (found.kind, found.choices) == ("choice", choices)
    assert composer.parse(overrides_of_trial({found.key: found.choices[0]}))[0].is_sweep_override() is False


def test_long_ranges_are_not_listed(composer) -> None:
    """A range of seeds has 2^31 values."""
    for text in ("a=int(0,2147483647)", "a=range(0,2147483648)"):
        space = space_of(composer, text)
        assert space.edges() == [{"a": 0}, {"a": 2147483647}] and space.parameters[0].points() == ()
        with pytest.raises(ConfigError, match="a range of numbers, or of more than 100,000"):
            space.grid()
    assert len(space_of(composer, "a=int(1,100000)").grid()) == 100_000
    assert space_of(composer, "a=int(0,100000)").parameters[0].points() == ()
    assert len(space_of(composer, "a=range(0,1,1e-5)").parameters[0].points()) == 100_000
    with pytest.raises(ConfigError, match="a=range.0,1,0.9e-5.: it has more than 100,000 numbers"):
        space_of(composer, "a=range(0,1,0.9e-5)")
    with pytest.raises(ConfigError, match="the ranges have 120,000 combinations, and a grid has at most 100,000"):
        space_of(composer, "a=int(1,300)", "b=int(1,400)").grid()


@pytest.mark.parametrize("text", ["a=range(0,1,0)", "a=range(0.0,1.0,0.0)"])
def test_a_step_of_0_is_refused(composer, text: str) -> None:
    with pytest.raises(ConfigError, match="is the step, and must not be 0"):
        space_of(composer, text)


def test_descending_ranges_are_read(composer) -> None:
    (found,) = space_of(composer, "a=range(9,1,-2)").parameters
    assert (found.low, found.high, found.step) == (3, 9, 2)


def test_other_overrides_are_the_same_for_all_trials(composer) -> None:
    fixed, space = split_space(composer, ["trainer.seed=3", "optimizer.lr=log(1e-3,1)", "model=mlp"])
    assert fixed == ["trainer.seed=3", "model=mlp"] and [one.key for one in space.parameters] == ["optimizer.lr"]
    assert long_form("a=logical(1,2)") == "a=logical(1,2)" and long_form("a=[log]") == "a=[log]"


@pytest.mark.parametrize(
    "typed, said",
    [
        (["a=log(0,1)"], "a: a logarithmic range begins above 0"),
        (["a=interval(2,1)"], "a: 2 is above 1"),
        (["a=1", "a=interval(0,1)"], "a: it has both a value and a range"),
        (["a=glob(x*)"], "a study takes choice"),
        (["a=lgo(1e-4,1)"], "there is no range 'lgo'. Did you mean 'log'?"),
        (["a=intervall(0,1)"], "Did you mean 'interval'?"),
        (["a=logint(1,8)"], "Did you mean 'log_int'?"),
        (["a=log(1e-4)"], "a=log(1e-4): log takes two numbers"),
        (["a=log(1e-4;1e-1)"], "log takes two numbers"),
        (["a=log(x,1)"], "log takes two numbers"),
        (["a=interval(1)"], "interval takes two numbers"),
        (["a=int(1,2,3)"], "int takes two numbers with a comma between them, the smallest and the largest: int(1,8)"),
        (["a=tag(lin,interval(0,1))"], "the tag lin is not known"),
        (["a=1,2", "a=2,3"], "a: the space names it twice"),
    ],
)
def test_invalid_ranges_are_refused(composer, typed, said) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        space_of(composer, *typed)


@pytest.mark.parametrize("typed", ["a=log(1e-4,1e-1)", "a=log_int(1,8)", "a=log(1;2)"])
def test_a_range_outside_of_tune_leads_to_it(composer, typed: str) -> None:
    said = f"ranges belong to `tune`, which chooses the values: mxtrain tune STUDY '{typed}'"
    with pytest.raises(ConfigError, match=re.escape(said)):
        composer.parse([typed])


def test_other_calls_are_left_to_hydra(composer) -> None:
    for typed in ("a=int(3)", "a=float(3)", "a=shuffle(1,2)", "a=sort(2,1)", "a=str(1)", "a='lgo(1,2)'"):
        fixed, space = split_space(composer, [typed, "b=1,2"])
        assert [typed] == fixed or typed.startswith(("a=shuffle", "a=sort")), fixed
        assert "b" in [one.key for one in space.parameters]


CONDITIONAL = """
model.hidden: {values: 'choice([32],[64])', when: {model: mlp}}
model: [mlp, lenet]
optimizer: [sgd, adam]
optimizer.momentum: {values: 'interval(0,0.9)', when: {optimizer: sgd, model: [mlp, lenet]}}
amp: ['off', bfloat16]
trainer.test: [true, false]
"""


def test_conditional_settings_of_a_file(composer, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(CONDITIONAL)
    space = space_of(composer, "optimizer.lr=log(1e-3,1)", file=str(file))
    keys = [one.key for one in space.parameters]
    assert keys.index("model") < keys.index("model.hidden") and len(keys) == 7
    values = {"model": "lenet", "model.hidden": "[32]", "optimizer": "sgd", "optimizer.momentum": 0.5, "amp": "off"}
    assert space.active(values) == {key: values[key] for key in ("model", "optimizer", "optimizer.momentum", "amp")}
    assert next(one for one in space.parameters if one.key == "trainer.test").choices == ("true", "false")
    edges = space.edges()
    assert all("model.hidden" not in one for one in edges if one["model"] == "lenet")
    assert {one["model.hidden"] for one in edges if "model.hidden" in one} == {"[32]", "[64]"}
    assert {one["optimizer.momentum"] for one in edges if "optimizer.momentum" in one} == {0, 0.9}
    assert {one["optimizer.lr"] for one in edges} == {1e-3, 1}
    assert json.loads(json.dumps(Space.from_json(json.loads(json.dumps(space.to_json()))).to_json())) == json.loads(
        json.dumps(space.to_json())
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("a: {values: 'interval(0,1)', when: {b: 1}}", "its condition is about b, which is not in the space"),
        (
            "a: {values: 'interval(0,1)', when: {model: ml}}\nmodel: [mlp, lenet]",
            "model=ml, which is never tried. Did you mean 'mlp'",
        ),
        ("a: {values: [1, 2], when: {b: 1}}\nb: {values: [1, 2], when: {a: 1}}", "depend on each other in a circle"),
        ("a: {value: 'interval(0,1)'}", "a.value is not known. Did you mean 'values'"),
        ("a: lgo(1,2)", "space.yaml: a=lgo(1,2): there is no range 'lgo'. Did you mean 'log'"),
        ("optimizer:\n  lr: log(1,2)", "write the whole name of a setting in one line, `optimizer.lr: ...`"),
        ("a: log(1,2)\nb: [1,\nc: 3", "it cannot be read: line 3: "),
        ("a: log(1)", "log takes two numbers"),
        ("a: 3", "a=3 is no range"),
        ("- a", "it should hold lines"),
        ("a: [", "cannot be read"),
        ("a: {values: log(1e-3,1)}", "Put it in quotes"),
        ("a: {values: 'log(1e-3,1)', when: 3}", "a.when=3 should be"),
    ],
)
def test_mistakes_in_a_file_are_named(composer, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        space_of(composer, file=str(file))
    assert said in str(error.value)


def test_a_grid_holds_each_combination_once() -> None:
    space = Space(
        [
            TunedSetting("model", "choice", ("mlp", "lenet")),
            TunedSetting("depth", "int", low=1, high=3),
            TunedSetting("hidden", "choice", ("a", "b", "c"), when={"model": ("mlp",)}),
        ]
    )
    grid = space.grid()
    assert len(grid) == 3 * 3 + 3 and len({tuple(sorted(one.items())) for one in grid}) == 12
    with pytest.raises(ConfigError, match="lr: sampler=grid takes values that can be listed"):
        Space([TunedSetting("lr", "float", low=0, high=1)]).grid()
    assert (
        len(TunedSetting("x", "int", low=1, high=1000).edges()) == 32
        and TunedSetting("x", "int", low=1, high=1000).edges()[-1] == 1000
    )


def test_rungs() -> None:
    def rungs(max_epochs: int, **given: object) -> list:
        settings = TuneSettings(**given)
        return [rung_budget(settings, max_epochs, rung) for rung in range(5)]

    assert rungs(27, pruner="asha", min_epochs=1) == [1, 3, 9, None, None]
    assert rungs(30, pruner="asha") == [3, 9, 27, None, None] and rungs(5, pruner="asha") == [1, 3, None, None, None]
    assert rungs(30, sampler="pbt")[:3] == [3, 6, 9]
    assert rungs(30, pruner="hyperband", min_epochs=2, reduction=2) == [2, 4, 8, 16, None]
    assert rungs(4, pruner="median") == [1, 2, 3, None, None]
    assert rungs(9) == [None] * 5
    assert rungs(9, pruner="asha", min_steps=10)[:3] == [10, 30, 90]
    assert budget_text(TuneSettings(), 3) == "trainer.epoch_budget=3"
    assert budget_text(TuneSettings(min_steps=10), 30) == "trainer.max_steps=30"
    assert budget_text(TuneSettings(), None) == ""
