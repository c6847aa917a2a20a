"""Sweeps in processes of their own, with Hydra's sweeper and joblib. About a minute."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mxtrain.callback.protocol import CommandLine
from mxtrain.checkpoint.run_directory import lock_run_directory
from mxtrain.cli import dispatch
from mxtrain.cluster.launch import sweep
from mxtrain.cluster.launch.job import shown_once
from mxtrain.cluster.launch.outcome import Outcome, append_outcome, read_outcomes
from mxtrain.cluster.launch.sweep import by_rank
from mxtrain.cluster.launch.sweep_jobs import earlier_outcomes, first_number, number_of, numbered_jobs
from mxtrain.cluster.stopping import startup_signals
from mxtrain.composing.config_files import job_folder
from mxtrain.errors import EXIT_BAD_INPUT

ROOT = Path(__file__).resolve().parents[3]
FAST = ("debug=fast", "model=mlp", "logger=jsonl", "hydra.sweep.dir=s")


def folder_of(mxtrain, number: int) -> Path:
    """A job's, whatever was swept."""
    (found,) = (mxtrain.folder / "s").glob(f"{number}_*")
    return found


def status_of(mxtrain, number: int) -> dict:
    return json.loads((folder_of(mxtrain, number) / "status.json").read_text())


def rows(text: str) -> list:
    """The summary's rows: number, state and best value."""
    return re.findall(r"^(\d+) .*?((?:finished|failed|interrupted)(?:, before| \(\d+\))?) +(\S+)", text, re.MULTILINE)


@pytest.mark.slow
def test_failed_job_does_not_stop_other_jobs(mxtrain) -> None:
    sweep = ("-m", *FAST, "optimizer.lr=1e38,0.01", "trainer.seed=1,2")
    done = mxtrain(*sweep, mxnet=True)
    assert done.returncode == 3
    assert [status_of(mxtrain, n)["exit_code"] for n in range(4)] == [3, 3, 0, 0]
    # Said when it happened, once, and not again by Hydra.
    assert re.findall(r"^error: job (\d)", done.stderr, re.MULTILINE) == ["0", "1"]
    assert "Traceback" not in done.stderr and "Error executing job" not in done.stderr
    # The best first, those that failed last.
    shown = rows(done.stdout)
    assert [state for _, state, _ in shown] == ["finished", "finished", "failed (3)", "failed (3)"]
    assert [n for n, _, _ in shown[2:]] == ["0", "1"] and float(shown[0][2]) >= float(shown[1][2])
    assert re.search(rf"^{shown[0][0]} .* <- best", done.stdout, re.MULTILINE) and done.stdout.count("<- best") == 1
    assert [folder_of(mxtrain, n).name for n in (0, 3)] == [
        "0_optimizer.lr-1e+38_trainer.seed-1",
        "3_optimizer.lr-0.01_trainer.seed-2",
    ]
    # The environment and what to do next stand there once.
    assert done.stdout.count("loading MXNet") == 1 and done.stdout.count("# evaluate") == 1
    assert "# compare" not in done.stdout  # TensorBoard does not watch
    lines = [json.loads(line) for line in (mxtrain.folder / "s/jobs.jsonl").read_text().splitlines()]
    assert [line["best"] == status_of(mxtrain, n)["best"] for n, line in enumerate(lines)] == [True] * 4
    assert "trainer.seed=2" in lines[3]["overrides"]

    # The same command again: what is finished is not touched, what failed is tried again.
    written = {n: (folder_of(mxtrain, n) / "status.json").stat().st_mtime_ns for n in range(4)}
    again = mxtrain(*sweep, mxnet=True)
    assert again.returncode == 3
    changed = [n for n in range(4) if (folder_of(mxtrain, n) / "status.json").stat().st_mtime_ns != written[n]]
    assert changed == [0, 1]
    assert [state for _, state, _ in rows(again.stdout)][:2] == ["finished, before"] * 2


@pytest.mark.zoo
def test_finished_job_resumes_for_more_epochs(mxtrain) -> None:
    sweep = ("-m", *FAST, "lr_scheduler=constant", "trainer.seed=1,2")
    assert mxtrain(*sweep, mxnet=True).returncode == 0
    done = mxtrain(*sweep, "trainer.max_epochs=2", mxnet=True)
    assert done.returncode == 0, done.stderr
    assert [status_of(mxtrain, n)["epoch"] for n in (0, 1)] == [2, 2]


@pytest.mark.zoo
def test_jobs_show_their_settings_once(describe_run) -> None:
    description = describe_run("model=mlp", "logger=[console,jsonl]")
    hidden = shown_once(description, ["optimizer.lr=0.1"]).logger
    assert (hidden["console"].show_config, hidden["console"].show_model) == (False, False)
    assert hidden["jsonl"] == description.logger["jsonl"]
    typed = shown_once(description, ["logger.console.show_config=full"]).logger
    assert typed["console"] == description.logger["console"]


