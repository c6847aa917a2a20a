"""Stops a run before its last step: on signals, or at the end of a budget of steps or time.

SIGUSR1 and SIGUSR2, which Slurm and submitit send before a job's time ends, save and end the run with exit code 75, as
the end of a budget does, or only save (`checkpoint.on_signal=save`). SIGHUP counts as SIGTERM unless it was ignored at
the start.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable, ClassVar, Dict, Iterator, NoReturn, Optional, Tuple

from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, EXIT_SIGINT, EXIT_SIGTERM

EXIT_CODES = {
    int(signal.SIGINT): EXIT_SIGINT,
    int(signal.SIGTERM): EXIT_SIGTERM,
    int(signal.SIGHUP): EXIT_SIGTERM,
}
"""Signals that end a process -> its exit code. SIGHUP, of a closed terminal, is treated as SIGTERM."""
WARNINGS = (int(signal.SIGUSR1), int(signal.SIGUSR2))
"""Signals with which schedulers announce the end of a job (Slurm's --signal, submitit)."""
NOTICE = "notice of preemption received"
"""Cause of a run that the notice of `cluster.notice` ends."""
WARNING_PREFIXES = ("SIGUSR", NOTICE)
"""Prefixes of the cause of a run that one of these signals, or a notice, ends."""
SHUTDOWN_TIMEOUT_S = 5.0
"""Seconds in which processes must disconnect after everything is saved."""
GRACE_S = 30.0
"""Seconds in which a process must save and exit after a signal, before it is killed."""
_DISCONNECTING = "mxtrain-disconnect"


@dataclass(frozen=True)
class Stop:
    """A reason to end the run after the current step."""

    state: str
    exit_code: int
    cause: str


def ending_signals() -> Tuple[int, ...]:
    """Returns the signals that end this process: without SIGHUP if it is ignored, as nohup arranges."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in EXIT_CODES if number != signal.SIGHUP or not ignores_hangup)


def was_told_to_end(exit_code: int, cause: str) -> bool:
    """Returns True if a signal or a notice of preemption ended a run. Then no further job, fold or trial may begin.

    Args:
        exit_code: exit code of the run.
        cause: `Stop.cause`, which distinguishes a warning from a budget, because both have the same exit code.
    """
    return exit_code in EXIT_CODES.values() or (exit_code == EXIT_BUDGET and cause.startswith(WARNING_PREFIXES))


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM while nothing has to be saved; unwinds the process like the KeyboardInterrupt of SIGINT."""

    received: ClassVar[bool] = False
    """True if SIGTERM arrived during start-up."""


class PassInterrupted(Exception):
    """Ends a pass over the data early after a signal. Never leaves the runner."""


def disconnect(work: Callable[[], None]) -> None:
    """Runs `work`, which disconnects from other processes, for at most `SHUTDOWN_TIMEOUT_S`.

    Without the limit it could wait forever: ps-lite's sockets drop unsent messages when they close (ZMQ_LINGER is 0 in
    zmq_van.h), so an answer may never arrive.
    """
    thread = threading.Thread(target=work, name=_DISCONNECTING, daemon=True)
    thread.start()
    thread.join(SHUTDOWN_TIMEOUT_S)


def still_disconnects() -> bool:
    """Returns True if `disconnect` has timed out and still waits; the interpreter's shutdown would then wait, too."""
    return any(thread.name == _DISCONNECTING for thread in threading.enumerate())


class SignalReader:
    """Receives signals in a thread, even while the main thread is busy, and kills the process after a grace time.

    Python runs signal handlers only in the main thread, which may be inside MXNet for a whole step, or forever if
    threads starve. Python's C code, however, writes signals to the wake-up pipe immediately, and a thread reads them
    from there. Used as a context manager, in the main thread.

    Args:
        receive: called with each signal, in the reading thread.
        grace_s: seconds from the first signal until the process is killed; None = never. Not used if a supervisor
            receives heartbeats, because it has a grace time of its own.
    """

    num_active: ClassVar[int] = 0

    def __init__(self, receive: Callable[[int], None], grace_s: Optional[float]):
        self._receive, self._grace_s = receive, grace_s
        self._first_atignal: Optional[int] = None

    def __enter__(self) -> SignalReader:
        SignalReader.num_active += 1
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # required by set_wakeup_fd
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="mxtrain-signals", daemon=True)
        # The thread inherits this mask. It must not take signals that the main thread has blocked and waits for, as
        # servers do.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*EXIT_CODES, *WARNINGS})
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return self

    def __exit__(self, *_: object) -> None:
        SignalReader.num_active -= 1
        signal.set_wakeup_fd(self._before)
        os.write(self._writer, b"\0")  # there is no signal 0: it ends the thread
        self._thread.join()
        os.close(self._writer)
        os.close(self._reader)

    def _watch(self) -> None:
        deadline: Optional[float] = None
        while True:
            if deadline is not None and not HEARTBEAT.has_listener:
                remaining_s = max(deadline - time.monotonic(), 0.0)
                has_signal = remaining_s > 0 and bool(select.select([self._reader], [], [], remaining_s)[0])
                if not has_signal:
                    self._exit_at_once()
            (number,) = os.read(self._reader, 1)
            if number == 0:
                return
            if number in EXIT_CODES and deadline is None and self._grace_s is not None:
                self._first_atignal, deadline = number, time.monotonic() + self._grace_s
            if number in EXIT_CODES or number in WARNINGS:
                self._receive(number)

    def _exit_at_once(self) -> NoReturn:
        assert self._first_atignal is not None
        name = signal.Signals(self._first_atignal).name
        with suppress(OSError):
            os.write(2, f"{name}: not ended after {self._grace_s:g} s (cluster.grace), so ended at once\n".encode())
        os._exit(EXIT_CODES[self._first_atignal])


