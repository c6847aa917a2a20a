"""A run of several processes that something is done to: started, watched, and compared with an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from bench_parts.harness import ProcessFailed, mxtrain_arguments, rows_of, status_of, untouched_environment
from mxtrain.cluster.launch_spec import SOCKETS

TIMEOUT_S = 300
CLEAN_S = 15.0
"""Seconds that processes on other hosts may take to end after the supervisor."""
MARK = "MXTRAIN_BENCH_RUN"
"""In the environment of all processes of a run, wherever they are."""
OVERRIDES = (
    "model=mlp",
    "model.hidden=[256]",
    "dataset.batch_size=64",
    "trainer.log_interval=1",
    "checkpoint.every_steps=20",
    "early_stopping=off",
    "cluster.workers=2",
    "cluster.backoff=0.1",
    "logger.console.show_config=false",
    "logger.console.show_model=false",
    "logger=[jsonl,console]",
)

Found = TypeVar("Found")
Outcome = Tuple[str, List[Dict[str, Any]]]
"""The final weights' hash, and all rows."""


class Run:
    """One run, and what its supervisor says when.

    Args:
        run_dir: of the run.
        store: where gradients meet.
        overrides: further ones.
        before: what its command line begins with.
        environment: further variables.
    """

    def __init__(
        self,
        run_dir: Path,
        store: str,
        overrides: Sequence[str] = (),
        before: Sequence[str] = (),
        environment: Optional[Mapping[str, str]] = None,
    ):
        self._run_dir = run_dir
        self._sockets: Set[str] = set()
        self._lines: List[Tuple[float, str]] = []
        told = {**untouched_environment(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", MARK: str(run_dir)}
        arguments = mxtrain_arguments([f"kvstore={store}", *OVERRIDES, *overrides], str(run_dir))
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [*before, sys.executable, *arguments],
            env={**told, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process that starts all others."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append((time.monotonic(), line))

    @property
    def output(self) -> str:
        """All that was printed so far."""
        return "".join(line for _, line in self._lines)

    def steps(self) -> int:
        """Last step in metrics.jsonl."""
        try:
            lines = (self._run_dir / "metrics.jsonl").read_text().splitlines()
            return max((json.loads(line)["step"] for line in lines[-2:]), default=0)
        except (OSError, ValueError):
            return 0

    def find(self, role: str, others_than: Sequence[int] = ()) -> Optional[Tuple[int, Mapping[str, str]]]:
        """(process id, environment) of "scheduler", "server", "worker0", ..., as soon as it is there."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                pairs = (part.partition("=") for part in (path / "environ").read_text().split("\0"))
                variables = {name: value for name, _, value in pairs}
            except (OSError, UnicodeDecodeError):
                continue
            if variables.get(MARK) != str(self._run_dir):
                continue
            if variables.get("DMLC_LOCAL") == "1" and "PORT" in variables:
                self._sockets.add(str(SOCKETS / variables["PORT"]))
            own = variables.get("DMLC_ROLE", "") + variables.get("MXTRAIN_WORKER", "")
            if (not role or own == role) and int(path.name) not in others_than:
                return int(path.name), variables
        return None

    def find_child(self, module: str) -> Optional[int]:
        """Returns the child of the supervisor that runs a module."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.pid and module.encode() in (path / "cmdline").read_bytes():
                    return int(path.name)
        return None

    def is_running(self) -> bool:
        """Returns True if the supervisor has not ended."""
        return self._process.poll() is None

    def wait_for(self, role: str, others_than: Sequence[int] = ()) -> Tuple[int, Mapping[str, str]]:
        """Waits until `find` returns something, and returns it."""
        return self.wait(lambda: self.find(role, others_than))

    def noticed(self, began: float) -> Optional[float]:
        """When after `began` the supervisor gave a process or all of them up."""
        found = [self.said(words, began) for words in ("all processes are ended", "go on without it")]
        return min((at for at in found if at is not None), default=None)

    def noticed_after(self, began: float) -> Optional[float]:
        """Seconds from `began` until then."""
        noticed = self.noticed(began)
        return None if noticed is None else noticed - began

    def said(self, words: str, began: float) -> Optional[float]:
        """When after `began` a line with these words came."""
        return next((at for at, line in self._lines if at > began and words in line), None)

    def wait_until_past(self, step: int, since: float) -> None:
        """Until a step after `step` was written later than `since` (the rows after the checkpoint are taken back at a
        restart, and come again), or the run has ended well."""

        def is_past() -> bool:
            try:
                changed = (self._run_dir / "metrics.jsonl").stat().st_mtime
            except OSError:
                return False
            return changed > time.time() - (time.monotonic() - since) and self.steps() > step

        self.wait(lambda: is_past() or self._process.poll() == 0)

    def wait(self, look: Callable[[], Optional[Found]]) -> Found:
        """Until `look()` is neither None nor false, which must come before the run's end; returns what it is."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = look()
            if found:
                return found
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise ProcessFailed(f"ended or hung before its time: {self.tail()}")
            time.sleep(0.01)

    def end(self, exit_code: int = 0, cause: str = "") -> float:
        """Waits for the end; returns when it was.

        Raises:
            ProcessFailed: it had another exit code, or what it printed does not contain `cause`.
        """
        try:
            code = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise ProcessFailed(f"did not end in {TIMEOUT_S} s: {self.tail()}") from None
        ended = time.monotonic()
        self._reader.join(CLEAN_S)
        if code != exit_code:
            raise ProcessFailed(f"exit code {code}: {self.tail()}")
        if cause not in self.output:
            raise ProcessFailed(f"no word of {cause!r}: {self.tail()}")
        return ended

    def outcome(self) -> Outcome:
        """Outcome of a finished run."""
        return outcome_of(self._run_dir)

    def left(self, strangers: Callable[[], Sequence[str]] = list) -> str:
        """Returns leftovers of the run, or an empty string.

        Args:
            strangers: -> what runs or listens on its hosts though it should not.
        """
        deadline = time.monotonic() + CLEAN_S
        while True:
            found = [*strangers(), *(f"the socket {name}" for name in self._sockets if os.path.exists(name))]
            one = self.find("")
            found += [f"process {one[0]}"] if one else []
            if not found:
                return ""
            if time.monotonic() > deadline:
                return f"left behind: {', '.join(found)}"
            time.sleep(0.1)

    def tail(self) -> str:
        """The last it has said."""
        return " | ".join(line.strip() for _, line in self._lines[-4:])


def outcome_of(run_dir: Path) -> Outcome:
    """Returns the outcome of a finished run."""
    rows = rows_of(run_dir)
    for row in rows:
        row.pop("samples_per_s")
    return status_of(run_dir)["weights_sha256"], rows


def kill_below(folder: Path) -> None:
    """Ends the processes of all runs in a folder, whatever state they are in."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"\0{MARK}={folder}/".encode() in b"\0" + (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)


def differences(found: Outcome, expected: Outcome, exact: bool) -> str:
    """Returns differences from the undisturbed run, or an empty string."""
    if [(row["split"], row["step"]) for row in found[1]] != [(row["split"], row["step"]) for row in expected[1]]:
        return "rows missing or twice"
    if exact:
        return "" if found == expected else "other weights or other rows"
    off = max(abs(a["loss"] - b["loss"]) / max(b["loss"], 1e-3) for a, b in zip(found[1], expected[1]))
    return "" if off < 1e-2 else f"a loss is off by {off:.1%}"