def test_loggers_suggest_commands_for_a_sweep(describe_run, tmp_path) -> None:
    best = Outcome(1, ["a=1"], str(tmp_path / "1"), "finished", 0, "", 5, {"metric": "x", "value": 0.5, "step": 5})
    for loggers, purposes in (
        ("[console]", ["evaluate the best"]),
        ("[tensorboard]", ["compare", "evaluate the best"]),
    ):
        steps = sweep.next_steps(best, tmp_path, describe_run("model=mlp", f"logger={loggers}"))
        assert [purpose for purpose, _ in steps] == purposes
    assert steps[0][1].endswith(f"--logdir {tmp_path}")


@pytest.mark.slow
def test_a_sweep_over_groups_and_open_settings(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    subdir = "hydra.sweep.subdir=${hydra.job.num}-${model._target_}"
    words = ["-m", "debug=fast", "logger=jsonl", "hydra.sweep.dir=s", "model=mlp,lenet", subdir]
    assert (dispatch.run(words), capsys.readouterr().err) == (0, "")
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "0-mxtrain.model.mlp.MLP",
        "1-mxtrain.vision.classification.lenet.LeNet",
        "jobs.jsonl",
        "multirun.yaml",
        ".lock",
    }


@pytest.mark.zoo
def test_a_preset_that_sweeps_needs_no_flag(mxtrain) -> None:
    preset = mxtrain.folder / "own/experiment/tries.yaml"
    preset.parent.mkdir(parents=True)
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      optimizer.lr: 0.1,{}\n"
    preset.write_text(text.format("x"))
    said = mxtrain.refused("--config-dir", "own", "experiment=tries", *FAST)
    assert "optimizer.lr=x" in said
    preset.write_text(text.format("0.2"))
    done = mxtrain("--config-dir", "own", "experiment=tries", *FAST, mxnet=True)
    assert done.returncode == 0 and len(rows(done.stdout)) == 2


@pytest.mark.slow
def test_old_sweeper_is_refused_with_tune(mxtrain) -> None:
    said = mxtrain.refused(
        "-m", *FAST, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=7", "optimizer.lr=tag(log,interval(0.0001,0.1))"
    )
    meant = "debug=fast model=mlp logger=jsonl 'optimizer.lr=tag(log,interval(0.0001,0.1))' n_trials=7"
    assert f"tune STUDY {meant}" in said


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["optimizer.lr=log(1e-4,1e-1)", "optimizer.lr=interval(1e-4,1e-1)"])
def test_range_is_refused_with_tune(refused, typed: str) -> None:
    for flags in ((), ("-m",)):
        assert f"ranges belong to `tune`, which chooses the values: mxtrain tune STUDY '{typed}'." in refused(
            *flags, typed
        )


@pytest.mark.zoo
@pytest.mark.slow
def test_second_sweep_in_a_folder_continues_job_numbers(mxtrain) -> None:
    assert mxtrain("-m", *FAST, "optimizer.lr=0.01,0.02", mxnet=True).returncode == 0
    done = mxtrain("-m", *FAST, "optimizer.lr=0.03,0.02", mxnet=True)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (mxtrain.folder / "s").glob("*_*"))
    assert names == ["0_optimizer.lr-0.01", "1_optimizer.lr-0.02", "2_optimizer.lr-0.03"]
    assert sorted((number, state) for number, state, _ in rows(done.stdout)) == [
        ("0", "finished, before"),
        ("1", "finished, before"),
        ("2", "finished"),
    ]
    best = max(range(3), key=lambda n: (status_of(mxtrain, n)["best"]["value"], -status_of(mxtrain, n)["best"]["loss"]))
    assert re.search(rf"^{best} .* <- best", done.stdout, re.MULTILINE)


def test_numbers_of_jobs(tmp_path) -> None:
    parse = OverridesParser.create().parse_overrides
    grid = parse(["model=mlp", "optimizer.lr=0.1,0.2", "+trainer.seed=1,2"])
    assert first_number(grid, tmp_path) == 0
    names = ("0_trainer.seed-1_optimizer.lr-0.1", "1_trainer.seed-2_optimizer.lr-0.1")
    for name in names:
        (tmp_path / name).mkdir()
    assert first_number(grid, tmp_path) == 0  # the same sweep goes on
    assert first_number(parse(["optimizer.lr=0.1,0.2", "+trainer.seed=2,1"]), tmp_path) == 2
    assert job_folder(1, "+trainer.seed=1,optimizer.lr=0.1", str(tmp_path)) == names[0]
    assert job_folder(1, "optimizer.lr=0.3", str(tmp_path)) == "1_optimizer.lr-0.3"
    with numbered_jobs(parse(["optimizer.lr=0.3,0.4"]), tmp_path):
        assert job_folder(1, "optimizer.lr=0.4", str(tmp_path)) == "3_optimizer.lr-0.4"
    assert number_of(tmp_path / "12_a", 0) == 12 and number_of(tmp_path / "mine", 5) == 5


