"""`mxtrain.sweep` and `mxtrain.explain`: the same as on the command line, as functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mxtrain
from mxtrain.cli import dispatch
from mxtrain.cluster.launch.outcome import Outcome

FAST = ("debug=fast", "model=mlp", "logger=jsonl")


@pytest.mark.slow
def test_sweep_trains_a_run_for_each_value(tmp_path: Path, capsys: Any) -> None:
    found = mxtrain.sweep(*FAST, "optimizer.lr=0.1,1e-9", dir=tmp_path / "s")
    table = capsys.readouterr().out
    assert found.path == tmp_path / "s" and found.exit_code == 0
    assert [job.state for job in found.jobs] == ["finished", "finished"]
    assert [row["optimizer.lr"] for row in found.rows()] == ["0.1", "1e-09"]
    assert found.best_run is not None and found.best_run.path == found.runs[0].path
    assert found.best_run.config["optimizer"]["lr"] == 0.1
    assert found.best_run.metrics == mxtrain.train(*FAST, "optimizer.lr=0.1", dir=tmp_path / "alone").metrics
    assert "<- best" in table and str(found).splitlines()[0].split() == [*found.rows()[0]]
    again = mxtrain.sweep(*FAST, "optimizer.lr=0.1,1e-9", dir=tmp_path / "s")
    assert [job.before for job in again.jobs] == [True, True]


@pytest.mark.slow
def test_failed_job_is_last_and_keeps_other_runs(tmp_path: Path) -> None:
    found = mxtrain.sweep(*FAST, "optimizer.lr=0.1,1e30", optimizer="sgd", dir=tmp_path)
    assert found.exit_code == 3 and [job.exit_code for job in found.jobs] == [0, 3]
    assert found.jobs[1].cause and found.runs[1].state == "failed"


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: mxtrain.sweep(*FAST, model=print), "model=<built-in"),
        (lambda: mxtrain.sweep("modle=mlp,lenet"), "Did you mean 'model'"),
        (lambda: mxtrain.sweep(3), "sweep: a int is no override"),
        (lambda: mxtrain.sweep(modle="mlp"), r"sweep\(\) has no argument 'modle'. Did you mean 'model'"),
        (lambda: mxtrain.explain("optimizer.lrr"), "optimizer.lr"),
        (lambda: mxtrain.explain("optimizer.lr", "modle=mlp"), "Did you mean 'model'"),
        (lambda: mxtrain.explain("optimizer.lr", 3), "explain: a int is no override"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    call: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mxtrain.ConfigError, match=said):
        call()
    assert list(tmp_path.iterdir()) == []


def test_sweep_without_a_measured_job_has_no_best_run(tmp_path: Path) -> None:
    failed = Outcome(0, ["a=1", "b=2"], str(tmp_path / "0"), "failed", 3, "NaN", 2, None, swept=["a"])
    found = mxtrain.Sweep(tmp_path, 3, [failed])
    assert found.best_run is None and mxtrain.Sweep(tmp_path, 0, []).best_run is None
    assert found.rows() == [{"job": 0, "a": "1", "state": "failed", "metric": None, "best": None, "step": 2}]
    assert found.frame().to_dict("records") == found.rows()
    best = {"metric": "val/loss", "value": 0.5, "step": 2}
    measured = mxtrain.Sweep(tmp_path, 3, [replace(failed, best=best), failed])
    assert measured.best_run is not None and measured.best_run.path == tmp_path / "0"


def test_objects_cannot_be_swept() -> None:
    with pytest.raises(mxtrain.ConfigError, match="sweep: callback.*is an object"):
        mxtrain.sweep(*FAST, callback=print)


def test_several_values_lead_to_sweep() -> None:
    with pytest.raises(mxtrain.ConfigError, match="in Python: mxtrain.sweep"):
        mxtrain.compose("optimizer.lr=0.1,0.2")


@pytest.mark.slow
def test_sweep_names_its_argument(tmp_path: Path) -> None:
    from mxtrain.checkpoint.run_directory import lock_run_directory

    with lock_run_directory(tmp_path / "s"), pytest.raises(mxtrain.RunDirectoryError) as caught:
        mxtrain.sweep(*FAST, "optimizer.lr=0.1,0.2", dir=tmp_path / "s")
    assert str(caught.value).endswith("Wait for that sweep or stop it, or choose another directory with dir=...")


@pytest.mark.slow
def test_explain_equals_the_command(capsys: Any) -> None:
    found = mxtrain.explain("optimizer.lr", "model=lenet", "optimizer.lr=0.25")
    (setting,) = found.settings
    assert (setting.path, setting.value, found.options) == ("optimizer.lr", 0.25, ())
    assert setting.origins[-1].place == "command line: optimizer.lr=0.25" and setting.meaning
    assert capsys.readouterr().out == ""
    assert dispatch.run(["explain", "optimizer.lr", "model=lenet", "optimizer.lr=0.25"]) == 0
    assert capsys.readouterr().out == f"{found}\n"


def test_explain_lists_the_settings_and_options_of_a_group() -> None:
    assert mxtrain.explain("optimizer.lr", optimizer={"lr": 0.25}).settings[0].value == 0.25
    found = mxtrain.explain("model", "model=lenet")
    assert found.chosen == ["lenet"] and "mlp" in found.options and found.place.endswith("lenet.yaml")
    paths = [setting.path for setting in found.settings]
    assert "model.freeze" in paths and all(path.startswith("model.") for path in paths)
    assert "model._target_" not in paths
    assert str(found).startswith("model=lenet (")
    (channels,) = (setting for setting in found.settings if setting.path == "model.channels")
    assert channels.meaning.startswith("Output channels of each stage")
