"""Trackers against a real HTTP server: examples/own_code/http_tracker.py, which the documentation shows."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from running import ROOT, rows, status, train_here
from tracker_server import EXAMPLE, HttpTracker, tracking
from waiting import wait_until

import mxtrain
from mxtrain.cli import main
from mxtrain.config.specs import import_target, validate
from mxtrain.errors import ConfigError, RunDirectoryError
from mxtrain.logger import delivery
from mxtrain.logger.jsonl import JsonlLogger
from mxtrain.logger.mlflow import Mlflow
from mxtrain.logger.tracker_points import Position, curves_of, rows_for_points
from mxtrain.logger.wandb import Wandb

KEY = "key-of-somebody-4711"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("HTTP_TRACKER_KEY", KEY)
    with tracking() as running:
        yield running


@pytest.fixture
def tracker(server):
    return HttpTracker(uri=server.uri)


def expected(fake_run, last):
    """The points of a run of `FakeRun`, from its rows: means of five steps, and validations."""
    found, window = {}, []
    for row in fake_run.rows(last):
        if row["split"] == "val":
            found.update({(f"val/{name}", row["step"]): row[name] for name in ("loss", "accuracy")})
            continue
        window.append(row)
        if row["step"] % 5 == 0:
            for name in ("loss", "accuracy"):
                found[f"train/{name}", row["step"]] = pytest.approx(sum(one[name] for one in window) / 5)
            found["train/lr", row["step"]] = pytest.approx(0.1)
            found["perf/samples_per_s", row["step"]] = 1000.0 + row["step"]
            window = []
    return found


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_run_is_sent_with_its_settings_and_its_end(fake_run, tracker, server, caplog):
    with caplog.at_level(logging.INFO):
        fake_run.drive(tracker.build(), 1, 30)
    assert server.points() == expected(fake_run, 30)
    assert server.closed["run1"] == [
        {"state": "finished", "metrics": {"val/accuracy": 0.75, "test/accuracy": 0.5, "train/loss": 0.1}}
    ]
    assert server.opened[0]["settings"]["optimizer.lr"] == 0.1
    assert server.opened[0]["name"] == "/".join(fake_run.run_dir.parts[-2:])
    assert warnings_in(caplog) == []
    assert threading.active_count() == 2  # with the server's


PATHS = [str(ROOT / "tests" / "logger"), str(ROOT), str(ROOT / "tests/support"), str(EXAMPLE)]
KILLED = f"""
import sys; sys.path[:0] = {PATHS}
from pathlib import Path; from conftest import FakeRun; from http_tracker import HttpTracker
from mxtrain.logger import delivery; from mxtrain.logger.jsonl import Jsonl
run = FakeRun(Path(sys.argv[1])); watchers = Jsonl().build(), HttpTracker(uri=sys.argv[2]).build()
for one in watchers: one.on_start(run.info())
for last in map(int, sys.argv[3:]):
    first = int(sys.stdin.readline())
    delivery.SEND_INTERVAL_S = 0.01 if last > 0 else 1000
    for step in range(first, abs(last) + 1, 5):
        for one in watchers: run.five_steps(one, step)
    print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True])
def test_a_killed_run_continues_without_gaps_and_repeated_points(fake_run, tracker, server, ahead):
    """At the checkpoint of step 20 the service has all up to step 10, or it is ahead with step 25."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(fake_run.run_dir), server.uri, "10", "25" if ahead else "-20"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        for first, last in ((5, 10), (15, 25)):
            process.stdin.write(f"{first}\n")
            process.stdin.flush()
            assert process.stdout.readline()
            if last == 10 or ahead:
                wait_until(lambda: len(server.runs.get("run1", ())) == len(expected(fake_run, last)))  # noqa: B023
        process.kill()
    wait_until(lambda: server.closed["run1"])
    assert server.closed["run1"][0]["state"] == "interrupted", "nobody else could say so"
    wait_until(lambda: not tracker_processes())
    for one in (JsonlLogger("metrics.jsonl"), tracker.build()):
        fake_run.drive(one, 21, 30)
    # `FakeRun` gives no values of whole epochs, which those from metrics.jsonl include.
    found = {point: value for point, value in server.points().items() if not point[0].endswith("_epoch")}
    assert found == expected(fake_run, 30)
    assert list(server.runs) == ["run1"] and server.opened[1]["id"] == "run1"


def tracker_processes():
    """Command lines of the processes of trackers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [path] if b"mxtrain.logger.tracker_process" in path.read_bytes() else []
    return found


