"""Delivers the points of a run to a tracker's process: a bounded queue, a thread, and a limited wait at the end.

Reasons: docs/decisions/0116-trackers.md.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, List, Mapping, Optional, Sequence

from mxtrain.config.search_path import module_command
from mxtrain.config.secret_values import hide_secrets
from mxtrain.files.durable import to_strict_json
from mxtrain.logger.tracked_run import Point, TrackedRun, TrackedService
from mxtrain.logger.tracker_points import points_of
from mxtrain.logger.tracker_process import MAX_POINTS

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

_LOG = logging.getLogger(__name__)

SEND_INTERVAL_S = 2.0
"""Seconds between two requests with points: fewer and larger ones cost this machine and the service less."""
FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0
"""Pause after the first failed attempt to reach a service, which doubles with each further one up to the maximum."""
_LOCAL_PATIENCE_S = 60.0
"""Timeout of answers that need no network. Importing MLflow and creating its database takes 10 s on a slow machine."""
_GRACE_S = 2.0
"""Shortest wait at the end of a run, for one more attempt to reach a service that has failed before."""
_KILL_S = 5.0


class ServiceError(Exception):
    """The service, its client library or their process has failed. The message holds no keys."""


class TrackerProcess:
    """Handle of a process that runs `mxtrain.logger.tracker_process`. The first request starts the process."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        self._lock = threading.Lock()
        self.is_closed = False

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, request: JsonObject) -> Any:
        """Sends a request and waits for the answer without a timeout; `kill` ends the wait.

        Raises:
            ServiceError: the request failed, or the process is gone.
        """
        process = self._start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if not line:
            raise ServiceError(f"its process ended with exit code {process.wait()}")
        response = json.loads(line)
        if "error" in response:
            raise ServiceError(response["error"])
        if response["warning"]:
            _LOG.warning("%s", response["warning"])
        return response["answer"]

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self.is_closed:
                raise ServiceError("it was given up")
            if self._process is None:
                # In a session of its own, the process does not receive Ctrl-C: the run ends it after the last points.
                self._process = subprocess.Popen(
                    module_command("mxtrain.logger.tracker_process"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            return self._process

    def restart(self) -> None:
        """Ends the process; the next request starts another one."""
        with self._lock:
            process, self._process = self._process, None
        _terminate(process)

    def kill(self) -> None:
        """Ends the process immediately. Further requests fail."""
        with self._lock:
            self.is_closed = True
            process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process and closes its pipes. Call from the thread that calls `send`."""
        self.kill()
        _terminate(self._process)
        self._process = None


def _terminate(process: Optional[subprocess.Popen[str]]) -> None:
    if process is not None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            try:
                if stream:
                    stream.close()
            except OSError:
                pass  # closing flushes what was not sent yet to a process that is gone


class Delivery:
    """Sends points of one run to one service. No method raises because of the service, and none but `close` waits.

    Args:
        tracker: description of the service.
        run: run whose points are sent.
        catch_up: file and steps of points to read from metrics.jsonl first; see `tracker_process.TrackerSession`. None:
            none.
        advice: sentence with the command that sends points later, for warnings.
    """

    def __init__(self, tracker: TrackedService, run: TrackedRun, catch_up: Optional[JsonObject], advice: str) -> None:
        self.name = tracker.service
        self._tracker, self._advice = tracker, advice
        tracker_class = type(tracker)
        self._load_request: JsonObject = {
            "do": "load",
            "sys_path": list(sys.path),
            "module": tracker_class.__module__,
            "class": tracker_class.__qualname__,
            "fields": tracker.model_dump(mode="json"),
        }
        self._connect_request: JsonObject = {
            "do": "connect",
            "name": run.name,
            "run_dir": str(run.run_dir),
            "settings": to_strict_json(run.settings),
            "catch_up": catch_up,
        }
        self._patience_s = _LOCAL_PATIENCE_S
        self._process = TrackerProcess()
        self._is_connected = self._has_caught_up = False
        self._points: Deque[Point] = deque()
        self._condition = threading.Condition()
        self._close_request: Optional[JsonObject] = None
        self._dropped = 0
        self._unanswered_since: Optional[float] = time.monotonic()
        self.error = ""
        """Message of the last failed request; empty after a request has succeeded."""
        self.remark = ""
        """Remark of the connection, preceded by a semicolon; empty if there is none."""
        self.sent = 0
        """Number of points that this process has delivered to the service."""
        self._thread = threading.Thread(target=self._run, name=f"tracker-{self.name}", daemon=True)
        self._thread.start()

    def add(self, points: Sequence[Point]) -> None:
        """Puts points into the queue. If it is full, drops these and all later ones; `mxtrain push` can send them."""
        with self._condition:
            if self._close_request is not None:
                return
            # The stored position is the last step of each tag. Points sent after a gap would advance it, and `push`
            # would never send the dropped ones.
            if self._dropped or len(self._points) + len(points) > self._tracker.queue_size:
                is_first = not self._dropped
                self._dropped += len(points)
            else:
                is_first = False
                self._points.extend(points)
                self._condition.notify()
        if is_first:
            _LOG.warning(
                "%s does not keep up: %d points wait, and no more are kept. Training goes on. %s",
                self.name,
                self._tracker.queue_size,
                self._advice,
            )

    def close(self, state: str, step: int, metrics: Mapping[str, float]) -> bool:
        """Sends the queued points and ends the service's run; gives up if the service does not answer for long.

        Returns:
            True if the service has all points.
        """
        with self._condition:
            self._close_request = self._close_request or {
                "do": "close",
                "state": state,
                "step": step,
                "is_complete": not self._dropped,
                "metrics": {point.tag: point.value for point in points_of(metrics, step, 0)},
            }
            self._condition.notify()
        earliest_end_s = time.monotonic() + _GRACE_S
        while self._thread.is_alive():
            now_s, since_s = time.monotonic(), self._unanswered_since
            if since_s is not None and now_s > max(since_s + self._patience_s, earliest_end_s):
                break
            self._thread.join(0.1)
        if self._thread.is_alive():
            self.error = self.error or f"no answer for {self._patience_s:g} s"
            # The thread may wait for an answer, and only the end of the process ends that.
            self._process.kill()
            self._thread.join(_KILL_S)
        if not self.error and not self._dropped:
            return True
        # The thread no longer changes `error`: it has ended, or its process was killed.
        reason = self.error or f"{self._dropped} points were left out"
        _LOG.warning("%s has not received everything of this run: %s. %s", self.name, reason, self._advice)
        return False

    # Methods that run in the thread.

    def _run(self) -> None:
        try:
            if not self._deliver({"do": "catch_up"}):
                return
            while points := self._next_points():
                if not self._deliver({"do": "log", "points": points}):
                    return
                self.sent += len(points)
            assert self._close_request is not None
            self._deliver(self._close_request)
        except Exception as error:  # a defect here must not end the run either
            self.error = hide_secrets(f"{type(error).__name__}: {error}")
        finally:
            self._process.close()

    def _next_points(self) -> List[Point]:
        """Waits until points are queued, then `SEND_INTERVAL_S` for more; returns none at the end of the run."""
        with self._condition:
            self._condition.wait_for(lambda: self._points or self._close_request)
            self._condition.wait_for(lambda: self._close_request or len(self._points) >= MAX_POINTS, SEND_INTERVAL_S)
            self._unanswered_since = time.monotonic()
            return [self._points.popleft() for _ in range(min(len(self._points), MAX_POINTS))]

    def _deliver(self, request: JsonObject) -> bool:
        """Repeats a request until it succeeds. Returns False if the run ended before that."""
        pause, failures = FIRST_PAUSE_S, 0
        while True:
            try:
                self._connect()
                self._send(request)
            except ServiceError as error:
                failures += 1
                self._note_failure(error)
                with self._condition:
                    # At the end of a run, a request that has failed before gets one more attempt.
                    if self._close_request is not None and failures > 1:
                        return False
                    self._condition.wait_for(lambda: self._close_request, pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
                continue
            if self.error:
                self.error = ""
                _LOG.info("%s answers again.", self.name)
            self._unanswered_since = None
            return True

    def _connect(self) -> None:
        """Opens the connection and sends points that earlier processes left unsent; does nothing the second time."""
        if not self._process.is_alive:
            self._process.restart()
            self._is_connected = self._has_caught_up = False
        if not self._is_connected:
            self._patience_s = _LOCAL_PATIENCE_S
            self._send(self._load_request)
            self._patience_s = _LOCAL_PATIENCE_S if self._tracker.is_local else self._tracker.timeout_s
            answer = self._send(self._connect_request)
            self.remark = f"; {answer['remark']}" if answer["remark"] else ""
            self._is_connected = True
            place = f"{self._tracker.shown_destination}{self.remark}"
            _LOG.info("%s: run %s at %s", self.name, answer["remote_id"], place)
        while not self._has_caught_up:
            count = self._send({"do": "catch_up"})
            self._has_caught_up = not count
            self.sent += count

    def _send(self, request: JsonObject) -> Any:
        answer = self._process.send(request)
        self._unanswered_since = time.monotonic()
        return answer

    def _note_failure(self, error: ServiceError) -> None:
        if self._process.is_closed:
            return
        is_first, self.error = not self.error, str(error)
        if is_first:
            _LOG.warning("Nothing can be sent to %s (%s). Training goes on; it is tried again.", self.name, error)
