"""`parallel=auto`: the predicted placement is recorded, and a resumed run keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import pytest

import mxtrain
from mxtrain.cli import main
from mxtrain.cluster.launch import automatic
from mxtrain.cluster.launch.automatic import words_of
from mxtrain.errors import ConfigError
from mxtrain.parallel.forecast import Forecast
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile
from mxtrain.workflows.plan import PlanResult

SMALL = ["model=mlp", "model.hidden=[8]", "trainer.max_epochs=2", "trainer.test=false", "logger=jsonl"]
PROFILE = PlacementProfile("hash", [], 32, 10, "cpu", 2, 1e9, "a processor", [])


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> List[Forecast]:
    """Predictions that `plan` returns in this test."""
    forecasts: List[Forecast] = []
    monkeypatch.setattr(automatic, "plan_placements", lambda *_: PlanResult(PROFILE, list(forecasts), []))
    return forecasts


def test_the_fastest_placement_is_recorded_and_kept(
    plans: List[Forecast], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans += [Forecast(Placement(replicas=2), 0.1), Forecast(Placement(), 0.2)]
    run = mxtrain.train("parallel=auto", *SMALL, "trainer.max_steps=3", dir=tmp_path / "run")
    assert "parallel=auto: parallel=data parallel.replicas=2 is predicted" in capsys.readouterr().out
    assert "parallel.replicas=2" in _recorded(run)
    plans[:] = [Forecast(Placement(), 0.1)]
    run = mxtrain.train("parallel=auto", *SMALL, dir=tmp_path / "run")
    assert "as chosen when the run began" in capsys.readouterr().out
    assert run.state == "finished" and "parallel.replicas=2" in _recorded(run)
    unbroken = mxtrain.train("parallel=data", "parallel.replicas=2", *SMALL, dir=tmp_path / "unbroken")
    assert _weights(run) == _weights(unbroken)


def _recorded(run: mxtrain.Run) -> List[str]:
    """The overrides that Hydra has written for the run."""
    return (run.path / ".hydra" / "overrides.yaml").read_text().replace("- ", "").splitlines()


def _weights(run: mxtrain.Run) -> str:
    return str(json.loads((run.path / "status.json").read_text())["weights_sha256"])


def test_parts_of_a_batch_are_not_chosen(plans: List[Forecast], tmp_path: Path) -> None:
    """They change what batch norms compute."""
    plans += [Forecast(Placement(accumulation=2), 0.1), Forecast(Placement(), 0.2)]
    run = mxtrain.train("parallel=auto", *SMALL, "trainer.max_steps=1", dir=tmp_path / "run")
    assert "parallel=single" in _recorded(run)
    assert not any("grad_accumulation" in word for word in _recorded(run))


@pytest.mark.parametrize(
    "words, message",
    [
        (["kvstore=dist_sync", "cluster.workers=2"], "this run has several processes"),
        (["trainer.max_steps=1"], "no placement fits. it is too large"),
        (["trainer.folds=2"], "trainer.folds=2: parallel=auto trains one fold in a run. Type trainer.fold=1"),
    ],
    ids=["workers", "memory", "folds"],
)
def test_runs_without_a_placement_are_refused(
    words: List[str],
    message: str,
    plans: List[Forecast],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plans.append(Forecast(Placement(), reason="it is too large"))
    assert main(["parallel=auto", *SMALL, *words, f"hydra.run.dir={tmp_path / 'run'}"]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_recomputation_is_taken_if_nothing_fits_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(description: Any, *_: object) -> PlanResult:
        recomputes = description.parallel.recompute == "auto"
        place = Placement(recompute="2" if recomputes else "off")
        return PlanResult(PROFILE, [Forecast(place, 0.1, reason="" if recomputes else "it is too large")], [])

    monkeypatch.setattr(automatic, "plan_placements", plan)
    run = mxtrain.train("parallel=auto", *SMALL, "trainer.max_steps=1", dir=tmp_path / "run")
    assert "no placement fits, so placements with parallel.recompute=auto are measured" in capsys.readouterr().out
    assert "parallel.recompute=2" in _recorded(run)


def test_networks_that_cannot_be_recomputed_are_refused_with_both_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def plan(description: Any, *_: object) -> PlanResult:
        if description.parallel.recompute == "auto":
            raise ConfigError("no division would save memory")
        return PlanResult(PROFILE, [Forecast(Placement(), reason="it is too large")], [])

    monkeypatch.setattr(automatic, "plan_placements", plan)
    with pytest.raises(ConfigError, match=r"no placement fits\. it is too large\. no division would save memory"):
        mxtrain.train("parallel=auto", *SMALL, dir=tmp_path / "run")


@pytest.mark.parametrize("word", ["parallel.batch_norm=global", "parallel.recompute=2"])
def test_recomputation_is_not_measured_in_vain(
    word: str, plans: List[Forecast], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused with synchronised batch norms, and a number of segments is chosen already."""
    plans.append(Forecast(Placement(), reason="it is too large"))
    with pytest.raises(ConfigError, match="no placement fits. it is too large"):
        mxtrain.train("parallel=auto", *SMALL, word, dir=tmp_path / "run")
    assert "are measured" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "parallel=single,auto", "trainer.seed=0"],
        ["-m", "parallel=auto", "trainer.seed=0,1"],
        ["tune", "study", "parallel=auto", "optimizer.lr=log(1e-3,1e-1)", "n_trials=2"],
    ],
    ids=["swept", "sweep", "tune"],
)
def test_several_runs_are_refused_before_one_starts(
    words: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, *SMALL]) == 2
    assert f"parallel=auto: {words[0]} trains several runs" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_commands_name_plan(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "parallel=auto", *SMALL]) == 2
    assert "only `train` of a single run chooses a placement" in capfd.readouterr().err


def test_recorded_settings_compose_again() -> None:
    words = ["parallel=hybrid", "parallel.replicas=2", "parallel.stages=2", "parallel.microbatches=3"]
    recorded = mxtrain.compose(*words, "dataset.batch_size=60")["parallel"]
    assert mxtrain.compose(*words_of(recorded), "dataset.batch_size=60")["parallel"] == recorded


def test_classes_of_no_option_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"placed by package\.Own, which is no option"):
        words_of({"_target_": "package.Own"})


def test_a_recorded_placement_names_no_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded = {"_target_": "mxtrain.parallel.spec.Data", "devices._target_": "collections.OrderedDict"}
    state = {"run": {"description": {"parallel": recorded}}}
    checkpoint = SimpleNamespace(path=tmp_path / "step_3", state=state)
    monkeypatch.setattr(automatic, "find_checkpoint", lambda *_: checkpoint)
    assert main(["parallel=auto", *SMALL, f"hydra.run.dir={tmp_path / 'run'}"]) == 2
    message = capfd.readouterr().err
    assert "step_3" in message and "collections.OrderedDict" in message
    assert "Name the placement of the run instead, e.g. parallel=data." in message
