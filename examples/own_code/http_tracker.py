"""A tracker of your own: sends a run as JSON to a server of yours."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any, ClassVar, Mapping, Sequence

from mxtrain.logger.tracker import Point, TrackedRun, Tracker, TrackerConnection


class HttpTracker(Tracker):
    """Posts a run to `uri`. The key is in HTTP_TRACKER_KEY."""

    service: ClassVar[str] = "http"

    uri: str
    """Address of the server."""

    @property
    def destination(self) -> str:
        return self.uri

    def connect(self, run: TrackedRun) -> TrackerConnection:
        opened = post(self.uri, "open", {"id": run.remote_id, "name": run.name, "settings": dict(run.settings)})
        return HttpConnection(self.uri, opened["id"])


class HttpConnection(TrackerConnection):
    """A run on the server."""

    def __init__(self, uri: str, remote_id: str) -> None:
        self._uri, self.remote_id = uri, remote_id

    def log(self, points: Sequence[Point]) -> None:
        post(self._uri, f"{self.remote_id}/points", [point._asdict() for point in points])

    def close(self, state: str, metrics: Mapping[str, float]) -> None:
        post(self._uri, f"{self.remote_id}/close", {"state": state, "metrics": metrics})


def post(uri: str, path: str, content: Any) -> Any:
    headers = {"Authorization": f"Bearer {os.environ.get('HTTP_TRACKER_KEY', '')}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{uri}/{path}", json.dumps(content).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
