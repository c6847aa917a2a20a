"""Decisions of a worker without its processes: the trial that is next, its rungs, deaths of processes, waiting."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

pytest.importorskip("optuna", minversion="4")

from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED
from mxtrain.tuning import population, worker
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.population import PopulationMember, take_over, values_by_budget
from mxtrain.tuning.samplers import draw
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.trials import TrialProgress
from mxtrain.tuning.worker import MAX_DEATHS, Worker

LR = TunedSetting("optimizer.lr", "float", low=1e-4, high=1e-1, log=True)


def describe(sampler: str, n_trials: int, **given: Any) -> StudyDescription:
    settings = TuneSettings(sampler=sampler, n_trials=n_trials, **given)  # type: ignore[arg-type]
    return StudyDescription("s", [], [], "/", settings, Space([LR]), ["val/accuracy"], ["max"], 6)


def worker_in(folder: Path, sampler: str, n_trials: int) -> Worker:
    description, made = describe(sampler, n_trials), StudyFolder(folder)
    made.create(description)
    return Worker(made, description, lambda line: None)


def next_of(made: Worker) -> Any:
    with made._folder.lock:
        return made._next()


def test_unfinished_trials_are_resumed_first(tmp_path: Path) -> None:
    made = worker_in(tmp_path, "random", 3)
    finished, begun = made.study.ask(), made.study.ask()
    for trial in (finished, begun):
        draw(trial, made._description.space)
    made.study.tell(finished, "COMPLETE", [0.5])
    jobs = [next_of(made), next_of(made)]  # the first job holds the lock of its trial
    assert [job.number for job in jobs] == [1, 2] and next_of(made) is None
    assert jobs[0].values == made.study.trials[1].params


def test_a_population_draws_all_members_and_starts_them_in_turn(tmp_path: Path) -> None:
    made = worker_in(tmp_path, "pbt", 4)
    jobs = [next_of(made) for _ in range(4)]
    assert [job.number for job in jobs] == [0, 1, 2, 3] and next_of(made) is None
    assert [job.values for job in jobs] == [trial.params for trial in made.study.trials]
    assert [job.run_dir.name for job in jobs] == ["0", "1", "2", "3"] and all(job.overrides == [] for job in jobs)


def test_waiting_for_other_workers_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: List[str] = []
    trials = [SimpleNamespace(state=SimpleNamespace(is_finished=lambda: len(slept) == 3))]
    slept: List[float] = []
    monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=slept.append))
    made = worker_in(tmp_path, "random", 1)
    made._say, made._study = said.append, SimpleNamespace(trials=trials)  # type: ignore[assignment]
    monkeypatch.setattr(made, "_next", lambda: None)
    made.run()
    assert said == ["all trials are begun; waiting for those that other workers train"] and len(slept) == 3


def test_a_trial_trains_the_rungs_that_it_has_not_reported(tmp_path: Path) -> None:
    trained: List[Any] = []

    def train(job: Any, budget: Any) -> TrialProgress:
        trained.append((job.number, budget))
        return TrialProgress(exit_code=EXIT_FINISHED if budget is None else EXIT_BUDGET)

    job: Any = SimpleNamespace(number=7, run_dir=tmp_path / "7", values={}, reported=[2])
    finished: List[int] = []
    made: Any = SimpleNamespace(
        _folder=SimpleNamespace(path=tmp_path),
        _description=SimpleNamespace(budget=[2, 4, None].__getitem__),
        _title=lambda job: "",
        _say=lambda line: None,
        _is_population=False,
        _train_rung=train,
        _is_pruned=lambda job, progress, budget: False,
        _finish=lambda job, progress, rung: finished.append(rung),
    )
    Worker._train(made, job)
    assert trained == [(7, 4), (7, None)] and finished == [2]


def test_a_trial_fails_after_deaths_without_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its first process advances by ten steps before it dies."""
    failed: List[str] = []
    started: List[int] = []

    def train(job: Any, budget: Any) -> int:
        started.append(len(started))
        assert len(started) < 20
        return -9

    monkeypatch.setattr(worker, "read_progress", lambda run_dir: TrialProgress(step=10 if started else 0))
    made: Any = SimpleNamespace(
        _description=describe("random", 3),
        _train_process=train,
        _say=lambda line: None,
        _fail=lambda job, cause: failed.append(cause),
    )
    assert Worker._train_rung(made, SimpleNamespace(number=0, run_dir=tmp_path), None) is None  # type: ignore[arg-type]
    assert len(started) == 1 + MAX_DEATHS
    assert failed == [f"its process ended {MAX_DEATHS} times with code -9, without progress"]


