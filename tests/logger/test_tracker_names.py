"""Names that a service does not take become others, one refused entry loses no other, and `push` goes to the same
place."""

from __future__ import annotations

import posixpath
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, List

import pytest

from mxtrain.config.secret_values import hide_secrets
from mxtrain.logger.mlflow import Mlflow, MlflowConnection
from mxtrain.logger.tracked_run import TrackerConnection
from mxtrain.logger.tracker import Tracker
from mxtrain.logger.tracker_process import TrackerSession
from mxtrain.logger.wandb import Wandb

NAMES = (
    "val/dice@0.5",
    "val/dice#0.5",
    "metric.dice@0.5._target_",
    "a//b",
    "/a",
    "a/",
    "../a",
    "a/../b",
    "./a",
    "a/.",
    "..",
    "x" * 251,
    "x" * 300,
    "val/größe",
    "a\nb",
    "50%",
    "a(b)",
    "a=b",
    "train/loss",
)


def test_every_name_becomes_one_that_mlflow_takes_and_no_two_the_same() -> None:
    accepted = [Mlflow().accepted_name(name) for name in NAMES]
    for name in accepted:  # the rules of mlflow.utils.validation
        assert re.fullmatch(r"[/\w.\- :]+", name) and len(name) <= 250
        assert posixpath.normpath(name) == name and not name.startswith(("/", "..")) and name != "."
    assert len(set(accepted)) == len(NAMES)
    assert [Mlflow().accepted_name(name) for name in NAMES] == accepted


@pytest.mark.parametrize("tracker", [Mlflow(), Wandb()])
def test_ordinary_names_stay(tracker: Any) -> None:
    for name in ("val/loss", "optimizer.lr", "metric.top_5.k", "perf/samples_per_s", "a b:c", ".hidden", "x" * 250):
        assert tracker.accepted_name(name) == name
    assert tracker.accepted_name("a\x00b") != "a\x00b" and len(tracker.accepted_name("x" * 251)) == 250


class Refusing:
    """A client of MLflow that refuses a whole batch for one entry, as the real one does."""

    def __init__(self, error: type) -> None:
        self.sent: List[str] = []
        self.calls = 0
        self._error = error

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        self.calls += 1
        entries = [*metrics, *params]
        if any(entry.key == "refused" for entry in entries):
            raise self._error("INVALID_PARAMETER_VALUE")
        if any(entry.key == "down" for entry in entries):
            raise self._error("TEMPORARILY_UNAVAILABLE")
        self.sent += [entry.key for entry in entries]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    class MlflowException(Exception):
        def __init__(self, code: str) -> None:
            super().__init__(f"{code}: Invalid value")
            self.error_code = code

    def entity(key: str, *rest: Any) -> Any:
        return SimpleNamespace(key=key)

    for name in ("mlflow", "mlflow.entities", "mlflow.exceptions"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["mlflow.entities"], "Metric", entity, raising=False)
    monkeypatch.setattr(sys.modules["mlflow.exceptions"], "MlflowException", MlflowException, raising=False)
    return Refusing(MlflowException)


def test_a_refused_point_loses_no_other(client: Refusing) -> None:
    connection = MlflowConnection(client, "id")  # type: ignore[arg-type]
    connection.log([(tag, 0.5, 1, 0) for tag in ("a", "refused", "b", "c", "refused", "d")])  # type: ignore[misc]
    assert client.sent == ["a", "b", "c", "d"] and len(connection.refused) == 2
    assert connection.refused[0].startswith("refused (INVALID")
    with pytest.raises(Exception, match="UNAVAILABLE"):  # it is sent again later
        connection.log([("down", 0.5, 1, 0)])  # type: ignore[list-item]


class Connection(TrackerConnection):
    def __init__(self) -> None:
        self.remote_id = "id"
        self.tags: List[str] = []
        self.refused = ["lr (not taken)"]

    def log(self, points: Any) -> None:
        self.tags += [point.tag for point in points]

    def close(self, state: str, metrics: Any) -> None:
        self.tags += metrics


def test_changed_names_are_reported_once(tmp_path: Any) -> None:
    session, connection, seen = TrackerSession(), Connection(), []
    session._tracker = Mlflow.model_construct(uri="sqlite:///x.db", experiment="e")
    object.__setattr__(session._tracker, "connect", lambda run: seen.append(run.settings) or connection)
    connect = {"do": "connect", "run_dir": str(tmp_path), "name": "n", "settings": {"m.dice@0.5": 1, "lr": 2}}
    first = session.answer({**connect, "catch_up": None})
    assert "error" not in first, first
    dice = Mlflow().accepted_name("m.dice@0.5")
    assert seen == [{dice: 1, "lr": 2}]
    assert f"does not take the name m.dice@0.5: it is {dice} there." in first["warning"]
    assert "has refused lr (not taken); the rest was sent" in first["warning"]
    points = [["val/dice@0.5", 0.5, 1, 0], ["val/loss", 0.5, 1, 0]]
    warning = session.answer({"do": "log", "points": points})["warning"]
    assert warning.count("does not take the name") == 1 and "refused" not in warning
    later = [["val/dice@0.5", 0.6, 2, 0]]
    assert session.answer({"do": "log", "points": later})["warning"] == ""
    closed = session.answer(
        {"do": "close", "state": "finished", "metrics": {"val/dice@0.5": 0.5}, "is_complete": True, "step": 2}
    )
    assert closed == {"answer": None, "warning": ""}
    accepted = Mlflow().accepted_name("val/dice@0.5")
    assert connection.tags == [accepted, "val/loss", accepted, accepted]


class Switched(Tracker):
    service: ClassVar[str] = "switched"
    online: bool = True


@pytest.mark.parametrize(
    "tracker, words",
    [
        (Mlflow(), "push out tracker=mlflow"),
        (Mlflow(uri="sqlite:///ml.db"), "push out tracker=mlflow logger.mlflow.uri=sqlite:///ml.db"),
        (Mlflow(experiment="my test", timeout_s=3), "push out tracker=mlflow 'logger.mlflow.experiment=\"my test\"'"),
        (Wandb(entity="we", mode="offline"), "push out tracker=wandb logger.wandb.entity=we logger.wandb.mode=offline"),
        (Switched(online=False), "push out tracker=switched logger.switched.online=false"),
    ],
)
def test_the_advised_command_names_the_destination(tracker: Any, words: str) -> None:
    assert tracker.push_arguments("out") == words


@pytest.mark.parametrize(
    "text, hidden",
    [
        (
            "postgresql://h/db?user=u&password=hunter2&sslmode=require",
            "postgresql://h/db?user=u&password=***&sslmode=require",
        ),
        ("mysql://u:p@ss@host/db", "mysql://***@host/db"),
        ("x?ssl_passwd=a;token=b c", "x?ssl_passwd=***;token=*** c"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("https://h/a?page=2", "https://h/a?page=2"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text, {}) == hidden


def test_a_tracker_takes_no_password_among_the_parameters() -> None:
    with pytest.raises(ValueError, match="holds a user name or a password"):
        Mlflow(uri="postgresql://h/db?password=hunter2")
