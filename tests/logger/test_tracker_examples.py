"""Calls of the client libraries of examples/trackers, which are replaced by modules that note them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, List

import pytest

from mxtrain.config.specs import import_target
from mxtrain.logger.tracked_run import Point, TrackedRun

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "trackers"
POINTS = [Point("val/loss", 0.5, 7, 2000), Point("lr", 0.1, 7, 2000)]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


class Noted:
    """An object whose methods note their arguments: (name, positional, named)."""

    def __init__(self) -> None:
        self.calls: List[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named)) or True


def tracker_of(kind: str, **settings: Any) -> Any:
    target = (EXAMPLE / f"conf/logger/{kind}.yaml").read_text().rpartition("_target_: ")[2].strip()
    return import_target(target, kind)(**settings)


@pytest.mark.parametrize("kind", ["aim", "clearml", "comet"])
def test_options_name_their_service_and_package(kind: str) -> None:
    spec = tracker_of(kind)
    assert spec.service == kind and kind in spec.shown_destination + spec.install
    assert f"'{spec.install}'" in (EXAMPLE / "README.md").read_text()


@pytest.mark.parametrize("remote_id", [None, "task7"])
def test_clearml_counts_the_steps_of_a_continued_task_from_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, remote_id: Any
) -> None:
    module, task = ModuleType("clearml"), Noted()
    task.id = "task7"  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "Task", SimpleNamespace(init=lambda *given, **named: task), raising=False)
    monkeypatch.setitem(sys.modules, "clearml", module)
    assert tracker_of("clearml").connect(TrackedRun("run", tmp_path, {"a": 1}, remote_id)).remote_id == "task7"
    origin = [("set_initial_iteration", (0,), {})] if remote_id else []
    assert task.calls == [*origin, ("set_parameters", ({"a": 1},), {})]


def test_comet_gets_points_and_the_end() -> None:
    from comet_tracker import CometConnection

    experiment: Any = Noted()
    connection = CometConnection(experiment)
    experiment.calls.clear()
    connection.log(POINTS)
    connection.close("finished", {"val/loss": 0.25})
    assert experiment.calls == [
        ("log_metric", ("val/loss", 0.5), {"step": 7}),
        ("log_metric", ("lr", 0.1), {"step": 7}),
        ("flush", (), {}),
        ("log_others", ({"state": "finished", "val/loss": 0.25},), {}),
        ("end", (), {}),
    ]


def test_local_destinations() -> None:
    assert tracker_of("aim", repo="runs").is_local and not tracker_of("aim", repo="aim://host:53800").is_local
    assert tracker_of("comet", online=False).is_local and not tracker_of("comet").is_local
