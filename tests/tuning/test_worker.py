"""Decisions of a worker without its processes: the trial that is next, its rungs, deaths of processes, waiting."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

pytest.importorskip("optuna", minversion="4")

from scripted_worker import LR, ScriptedWorker, describe_study, end_of_rung

from mxtrain.errors import EXIT_NON_FINITE
from mxtrain.tuning import population, worker
from mxtrain.tuning.folder import StudyFolder
from mxtrain.tuning.population import PopulationMember, take_over, values_by_budget
from mxtrain.tuning.samplers import draw
from mxtrain.tuning.space import Space
from mxtrain.tuning.worker import MAX_DEATHS, Worker

NON_FINITE = (EXIT_NON_FINITE, {"exit_code": EXIT_NON_FINITE, "cause": "the loss is nan"})


def worker_in(folder: Path, sampler: str, n_trials: int) -> Worker:
    description, made = describe_study(n_trials, sampler=sampler), StudyFolder(folder)
    made.create(description)
    return Worker(made, description, lambda line: None)


def test_unfinished_trials_are_resumed_first(tmp_path: Path) -> None:
    made = worker_in(tmp_path, "random", 3)
    finished, begun = made.study.ask(), made.study.ask()
    for trial in (finished, begun):
        draw(trial, Space([LR]))
    made.study.tell(finished, "COMPLETE", [0.5])
    jobs = [made.next_job(), made.next_job()]  # the first job holds the lock of its trial
    assert [job.number for job in jobs] == [1, 2] and made.next_job() is None
    assert jobs[0].values == made.study.trials[1].params


def test_a_population_draws_all_members_and_starts_them_in_turn(tmp_path: Path) -> None:
    made = worker_in(tmp_path, "pbt", 4)
    jobs = [made.next_job() for _ in range(4)]
    assert [job.number for job in jobs] == [0, 1, 2, 3] and made.next_job() is None
    assert [job.values for job in jobs] == [trial.params for trial in made.study.trials]
    assert [job.run_dir.name for job in jobs] == ["0", "1", "2", "3"] and all(job.overrides == [] for job in jobs)


def test_waiting_for_other_workers_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = worker_in(tmp_path, "random", 1)
    job = other.next_job()
    assert job is not None
    slept: List[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            other.study.tell(job.trial, "COMPLETE", [0.5])

    monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=sleep))
    said: List[str] = []
    Worker(StudyFolder(tmp_path), describe_study(1, sampler="random"), said.append).run()
    assert said == ["all trials are begun; waiting for those that other workers train"] and len(slept) == 3


def test_a_trial_trains_the_rungs_that_it_has_not_reported(tmp_path: Path) -> None:
    description = describe_study(1, sampler="random", pruner="asha", min_epochs=2, reduction=2)
    made = ScriptedWorker(tmp_path, description, lambda number, budget: end_of_rung(budget, 0.5))
    begun = made.study.ask()
    draw(begun, description.space)
    begun.report(0.5, 2)
    made.run()
    assert made.trained == [(0, 4), (0, None)] and made.study.trials[0].state.name == "COMPLETE"


def test_a_trial_fails_after_deaths_without_progress(tmp_path: Path) -> None:
    """Its first process advances by ten steps before it dies."""
    made = ScriptedWorker(tmp_path, describe_study(1, sampler="random"), lambda number, budget: (-9, {"step": 10}))
    made.run()
    assert made.trained == [(0, None)] * (1 + MAX_DEATHS)
    assert made.said[-1] == f"trial 0: failed: its process ended {MAX_DEATHS} times with code -9, without progress"
    assert made.study.trials[0].state.name == "FAIL"


def test_a_finished_trial_competes_in_the_remaining_rungs(tmp_path: Path) -> None:
    """Early stopping ends it in its second rung. Optuna stores the value of a rung only when asked whether to prune."""
    description = describe_study(1, sampler="random", pruner="asha", min_epochs=1, reduction=2)
    made = ScriptedWorker(
        tmp_path, description, lambda number, budget: end_of_rung(1, 0.5) if budget == 1 else end_of_rung(None, 0.75)
    )
    made.run()
    (trial,) = made.study.trials
    assert made.trained == [(0, 1), (0, 2)] and trial.intermediate_values == {1: 0.5, 2: 0.75, 4: 0.75}
    rungs = {name: value for name, value in trial.system_attrs.items() if name.startswith("completed_rung")}
    assert sorted(rungs.values()) == [0.5, 0.75, 0.75]


@pytest.mark.parametrize("state, expected", [("FAIL", {2: 0.5, 4: math.nan}), ("RUNNING", {2: 0.5})])
def test_a_failed_member_is_the_worst_from_then_on(state: str, expected: Dict[int, float]) -> None:
    trial = SimpleNamespace(intermediate_values={2: 0.5}, state=SimpleNamespace(name=state))
    found = values_by_budget(describe_study(8, sampler="pbt", min_epochs=2), trial)
    assert found == pytest.approx(expected, nan_ok=True)


def test_members_take_over_a_copy_of_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "1" / "step-2").mkdir(parents=True)
    (tmp_path / "1" / "step-2" / "model.params").write_bytes(b"weights")
    opened: List[Path] = []
    monkeypatch.setattr(
        population, "open_checkpoint", lambda path, which: opened.append(path) or SimpleNamespace(path=path / "step-2")
    )
    before = [PopulationMember(number, {}, str(number)) for number in range(2)]
    after = [PopulationMember(0, {}, "0.2", source=1), before[1]]
    folder = StudyFolder(tmp_path)
    for _ in range(2):  # an existing copy is kept
        take_over(folder, after, before)
    assert opened == [tmp_path / "1"]
    (copy,) = (tmp_path / population.SEEDS).iterdir()
    assert copy.name == "0.2" and (copy / "model.params").read_bytes() == b"weights"


def test_a_missing_trial_gets_the_values_of_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = worker_in(tmp_path, "random", 2)
    monkeypatch.setattr(worker, "recorded_values", lambda run_dir, space: {"optimizer.lr": 0.0125})
    job = made.next_job()
    assert (job.number, job.values) == (0, {"optimizer.lr": 0.0125}) == (0, made.study.trials[0].params)


def test_a_member_takes_over_from_the_members_of_the_previous_rung(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    description, made = describe_study(4, sampler="pbt", min_epochs=2), StudyFolder(tmp_path)
    made.create(description)
    one = Worker(made, description, lambda line: None)
    jobs = [one.next_job() for _ in range(4)]
    first = [job.values for job in jobs]
    for number, job in enumerate(jobs):  # member 0 is the worst of the first rung, 3 of the second
        for budget, value in ((2, float(number)), (4, float(-number))):
            job.trial.report(value, budget)
        job.claim.release()
    seen: List[Any] = []
    monkeypatch.setattr(population, "take_over", lambda folder, members, before: seen.append((members, before)))
    again = [one.next_job() for _ in range(4)]
    reported = [{2: float(number), 4: float(-number)} for number in range(4)]
    members, before = (population.members_at(description, first, reported, rung) for rung in (2, 1))
    assert seen[0] == (members, before)
    assert [member.source is not None for member in members] == [False, False, False, True]
    assert [job.run_dir.name for job in again] == [member.run for member in members] == ["0.2", "1", "2", "3.4"]
    attributes = one.study.trials[3].user_attrs
    assert (attributes["run"], attributes["values"]) == ("3.4", dict(members[3].values))


def test_words_of_a_trial_limit_it_to_the_budget_of_its_rung() -> None:
    description = describe_study(3, sampler="random")
    words = ["optimizer.lr=0.5", "trainer.epoch_budget=3", "hydra.run.dir=runs/0"]
    assert description.arguments({"optimizer.lr": 0.5}, Path("runs/0"), 3) == words
    assert description.arguments({"optimizer.lr": 0.5}, Path("runs/0"), None) == [words[0], words[2]]


@pytest.mark.parametrize(
    "first_rung, budget, reached",
    [({"min_epochs": 2}, 2, "2 epochs"), ({"min_epochs": 1}, 1, "1 epoch"), ({"min_steps": 10}, 10, "10 steps")],
)
def test_value_of_a_rung_is_stored_and_printed_with_its_unit(
    first_rung: Any, budget: int, reached: str, tmp_path: Path
) -> None:
    description = describe_study(1, sampler="random", pruner="asha", **first_rung)
    made = ScriptedWorker(tmp_path, description, lambda number, budget: end_of_rung(budget, 0.25))
    made.run()
    assert f"trial 0: val/accuracy=0.25 after {reached}, goes on" in made.said
    assert made.study.trials[0].intermediate_values[budget] == 0.25


def test_a_loss_that_is_no_number_ends_a_trial(tmp_path: Path) -> None:
    description = describe_study(1, sampler="random", pruner="asha", min_epochs=2)
    made = ScriptedWorker(tmp_path, description, lambda number, budget: NON_FINITE)
    made.run()
    assert made.trained == [(0, 2)] and made.said[-1] == "trial 0: failed: the loss is nan"


def test_a_loss_that_is_no_number_ends_a_member_only_in_the_last_rung(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(population, "take_over", lambda folder, members, before: None)
    description = describe_study(4, sampler="pbt", min_epochs=2)
    made = ScriptedWorker(
        tmp_path,
        description,
        lambda number, budget: NON_FINITE if number == 0 and budget != 4 else end_of_rung(budget, 0.5),
    )
    made.run()
    assert [budget for number, budget in made.trained if number == 0] == [2, 4, None]
    assert [trial.state.name for trial in made.study.trials] == ["FAIL"] + ["COMPLETE"] * 3
    assert made.said.count("trial 0: failed: the loss is nan") == 1
