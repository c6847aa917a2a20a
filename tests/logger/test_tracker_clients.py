"""Calls of client libraries, whose packages are replaced by modules that note them, and the order of deliveries."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from mxtrain.config.secret_values import hide_secrets
from mxtrain.logger import delivery, tracker_logger
from mxtrain.logger.delivery import Delivery, ServiceError
from mxtrain.logger.mlflow import MlflowConnection
from mxtrain.logger.tracked_run import Point, TrackedRun, TrackerConnection
from mxtrain.logger.tracker_logger import TrackerLogger
from mxtrain.logger.tracker_points import Position, curves_of, rows_for_points
from mxtrain.logger.tracker_process import TrackerSession
from mxtrain.logger.wandb import Wandb

Calls = List[Tuple[str, Any]]
POINTS = [Point("val/loss", 0.5, 7, 2000), Point("lr", 0.1, 7, 2000)]


class Noted:
    """An object whose methods note their arguments: (name, positional, named)."""

    def __init__(self) -> None:
        self.calls: List[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named)) or True


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun("outputs/run", tmp_path, {"optimizer.lr": 0.1})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module: Any = ModuleType("wandb")
    module.api = SimpleNamespace(api_key=None)
    module.run, module.given = Noted(), []
    module.run.id, module.run.summary = "from-service", {}
    module.Settings = lambda **given: given
    module.init = lambda **given: module.given.append(given) or module.run
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


def test_wandb_continues_the_run_of_the_directory_and_stores_no_console_and_no_source(
    wandb: Any, run: TrackedRun
) -> None:
    expected = {
        "project": "mxtrain",
        "entity": None,
        "name": "outputs/run",
        "resume": "allow",
        "dir": str(run.run_dir),
        "mode": "offline",
        "config": {"optimizer.lr": 0.1},
        "allow_val_change": True,
        "settings": {"console": "off", "silent": True, "disable_git": True, "save_code": False},
    }
    connection = Wandb().connect(run)
    assert re.fullmatch("[0-9a-f]{12}", wandb.given[0].pop("id")) and wandb.given == [expected]
    assert connection.remote_id == "from-service" and connection.remark.startswith("offline: `wandb sync ")
    wandb.api.api_key = "key"
    Wandb().connect(TrackedRun(run.name, run.run_dir, run.settings, "run7"))
    assert wandb.given[1] == {**expected, "id": "run7", "mode": "online"}


@pytest.mark.parametrize("state, exit_code", [("finished", 0), ("stopped_early", 0), ("interrupted", 1), ("failed", 1)])
def test_wandb_gets_points_by_step_and_the_end(wandb: Any, run: TrackedRun, state: str, exit_code: int) -> None:
    connection = Wandb(mode="offline").connect(run)
    wandb.run.calls.clear()
    connection.log([*POINTS, Point("lr", 0.2, 5, 1000)])
    connection.close(state, {"val/loss": 0.25})
    first, second = (
        {"step": 5, "_timestamp": 1.0, "lr": 0.2},
        {"step": 7, "_timestamp": 2.0, "val/loss": 0.5, "lr": 0.1},
    )
    assert wandb.run.calls == [("log", (first,), {}), ("log", (second,), {}), ("finish", (), {"exit_code": exit_code})]
    assert wandb.run.summary == {"state": state, "val/loss": 0.25}


@pytest.mark.parametrize(
    "state, status",
    [
        ("finished", "FINISHED"),
        ("stopped_early", "FINISHED"),
        ("interrupted", "KILLED"),
        ("failed", "FAILED"),
    ],
)
def test_mlflow_gets_the_end(state: str, status: str) -> None:
    client: Any = Noted()
    MlflowConnection(client, "run7").close(state, {})
    assert client.calls == [("set_terminated", ("run7", status), {})]


# The process of a tracker.


class Connection(TrackerConnection):
    def __init__(self) -> None:
        self.remote_id, self.points = "id", []  # type: ignore[var-annotated]

    def log(self, points: Any) -> None:
        self.points += points

    def close(self, state: str, metrics: Any) -> None:
        pass


def test_missing_library_is_named_before_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    load = {"do": "load", "sys_path": [], "module": "mxtrain.logger.wandb", "class": "Wandb", "fields": {}}
    assert "wandb" in TrackerSession().answer(load).get("error", "")


def test_missing_points_are_computed_from_the_rows_up_to_the_checkpoint(tmp_path: Path) -> None:
    rows = [{"step": step, "epoch": 0, "split": "train", "loss": 1.0 / step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    session, connection = TrackerSession(), Connection()
    session._tracker = Wandb(mode="offline")
    object.__setattr__(session._tracker, "connect", lambda run: connection)
    catch_up = {
        "file": str(tmp_path / "metrics.jsonl"),
        "last_step": 2,
        "log_interval": 1,
        "steps_per_epoch": 9,
        "total_steps": 9,
        "start_ms": 5000,
        "ms_per_step": 10,
    }
    connect = {"do": "connect", "run_dir": str(tmp_path), "name": "n", "settings": {}, "catch_up": catch_up}
    assert "error" not in session.answer(connect)
    assert [session.answer({"do": "catch_up"}) for _ in range(2)] == [
        {"answer": 2, "warning": ""},
        {"answer": 0, "warning": ""},
    ]
    assert connection.points == [("train/loss", 1.0, 1, 5010), ("train/loss", 0.5, 2, 5020)]


# The thread that delivers.


class Process:
    """A process of a tracker that notes requests. Its first points fail."""

    def __init__(self) -> None:
        self.requests: List[Dict[str, Any]] = []
        self.is_alive = self.is_closed = False
        self._missing = [1000, 1000, 1]

    def send(self, request: Dict[str, Any]) -> Any:
        self.is_alive = True
        self.requests.append(request)
        if request["do"] == "log" and [one["do"] for one in self.requests].count("log") == 1:
            raise ServiceError("unreachable")
        if request["do"] == "catch_up":
            return self._missing.pop(0) if self._missing else 0
        return {"remote_id": "run7", "remark": "offline"} if request["do"] == "connect" else None

    def restart(self) -> None:
        pass

    close = kill = restart


def test_all_missing_points_are_sent_before_new_ones(
    monkeypatch: pytest.MonkeyPatch, run: TrackedRun, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process()
    monkeypatch.setattr(delivery, "TrackerProcess", lambda: process)
    monkeypatch.setattr(delivery, "SEND_INTERVAL_S", 0.0)
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.0)
    with caplog.at_level(logging.INFO):
        made = Delivery(Wandb(mode="offline"), run, {"file": "metrics.jsonl"}, "`push` sends the rest.")
        made.add(POINTS)
        assert made.close("finished", 7, {})
    done = [request["do"] for request in process.requests]
    assert done == ["load", "connect", *["catch_up"] * 5, "log", "log", "close"]
    assert made.sent == 2001 + len(POINTS)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "wandb: run run7 at wandb /mxtrain; offline"
    assert "Nothing can be sent to wandb (unreachable)" in said[1] and said[2:] == ["wandb answers again."]


def test_pauses_between_attempts_double_up_to_a_minute(monkeypatch: pytest.MonkeyPatch, run: TrackedRun) -> None:
    waits: List[Any] = []

    class Recorded(threading.Condition):
        def wait_for(self, predicate: Any, timeout: Any = None) -> Any:
            waits.append(timeout)
            return super().wait_for(predicate, timeout and 0)

    class FailsEightTimes(Process):
        def send(self, request: Dict[str, Any]) -> Any:
            if request["do"] == "log" and [one["do"] for one in self.requests].count("log") in range(1, 8):
                self.requests.append(request)
                raise ServiceError("unreachable")
            return super().send(request)

    monkeypatch.setattr(delivery, "TrackerProcess", FailsEightTimes)
    monkeypatch.setattr(delivery.threading, "Condition", Recorded)
    monkeypatch.setattr(delivery, "SEND_INTERVAL_S", 0.0)
    made = Delivery(Wandb(mode="offline"), run, {"file": "metrics.jsonl"}, "`push` sends the rest.")
    made.add(POINTS)
    while made.sent < 2001 + len(POINTS):  # it catches up first, see Process
        time.sleep(0.001)
    assert made.close("finished", 7, {})
    assert [pause for pause in waits if pause] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_failed_request_gets_one_more_attempt_at_the_end(monkeypatch: pytest.MonkeyPatch, run: TrackedRun) -> None:
    class Fails(Process):
        def send(self, request: Dict[str, Any]) -> Any:
            answer = super().send(request)
            if request["do"] == "log":
                raise ServiceError("unreachable")
            return answer

    process = Fails()
    monkeypatch.setattr(delivery, "TrackerProcess", lambda: process)
    monkeypatch.setattr(delivery, "SEND_INTERVAL_S", 0.0)
    made = Delivery(Wandb(mode="offline"), run, {"file": "metrics.jsonl"}, "`push` sends the rest.")
    made.add(POINTS)
    assert not made.close("finished", 7, {})
    assert [request["do"] for request in process.requests].count("log") == 2


@pytest.mark.parametrize("resumed_step", [0, 10])
def test_points_of_a_resumed_run_have_the_time_of_the_resumption(
    fake_run: Any, monkeypatch: pytest.MonkeyPatch, resumed_step: int
) -> None:
    given: List[Any] = []
    monkeypatch.setattr(tracker_logger, "Delivery", lambda *arguments: given.append(arguments))
    before_ms = time.time() * 1000
    TrackerLogger(Wandb(mode="offline")).on_start(fake_run.info(resumed_step))
    ((_, _, catch_up, _),) = given
    if resumed_step:
        assert before_ms <= catch_up["start_ms"] <= time.time() * 1000 and catch_up["last_step"] == 10
    else:
        assert catch_up is None


# Points and secrets.


def test_the_rate_of_a_window_is_that_of_its_last_step() -> None:
    rows = [{"step": step, "epoch": 0, "split": "train", "loss": 1.0, "lr": 0.1 * step} for step in (1, 2)]
    assert dict(curves_of(rows, 2, 10, 10)) == {2: {"train/loss": 1.0, "train/lr": 0.2}}


def test_rows_with_longer_names_are_left_out(tmp_path: Path) -> None:
    rows = [{"step": 1, "epoch": 0, "split": "val", "x" * length: 1.0} for length in (250, 251)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(rows_for_points(tmp_path / "metrics.jsonl")) == rows[:1]


@pytest.mark.parametrize("changed", [{"step": -1}, {"epoch": -1}, {"step": True}, {"epoch": 0.0}, {"split": "test"}])
def test_rows_with_wrong_counts_or_splits_are_left_out(tmp_path: Path, changed: Dict[str, Any]) -> None:
    row = {"step": 1, "epoch": 0, "split": "train", "loss": 0.5}
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in ({**row, **changed}, row)))
    assert list(rows_for_points(file)) == [row]


def test_points_up_to_the_last_sent_step_of_a_curve_are_sent_once(tmp_path: Path) -> None:
    position = Position(tmp_path / "p.json", "here")
    position.begin(POINTS)
    assert [position.has(Point("lr", 0.1, step, 0)) for step in (6, 7, 8)] == [True, True, False]
    assert not position.has(Point("train/loss", 0.5, 7, 0))


def test_the_run_of_a_killed_process_is_interrupted_at_the_service() -> None:
    session, closed = TrackerSession(), []
    session.abandon()  # without a connection
    session._connection = SimpleNamespace(close=lambda *given: closed.append(given))  # type: ignore[assignment]
    session.abandon()
    assert closed == [("interrupted", {})]


def test_a_position_without_points_has_no_step(tmp_path: Path) -> None:
    position = Position(tmp_path / "p.json", "here")
    assert position.newest_step == -1
    position.begin(POINTS)
    assert position.newest_step == 7


def test_values_of_variables_that_hold_keys_are_hidden() -> None:
    environment = {"API_KEY": "key-11", "DB_PASSWORD": "short", "HOME": "/home/somebody"}
    assert hide_secrets("key-11 and short in /home/somebody", environment) == "*** and short in /home/somebody"
