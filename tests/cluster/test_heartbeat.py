"""Heartbeats of a process that reaches its first batch and ends within half a second."""

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
    """Otherwise a run that dies in its first half second would seem never to have begun."""
    heard.begin_batch()
    heard.begin_batch()
    (line,) = os.read(heard.ear, 1000).splitlines()  # type: ignore[attr-defined]
    assert json.loads(line)["batches"] == 1 and heard.batches == 2