class Dropping(HttpTracker):
    """A service that keeps a point once that comes twice with the same time, such as MLflow."""

    drops_repeated_points = True


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HttpTracker, Dropping])
def test_unconfirmed_points_are_resent_only_to_services_that_drop_duplicates(fake_run, server, kind):
    tracker = kind(uri=server.uri)
    position = Position(fake_run.run_dir / "tracker-http.json", server.uri, "run7", {"val/loss": 10, "train/loss": 10})
    position.pending = [["train/loss", 0.5, 10, 123]]
    position.write()
    fake_run.drive(tracker.build(), 11, 20)
    found = server.points("run7")
    assert (("train/loss", 10) in found) == (kind is Dropping)
    assert {point: value for point, value in found.items() if point[1] > 10} == {
        point: value for point, value in expected(fake_run, 20).items() if point[1] > 10
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/open", "/points", "/close"])
def test_a_server_that_hangs_is_given_up_at_the_end(fake_run, server, caplog, path, capsys):
    server.hangs_at = path
    fake_run.drive(HttpTracker(uri=server.uri, timeout_s=0.3).build(), 1, 30)
    assert server.hanging.is_set() and not server.released.is_set(), "it still hangs"
    (warning,) = warnings_in(caplog)
    assert "http has not received everything of this run: no answer for 0.3 s" in warning
    assert f"push {fake_run.run_dir} tracker=http logger.http.uri=" in warning and "` sends the rest" in warning
    wait_until(lambda: not tracker_processes())


@pytest.mark.slow
def test_a_server_that_fails_for_a_while_gets_everything_and_no_key_is_shown(
    fake_run, tracker, server, caplog, monkeypatch
):
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(delivery, "SEND_INTERVAL_S", 0.01)
    server.fails = 3
    logger = tracker.build()
    with caplog.at_level(logging.INFO):
        logger.on_start(fake_run.info())
        fake_run.five_steps(logger, 5)
        wait_until(lambda: server.runs.get("run1"))
        server.fails = 2
        fake_run.five_steps(logger, 10)
        wait_until(lambda: ("val/loss", 10) in {point[:2] for point in server.runs["run1"]})
        logger.on_end(fake_run.result(10))
    assert server.points() == expected(fake_run, 10)
    warnings = warnings_in(caplog)
    assert len(warnings) == 2 and "HTTP Error 500: cannot take Bearer ***" in warnings[0], "said once each time"
    assert sum("http answers again" in record.getMessage() for record in caplog.records) == 2
    everything = caplog.text + "".join(path.read_text() for path in fake_run.run_dir.iterdir())
    assert KEY not in everything


def test_a_server_that_is_gone_is_given_up_at_once(fake_run, caplog):
    fake_run.drive(HttpTracker(uri="http://127.0.0.1:9").build(), 1, 30)
    warnings = warnings_in(caplog)
    assert len(warnings) == 2 and "Connection refused" in warnings[0] and "push" in warnings[1], warnings


@pytest.mark.slow
def test_a_process_that_dies_is_started_again(fake_run, tracker, server, caplog, monkeypatch):
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(delivery, "SEND_INTERVAL_S", 0.01)
    logger = tracker.build()
    logger.on_start(fake_run.info())
    fake_run.five_steps(logger, 5)
    wait_until(lambda: server.runs.get("run1"))
    (process,) = tracker_processes()
    os.kill(int(process.parent.name), signal.SIGKILL)
    fake_run.five_steps(logger, 10)
    logger.on_end(fake_run.result(10))
    assert server.points() == expected(fake_run, 10)
    assert list(server.runs) == ["run1"]


@pytest.mark.slow
def test_a_full_queue_is_reported_once_and_push_sends_the_rest(fake_run, server, caplog, capsys):
    server.hangs_at = "/points"
    files = JsonlLogger("metrics.jsonl")
    fake_run.drive(files, 1, 30)
    fake_run.drive(HttpTracker(uri=server.uri, timeout_s=0.3, queue_size=11).build(), 1, 30)
    warnings = warnings_in(caplog)
    assert len(warnings) == 2 and "http does not keep up: 11 points wait" in warnings[0], warnings
    server.hangs_at = None
    assert push(fake_run, server) == 0
    # Those that were on their way when the process was ended may be there, so they are not sent again.
    assert {("val/loss", 20), ("val/loss", 30), ("train/loss", 20), ("train/loss", 30)} <= set(server.points())


def push(fake_run, server, *words):
    return main(
        [
            "push",
            str(fake_run.run_dir),
            "tracker=http",
            "--config-dir",
            str(EXAMPLE / "conf"),
            f"logger.http.uri={server.uri}",
            *words,
        ]
    )


@pytest.mark.slow
def test_push_sends_a_finished_run_once(fake_run, server, capsys):
    fake_run.drive(JsonlLogger("metrics.jsonl"), 1, 30)
    with (fake_run.run_dir / "metrics.jsonl").open("a") as file:  # what a stranger may have written
        file.write('{"step": -1, "epoch": 0, "split": "train"}\n[1]\n{"step": 9e9, "epoch": 0, "split": "val"}\nx\n')
    (fake_run.run_dir / "status.json").write_text(
        json.dumps({"state": "stopped_early", "step": 30, "metrics": {"test/loss": 0.25, "odd": "text"}})
    )
    assert push(fake_run, server) == 0
    assert "points sent to http" in capsys.readouterr().out
    # Without a checkpoint nothing says how often the run logged: here once an epoch of ten steps.
    rows_of = [row for row in fake_run.rows(30) if row["split"] == "train"]
    losses = {
        ("train/loss", last): pytest.approx(sum(row["loss"] for row in rows_of[last - 10 : last]) / 10)
        for last in (10, 20, 30)
    }
    found = server.points()
    assert {point: value for point, value in found.items() if point[0] == "train/loss"} == losses
    assert found["val/accuracy", 20] == 0.95
    assert server.closed["run1"] == [{"state": "stopped_early", "metrics": {"test/loss": 0.25}}]
    assert push(fake_run, server) == 0
    assert "0 points sent" in capsys.readouterr().out and server.points() == found


@pytest.mark.slow
def test_push_reports_wrong_arguments_and_server_failures(fake_run, server, capsys):
    fake_run.drive(JsonlLogger("metrics.jsonl"), 1, 10)
    server.fails = 99
    assert push(fake_run, server) == 1
    assert KEY not in capsys.readouterr().err
    for words, said in (
        (["push"], "takes a run directory"),
        (["push", str(fake_run.run_dir)], "push needs tracker=NAME, one of mlflow, wandb"),
        (["push", str(fake_run.run_dir), "tracker=mlfow"], "Did you mean 'mlflow'?"),
        (["push", str(fake_run.run_dir), "tracker=csv"], "there is no such tracker"),
        (["push", str(fake_run.run_dir / "no"), "tracker=mlflow"], "no such run directory"),
    ):
        if "mlflow" in words[-1] and not has_mlflow():
            said = "the package mlflow is not installed"
        assert main(words) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_push_from_python_returns_counts_and_destination(fake_run, server, capsys, caplog):
    fake_run.drive(JsonlLogger("metrics.jsonl"), 1, 10)
    words = f"logger.http.uri={server.uri}"
    found = mxtrain.push(fake_run.run_dir, words, tracker="http", config_dir=EXAMPLE / "conf")
    assert found.complete and not found.continued and found.sent == len(server.points()) > 0
    assert (found.service, found.remote_id, found.destination) == ("http", "run1", server.uri)
    again = mxtrain.push(fake_run.run_dir, words, tracker="http", config_dir=EXAMPLE / "conf")
    assert (again.sent, again.continued) == (0, True) and "continued run run1" in repr(again)
    assert capsys.readouterr().out == ""
    server.fails = 99
    fake_run.drive(JsonlLogger("metrics.jsonl"), 11, 20)
    failed = mxtrain.push(fake_run.run_dir, words, tracker="http", config_dir=EXAMPLE / "conf")
    assert not failed.complete and warnings_in(caplog)
    with pytest.raises(ConfigError, match="Did you mean 'mlflow'"):
        mxtrain.push(fake_run.run_dir, tracker="mlfow")


def has_mlflow():
    return not refused(Mlflow())


def refused(spec):
    try:
        spec.require_usable("logger.it")
    except ConfigError as error:
        return str(error)
    return ""


def test_a_damaged_position_is_refused_before_the_run(fake_run, tracker):
    (fake_run.run_dir / "tracker-http.json").write_text('{"destination": "' + tracker.uri + '", "remote_id": 5}')
    with pytest.raises(RunDirectoryError, match="tracker-http.json is damaged"):
        tracker.build().on_start(fake_run.info(10))
    assert threading.active_count() == 2


def test_credentials_in_an_address_are_refused_and_not_repeated():
    with pytest.raises(ConfigError) as error:
        validate(Mlflow, {"uri": "http://somebody:geheim@host:5000"}, "logger.mlflow", lambda path: "here")
    assert "uri holds a user name or a password" in str(error.value) and "geheim" not in str(error.value)


def test_credentials_that_the_environment_puts_into_an_address_are_not_stored(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somebody:geheim@host:5000")
    assert Mlflow().shown_destination == "http://***@host:5000 mxtrain"


def test_a_tracker_that_another_process_cannot_import_is_refused():
    class Local(HttpTracker):
        pass

    assert "at the top level of a module" in refused(Local(uri="x"))
    assert "" == refused(HttpTracker(uri="x"))


@pytest.mark.skipif(has_mlflow(), reason="mlflow is installed")
def test_a_missing_package_is_named_before_the_run(tmp_path, capsys):
    assert main(["train", "logger=mlflow", f"hydra.run.dir={tmp_path / 'run'}"]) == 2
    assert "logger.mlflow: the package mlflow is not installed here: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_training_continues_while_the_server_hangs_and_push_sends_the_same_points(
    server, tmp_path, monkeypatch, capsys
):
    """A whole run with a real server; what is sent while it trains and later differs in the last digits only."""
    words = (
        "--config-dir",
        str(EXAMPLE / "conf"),
        "model=mlp",
        "model.hidden=[8]",
        "trainer.max_epochs=2",
        "trainer.log_interval=7",
        "dataset.batch_size=97",
        f"logger.http.uri={server.uri}",
    )
    train_here(tmp_path / "good", *words, "logger=[jsonl,console,http]")
    assert [one["state"] for one in server.closed["run1"]] == ["finished"]
    server.hangs_at = "/points"
    said = train_here(tmp_path / "hung", *words, "logger=[jsonl,http,console]", "logger.http.timeout_s=0.3")
    assert "http has not received everything of this run" in said
    assert status(tmp_path / "hung")["weights_sha256"] == status(tmp_path / "good")["weights_sha256"]
    assert rows(tmp_path / "hung") == rows(tmp_path / "good")
    server.hangs_at = None
    (tmp_path / "hung" / "tracker-http.json").unlink()
    assert main(["push", str(tmp_path / "hung"), "tracker=http", *words[:2], words[-1]]) == 0
    live, later = (
        {point: value for point, value in server.points(one).items() if point[0] != "perf/samples_per_s"}
        for one in ("run1", "run3")
    )
    assert set(later) == set(live), "the same steps and tags"
    assert later == {point: pytest.approx(value, rel=0.1) for point, value in live.items()}, "the last batch is smaller"
    for name in ("meta.json", "train.log", "status.json", "tracker-http.json"):
        assert KEY not in (tmp_path / "hung" / name).read_text()


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_every_option_names_its_service_and_package(kind):
    target = (ROOT / f"conf/logger/{kind}.yaml").read_text().rpartition("_target_: ")[2].strip()
    spec = import_target(target, kind)()
    assert spec.service == kind and kind in spec.shown_destination + spec.install
    extra = [json.dumps(one) for one in spec.install.split()]  # Python 3.9 reads no TOML
    assert f"{kind} = [{', '.join(extra)}]" in (ROOT / "pyproject.toml").read_text()


def test_a_run_may_end_before_it_starts_and_before_the_service_is_reached(fake_run, tracker, server):
    logger = tracker.build()
    logger.on_end(fake_run.result(0))
    fake_run.five_steps(logger, 5)
    assert not list(fake_run.run_dir.iterdir()) and not server.runs
    logger.on_start(fake_run.info())
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    logger.on_end(fake_run.result(0, "interrupted", exit_code=130))
    logger.on_end(fake_run.result(0))
    assert [one["state"] for one in server.closed["run1"]] == ["interrupted"]
    assert threading.active_count() == 2 and before[0] == 3 and not tracker_processes()


def test_unwritable_run_directory_is_refused_and_a_removed_one_reported(fake_run, tracker, server, caplog):
    fake_run.run_dir = run_dir = fake_run.run_dir / "run"
    with pytest.raises(RunDirectoryError, match="run/tracker-http.json"):
        tracker.build().on_start(fake_run.info())
    run_dir.mkdir()
    logger = tracker.build()
    logger.on_start(fake_run.info())
    shutil.rmtree(run_dir)
    for step in range(5, 21, 5):
        fake_run.five_steps(logger, step)
    logger.on_end(fake_run.result(20))
    assert server.points() == expected(fake_run, 20)
    (warning,) = warnings_in(caplog)
    assert "tracker-http.json: its folder was deleted" in warning


@pytest.mark.slow
def test_starting_over_begins_a_new_run_of_the_service(fake_run, tracker, server):
    fake_run.drive(tracker.build(), 1, 10)
    fake_run.drive(tracker.build(), 1, 10)
    assert server.points("run1") == server.points("run2") == expected(fake_run, 10)


def test_wandb_mode_offline_is_local():
    assert Wandb(mode="offline").is_local and not Wandb(mode="online").is_local


def test_curves_have_epoch_means_if_epochs_are_longer(fake_run):
    fake_run.drive(JsonlLogger("metrics.jsonl"), 1, 20)
    curves = dict(curves_of(rows_for_points(fake_run.run_dir / "metrics.jsonl", 20), 4, 10, 18))
    losses = [2.0 / step for step in range(1, 21)]
    assert sorted(curves) == [4, 8, 10, 12, 16, 18, 20]
    assert curves[8]["train/loss"] == pytest.approx(sum(losses[4:8]) / 4)
    assert curves[12]["train/loss"] == pytest.approx(sum(losses[8:12]) / 4)
    assert curves[18]["train/loss"] == pytest.approx(sum(losses[16:18]) / 2)
