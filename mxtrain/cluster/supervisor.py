"""Supervises the processes of a run. If one dies or hangs, it kills all, says why, and restarts from the checkpoint.

    start all -> watch (exit, heartbeat, progress) -> all done: the workers' exit code
                        |
                        +-> one failed: kill all -> [backoff] -> start all, from the last checkpoint
                        +-> one worker that takes chunks of the data was lost: the others go on without it
                        +-> one worker of a ring failed: the others go on -> [backoff] -> start another in its place
                                     with standbys: the others wait for it -> all go on with the same shares

The supervisor imports no MXNet, so that nothing of MXNet can crash or block it. It keeps no state that matters after
its end: all state of the run is in the run directory.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from mxtrain.cluster.process import Process
from mxtrain.cluster.ring import Ring
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.stopping import EXIT_CODES, SHUTDOWN_TIMEOUT_S, WARNINGS, SignalStop, ending_signals
from mxtrain.errors import AGREED_EXIT_CODES, EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_FINISHED, EXIT_NON_FINITE, EXIT_SIGTERM
from mxtrain.kvstore.world import JOINS

if TYPE_CHECKING:
    from types import FrameType

TICK_S = 0.1
MAX_BACKOFF_S = 60.0
FINAL = (EXIT_BAD_INPUT, EXIT_NON_FINITE)
"""Exit codes that are not restarted, because the next start would fail in the same way."""


@dataclass(frozen=True)
class ProcessFailure:
    """The reason why an attempt failed.

    Attributes:
        cause: a sentence without a full stop.
        process: name of the process at fault.
        exit_code: of this process, negative for a signal; None if it hung.
        step: last training step that it reported.
        last_lines: last lines of its log.
        worker: rank of the worker; None for a server or the scheduler, and for one that had not begun to train.
    """

    cause: str
    process: str
    exit_code: Optional[int]
    step: int
    last_lines: Sequence[str] = ()
    worker: Optional[int] = None

    def is_like(self, other: ProcessFailure) -> bool:
        """Returns True if the same process failed in the same way and at the same step."""
        return (self.process, self.exit_code, self.step) == (other.process, other.exit_code, other.step)

    @property
    def was_killed(self) -> bool:
        """Returns True if a worker was killed by a signal or hung during training, so it could not report an error."""
        return self.worker is not None and (self.exit_code is None or self.exit_code < 0)


Outcome = Tuple[Optional[ProcessFailure], int]
"""The outcome of one attempt: why it failed, or None; the exit code."""


class Supervisor:
    """Runs a group of processes and restarts them after failures, until the run completes or no restart is left.

    Args:
        cluster: timeouts and number of restarts.
        start: starts the processes of an attempt (numbered from 0) and registers their cleanup in the given stack.
        checkpoints: returns the names of the existing checkpoints. A new checkpoint resets the count of restarts.
        say: prints a line.
        obstacle: returns why no attempt can be made now (a host is unreachable), or ""; called before a restart.
        ring: the elastic ring of workers; None if the group of workers is fixed.
        when_killed: called with the failure of a worker that was killed or hung during training.
        prepare: called again and again with all processes while they train; prepares for the loss of one.
        goes_on: True if workers without a ring go on without a lost one, other than worker 0.
        replaces_first: True if worker 0 of a ring may be replaced like any other: it then continues from its last
            checkpoint, and the others go back to the same step.
    """

    def __init__(
        self,
        cluster: Cluster,
        start: Callable[[int, ExitStack], List[Process]],
        checkpoints: Callable[[], Sequence[str]],
        say: Callable[[str], None],
        obstacle: Callable[[], str] = str,
        ring: Optional[Ring] = None,
        when_killed: Callable[[ProcessFailure], None] = lambda failure: None,
        prepare: Callable[[Sequence[Process]], None] = lambda processes: None,
        replaces_first: bool = False,
        goes_on: bool = False,
    ):
        self._cluster, self._start, self._checkpoints, self._say = cluster, start, checkpoints, say
        self._obstacle, self._ring, self._when_killed, self._prepare = obstacle, ring, when_killed, prepare
        self._replaces_first, self._goes_on = replaces_first, goes_on
        self._restarts = 0
        self._progress: List[str] = []
        self._to_start: List[Tuple[float, Process]] = []
        self._has_dropped = False
        self._signal: Optional[int] = None
        self._num_signals = 0
        self._warning: Optional[int] = SignalStop.warning
        self._warned: Set[str] = set()
        self._previous_failure: Optional[ProcessFailure] = None
        self.has_trained = False
        """True if an attempt has trained on a batch."""
        self.failure: Optional[ProcessFailure] = None
        """Failure that ended the run; None if it completed."""

    def run(self) -> int:
        """Runs attempts until one completes or no restart is left; returns the exit code of the run."""
        attempt = 0
        self._progress = list(self._checkpoints())
        with self._signals():
            while True:
                failure, exit_code = self._attempt(attempt)
                if failure is None:
                    return exit_code
                can_restart, reason = self._may_restart(failure)
                if not can_restart:
                    self.failure = failure
                    self._say(f"{failure.cause}; all processes are ended{reason}")
                    for line in failure.last_lines:
                        self._say(f"  {failure.process}: {line}")
                    return EXIT_CODES.get(self._signal or 0, exit_code)
                # ps-lite cannot take a process back into a group, so all processes are started again.
                wait, attempt = self._use_restart(), attempt + 1
                self._say(
                    f"{failure.cause}; all processes are ended. Going on from the last checkpoint in {wait:g} s "
                    f"({self._restarts_used()})"
                )
                self._sleep(wait)
                obstacle = self._wait_for_hosts()
                if obstacle:
                    self.failure = replace(failure, cause=f"{failure.cause}; then {obstacle}")
                    self._say(f"{obstacle}: given up after cluster.start_timeout={self._cluster.start_timeout:g} s")
                    return EXIT_CODES.get(self._signal or 0, EXIT_CRASHED)
                if self._signal is not None:
                    self.failure = failure
                    return EXIT_CODES[self._signal]

    def _wait_for_hosts(self) -> str:
        """Waits until hosts are reachable again, for at most `start_timeout`; returns the remaining problem, or ""."""
        deadline = time.monotonic() + self._cluster.start_timeout
        reported = ""
        while self._signal is None:
            obstacle = self._obstacle()
            if not obstacle or time.monotonic() > deadline:
                return obstacle
            if obstacle != reported:
                self._say(f"{obstacle}; waiting for at most {self._cluster.start_timeout:g} s")
                reported = obstacle
            self._sleep(1.0)
        return ""

    def _may_restart(self, failure: ProcessFailure) -> Tuple[bool, str]:
        """Returns whether to restart after a failure, and if not, the reason as the end of a sentence."""
        progress = list(self._checkpoints())
        if progress != self._progress:  # a new checkpoint: the failures are rare enough for the run to complete
            self._progress, self._restarts = progress, 0
        previous, self._previous_failure = self._previous_failure, failure
        if self._signal is not None or failure.exit_code in FINAL:
            return False, ""
        if previous is not None and failure.step and previous.is_like(failure):
            return False, f". It failed in the same way before, at the same step {failure.step}: it would do so again"
        if self._restarts >= self._cluster.restarts:
            used = f"cluster.restarts={self._cluster.restarts} are used up" if self._restarts else "cluster.restarts=0"
            return False, f". {used}"
        return True, ""

    def _use_restart(self) -> float:
        """Counts one restart; returns the seconds to wait before it, which double with each one. Standbys do not wait
        for the first one."""
        self._restarts += 1
        if self._cluster.standby and self._restarts == 1:
            return 0.0
        return float(min(self._cluster.backoff * 2 ** (self._restarts - 1), MAX_BACKOFF_S))

    def _restarts_used(self) -> str:
        return f"restart {self._restarts} of {self._cluster.restarts}"

    # One attempt.

    def _attempt(self, number: int) -> Outcome:
        self._to_start = []
        self._has_dropped = False
        self._warned.clear()  # processes of a restart are warned again
        if self._ring is not None:
            self._ring.begin()
        with ExitStack() as stack:
            processes = self._start(number, stack)
            try:
                return self._watch(processes, stack)
            finally:
                # Kill all before leaving the stack, which waits for them one after the other.
                for process in processes:
                    process.kill()

    def _watch(self, processes: List[Process], stack: ExitStack) -> Outcome:
        forwarded: Optional[float] = None
        done_at: Optional[float] = None
        while True:
            self._start_replacements(processes, stack)
            workers = [process for process in processes if process.spec.name.startswith("worker")]
            if self._signal is not None and forwarded is None:
                forwarded = time.monotonic()
                for worker in workers:
                    # Servers and the scheduler get no signal here, because workers need them to save.
                    worker.signal(self._signal)
            self._listen(processes, workers)
            self._forward_warning(workers)
            self._signal = self._signal or signal_before_training(workers)
            if self._ring is not None:
                self._ring.update(workers, self._cluster.standby and self._awaits_newcomer(workers))
            # A newcomer that waits to join the ring must not keep the run from ending.
            members = [w for w in workers if self._ring is None or not self._ring.is_newcomer(w)]
            running = [worker for worker in members if worker.exit_code is None]
            failure = self._first_failure(processes, members)
            if failure is not None:
                self._listen(processes, workers)  # output and heartbeat between the last read and its end
                if failure.was_killed and self._signal is None:
                    self._when_killed(failure)
            if failure is not None and self._continue_without(failure, processes):
                continue
            if failure is not None:
                exit_code = failure.exit_code
                if exit_code == EXIT_NON_FINITE:
                    self._wait_for_end(workers)  # all workers stop at the same loss; worker 0 still writes its report
                return failure, exit_code if exit_code is not None and exit_code > 0 else EXIT_CRASHED
            if not running:
                # ps-lite's scheduler and servers wait for a lost worker, too.
                if not self._has_dropped:
                    self._wait_for_end([process for process in processes if process not in workers])
                return None, next((worker.exit_code for worker in workers if worker.exit_code), EXIT_FINISHED)
            if len(running) == len(workers) and all(worker.last_heartbeat["batches"] for worker in workers):
                self._prepare(processes)
            if len(running) < len(members):
                done_at = done_at or time.monotonic()
                if time.monotonic() - done_at > self._cluster.step_timeout:
                    return self._failure(running[0], "did not end though others had", None), EXIT_CRASHED
            if forwarded and not any(worker.last_heartbeat["batches"] for worker in workers):
                return ProcessFailure("interrupted before training began", "", None, 0), EXIT_CRASHED  # nothing to save
            if self._num_signals > 1 or (forwarded and time.monotonic() - forwarded > self._cluster.grace):
                reason = "asked twice" if self._num_signals > 1 else f"{self._cluster.grace:g} s are over"
                return self._failure(running[0], f"had not ended after the signal ({reason})", None), EXIT_CRASHED
            time.sleep(TICK_S)

    def _forward_warning(self, workers: Sequence[Process]) -> None:
        """Forwards a warning of a scheduler once to each worker that sends heartbeats, and so can receive it."""
        if self._warning is None:
            return
        for worker in workers:
            if worker.has_reported and worker.spec.name not in self._warned:
                self._warned.add(worker.spec.name)
                worker.signal(self._warning)

    def _listen(self, processes: List[Process], workers: List[Process]) -> None:
        for process in processes:
            process.listen()
        self.has_trained |= any(worker.last_heartbeat["batches"] for worker in workers)

    def _continue_without(self, failure: ProcessFailure, processes: List[Process]) -> bool:
        """Drops a failed worker from the ring and schedules a replacement.

        Returns False if the run cannot continue without it: then all processes are restarted.
        """
        lost = next(process for process in processes if process.spec.name == failure.process)
        if self._goes_on:
            return self._drop(lost, failure, processes)
        survivors = [p for p in processes if p is not lost and p.exit_code is None]
        # Only worker 0 writes to the run directory: without it all workers restart from its last checkpoint.
        is_lost_state = lost.spec.number == 0 and not (self._replaces_first and self._checkpoints())
        is_needed = is_lost_state or not survivors or lost.start_replacement is None
        if self._ring is None or not self._ring.elastic or not self._ring.generation or is_needed or self._signal:
            return False
        if failure.exit_code in FINAL and not self._ring.is_newcomer(lost):
            return False  # bad input and a diverged loss are the same on all members
        previous = self._previous_failure
        can_restart, suffix = self._may_restart(failure)
        if not can_restart and lost.spec.number == 0:
            self._previous_failure = previous  # the caller asks again
            return False
        processes.remove(lost)
        lost.close()
        verb = "wait for another" if self._cluster.standby and can_restart else "go on without it"
        message = f"{failure.cause}; {len(survivors)} of {len(survivors) + 1} workers {verb}"
        if can_restart:
            wait = self._use_restart()
            self._to_start.append((time.monotonic() + wait, lost))
            suffix = f". Another takes its place in {wait:g} s ({self._restarts_used()})"
        self._say(message + suffix)
        for line in failure.last_lines if not can_restart else ():
            self._say(f"  {failure.process}: {line}")
        return True

    def _drop(self, lost: Process, failure: ProcessFailure, processes: List[Process]) -> bool:
        """Drops a worker that was killed or hung, without a replacement. Returns False if all must be restarted."""
        workers = [process for process in processes if process.spec.name.startswith("worker")]
        # An error of a worker's own is likely to be an error of the others, too.
        is_needed = lost.spec.number == 0 or lost.start_replacement is None
        if is_needed or not failure.was_killed or self._signal is not None:
            return False
        processes.remove(lost)
        lost.close()
        self._has_dropped = True
        self._say(
            f"{failure.cause}; {len(workers) - 1} of {len(workers)} workers go on without it, and take its chunks of "
            "the data"
        )
        return True

    def _awaits_newcomer(self, workers: Sequence[Process]) -> bool:
        """Returns True while a worker is lost and no replacement of it has asked to join the ring."""
        assert self._ring is not None
        late = any(self._ring.is_newcomer(worker) and not self._ring.asks(worker) for worker in workers)
        # The others may ask for the next ring before the supervisor has handled the loss.
        return bool(self._to_start) or late or any(w.exit_code not in (None, *AGREED_EXIT_CODES) for w in workers)

    def _start_replacements(self, processes: List[Process], stack: ExitStack) -> None:
        for start_at, lost in list(self._to_start):
            if time.monotonic() >= start_at and self._signal is None:
                self._to_start.remove((start_at, lost))
                # The replacement must not enter the present ring, whose members do not know it.
                assert lost.start_replacement is not None
                environment = {**lost.spec.environment, JOINS: str(self._ring.generation if self._ring else 0)}
                processes.append(lost.start_replacement(replace(lost.spec, environment=environment)))
                stack.callback(processes[-1].close)

    def _first_failure(self, processes: List[Process], workers: List[Process]) -> Optional[ProcessFailure]:
        exit_codes = [(process, process.exit_code) for process in processes]
        failed = [(process, code) for process, code in exit_codes if code is not None and code not in AGREED_EXIT_CODES]
        if failed:
            process, code = max(failed, key=lambda pair: _rank_cause(pair[1]))
            return self._failure(process, process.describe_end(), code)
        for process in processes:
            if process.exit_code is None:
                silent = process.describe_silence(self._cluster.heartbeat_timeout)
                if silent is not None:
                    return self._failure(process, silent, None)
        return self._hung(workers) or self._late_newcomer(processes)

    def _late_newcomer(self, processes: List[Process]) -> Optional[ProcessFailure]:
        """Returns the failure of a newcomer that has not asked to join within `start_timeout`, or None."""
        ring = self._ring
        for process in processes if ring is not None else ():
            assert ring is not None
            is_waited_for = ring.is_newcomer(process) and not ring.asks(process)
            started_at = process.started_at
            if is_waited_for and started_at and time.monotonic() - started_at > self._cluster.start_timeout:
                return self._failure(process, self._not_started_message(), None)
        return None

    def _not_started_message(self) -> str:
        return f"had not begun to train after cluster.start_timeout={self._cluster.start_timeout:g} s"

    def _hung(self, workers: List[Process]) -> Optional[ProcessFailure]:
        busy = [worker for worker in workers if worker.exit_code is None and not worker.last_heartbeat["waits"]]
        if not busy:
            return None  # all have finished their part and wait for the others
        now = time.monotonic()
        # All workers wait for the one that hangs, which has finished the fewest batches.
        last = min(busy, key=lambda worker: (worker.last_heartbeat["batches"], worker.has_reported))
        if not any(worker.last_heartbeat["batches"] for worker in workers):
            started = [worker.started_at for worker in workers]
            all_started_at = now if None in started else max(at for at in started if at is not None)
            if now - all_started_at > self._cluster.start_timeout:
                return self._failure(last, self._not_started_message(), None)
        elif now - max(worker.progress_at for worker in busy) > self._cluster.step_timeout:
            text = f"hangs: no worker finished a batch for cluster.step_timeout={self._cluster.step_timeout:g} s"
            return self._failure(last, text, None)
        return None

    def _failure(self, process: Process, description: str, exit_code: Optional[int]) -> ProcessFailure:
        step = process.last_heartbeat["step"]
        at = f" at about step {step}" if step else ""
        trains = process.spec.name.startswith("worker") and process.last_heartbeat["batches"]
        return ProcessFailure(
            f"{process.spec.name} ({process.location}) {description}{at}",
            process.spec.name,
            exit_code,
            step,
            process.last_lines() if exit_code is None or exit_code > 0 else (),
            process.spec.number if trains else None,
        )

    def _wait_for_end(self, processes: List[Process]) -> None:
        """Waits a limited time for processes to end by themselves."""
        deadline = time.monotonic() + 2 * SHUTDOWN_TIMEOUT_S  # twice the limit that they set themselves
        while time.monotonic() < deadline and any(process.exit_code is None for process in processes):
            time.sleep(TICK_S)
            for process in processes:
                process.listen()

    # Signals.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        handlers: Dict[int, Any] = {
            number: signal.signal(number, self._receive) for number in (*ending_signals(), *WARNINGS)
        }
        # The wakeup descriptor belongs to a watcher that ends a process soon after a signal. Workers have
        # `cluster.grace` seconds to save, and the supervisor must outlive them.
        reader = signal.set_wakeup_fd(-1)
        try:
            yield
        finally:
            signal.set_wakeup_fd(reader)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if number in WARNINGS:
            self._warning = number
            self._warned.clear()
            return
        self._signal, self._num_signals = number, self._num_signals + 1

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._signal is None:
            time.sleep(min(TICK_S, seconds))


def _rank_cause(exit_code: int) -> Tuple[bool, ...]:
    """Returns a key that is largest for the most likely cause, among processes that have failed at the same time."""
    return (
        exit_code in FINAL,  # no restart can change it
        # No process of a group kills another, but the kernel does without memory. Members of a ring that cannot go on
        # without a lost one end with an error at once.
        exit_code == -signal.SIGKILL,
        exit_code > 0,
        exit_code != -signal.SIGABRT,  # Gloo ends members that lose a peer
    )


def signal_before_training(workers: Sequence[Process]) -> Optional[int]:
    """Returns the signal that ended a worker before its first batch, when it could not agree with the others to stop.

    A worker that handles signals exits with 128 + number; one that does not handle them yet has the exit code -number.
    """
    signals = {code: number for number, exit_code in EXIT_CODES.items() for code in (exit_code, -number)}
    signals[EXIT_SIGTERM] = signal.SIGTERM  # the exit code of SIGHUP, too
    received = [signals[w.exit_code] for w in workers if w.exit_code in signals and not w.last_heartbeat["batches"]]
    return received[0] if received else None


def say(line: str) -> None:
    """Prints a line to stderr, since stdout carries the output of rank 0."""
    print(line, file=sys.stderr, flush=True)


def steps_of(checkpoints: Path) -> List[str]:
    """Returns the sorted names of the checkpoints in a folder."""
    return sorted(path.name for path in checkpoints.glob("step-*"))
