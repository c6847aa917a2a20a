"""Variables of a run in the fork of a process that has imported MXNet."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Iterator, List

import pytest

from mxtrain.runtime import preloaded, spinning
from mxtrain.runtime.preloaded import begin, begin_server, enter, is_mxnet_loaded, require_environment, serves_forks


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[List[Any]]:
    """New processes that a test has started in place of its own."""
    found: List[Any] = []
    before = dict(os.environ)
    monkeypatch.setattr(preloaded, "_fork", None)
    monkeypatch.setattr(preloaded, "_is_server", False)
    monkeypatch.setattr(os, "execve", lambda *given: found.append(given))
    yield found
    os.environ.clear()
    os.environ.update(before)


def fork(**environment: str) -> Dict[str, str]:
    """Enters a fork with these variables; returns them."""
    begin_server()
    os.environ.clear()
    os.environ.update({"HOME": "/h", "OMP_NUM_THREADS": "2", "BY_IMPORT": "1"})
    assert serves_forks()
    enter(["python", "train"], environment, {"BY_IMPORT": "1"})
    assert not serves_forks()
    return environment


def test_run_with_the_same_variables_goes_on(started: List[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", None)
    fork(HOME="/h", CAUSE="/file")
    assert dict(os.environ) == {"HOME": "/h", "CAUSE": "/file", "BY_IMPORT": "1"} and not is_mxnet_loaded()
    os.environ["OMP_NUM_THREADS"] = "2"
    require_environment()
    begin()
    assert not started and is_mxnet_loaded()
    os.environ["OMP_NUM_THREADS"] = "3"  # too late
    begin()
    assert not started


@pytest.mark.parametrize("changed", [{"OMP_NUM_THREADS": "1"}, {"NEW": "1"}, {"HOME": "/other"}, {}])
@pytest.mark.parametrize("check", [require_environment, begin])
def test_run_with_other_variables_starts_anew(started: List[Any], changed: Dict[str, str], check: Any) -> None:
    given = fork(HOME="/h", CAUSE="/file")
    os.environ.update({"OMP_NUM_THREADS": "2", **changed} if changed else {})  # or one is missing
    check()
    assert started == [("python", ["python", "train"], given)]


def test_other_processes_have_nothing_to_check(started: List[Any]) -> None:
    require_environment()
    begin()
    assert not started and is_mxnet_loaded() == ("mxnet" in sys.modules)


def test_a_server_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_server()
    monkeypatch.setattr(spinning, "can_watch", lambda: pytest.fail("would start threads"))
    spinning.start()