def test_jobs_of_earlier_calls_in_the_same_folder_count(tmp_path, capsys) -> None:
    folder, file = tmp_path, tmp_path / "jobs.jsonl"

    def add(number: int, lr: str, value: float, metric: str = "val/accuracy") -> None:
        best = {"metric": metric, "value": value, "step": 1}
        append_outcome(
            file,
            Outcome(
                number,
                [f"optimizer.lr={lr}"],
                str(folder / f"{number}_{lr}"),
                "finished",
                0,
                "",
                1,
                best,
                ["optimizer.lr"],
            ),
        )

    for number, lr, value, metric in (
        (0, "0.1", 0.9, "val/accuracy"),
        (1, "0.2", 0.4, "val/accuracy"),
        (2, "0.3", 9.0, "val/loss"),
    ):
        add(number, lr, value, metric)
    start = file.stat().st_size
    add(1, "0.2", 0.5)
    earlier = earlier_outcomes(file, start)
    assert [(one.number, one.before) for one in earlier] == [(0, True), (1, True), (2, True)]
    description = SimpleNamespace(
        trainer=SimpleNamespace(monitor="val/accuracy"),
        logger={},
        metric={"accuracy": SimpleNamespace(better_direction="max")},
    )
    outcomes = read_outcomes(file, start)
    ranked = sweep.rank_jobs(outcomes, earlier, description)  # type: ignore[arg-type]
    sweep.print_table(outcomes, ranked, folder, description)  # type: ignore[arg-type]
    assert rows(capsys.readouterr().out) == [("0", "finished, before", "0.9000"), ("1", "finished", "0.5000")]


def test_jobs_of_a_moved_folder_count_once(tmp_path) -> None:
    file = tmp_path / "jobs.jsonl"
    (tmp_path / "0_a").mkdir()
    for run_dir in ("/earlier/0_a", str(tmp_path / "0_a"), "/earlier/1_b"):
        append_outcome(file, Outcome(0, [], run_dir, "finished", 0, "", 1, None))
    found = [one.run_dir for one in earlier_outcomes(file, file.stat().st_size)]
    assert found == [str(tmp_path / "0_a"), "/earlier/1_b"]


