"""Samplers: the same draws whoever asks, and CMA-ES without a state of its own."""

from __future__ import annotations

import importlib.util
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", minversion="4")

from mxtrain.tuning.folder import StudyDescription, StudyFolder  # noqa: E402
from mxtrain.tuning.samplers import build_sampler, check_sampler, cmaes_values, draw  # noqa: E402
from mxtrain.tuning.space import Space, TunedSetting  # noqa: E402
from mxtrain.tuning.spec import TuneSettings  # noqa: E402
from mxtrain.tuning.trials import SAMPLER_LIBRARIES, Study, cut_partial_line  # noqa: E402

NUMBERS = (
    TunedSetting("x", "float", low=-4, high=4),
    TunedSetting("y", "float", low=1e-3, high=10, log=True),
    TunedSetting("n", "int", low=1, high=9),
)


def study_in(folder: Path, sampler: str, *parameters: TunedSetting, n_trials: int = 9, **given: Any) -> Study:
    settings = TuneSettings(sampler=sampler, n_trials=n_trials, **given)
    description = StudyDescription("s", [], [], "/", settings, Space(parameters), ["val/loss"], ["min"], 9)
    made = StudyFolder(folder)
    made.create(description)
    return Study(made, description)


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "grid", "nsga2", "gp"])
def test_reopened_study_draws_the_same_values(tmp_path: Path, sampler: str) -> None:
    """Each trial in a study that is opened anew, and all in one that stays open."""
    for module, _ in SAMPLER_LIBRARIES.get(sampler, ()):
        pytest.importorskip(module)
    numbers = NUMBERS if sampler != "grid" else (TunedSetting("x", "choice", ("1", "2", "3")), NUMBERS[2])
    found = []
    for name, is_reopened in (("a", True), ("b", False)):
        study, values = study_in(tmp_path / name, sampler, *numbers), []
        for number in range(8):
            if is_reopened:
                study = study_in(tmp_path / name, sampler, *numbers)
            trial = study.ask()
            values.append(draw(trial, study.description.space))
            study.tell(trial, "COMPLETE", [float(number % 3)])
        found.append(values)
    assert found[0] == found[1]
    assert len({str(one) for one in found[0]}) == 8  # none twice


def test_partly_drawn_trial_keeps_its_values(tmp_path: Path) -> None:
    study = study_in(tmp_path, "random", *NUMBERS)
    x = study.ask().suggest_float("x", -4, 4)
    (frozen,) = study.trials
    values = draw(study.adopt(frozen), study.description.space)
    assert values["x"] == x and set(values) == {"x", "y", "n"} and study.trials[0].params == values


def test_partly_written_journal_line_is_ignored(tmp_path: Path) -> None:
    study = study_in(tmp_path, "random", *NUMBERS)
    study.ask()
    file = tmp_path / "journal.log"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"op_code":4,"worker')
    again = study_in(tmp_path, "random", *NUMBERS)
    assert file.read_bytes().startswith(whole) and len(again.trials) == 1
    again.ask()
    assert len(study.trials) == 2 and file.read_bytes().endswith(b"\n")
    (tmp_path / "long").write_bytes(b"a\n" + b"x" * 10000)
    cut_partial_line(tmp_path / "long")
    assert (tmp_path / "long").read_bytes() == b"a\n"


@pytest.mark.slow
def test_cmaes_converges_and_needs_no_state() -> None:
    pytest.importorskip("cmaes")
    finished: list = []
    for seed in range(160):
        values = cmaes_values(NUMBERS, finished, seed)
        assert -4 <= values["x"] <= 4 and 1e-3 <= values["y"] <= 10 and values["n"] in range(1, 10)
        finished.append((values, (values["x"] - 1.5) ** 2 + (values["n"] - 3) ** 2))
    best = min(finished, key=lambda one: one[1])
    early = min(one[1] for one in finished[:20])
    assert best[1] < 0.05 and best[1] <= early


def test_cmaes_learns_from_a_complete_generation() -> None:
    """A generation for three settings has seven trials."""
    pytest.importorskip("cmaes")
    finished = [(cmaes_values(NUMBERS, [], seed), float(seed)) for seed in range(7)]
    assert (
        cmaes_values(NUMBERS, finished[:6], 50) == cmaes_values(NUMBERS, [], 50) != cmaes_values(NUMBERS, finished, 50)
    )
    ys = [values["y"] for values, _ in finished]
    assert min(ys) < 0.1 < max(ys)  # the middle of the logarithmic range


@pytest.mark.parametrize(
    "sampler, name",
    [
        ("tpe", "TPESampler"),
        ("nsga2", "NSGAIISampler"),
        ("random", "RandomSampler"),
        ("cmaes", "ReplayedCma"),
    ],
)
def test_samplers_are_the_ones_of_their_names(sampler: str, name: str) -> None:
    settings, space = TuneSettings(sampler=sampler), Space(NUMBERS)
    check_sampler(settings, space, 1)
    assert type(build_sampler(settings, space, 3)).__name__ == name


def test_the_order_of_overrides_is_a_difference() -> None:
    first, second = (
        StudyDescription("s", [], words, "/", TuneSettings(), Space(NUMBERS), ["val/loss"], ["min"], 9)
        for words in (["a=1", "b=2"], ["b=2", "a=1"])
    )
    assert first.differences(first) == []
    (said,) = first.differences(second)
    assert said.startswith("  overrides: was") and "a=1" in said and "b=2" in said


def test_a_gaussian_process_finds_a_minimum_sooner_than_random_draws(tmp_path: Path) -> None:
    """A space with a range, a logarithmic range, integers and a choice; the smallest value is 0."""
    pytest.importorskip("torch")
    space = (*NUMBERS, TunedSetting("kind", "choice", ("a", "b")))
    best = {}
    for sampler in ("gp", "random"):
        study, values = study_in(tmp_path / sampler, sampler, *space, n_trials=40), []
        for _ in range(40):
            trial = study.ask()
            drawn = draw(trial, study.description.space)
            x, y, n = (float(drawn[key]) for key in ("x", "y", "n"))
            value = (x - 1.5) ** 2 + math.log10(y) ** 2 + (n - 3) ** 2 / 4 + (drawn["kind"] == "a")
            study.tell(trial, "COMPLETE", [value])
            values.append(value)
        best[sampler] = min(values)
    assert best["gp"] < 0.05 < best["random"]


def test_optunas_warnings_and_pickles_do_not_appear(tmp_path: Path) -> None:
    pytest.importorskip("cmaes")
    has_torch = importlib.util.find_spec("torch") is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampler in ("tpe", "nsga2", "cmaes", *(["gp"] if has_torch else [])):
            study = study_in(tmp_path / sampler, sampler, *NUMBERS)
            for number in range(12):
                trial = study.ask()
                draw(trial, study.description.space)
                study.tell(trial, "COMPLETE", [float(number)])
            assert "pickle" not in (tmp_path / sampler / "journal.log").read_text()
            assert not any(key.startswith("cma") for one in study.trials for key in one.system_attrs)
