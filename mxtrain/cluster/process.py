"""A process of a run under a supervisor: start, heartbeats, state and end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence

from mxtrain.cluster.member import HEARTBEAT_FD, STANDBY_FD
from mxtrain.config.search_path import module_command
from mxtrain.files.durable import append_to

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
LAST_BYTES = 1 << 16
"""Number of bytes at the end of a log that are searched for its last lines."""
STARVED_S = 60.0
"""Maximum silence in seconds of a process that is not stopped: on a busy machine its heartbeat may be late."""


@dataclass
class LaunchSpec:
    """Command, environment and log of a process.

    Attributes:
        name: name for messages, e.g. "worker 1".
        command: the command with its arguments.
        environment: the complete environment.
        log: file for the output; None: the output of the supervisor.
        number: number of the worker among the workers, or of the server among the servers.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Optional[Path] = None
    number: int = 0


class Process:
    """A process of a run. Subclasses start it and receive its heartbeats. It is killed if the supervisor dies."""

    def __init__(self, spec: LaunchSpec):
        self.spec = spec
        self.last_heartbeat: JsonObject = {"step": 0, "batches": 0, "waits": False, "generation": 0}
        """Its last heartbeat."""
        self.has_reported = False
        """True if a heartbeat has arrived."""
        self.heartbeat_at = self.progress_at = time.monotonic()

    pid: int
    """The process id on its own host."""

    @property
    def exit_code(self) -> Optional[int]:
        """Returns the exit code; the negative number of a signal that killed it; None while it runs."""
        raise NotImplementedError

    started_at: Optional[float] = None
    """Time of its start on this machine's monotonic clock; None while it waits for its launcher."""
    start_replacement: Optional[Callable[[LaunchSpec], Process]] = None
    """Starts another process in its place; None if the rest of its group does not go on when it is closed."""

    def begin(self, spec: LaunchSpec) -> None:
        """Makes a standby the process of `spec`, of the same name as its own.

        Raises:
            OSError: it has ended.
        """
        raise NotImplementedError

    @property
    def host(self) -> str:
        """Returns the name of its host, the same for all processes there."""
        raise NotImplementedError

    @property
    def state(self) -> str:
        """Returns the kernel's letter for its state, e.g. R, S, T."""
        raise NotImplementedError

    @property
    def location(self) -> str:
        """Returns the process id, and the host if it is another one, for messages."""
        return f"process {self.pid}"

    def listen(self) -> None:
        """Reads all heartbeats that have arrived, without waiting."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Sends a signal to the process if it still runs."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kills the process and all processes that it has started. Does not wait."""
        raise NotImplementedError

    def close(self) -> None:
        """Kills it if it still runs, and waits until it is gone."""
        raise NotImplementedError

    def receive(self, heartbeat: JsonObject) -> None:
        """Records a heartbeat. `progress_at` changes only if the number of finished batches does."""
        self.has_reported, self.heartbeat_at = True, time.monotonic()
        if heartbeat["batches"] != self.last_heartbeat["batches"]:
            self.progress_at = self.heartbeat_at
        self.last_heartbeat = heartbeat

    def describe_silence(self, timeout_s: float) -> Optional[str]:
        """Returns the reason why the process counts as dead although it has not ended, as a predicate; None if it does
        not count as dead."""
        silence = time.monotonic() - self.heartbeat_at
        if silence < timeout_s:
            return None
        # The kernel's word for a stopped process is certain, so it needs no further patience.
        if self.state in ("T", "t"):
            return f"was stopped (SIGSTOP or a debugger) {silence:.1f} s ago"
        if silence < max(timeout_s, STARVED_S):
            return None
        return f"sent no heartbeat for {silence:.0f} s"

    def describe_end(self) -> str:
        """Returns the predicate of a sentence about the end of the process, e.g. "ended with exit code 1"."""
        code = self.exit_code
        if code is None:
            return "still runs"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_lines(self, count: int = 12) -> List[str]:
        """Returns the last lines of its log."""
        if self.spec.log is None:
            return []
        with self.spec.log.open("rb") as log:
            log.seek(max(0, self.spec.log.stat().st_size - LAST_BYTES))
            return log.read().decode(errors="replace").splitlines()[-count:]


def order_of(before: LaunchSpec, after: LaunchSpec) -> JsonObject:
    """Returns the order that makes a standby with the spec `before` the process of `after`; see
    `member.wait_until_needed`."""
    names = {*before.environment, *after.environment}
    new = {name: after.environment.get(name) for name in names}
    changed = {name: value for name, value in new.items() if before.environment.get(name) != value}
    return {"environment": changed, "arguments": list(after.command[len(module_command("mxtrain")) :])}


