"""`reproduce`, `replay` and `score` as functions: results without output, and the values of the commands."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_directories import write_run
from running import rows, status

import mxtrain
from mxtrain.archive.compare import Different, ResultComparison
from mxtrain.archive.meta import RecordedRun
from mxtrain.archive.score import Score
from mxtrain.cli import main
from mxtrain.errors import ConfigError
from mxtrain.training.prepared_run import PreparedRun
from mxtrain.training.replay_bundle import BUNDLE, FOLDER, ReplayBundle
from mxtrain.workflows import reproduce as reproduction
from mxtrain.workflows.replay import bundle_of, find_step
from mxtrain.workflows.reproduce import Conditions, ReproduceResult, ReproduceSettings, reproduce_run
from mxtrain.workflows.score import score_run

SMALL = ("debug=fast", "model=mlp", "model.hidden=[8]", "logger=[csv,jsonl]", "checkpoint.keep_last=5")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    rows_of_run = [{"step": step, "split": "train", "loss": 1.0 / step} for step in range(1, 5)]
    return write_run(tmp_path / "finished", rows=rows_of_run, checkpoints={2: 0.5})


class Ended:
    cause = ""

    def __init__(self, run_dir: Path, exit_code: int = 0) -> None:
        self.run_dir, self.exit_code = str(run_dir), exit_code


def prepared(end: Any, run_dir: Path) -> PreparedRun:
    return PreparedRun(None, run_dir, lambda: end, lambda: None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_reproduce_trains_the_same_bits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = mxtrain.train(*SMALL, dir=tmp_path / "run")
    capfd.readouterr()
    found = mxtrain.reproduce(run, dir=tmp_path / "again", strict=True)
    assert found.same and found.passed and found.conditions.differences == []
    assert (found.original, found.path, found.exit_code) == (tmp_path / "run", tmp_path / "again", 0)
    said = capfd.readouterr().out
    assert "settings, versions, code" not in said and "equal to the bit" not in said
    assert str(found).endswith("weights and metrics are equal to the bit")
    other = mxtrain.reproduce(run, "trainer.seed=3", dir=tmp_path / "other", tolerance=0.99)
    assert not other.same and [one.name for one in other.conditions.differences] == ["trainer.seed"]
    with pytest.raises(ConfigError, match="strict=true, and 1 thing differs"):
        mxtrain.reproduce(run, "trainer.seed=3", dir=tmp_path / "third", strict=True)
    assert not (tmp_path / "third").exists()
    with pytest.raises(ConfigError, match="Choose another folder"):
        mxtrain.reproduce(run, dir=tmp_path / "run")


def test_conditions_are_reported_before_training(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "differences", lambda original, run: [])
    order: list = []
    run = PreparedRun(None, tmp_path / "new", lambda: order.append("train") or Ended(finished), lambda: None)  # type: ignore
    original = RecordedRun(finished, {})
    found = reproduce_run(original, run, ReproduceSettings(), lambda conditions: order.append(str(conditions)))
    assert order == [f"settings, versions, code, data and machine are those of {finished}", "train"] and found.same
    failed = reproduce_run(original, prepared(Ended(finished, 1), tmp_path), ReproduceSettings())
    assert failed.results is None and not failed.passed and "did not finish" in str(failed)


def test_wrong_arguments(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reproduce.tolerance=1.5: should be less than 1"):
        mxtrain.reproduce(finished, tolerance=1.5)
    with pytest.raises(ConfigError, match=r"there is no meta.json. reproduce takes the directory of a run"):
        mxtrain.reproduce(tmp_path)
    with pytest.raises(ConfigError, match=r"replay.step=0: should be greater than 0"):
        mxtrain.replay(finished, step=0)
    with pytest.raises(ConfigError, match="is neither a run directory nor a replay bundle"):
        mxtrain.replay(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'digits_lenet'"):
        mxtrain.score("digits_lenett")


@pytest.mark.slow
def test_replay_returns_the_layers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = mxtrain.train(*SMALL, dir=tmp_path / "run")
    capfd.readouterr()
    found = mxtrain.replay(run)
    loss = [row["loss"] for row in rows(run.path) if row["split"] == "train"][-1]
    assert found.repeated.loss == pytest.approx(loss, rel=0.5) and found.weights is not None
    assert [layer.nonfinite for layer in found.repeated.layers] == [0.0] * len(found.repeated.layers)
    assert capfd.readouterr().out == ""
    assert main(["replay", str(run.path)]) == 0
    assert capfd.readouterr().out == f"{found}\n"


def test_the_bundle_that_a_run_wrote_is_found(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path, source = find_step(run, 3)
    assert path == run and source.step == 3
    with pytest.raises(ConfigError, match="finished with step"):
        find_step(run, 10_000)


def test_the_step_that_is_repeated_by_default(finished: Path, tmp_path: Path) -> None:
    """The last one of a run that finished; otherwise the next one, at which the process was killed."""
    last = find_step(finished)[1]
    assert last.step == 4 and last.reason == f"the last step in {finished}/metrics.jsonl"
    killed = write_run(tmp_path / "killed", state="running", exit_code=None, rows=[{"step": 4}])
    (killed / "checkpoints").mkdir(exist_ok=True)
    following = find_step(killed)[1]
    assert following.step == 5 and following.reason == f"the step after the last one in {killed}/metrics.jsonl"
    unwritten = write_run(tmp_path / "unwritten", checkpoints={4: 0.5})
    assert find_step(unwritten)[1].step == 1


def test_the_bundle_of_the_step_that_failed_is_taken(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", state="failed", exit_code=1)
    for name in ("step-00000009", "step-00000012-worker-1", "step-x"):
        (run / FOLDER / name).mkdir(parents=True)
        (run / FOLDER / name / BUNDLE).touch()
    (run / FOLDER / "step-00000020").mkdir()  # nothing was written into it
    assert bundle_of(run, None) == run / FOLDER / "step-00000012-worker-1"
    assert bundle_of(run, 9) == run / FOLDER / "step-00000009"
    assert bundle_of(run, 20) is None


def test_equal_metrics_are_no_equal_result(tmp_path: Path) -> None:
    """Of other weights, the final metrics may be the same: only a tolerance lets that pass."""
    compared = ResultComparison(False, [], [Different("weights_sha256", "a", "b")], 0.0)
    conditions = Conditions(RecordedRun(tmp_path, {}), [])
    found = [ReproduceResult(tmp_path, tmp_path, 0, "", conditions, compared, limit) for limit in (0.0, 1e-9)]
    assert [one.passed for one in found] == [False, True] and not any(one.same for one in found)


def test_a_bundle_has_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = ReplayBundle(tmp_path, {"step": 5}, [], [], {})
    monkeypatch.setattr("mxtrain.workflows.replay.read_bundle", lambda path: bundle)
    assert find_step(tmp_path) == (tmp_path, bundle)
    with pytest.raises(ConfigError, match="step=3: .* contains the batch of step 5 only"):
        find_step(tmp_path, 3)


@pytest.mark.parametrize("value, exit_code, reached", [(0.895, 0, True), (0.88, 0, False), (0.95, 1, False)])
def test_score_compares_the_final_value(value: float, exit_code: int, reached: bool, tmp_path: Path) -> None:
    score = Score(metric="val/x", value=0.9, tolerance=0.01, source="measured")
    (tmp_path / "status.json").write_text(json.dumps({"best": {"metric": "val/x", "value": value}}))
    found = score_run("mine", score, prepared(Ended(tmp_path, exit_code), tmp_path), "max")
    assert found.reached is reached and found.value == (value if exit_code == 0 else None)
    if found.value is not None:
        assert found.worse_by == pytest.approx(0.9 - value) and f"val/x {value:.6g}" in repr(found)


@pytest.mark.slow
def test_score_of_a_preset(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = mxtrain.score("breast_cancer", dir=tmp_path / "run")
    assert found.reached and found.path == tmp_path / "run"
    assert found.value == status(tmp_path / "run")["metrics"][found.score.metric]
    assert math.isfinite(np.float64(found.worse_by)) and "the score was reached" not in capfd.readouterr().out
