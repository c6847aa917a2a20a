"""The process in which a tracker's client library runs: `python -m mxtrain.logger.tracker_process`.

It is a process of its own for three reasons. Importing a client library takes seconds in which Python's lock would hold
the training loop up; a library that hangs in a request, also in its own code at exit, can be ended; and nothing that
it prints or raises reaches the run. Messages are lines of JSON: one request on standard input, one answer on standard
output.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from mxtrain.logger.secret_values import hide_secrets
from mxtrain.logger.tracked_run import Point, TrackedRun
from mxtrain.logger.tracker_points import Position, curves_of, points_of, points_rows

if TYPE_CHECKING:
    from mxtrain.annotations import JsonObject
    from mxtrain.logger.tracker import Tracker

_ABANDONED_S = 5.0
"""After the run was killed: for what was on its way, and what the library holds back."""
MOST_POINTS = 1000
"""Points of one request; MLflow takes no more."""
_LONGEST_ERROR = 300


def main() -> None:
    """Answers requests until the run ends the process or is gone itself."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "r+b") as nothing:
        for descriptor in (1, 2):  # what the libraries print is nobody's
            os.dup2(nothing.fileno(), descriptor)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    # A thread, so that the end of the run is seen while a request hangs.
    threading.Thread(target=_read, args=(sys.stdin, requests), daemon=True).start()
    session = TrackerSession()
    while request := requests.get():
        answer = session.answer(json.loads(request))
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except OSError:
            break
    session.abandon()
    os._exit(0)  # at exit, libraries would wait for their services


def _read(stream: IO[str], requests: queue.SimpleQueue[str]) -> None:
    for line in stream:
        requests.put(line)
    requests.put("")  # the run was killed
    time.sleep(_ABANDONED_S)
    os._exit(0)


class TrackerSession:
    """One tracker, its connection, and the position of the service in the run."""

    def __init__(self) -> None:
        self._warning = ""
        self._has_warned = False

    def answer(self, request: JsonObject) -> Dict[str, Any]:
        """Carries out one request. An exception becomes an answer without the keys that its text may hold."""
        try:
            answer = {"answer": getattr(self, f"_{request['do']}")(request), "warning": self._warning}
        except BaseException as error:  # also SystemExit, which some libraries raise when they are not configured
            text = " ".join(f"{type(error).__name__}: {error}".split(None))
            return {"error": _shortened(hide_secrets(text))}
        self._warning = ""
        return answer

    def abandon(self) -> None:
        """Ends the run of the service after the process that trains was killed. It may be continued later, so nothing
        is written into its directory, which another process may be using by now."""
        with contextlib.suppress(BaseException):
            self._connection.close("interrupted", {})

    def _load(self, request: JsonObject) -> None:
        """Builds the tracker and imports its library: a request of its own, since this is no time of the service's."""
        sys.path.extend(folder for folder in request["sys_path"] if folder not in sys.path)
        kind: Any = importlib.import_module(request["module"])
        for name in request["class"].split("."):
            kind = getattr(kind, name)
        self._tracker: Tracker = kind.model_validate_json(json.dumps(request["fields"]))
        if self._tracker.package:
            importlib.import_module(self._tracker.package)

    def _connect(self, request: JsonObject) -> str:
        tracker = self._tracker
        run_dir = Path(request["run_dir"])
        self._position = position = Position.read(run_dir, tracker.service, tracker.shown_destination)
        run = TrackedRun(request["name"], run_dir, request["settings"], position.remote_id)
        self._connection = tracker.connect(run)
        position.remote_id = str(self._connection.remote_id)
        if not tracker.drops_repeated_points:
            position.pending = []  # the service may have them, and would show them twice
        self._write_position()
        self._missing = self._find_missing(request["catch_up"])
        return position.remote_id

    def _find_missing(self, wanted: Optional[JsonObject]) -> Iterator[Point]:
        """Yields the points of metrics.jsonl that the service lacks."""
        position = self._position
        last_step = wanted["last_step"] if wanted else None
        # Points are sent in order of their steps, so the service lacks none before the newest step.
        is_known = last_step is not None and max(position.complete_step, position.newest_step - 1) >= last_step
        if wanted is None or is_known or not os.path.isfile(wanted["file"]):
            return
        rows = points_rows(Path(wanted["file"]), last_step)
        for step, values in curves_of(rows, wanted["log_interval"], wanted["steps_per_epoch"], wanted["total_steps"]):
            time_ms = int(wanted["start_ms"] + step * wanted["ms_per_step"])
            yield from (point for point in points_of(values, step, time_ms) if not position.has(point))

    def _catch_up(self, request: JsonObject) -> int:
        """Sends some of the missing points; returns their number, 0 at the end."""
        self._send_pending()
        points = list(itertools.islice(self._missing, MOST_POINTS))
        self._send(points)
        return len(points)

    def _log(self, request: JsonObject) -> None:
        self._send_pending()  # if this request is repeated, its points are among them
        points = [Point(*point) for point in request["points"]]
        self._send([point for point in points if not self._position.has(point)])

    def _send(self, points: List[Point]) -> None:
        if points:
            self._position.begin(points)
            self._write_position()
            self._send_pending()

    def _send_pending(self) -> None:
        if self._position.pending:
            self._connection.log(self._position.pending)
            self._position.pending = []

    def _close(self, request: JsonObject) -> None:
        self._connection.close(request["state"], request["metrics"])
        if request["is_complete"]:
            self._position.complete_step = request["step"]
        self._write_position()

    def _write_position(self) -> None:
        try:
            self._position.write()
        except OSError as error:
            if not self._has_warned:
                reason = "its folder was deleted" if isinstance(error, FileNotFoundError) else error.strerror
                twice = "After a resume, points may be there twice."
                self._warning = f"Cannot write {self._position.path}: {reason}. {twice}"
            self._has_warned = True


def _shortened(text: str) -> str:
    """Both ends of a long message: the last of nested causes is the one that helps."""
    half = _LONGEST_ERROR // 2
    return text if len(text) <= _LONGEST_ERROR else f"{text[:half]} ... {text[-half:]}"


if __name__ == "__main__":
    main()