class LocalProcess(Process):
    """A child process on this machine.

    Args:
        spec: its command, environment and log.
        start: starts another process in its place.
        is_standby: True if it waits until `begin` makes it one of the processes of the run.
        output: open file for the output of a process without a log; None: that of this process.
    """

    host = "localhost"

    def __init__(
        self,
        spec: LaunchSpec,
        start: Optional[Callable[[LaunchSpec], Process]] = None,
        is_standby: bool = False,
        output: Optional[int] = None,
    ):
        super().__init__(spec)
        self.start_replacement = start or LocalProcess
        self._rest = b""
        self._reader, writer = os.pipe()
        orders, self._orders = os.pipe() if is_standby else (-1, -1)
        # The supervisor reads the heartbeats of all processes in turn, so no read may wait.
        os.set_blocking(self._reader, False)
        standby = {STANDBY_FD: str(orders)} if is_standby else {}
        try:
            with nullcontext(output) if spec.log is None else append_to(spec.log, "ab") as stdout:
                self._process = start_child(
                    spec.command,
                    env={**spec.environment, HEARTBEAT_FD: str(writer), **standby},
                    pass_fds=[writer, orders] if is_standby else [writer],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=None if stdout is None else subprocess.STDOUT,
                )
        finally:
            # Only the child keeps the write end, so that the pipe ends with the child.
            os.close(writer)
            if is_standby:
                os.close(orders)
        self.started_at = time.monotonic()
        self.pid = self._process.pid

    def begin(self, spec: LaunchSpec) -> None:
        self.order(order_of(self.spec, spec))
        self.spec = spec
        self.started_at = self.heartbeat_at = self.progress_at = time.monotonic()

    def order(self, order: JsonObject) -> None:
        """Sends a standby the order to take the place of a process. Raises: OSError: it has ended."""
        os.write(self._orders, json.dumps(order).encode() + b"\n")
        self._close_orders()

    def _close_orders(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1

    @property
    def exit_code(self) -> Optional[int]:
        return self._process.poll()

    @property
    def state(self) -> str:
        return state_of(self.pid)

    def listen(self) -> None:
        with suppress(BlockingIOError):
            while True:
                read = os.read(self._reader, 1 << 16)
                if not read:
                    return
                *lines, self._rest = (self._rest + read).split(b"\n")
                for line in lines:
                    self.receive(json.loads(line))

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        kill_group(self.pid)

    def close(self) -> None:
        if self._reader < 0:
            return
        self.kill()
        self._process.wait()
        os.close(self._reader)
        self._reader = -1
        self._close_orders()


_TIE_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(int(sys.argv[1]), signal.SIGKILL)
if os.getppid() != int(sys.argv[2]):
    os._exit(1)
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
for warning in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(warning, signal.SIG_IGN)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"mxtrain: {sys.argv[3]} cannot be started: {error.strerror}")
"""
"""Asks the kernel to kill this process with its parent, and then executes the command in its arguments.

Exits if the parent has died already. Restores two signals that Python ignores and the command would ignore, too.
Ignores the warnings that Slurm sends to all processes of a job, until the command handles them."""


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process in its own process group. The kernel kills it when this process ends.

    A small Python program requests this of the kernel and then becomes the command. A `preexec_fn` would fork this
    process instead: that takes longer the more memory it has, may fail for lack of memory, and can deadlock if another
    thread holds a lock.
    """
    # -I and -S ignore the user's environment and site packages: only this program runs before the command.
    prefix = [sys.executable, "-I", "-S", "-c", _TIE_TO_PARENT, str(_PR_SET_PDEATHSIG), str(os.getpid())]
    return subprocess.Popen([*prefix, *command], start_new_session=True, **options)


def run_child(command: Sequence[str], **options: Any) -> int:
    """Runs a command as `start_child` does, and returns its exit code. If the wait is interrupted, e.g. by a
    KeyboardInterrupt, the command and the processes of its group are killed."""
    process = start_child(command, **options)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()


def kill_group(pid: int) -> None:
    """Kills all processes of the group of a child."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def signal_parents_death(number: int) -> bool:
    """Makes the kernel send a signal to this process when its parent ends. Returns False if it has ended already."""
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def state_of(pid: int) -> str:
    """Returns the kernel's letter for the state of a process, e.g. R, S, T; "" if there is no such process."""
    try:
        # The name of the program, in parentheses, may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run_silently(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command as `run_child` does, without input or output.

    Args:
        command: the command with its arguments.
        environment: variables besides those of this process.
    """
    quiet = subprocess.DEVNULL
    return run_child(command, env={**os.environ, **environment}, stdin=quiet, stdout=quiet, stderr=quiet)
