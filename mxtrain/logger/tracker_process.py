"""The process in which a tracker's client library runs: `python -m mxtrain.logger.tracker_process`.

Client libraries run in a separate process for three reasons: importing one takes seconds, in which it would hold the
GIL and pause the training loop; a library that hangs in a request or at exit can be killed; and its output and
exceptions do not reach the run. Messages are lines of JSON: one request on standard input, one answer on standard
output.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set

from mxtrain.cluster.stopping import WARNINGS
from mxtrain.config.secret_values import hide_secrets
from mxtrain.logger.tracked_run import Point, TrackedRun, TrackedService
from mxtrain.logger.tracker_points import Position, curves_of, points_of, rows_for_points

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

_ABANDONED_S = 5.0
"""Seconds for which this process continues after the run was killed, to send points that are still queued."""
MAX_POINTS = 1000
"""Largest number of points in one request; MLflow takes no more."""
_MAX_ERROR_LENGTH = 300


def main() -> None:
    """Answers requests until the run ends this process, or the run itself was killed."""
    for warning in WARNINGS:  # Slurm sends them to all processes of a job
        signal.signal(warning, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "r+b") as devnull:
        for descriptor in (1, 2):  # the run must not see what the libraries print
            os.dup2(devnull.fileno(), descriptor)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    # Requests are read in a thread, which notices the end of the run even while a request hangs.
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
    """One tracker with its connection, and the position up to which the service has the points of the run."""

    def __init__(self) -> None:
        self._warning = ""
        self._has_warned = False
        self._renamed: Set[str] = set()

    def answer(self, request: JsonObject) -> Dict[str, Any]:
        """Executes one request and returns its answer, with exceptions as text in which secrets are replaced."""
        try:
            answer = {"answer": getattr(self, f"_{request['do']}")(request), "warning": self._warning}
        except BaseException as error:  # also SystemExit, which some libraries raise when they are not configured
            text = " ".join(f"{type(error).__name__}: {error}".split(None))
            return {"error": _shorten(hide_secrets(text))}
        self._warning = ""
        return answer

    def abandon(self) -> None:
        """Ends the run of the service after the training process was killed.

        Writes nothing into the run directory: another process may already be continuing the run there.
        """
        with contextlib.suppress(BaseException):
            self._connection.close("interrupted", {})

    def _load(self, request: JsonObject) -> None:
        """Builds the tracker and imports its library, in a separate request because it has a timeout of its own."""
        sys.path.extend(folder for folder in request["sys_path"] if folder not in sys.path)
        tracker_class: Any = importlib.import_module(request["module"])
        for name in request["class"].split("."):
            tracker_class = getattr(tracker_class, name)
        self._tracker: TrackedService = tracker_class.model_validate_json(json.dumps(request["fields"]))
        if self._tracker.package:
            importlib.import_module(self._tracker.package)

    def _connect(self, request: JsonObject) -> JsonObject:
        tracker = self._tracker
        run_dir = Path(request["run_dir"])
        self._position = position = Position.read(run_dir, tracker.service, tracker.shown_destination)
        settings = {self._accepted(name): value for name, value in request["settings"].items()}
        run = TrackedRun(request["name"], run_dir, settings, position.remote_id)
        self._connection = tracker.connect(run)
        position.remote_id = str(self._connection.remote_id)
        if not tracker.drops_repeated_points:
            position.pending = []  # the service may have them, and would show them twice
        self._write_position()
        self._missing = self._find_missing(request["catch_up"])
        self._warn_refused()
        return {"remote_id": position.remote_id, "remark": self._connection.remark}

    def _find_missing(self, catch_up: Optional[JsonObject]) -> Iterator[Point]:
        """Yields the points of metrics.jsonl that the service lacks."""
        position = self._position
        last_step = catch_up["last_step"] if catch_up else None
        # Points are sent in order of their steps, so the service lacks none before the newest step.
        is_complete = last_step is not None and max(position.complete_step, position.newest_step - 1) >= last_step
        if catch_up is None or is_complete or not os.path.isfile(catch_up["file"]):
            return
        rows = rows_for_points(Path(catch_up["file"]), last_step)
        intervals = (catch_up["log_interval"], catch_up["steps_per_epoch"], catch_up["total_steps"])
        for step, values in curves_of(rows, *intervals):
            time_ms = int(catch_up["start_ms"] + step * catch_up["ms_per_step"])
            yield from (point for point in points_of(values, step, time_ms) if not position.has(point))

    def _catch_up(self, request: JsonObject) -> int:
        """Sends some of the missing points; returns their number, 0 at the end."""
        self._send_pending()
        points = list(itertools.islice(self._missing, MAX_POINTS))
        self._send(points)
        return len(points)

    def _log(self, request: JsonObject) -> None:
        self._send_pending()  # if this request is repeated, its points are among them
        points = [Point(*point) for point in request["points"]]
        self._send([point for point in points if not self._position.has(point)])

    def _send(self, points: List[Point]) -> None:
        if points:
            # Written before the request: after a kill in between, nobody knows whether the service has these points.
            self._position.begin(points)
            self._write_position()
            self._send_pending()

    def _send_pending(self) -> None:
        if self._position.pending:
            points = self._position.pending
            self._connection.log([point._replace(tag=self._accepted(point.tag)) for point in points])
            self._position.pending = []
            self._warn_refused()

    def _accepted(self, name: str) -> str:
        """Returns the name of a setting or curve for the service, and adds a warning if the name was changed."""
        accepted = self._tracker.accepted_name(name)
        if accepted != name and name not in self._renamed:
            self._renamed.add(name)
            self._add_warning(f"{self._tracker.service} does not take the name {name}: it is {accepted} there.")
        return accepted

    def _warn_refused(self) -> None:
        for text in self._connection.refused:
            self._add_warning(f"{self._tracker.service} has refused {text}; the rest was sent.")
        self._connection.refused = []

    def _add_warning(self, text: str) -> None:
        self._warning = f"{self._warning} {text}".strip()

    def _close(self, request: JsonObject) -> None:
        metrics = {self._accepted(name): value for name, value in request["metrics"].items()}
        self._connection.close(request["state"], metrics)
        if request["is_complete"]:
            self._position.complete_step = request["step"]
        self._write_position()

    def _write_position(self) -> None:
        try:
            self._position.write()
        except OSError as error:
            if not self._has_warned:
                reason = "its folder was deleted" if isinstance(error, FileNotFoundError) else error.strerror
                consequence = "After a resume, points may be there twice."
                self._add_warning(f"Cannot write {self._position.path}: {reason}. {consequence}")
            self._has_warned = True


def _shorten(text: str) -> str:
    """Removes the middle of a long message: the last of nested causes is the one that helps."""
    half = _MAX_ERROR_LENGTH // 2
    return text if len(text) <= _MAX_ERROR_LENGTH else f"{text[:half]} ... {text[-half:]}"


if __name__ == "__main__":
    main()