def _leave_pipe_to_parent() -> None:
    """Detaches a forked child from the parent's wake-up pipe, which would report the child's signals to the parent."""
    if SignalReader.num_active:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_leave_pipe_to_parent)


@contextmanager
def keep_termination() -> Iterator[None]:
    """Raises `Terminated` at the end, or instead of any other exception, if SIGTERM arrived during start-up.

    Libraries may catch `Terminated` and continue, or raise something else: an import in Rust code raises pyo3's
    PanicException, which is not an `Exception`; a program may call `sys.exit`. Without this context manager, such runs
    would end as crashed or finished.
    """
    try:
        yield
    except BaseException as error:
        if Terminated.received and not isinstance(error, Terminated):
            raise Terminated from error
        raise
    if Terminated.received:
        raise Terminated


def exit_code_of_signal(error: KeyboardInterrupt) -> int:
    """Returns the exit code for the signal that a caller has handled, and reported. `keep_termination` then does not
    raise it again."""
    if not isinstance(error, Terminated):
        return EXIT_SIGINT
    Terminated.received = False
    return EXIT_SIGTERM


@contextmanager
def startup_signals(grace_s: float = GRACE_S) -> Iterator[None]:
    """Handles signals until training starts: SIGTERM unwinds the process like SIGINT, so that locks are released.

    A process that does not end within the grace time is killed. Warnings of a scheduler are kept for `SignalStop`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Optional[FrameType]) -> None:
        Terminated.received = True
        raise Terminated

    def keep(number: int, frame: Optional[FrameType]) -> None:
        SignalStop.warning = number

    ends = [number for number in ending_signals() if number != signal.SIGINT]
    previous_handlers = {number: signal.signal(number, end) for number in ends}
    previous_handlers.update({number: signal.signal(number, keep) for number in WARNINGS})
    previous = SignalStop.may_end_process
    try:
        with SignalReader(lambda _: None, grace_s), keep_termination():
            SignalStop.may_end_process = True
            yield
    finally:
        Terminated.received = False
        SignalStop.may_end_process, SignalStop.warning = previous, None
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def forwarded_warnings(send: Callable[[int], object]) -> Iterator[None]:
    """Keeps the warnings of a scheduler, and forwards them to a process of a run. Call it in the main thread only.

    Args:
        send: sends a signal to the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: Optional[FrameType]) -> None:
        SignalStop.warning = number
        send(number)

    previous_handlers = {number: signal.signal(number, forward) for number in WARNINGS}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def limit_end(exit_code: int) -> None:
    """Kills the process after `GRACE_S`, because the interpreter's shutdown waits for all remaining threads."""
    timer = threading.Timer(GRACE_S, os._exit, [exit_code])
    timer.daemon = True
    timer.start()


DUPLICATE_S = 0.3
"""Signals so soon after the first are duplicates: timeout(1) signals the process and then its group."""


