"""Training processes for the tests of resuming and stopping: started, waited for, looked at."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240

QUIET = ("logger.console.show_config=false", "logger.console.show_model=false")
# Everything that a resumed run could get wrong; 13 steps an epoch, the last with a partial batch in three parts.
FULL = (
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=32",
    "model.dropout=0.3",
    "dataset.batch_size=100",
    "dataset.augment.flip=true",
    "dataset.augment.cutout=2",
    "dataset.augment.mixup=0.2",
    "dataset.augment.cutmix=1.0",
    "lr_scheduler.warmup=1",
    "trainer.ema_decay=0.9",
    "trainer.grad_accumulation=3",
    "trainer.clip_global_norm=1",
    "trainer.log_interval=5",
    "checkpoint.every_steps=7",
    "early_stopping.patience=6",
    "trainer.max_epochs=3",
)
# A step takes a millisecond.
SMALL = ("model=mlp", "model.hidden=[8]", "dataset.batch_size=100", "trainer.log_interval=5")


def running_processes() -> Iterator[Tuple[int, str, Dict[str, str]]]:
    """(process id, command line, environment) of all that the kernel lets us see."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().decode()
            variables = (path / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        yield int(path.name), command, dict(part.split("=", 1) for part in variables if "=" in part)


def role_of(environment: Mapping[str, str]) -> str:
    """ "scheduler", "server", "worker1", or nothing."""
    return environment.get("DMLC_ROLE", "") + environment.get("MXTRAIN_WORKER", "")


def listening_sockets(process_ids: Collection[int]) -> List[Path]:
    """Files of the Unix sockets on which these processes listen."""
    inodes = set()
    for pid in process_ids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(os.readlink(link))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [
        Path(words[7])
        for words in lines
        if len(words) == 8 and words[5] == "01" and words[7].startswith("/") and f"socket:[{words[6]}]" in inodes
    ]


def verify(*overrides: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess:
    """`python -m mxtrain verify` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mxtrain", "verify", *overrides],
        text=True,
        capture_output=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def train_here(run_dir: Path, *overrides: str, exit_code: int = 0) -> str:
    """The same as `Process(run_dir, *overrides).end(exit_code)` in this process, which is four times as fast where
    neither a signal nor another environment is the point; what it printed."""
    from mxtrain.cli import main

    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        with redirect_stdout(file), redirect_stderr(file):
            code = main([f"hydra.run.dir={run_dir}", *QUIET, *overrides])
        file.seek(0)
        output = file.read()
    assert code == exit_code, f"exit code {code}\n{output}"
    return output


class Process:
    """`python -m mxtrain` in a run directory."""

    def __init__(self, run_dir: Path, *overrides: str, env: Optional[Mapping[str, str]] = None, command: Any = None):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
        self.run_dir = run_dir
        command = command or [sys.executable, "-m", "mxtrain"]
        self.popen = subprocess.Popen(
            [*command, f"hydra.run.dir={run_dir}", *QUIET, *overrides],
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output = ""

    def end(self, *exit_codes: int) -> Process:
        """Waits; the exit code must be one of these (0 by default)."""
        try:
            self.output += self.popen.communicate(timeout=TIMEOUT_S)[0]
        finally:
            self.popen.kill()
        assert self.popen.returncode in (exit_codes or (0,)), f"exit code {self.popen.returncode}\n{self.output}"
        return self

    def wait_until(self, condition: Callable[[], bool]) -> Process:
        """Until `condition()`; fails where the process ends before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                self.end(-1)
            time.sleep(0.005)
        return self

    def kill(self, number: int) -> Process:
        self.popen.send_signal(number)
        return self


def status(run_dir: Path) -> Dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())


def rows(run_dir: Path) -> List[Dict[str, Any]]:
    """metrics.jsonl without the speeds."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        row.pop("samples_per_s")
    return found


def steps(run_dir: Path, split: str = "train") -> List[int]:
    return [row["step"] for row in rows(run_dir) if row["split"] == split]


def checkpoints(run_dir: Path) -> List[str]:
    folder = run_dir / "checkpoints"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def has_steps(run_dir: Path, count: int) -> Callable[[], bool]:
    """Returns True if metrics.jsonl has this many lines."""

    def look() -> bool:
        file = run_dir / "metrics.jsonl"
        return file.exists() and file.read_bytes().count(b"\n") >= count

    return look


def assert_same(run_dir: Path, expected: Path) -> None:
    """The same final weights to the bit, and the same rows: none missing, none twice."""
    assert rows(run_dir) == rows(expected)
    assert status(run_dir)["weights_sha256"] == status(expected)["weights_sha256"]
    assert status(run_dir)["best"] == status(expected)["best"]
    assert status(run_dir)["metrics"] == status(expected)["metrics"]


def image(run_dir: Path) -> Dict[str, Any]:
    """Every file with its content and, but for the lock, its time."""
    return {
        str(path.relative_to(run_dir)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            None if path.name == ".lock" else path.stat().st_mtime_ns,
        )
        for path in sorted(run_dir.rglob("*"))
        if path.is_file()
    }
