"""Trains a run twice, undisturbed and with injected faults, and compares the results to the bit (`debug=chaos`).

Both are processes of the same command, in RUN-reference and RUN. Faults come from outside: signals to processes, bytes
of files, one environment variable that makes writes fail while a file of that name exists, and one that leads the
connections of workers through this process.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Iterator, List, Optional, Sequence

from mxtrain.archive.reproduction import compare_results
from mxtrain.archive.run_records import last_step
from mxtrain.callback.chaos import CHILD, Chaos, Fault
from mxtrain.checkpoint.folder import CHECKPOINTS
from mxtrain.config.fault_injection import delayable_links, impossible_faults
from mxtrain.config.groups import Description
from mxtrain.config.override_text import quote
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_BUDGET, EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.files.durable import open_file
from mxtrain.private_sockets.folder import socket_folder
from mxtrain.private_sockets.slow_link import RING_LINKS, SlowLinks
from mxtrain.private_sockets.slow_link import VARIABLE as LINKS
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.tables import print_rows

COMPLETE = (EXIT_FINISHED, EXIT_BUDGET)
"""Exit codes of runs that are compared. The budget is `trainer.max_steps`, so both runs end at the same step."""
MAX_STARTS = 20
POLL_S = 0.01
STOP_S = 60.0


def run_with_faults(chaos: Chaos, description: Description, run_dir: Path, words: Sequence[str]) -> int:
    """Trains twice and compares; returns the exit code: 0 for the same bits, 1 for others.

    Args:
        chaos: the faults.
        description: description of the run.
        run_dir: directory of the disturbed run.
        words: flags and overrides of the run.

    Raises:
        ConfigError: the run cannot be repeated to the bit, or `run_dir` holds a run.
    """
    reference = run_dir.with_name(f"{run_dir.name}-reference")
    require_new_directories(run_dir)
    log = reference.with_name(f"{run_dir.name}-chaos.log")
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    print(f"the output of all processes is in {log}\nundisturbed: {reference}", flush=True)
    code = Injection(reference, words, log).run([], chaos)
    if code not in COMPLETE:
        print(f"the undisturbed run ended with exit code {code}, so there is nothing to compare: see {log}")
        return code
    num_steps = last_step(reference)
    left_out = impossible_faults(description)
    for kind in sorted(left_out.keys() & set(chaos.faults)):
        print(f"{kind} is left out: {left_out[kind]}")
    schedule = chaos.schedule(num_steps, left_out)
    print(f"with {len(schedule)} faults in {num_steps} steps (callback.chaos.seed={chaos.seed}): {run_dir}", flush=True)
    injection = Injection(run_dir, words, log, delayable_links(description), num_steps)
    code = injection.run(schedule, chaos)
    if code not in COMPLETE:
        print(f"the disturbed run ended with exit code {code}: see {log}")
        return code
    compared = compare_results(reference, run_dir)
    if code == EXIT_BUDGET:
        print(f"both runs ended at step {num_steps}, by trainer.max_steps")
    for line in compared.lines:
        print(line)
    if compared.differences:
        print_rows(("", "undisturbed", "with faults"), compared.differences, indent=2)
    verdict = "the same result as without faults" if compared.same else "NOT the same result as without faults"
    print(verdict, flush=True)
    return EXIT_FINISHED if compared.same else EXIT_CRASHED


def require_new_directories(run_dir: Path) -> None:
    """Checks that the directories of both runs are new.

    Raises:
        ConfigError: one of them is not empty.
    """
    for folder in (run_dir, run_dir.with_name(f"{run_dir.name}-reference")):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty, and debug=chaos begins with two new runs. Choose another hydra.run.dir."
            )


class Injection:
    """Runs a command until it finishes, with faults on the way, and starts it again after each end.

    Args:
        run_dir: directory of the run.
        words: flags and overrides of the run.
        log: file for the output of the processes.
        links: what can be held back; see `delayable_links`.
        num_steps: number of steps of the run; 0: not known yet.
    """

    def __init__(
        self, run_dir: Path, words: Sequence[str], log: Path, links: Sequence[int] = (), num_steps: int = 0
    ) -> None:
        self._run_dir, self._words, self._log = run_dir, list(words), log
        self._full = run_dir.with_name(f".{run_dir.name}-disk-is-full")
        self._display = ProgressDisplay()
        self._delayable, self._num_steps, self._shown_step = links, num_steps, 0
        self._links: Optional[SlowLinks] = None
        self._process: Optional[subprocess.Popen] = None
        self.num_done = 0
        """Number of faults so far."""

    def run(self, schedule: Sequence[Fault], chaos: Chaos) -> int:
        """Returns the exit code of the last process."""
        with ExitStack() as stack:
            stack.enter_context(self._display)
            self._display.begin(f"training {self._run_dir.name}, step", self._num_steps)
            if self._delayable:
                self._links = SlowLinks(stack.enter_context(socket_folder()))
                stack.callback(self._links.close)
            return self._run(schedule, chaos)

    def _run(self, schedule: Sequence[Fault], chaos: Chaos) -> int:
        pending = list(schedule)
        draw = random.Random(chaos.seed + 1)
        code = EXIT_CRASHED
        try:
            for _ in range(MAX_STARTS + len(pending)):
                had_fault = self.num_done
                code = self._run_once(pending, chaos, draw)
                self._full.unlink(missing_ok=True)
                if code in (*COMPLETE, EXIT_BAD_INPUT) or self.num_done == had_fault:
                    break  # without a fault, another start would end in the same way
        finally:
            self._stop()
            self._full.unlink(missing_ok=True)
        for fault in pending:
            self._note(fault, "never: the run was faster")
        return code

    def _note(self, fault: Fault, what: str) -> None:
        """Prints a fault once it has happened."""
        self.num_done += 1
        print(f"  {fault.kind:<8}after step {fault.step:<6}{what}", flush=True)

    def _run_once(self, pending: List[Fault], chaos: Chaos, draw: random.Random) -> int:
        """Starts the command and injects the faults that become due; returns its exit code."""
        command = [sys.executable, "-m", "mxtrain", *self._words, f"hydra.run.dir={quote(str(self._run_dir))}"]
        with open(open_file(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
            environment = {**os.environ, CHILD: str(self._full.absolute())}
            if self._links is not None:
                environment[LINKS] = self._links.control
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        while self._process.poll() is None:
            step = last_step(self._run_dir)
            self._display.advance(max(step - self._shown_step, 0))
            self._shown_step = max(step, self._shown_step)
            if pending and step >= pending[0].step:
                fault = pending.pop(0)
                self._note(fault, self._inject(fault, chaos, draw))
            time.sleep(POLL_S)
        return self._process.returncode

    def _inject(self, fault: Fault, chaos: Chaos, draw: random.Random) -> str:
        assert self._process is not None
        if fault.kind == "corrupt":
            self._stop()
            return self._corrupt(draw)
        if fault.kind == "full":
            self._full.touch()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(chaos.pause_s)
            self._full.unlink(missing_ok=True)
            return f"no write succeeded for {chaos.pause_s:g} s"
        if fault.kind == "delay":
            assert self._links is not None
            rank = draw.choice(self._delayable)
            with self._links.hold(rank) as num_bytes:
                time.sleep(chaos.pause_s)
            senders = "the workers" if rank == RING_LINKS else f"worker {rank}"
            return f"what {senders} sent was held back for {chaos.pause_s:g} s ({num_bytes():,} bytes)"
        members = members_of(self._process.pid)
        pid = draw.choice(members) if members else self._process.pid
        role = "a process of the group" if members else "the process"
        with suppress(ProcessLookupError):
            if fault.kind == "kill":
                os.kill(pid, signal.SIGKILL)
                return f"{role} was killed"
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chaos.pause_s)
            os.kill(pid, signal.SIGCONT)
            return f"{role} was stopped for {chaos.pause_s:g} s"
        return "never: the process had ended"

    def _corrupt(self, draw: random.Random) -> str:
        """Changes a byte in a file of the newest checkpoint, if there is another one to fall back on."""
        checkpoints = sorted((self._run_dir / CHECKPOINTS).glob("step-*"))
        if len(checkpoints) < 2:
            return "the run was ended; there was no second checkpoint, so none was damaged"
        files = sorted(path for path in checkpoints[-1].iterdir() if path.stat().st_size)
        path = draw.choice(files)
        place = draw.randrange(path.stat().st_size)
        fd = open_file(path, os.O_RDWR)
        try:
            (byte,) = os.pread(fd, 1, place)
            os.pwrite(fd, bytes([byte ^ 0xFF]), place)
        finally:
            os.close(fd)
        return f"the run was ended, and byte {place} of {checkpoints[-1].name}/{path.name} changed"

    def _stop(self) -> None:
        """Ends the processes of the run: as by Ctrl-C where there are several, since these end each other."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT if members_of(process.pid) else signal.SIGKILL)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def members_of(pid: int) -> List[int]:
    """Returns the processes of a group that a process supervises: its children with a role."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"DMLC_ROLE=" in (path / "environ").read_bytes():
                process_ids.append(int(path.name))
    return sorted(process_ids)


@contextmanager
def disk_that_may_be_full() -> Iterator[None]:
    """Makes writes to regular files fail while the file that `CHILD` names exists. Does nothing without it."""
    flag = os.environ.get(CHILD)
    if flag is None:
        yield
        return
    write = os.write

    def write_or_fail(fd: int, data: bytes) -> int:
        if os.path.exists(flag) and stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    os.write = write_or_fail  # type: ignore[assignment]  # called with two arguments only
    try:
        yield
    finally:
        os.write = write