class SignalStop:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a `Stop`; a second one kills the process.

    With a supervisor, further signals are ignored: a signal to all processes of a run arrives twice, directly and
    through the supervisor. A warning of a scheduler requests a checkpoint or a `Stop`, and never kills the process.
    Used as a context manager around training. Outside the main thread (e.g. in a notebook's worker) it does nothing.

    Args:
        grace_s: seconds from the first signal until the process of a command is killed.
        stops_when_warned: True if a warning stops the run; False if it only requests a checkpoint.
        notice: source of notices of preemption, which count as warnings (`preemption.has_notice`); None = none.
    """

    may_end_process: ClassVar[bool] = False
    """True if a command started this process; False e.g. in a notebook, which must not be killed."""
    warning: ClassVar[Optional[int]] = None
    """Warning that arrived before training, or None."""

    def __init__(self, grace_s: float = GRACE_S, stops_when_warned: bool = True, notice: Optional[str] = None) -> None:
        self.stop: Optional[Stop] = None
        self._grace_s, self._stops_when_warned, self._notice = grace_s, stops_when_warned, notice
        self._first_at: Optional[float] = None
        self._save_requested = False
        self._handlers: Dict[int, Any] = {}
        self._stopped_by_warning: Optional[int] = None
        self._stack = ExitStack()

    def __enter__(self) -> SignalStop:
        if threading.current_thread() is threading.main_thread():
            numbers = (*ending_signals(), *WARNINGS)  # before their handlers are replaced
            self._stack.enter_context(SignalReader(self._receive, self._grace_s if self.may_end_process else None))
            for number in numbers:
                self._handlers[number] = signal.signal(number, lambda *_: None)
                self._stack.callback(signal.signal, number, self._handlers[number])
            if self.warning is not None:
                self._receive(self.warning)
        if self._notice is not None:
            from mxtrain.cluster.preemption import NoticeWatcher  # this module is imported by every command

            self._stack.enter_context(NoticeWatcher(self._notice, lambda: self._warn(NOTICE)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        # A handler of the program around this run, such as submitit's, which puts the job into the queue again.
        if (
            self._stopped_by_warning is not None
            and not self.may_end_process
            and callable(self._handlers[self._stopped_by_warning])
        ):
            signal.raise_signal(self._stopped_by_warning)

    def seconds_left(self) -> float:
        """Returns the seconds for which the run may still upload: four fifths of the grace time since the first signal,
        because it must end in the rest; infinite before a signal and after a warning, whose end is not known."""
        return math.inf if self._first_at is None else self._first_at + 0.8 * self._grace_s - time.monotonic()

    def take_save_request(self) -> bool:
        """Returns True once for each warning that only requests a checkpoint."""
        requested, self._save_requested = self._save_requested, False
        return requested

    def _receive(self, number: int) -> None:
        if number in WARNINGS:
            self._warn(f"{signal.Signals(number).name} received", number)
            return
        now = time.monotonic()
        if self._first_at is not None:
            if not HEARTBEAT.has_listener and now - self._first_at >= DUPLICATE_S:
                os._exit(EXIT_CODES[number])  # because the main thread may be blocked inside MXNet
            return
        self._first_at = now
        name = signal.Signals(number).name
        self.stop = self.stop or Stop("interrupted", EXIT_CODES[number], f"{name} received")
        _say(f"{name}: finishing the step and saving; once more quits at once")

    def _warn(self, cause: str, number: Optional[int] = None) -> None:
        if not self._stops_when_warned:
            self._save_requested = True
            _say(f"{cause}: saving after this step")
        elif self.stop is None:
            self._stopped_by_warning = number
            self.stop = Stop("interrupted", EXIT_BUDGET, cause)
            _say(f"{cause}: finishing the step and saving; then the run ends with exit code {EXIT_BUDGET}")


def _say(text: str) -> None:
    with suppress(OSError):  # the reader of stderr has ended
        os.write(2, f"\n{text}\n".encode())


class Budget:
    """Step and time limits of a run.

    Args:
        total_steps: steps of the complete run; None if only time limits it.
        max_steps: steps after which this session stops, possibly before `total_steps`; None = no limit.
        max_time: seconds from now after which this session stops; None = no limit.
        step_setting: setting that gives `max_steps`, as the user types it; by default trainer.max_steps.
    """

    def __init__(
        self, total_steps: Optional[int], max_steps: Optional[int], max_time: Optional[float], step_setting: str = ""
    ):
        self._total_steps, self._max_steps, self._max_time = total_steps, max_steps, max_time
        self._step_setting = step_setting or f"trainer.max_steps={max_steps}"
        self._deadline = None if max_time is None else time.monotonic() + max_time

    def steps_done(self, step: int) -> Optional[Stop]:
        """Returns the reason to stop after `step`, or None."""
        if self._total_steps is not None and step >= self._total_steps:
            return Stop("finished", EXIT_FINISHED, "")
        if self._max_steps is not None and step >= self._max_steps:
            return Stop("interrupted", EXIT_BUDGET, f"{self._step_setting} reached")
        return None

    def time_is_up(self) -> Optional[Stop]:
        """Returns the reason to stop now, or None."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return Stop("interrupted", EXIT_BUDGET, f"trainer.max_time={self._max_time:g} seconds reached")
        return None
