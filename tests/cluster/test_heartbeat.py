"""What a supervisor hears of a process that comes to its first batch and ends before half a second is over."""

from __future__ import annotations

import json
import os

import pytest

from mxtrain.cluster.heartbeat import Heartbeat


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """A heartbeat whose thread stays silent, and a pipe in `heard.ear`."""
    monkeypatch.setattr(Heartbeat, "_beat", lambda self: None)
    ear, mouth = os.pipe()
    monkeypatch.setenv("MOUTH", str(mouth))
    beating = Heartbeat()
    beating.begin("MOUTH")
    beating.ear = ear  # type: ignore[attr-defined]
    os.set_blocking(ear, False)
    yield beating
    os.close(ear)
    os.close(mouth)


def test_the_first_batch_is_reported_at_once(heard: Heartbeat) -> None:
    """Else the run directory of a run that dies in its first half second would be taken for one that never began."""
    heard.begin_batch()
    heard.begin_batch()
    (line,) = os.read(heard.ear, 1000).splitlines()  # type: ignore[attr-defined]
    assert json.loads(line)["batches"] == 1 and heard.batches == 2