def test_a_finished_trial_competes_in_the_remaining_rungs() -> None:
    """Optuna stores the value of a rung when it is asked whether to prune."""
    calls: List[Tuple[Any, ...]] = []
    trial = SimpleNamespace(
        report=lambda value, budget: calls.append((value, budget)), should_prune=lambda: calls.append(())
    )
    made: Any = SimpleNamespace(
        _description=SimpleNamespace(budget=[1, 2, 4, None].__getitem__, settings=TuneSettings(pruner="asha"))
    )
    Worker._report_rest(made, SimpleNamespace(trial=trial), 0.75, 1)  # type: ignore[arg-type]
    assert calls == [(0.75, 2), (), (0.75, 4), ()]


@pytest.mark.parametrize("state, expected", [("FAIL", {2: 0.5, 4: math.nan}), ("RUNNING", {2: 0.5})])
def test_a_failed_member_is_the_worst_from_then_on(state: str, expected: Dict[int, float]) -> None:
    trial = SimpleNamespace(intermediate_values={2: 0.5}, state=SimpleNamespace(name=state))
    found = values_by_budget(describe("pbt", 8, min_epochs=2), trial)
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
    job = next_of(made)
    assert (job.number, job.values) == (0, {"optimizer.lr": 0.0125}) == (0, made.study.trials[0].params)


def test_a_member_takes_over_from_the_members_of_the_previous_rung(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    description, made = describe("pbt", 4, min_epochs=2), StudyFolder(tmp_path)
    made.create(description)
    one = Worker(made, description, lambda line: None)
    jobs = [next_of(one) for _ in range(4)]
    first = [job.values for job in jobs]
    for number, job in enumerate(jobs):  # member 0 is the worst of the first rung, 3 of the second
        for budget, value in ((2, float(number)), (4, float(-number))):
            job.trial.report(value, budget)
        job.claim.release()
    seen: List[Any] = []
    monkeypatch.setattr(population, "take_over", lambda folder, members, before: seen.append((members, before)))
    again = [next_of(one) for _ in range(4)]
    reported = [{2: float(number), 4: float(-number)} for number in range(4)]
    members, before = (population.members_at(description, first, reported, rung) for rung in (2, 1))
    assert seen[0] == (members, before)
    assert [member.source is not None for member in members] == [False, False, False, True]
    assert [job.run_dir.name for job in again] == [member.run for member in members] == ["0.2", "1", "2", "3.4"]
    attributes = one.study.trials[3].user_attrs
    assert (attributes["run"], attributes["values"]) == ("3.4", dict(members[3].values))


def test_words_of_a_trial_limit_it_to_the_budget_of_its_rung() -> None:
    description = describe("random", 3)
    words = ["optimizer.lr=0.5", "trainer.epoch_budget=3", "hydra.run.dir=runs/0"]
    assert description.arguments({"optimizer.lr": 0.5}, Path("runs/0"), 3) == words
    assert description.arguments({"optimizer.lr": 0.5}, Path("runs/0"), None) == [words[0], words[2]]


@pytest.mark.parametrize(
    "given, budget, reached", [({}, 2, "2 epochs"), ({}, 1, "1 epoch"), ({"min_steps": 5}, 10, "10 steps")]
)
def test_value_of_a_rung_is_stored_and_printed_with_its_unit(given: Any, budget: int, reached: str) -> None:
    stored: List[Any] = []
    made: Any = SimpleNamespace(_description=describe("random", 3, **given), _is_population=False)
    job: Any = SimpleNamespace(number=7, reported=[], trial=SimpleNamespace(report=lambda *one: stored.append(one)))
    progress: Any = SimpleNamespace(values=lambda description, last: [0.25])
    assert Worker._report(made, job, progress, budget) == f"trial 7: val/accuracy=0.25 after {reached}"
    assert (stored, job.reported) == ([(0.25, budget)], [budget])


@pytest.mark.parametrize("is_population, budget, fails", [(False, 2, True), (True, None, True), (True, 2, False)])
def test_a_loss_that_is_no_number_ends_a_trial_but_no_member(is_population: bool, budget: Any, fails: bool) -> None:
    failed: List[Any] = []
    made: Any = SimpleNamespace(_is_population=is_population, _fail=lambda job, cause: failed.append((job, cause)))
    job: Any = SimpleNamespace(number=7)
    progress = Worker._diverged(made, job, "the loss is nan", budget)
    assert failed == ([(job, "the loss is nan")] if fails else [])
    assert fails or (progress is not None and progress.exit_code == EXIT_BUDGET)