def test_a_signal_between_two_jobs_is_reported_once(capsys) -> None:
    def prepare_job(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # while no training handles signals
        raise AssertionError("the signal was ignored")

    composer = SimpleNamespace(hydra=SimpleNamespace(multirun=prepare_job))
    with startup_signals():
        assert sweep._call_hydra(composer, [], lambda _: None) == 143  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("stopped: ") == 1


@pytest.mark.slow
def test_a_signal_ends_the_job_and_the_sweep(mxtrain) -> None:
    long = ("model=mlp", "logger=jsonl", "trainer.max_epochs=2000", "early_stopping=off", "trainer.seed=1,2")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mxtrain", "-m", *long, "hydra.sweep.dir=s"]
    sweep = subprocess.Popen(
        command, cwd=mxtrain.folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(mxtrain.folder.glob("s/0_*/checkpoints/step-*[1-9]*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        sweep.terminate()
        said = sweep.communicate(timeout=60)[1]
    finally:
        sweep.kill()
    assert sweep.returncode == 143 and "error: " not in said and "the sweep was interrupted" in said
    assert status_of(mxtrain, 0)["state"] == "interrupted" and not list(mxtrain.folder.glob("s/1*"))


@pytest.mark.zoo
@pytest.mark.slow
def test_joblib_runs_jobs_in_processes_and_reports_outcomes(mxtrain) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    done = mxtrain(
        "-m", *FAST, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "optimizer.lr=0.01,1e38", mxnet=True
    )
    assert done.returncode == 3, done.stderr
    assert [status_of(mxtrain, n)["state"] for n in range(2)] == ["finished", "failed"]
    assert [state for _, state, _ in rows(done.stdout)] == ["finished", "failed (3)"]
    assert "error: job 1" in done.stderr


@pytest.mark.slow
def test_sweep_with_only_failed_jobs_reports_causes(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert dispatch.run(["-m", *FAST, "optimizer.lr=1e37,1e38"]) == 3
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert [state for _, state, _ in rows(said.out)] == ["failed (3)"] * 2


@pytest.mark.slow
def test_data_of_all_jobs_are_checked_before_the_first_starts(mxtrain) -> None:
    """Without MXNet, and with the dataset's own words, each once."""
    done = mxtrain("-m", *FAST, "dataset=digits,image_folder", "dataset.batch_size=8,16")
    assert done.returncode == 2 and not (mxtrain.folder / "s").exists()
    assert done.stderr.count("data/image_folder") == 1 and done.stderr.count("dataset=image_folder") <= 2, done.stderr


def test_job_folder_names_need_no_quotes() -> None:
    assert job_folder(0, "model=lenet,optimizer.lr=0.1") == "0_model-lenet_optimizer.lr-0.1"
    assert (
        job_folder(1, "model.hidden=[64,32],+dataset.root=/a b/c,lr=-1")
        == "1_model.hidden-64-32_dataset.root-a-b-c_lr--1"
    )
    assert job_folder("2", "") == "2" and len(job_folder(3, "x=" + "y" * 300)) == 120


def test_jobs_are_ranked_by_the_monitored_value() -> None:
    def job(number: int, value: object) -> Outcome:
        best = None if value is None else {"metric": "val/loss", "value": value, "step": 1}
        return Outcome(number, [], "r", "finished", 0, "", 1, best)

    jobs = [job(0, 0.5), job(1, None), job(2, 0.25), job(3, float("nan"))]
    assert [one.number for one in by_rank(jobs, "min")] == [2, 0, 1, 3]
    assert [one.number for one in by_rank(jobs, "max")] == [0, 2, 1, 3]


def test_equal_jobs_are_ranked_by_their_validation_loss() -> None:
    def job(number: int, loss: object) -> Outcome:
        return Outcome(number, [], "r", "finished", 0, "", 1, {"metric": "val/bleu", "value": 0.0, "step": 9, **loss})

    jobs = [job(0, {}), job(1, {"loss": 3.0}), job(2, {"loss": 2.0}), job(3, {"loss": None}), job(4, {"loss": 2.0})]
    assert [one.number for one in by_rank(jobs, "max")] == [2, 4, 1, 0, 3]


def test_workers_of_a_job_know_their_sweep() -> None:
    command = CommandLine(job=3, swept=["model", "optimizer.lr"])
    with sweep.exported_job(command):
        assert sweep.with_exported_job(CommandLine()) == command
    assert sweep.with_exported_job(CommandLine()) == CommandLine()


def test_jobs_are_listed_in_utf8(tmp_path) -> None:
    outcome = Outcome(0, ["dataset.root=фото/猫"], "s/0", "finished", 0, "", 5, None)
    append_outcome(tmp_path / "jobs.jsonl", outcome)
    assert "фото/猫" in (tmp_path / "jobs.jsonl").read_text(encoding="utf-8")
    assert read_outcomes(tmp_path / "jobs.jsonl", 0)[0].overrides == outcome.overrides


def test_invalid_outcome_lines_are_skipped(tmp_path, caplog):
    """Covers a line cut by a full disk and other content of a list of jobs."""
    file = tmp_path / "jobs.jsonl"
    good = Outcome(1, ["a=1"], "r", "finished", 0, "", 5, {"metric": "val/loss", "value": 0.5, "step": 5})
    append_outcome(file, good)
    lines = [
        b"{}",
        b"[]",
        b"5",
        b"\xff",
        file.read_bytes()[:40],
        b"[" * 9000,
        b'{"number": 1e999}',
        file.read_bytes().strip().replace(b'"step": 5}', b'"step": "x"}'),
        file.read_bytes().strip().replace(b'"a=1"', b"3"),
    ]
    with file.open("ab") as stream:
        stream.write(b"\n".join(lines) + b"\n")
    append_outcome(file, good)
    found = read_outcomes(file, 0)
    assert [(one.number, one.overrides, one.best) for one in found] == [(1, ["a=1"], good.best)] * 2
    assert len(caplog.messages) == len(lines) and "jobs.jsonl, line 2 is no outcome of a job" in caplog.messages[0]


@pytest.mark.slow
def test_two_sweeps_at_once_in_one_folder_are_refused(tmp_path, capsys) -> None:
    folder = tmp_path / "s"
    words = ["-m", "model=mlp", "optimizer.lr=0.1,0.2", f"hydra.sweep.dir={folder}"]
    with lock_run_directory(folder, holds="sweep"):
        assert dispatch.run(words) == EXIT_BAD_INPUT
    said = " ".join(capsys.readouterr().err.split())
    assert re.match(rf"error: The folder of the sweep {folder} is in use by process \d+ on ", said)
    assert said.endswith("Wait for that sweep or stop it, or choose another directory with hydra.sweep.dir=...")
    assert not (folder / "jobs.jsonl").exists()
