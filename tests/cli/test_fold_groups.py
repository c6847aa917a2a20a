"""The runs of a cross validation, without training: which are trained, skipped and removed again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional

import pytest

from mxtrain.callback.protocol import Result
from mxtrain.cluster.launch import folds
from mxtrain.cluster.launch.folds import overrides_of_fold, report_end, train_folds
from mxtrain.cluster.launch.outcome import Outcome
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.logger.console import Console
from mxtrain.logger.jsonl import Jsonl
from mxtrain.training.spec import Trainer

CONSOLE = ("logger.console.show_config=false", "logger.console.show_model=false")


def outcome_of(exit_code: int, step: int, cause: str = "") -> Outcome:
    return Outcome(
        None, [], "run", "finished" if exit_code == EXIT_FINISHED else "failed", exit_code, cause, step, None
    )


class Group:
    """A cross validation of three folds whose training writes a file, and ends as `ends` says: fold -> outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.ends: Dict[int, Any] = {}
        self.trained: List[int] = []
        self.finished: List[int] = []
        self.resumed: List[Any] = []
        self.same_data: List[Any] = []
        trainer = Trainer(folds=3)
        self.description: Any = SimpleNamespace(
            trainer=trainer,
            checkpoint="settings",
            logger={"console": Console()},
            config={"trainer": {"folds": 3}, "model": "mlp"},
        )
        monkeypatch.setattr(folds, "find_role", lambda description: None)
        monkeypatch.setattr(folds, "compose_and_check", self.compose)
        monkeypatch.setattr(folds, "train_once", self.train)
        monkeypatch.setattr(folds, "find_resume_point", self.resume)
        monkeypatch.setattr(folds, "require_finished_on_same_data", lambda *given: self.same_data.append(given))
        monkeypatch.setattr(folds.sweep, "finished_before", self.finished_before)

    def compose(self, composer: Any, words: List[str]) -> Any:
        self.words = words
        number = next(int(word.partition("=")[2]) for word in words if word.startswith("trainer.fold="))
        return SimpleNamespace(number=number), SimpleNamespace(checkpoint="own", config={"of": number})

    def train(self, composed: Any, description: Any, flags: Any) -> Outcome:
        number = composed.number
        assert description.config == {"of": number}
        self.trained.append(number)
        end: Callable[[], Outcome] = self.ends.get(number, lambda: outcome_of(EXIT_FINISHED, 10))
        folder = self.run_dir / f"fold-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "status.json").write_text(json.dumps({"metrics": {"val/loss": 0.5 * number}}))
        return end()

    def resume(self, run_dir: Path, checkpoint: Any, config: Any) -> Any:
        self.resumed.append((run_dir.name, config))
        return SimpleNamespace(own_checkpoint=run_dir.name)

    def finished_before(self, run_dir: Path, config: Any) -> Optional[Result]:
        number = int(run_dir.name.partition("-")[2])
        assert config == {"trainer": {"folds": 3, "fold": number}, "model": "mlp"}
        return (
            Result("finished", EXIT_FINISHED, "", 10, 1, best=None, metrics={}, wall_s=1)
            if (number in self.finished)
            else None
        )

    def run(self) -> Outcome:
        composed: Any = SimpleNamespace(run_dir=str(self.run_dir))
        return train_folds(None, composed, self.description, ["trainer.folds=3"], [])  # type: ignore[arg-type]

    @property
    def runs(self) -> List[Any]:
        written = json.loads((self.run_dir / "folds.json").read_text())["runs"]
        return [(one["run"], one["state"], one["exit_code"], one["step"]) for one in written]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Group:
    return Group(monkeypatch, tmp_path / "cv")


def fail() -> Outcome:
    raise ConfigError("the device is gone")


def test_every_fold_is_trained_and_written(group: Group) -> None:
    outcome = group.run()
    assert group.trained == [1, 2, 3] and not group.resumed
    assert (outcome.exit_code, outcome.state, outcome.step) == (EXIT_FINISHED, "finished", 30)
    assert group.runs == [(f"fold-{number}", "finished", EXIT_FINISHED, 10) for number in (1, 2, 3)]


def test_finished_folds_are_skipped_if_the_data_are_the_same(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    group.ends[2] = lambda: outcome_of(EXIT_CRASHED, 5, "because")
    outcome = group.run()
    assert (outcome.exit_code, outcome.cause, outcome.step) == (EXIT_CRASHED, "fold-2: because", 25)
    assert [state for _, state, _, _ in group.runs] == ["finished", "failed", "finished"]
    group.finished, group.trained, group.ends = [1, 3], [], {}
    assert group.run().exit_code == EXIT_FINISHED and group.trained == [2]
    assert group.resumed == [
        *((f"fold-{number}", {"trainer": {"folds": 3, "fold": number}, "model": "mlp"}) for number in (1, 2, 3)),
        ("fold-1", {"of": 1}),
    ]
    ((checkpoint, of_fold),) = group.same_data
    assert checkpoint == "fold-1" and of_fold.config == {"of": 1}
    assert f"fold 3 of 3 is finished: {group.run_dir / 'fold-3'}" in capsys.readouterr().out


@pytest.mark.parametrize("end, code", [(fail, None), (lambda: outcome_of(EXIT_BAD_INPUT, 0), EXIT_BAD_INPUT)])
def test_refused_first_fold_writes_no_files(group: Group, end: Any, code: Optional[int]) -> None:
    group.ends[1] = end
    if code is None:
        with pytest.raises(ConfigError, match="the device is gone"):
            group.run()
    else:
        assert group.run().exit_code == code
    assert group.trained == [1] and not group.run_dir.exists()


def test_refused_later_fold_ends_the_group_and_keeps_earlier_folds(group: Group) -> None:
    group.ends[2] = lambda: outcome_of(EXIT_BAD_INPUT, 0, "refused")
    assert group.run().exit_code == EXIT_BAD_INPUT and group.trained == [1, 2] and len(group.runs) == 2
    group.ends[2] = fail
    with pytest.raises(ConfigError, match="the device is gone"):
        group.run()
    assert (group.run_dir / "fold-1").is_dir() and len(group.runs) == 1


@pytest.mark.parametrize(
    "number, words, expected",
    [
        (1, ["trainer.folds=3", "trainer.fold=2", "hydra.run.dir=x"], ["trainer.folds=3"]),
        (2, [], CONSOLE),
        (3, [], CONSOLE),
        (2, ["logger.console.show_model=true"], ["logger.console.show_model=true", CONSOLE[0]]),
    ],
)
def test_settings_and_network_are_shown_by_the_first_fold(number: int, words: List[str], expected: Any) -> None:
    description: Any = SimpleNamespace(logger={"console": Console()})
    own = [f"trainer.fold={number}", 'hydra.run.dir="run"']
    assert overrides_of_fold(description, words, number, Path("run")) == [*expected, *own]
    description.logger = {"jsonl": Jsonl()}
    kept = [word for word in words if word.partition("=")[0] not in folds.OWN]
    assert overrides_of_fold(description, words, number, Path("run")) == [*kept, *own]


@pytest.mark.parametrize(
    "exit_code, step, is_said",
    [
        (EXIT_CRASHED, 5, True),
        (EXIT_CRASHED, 0, False),
        (EXIT_FINISHED, 5, False),
    ],
)
def test_the_cause_of_a_failure_is_reported_last(
    capsys: pytest.CaptureFixture[str], exit_code: int, step: int, is_said: bool
) -> None:
    assert report_end(outcome_of(exit_code, step, "because")) == exit_code
    assert ("because" in capsys.readouterr().err) == is_said
