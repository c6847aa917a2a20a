"""What a person waits for after Enter: the first visible line and the first step, on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Mapping, Tuple

from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import ROOT, ProcessFailed, untouched_environment

MAX_FIRST_LINE_S = 1.0
REPETITIONS = 5
TIMEOUT_S = 300.0
OVERRIDES = ("trainer.log_interval=1", "hydra.run.dir=run")


def measure(options: Options) -> Measured:
    """Starts the default run, in turns with that of another checkout (`--before`) where one is given; ends each after
    its first step."""
    checkouts = {"now": ROOT, **({"before": Path(options.before).resolve()} if options.before else {})}

    def start(name: str, number: int) -> Tuple[float, float]:
        folder = options.work / f"{name}{number}"
        folder.mkdir()
        return seconds_after_enter(checkouts[name], folder)

    if not options.quick:
        for name in checkouts:
            start(name, -1)  # warms the disk's cache
    sides = {name: lambda number, name=name: start(name, number) for name in checkouts}
    found = in_turn(sides, 1 if options.quick else REPETITIONS)
    measured = Measured()
    for position, title in enumerate(("first visible line", "first step")):
        for name in reversed(checkouts):
            values = [seconds[position] for seconds in found[name]]
            measured.series.append(Series(f"{title}, {name}", "s", values))
    middle = measured.series[len(checkouts) - 1].median
    measured.targets.append(
        Target("first visible line: median, s after Enter", middle, MAX_FIRST_LINE_S, at_least=False)
    )
    measured.notes.append(
        f"`python -m mxtrain {' '.join(OVERRIDES)}` on a pseudo-terminal, until the first character that is no space "
        "is shown, and until the row of the first step is in metrics.jsonl; then it is killed."
    )
    if options.before:
        measured.notes.append(f"Before: commit {commit_of(checkouts['before'])}, in turns with now.")
    return measured


def commit_of(checkout: Path) -> str:
    """The short name of a checkout's commit."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def seconds_after_enter(checkout: Path, folder: Path) -> Tuple[float, float]:
    """(first visible character, first step), in seconds.

    Raises:
        ProcessFailed: the run ended before its first step.
    """
    environment = {**untouched_environment(), "PYTHONPATH": str(checkout), "TERM": "xterm", "COLUMNS": "120"}
    began = time.perf_counter()
    process, terminal = _start_on_terminal([sys.executable, "-m", "mxtrain", *OVERRIDES], environment, folder)
    shown_s, rows, output = None, folder / "run" / "metrics.jsonl", b""
    try:
        while time.perf_counter() - began < TIMEOUT_S:
            if select.select([terminal], [], [], 0.005)[0]:
                output += _read(terminal)
                if shown_s is None and output.strip():
                    shown_s = time.perf_counter() - began
            if rows.exists() and rows.stat().st_size:
                return shown_s or 0.0, time.perf_counter() - began
            if process.poll() is not None:
                break
        raise ProcessFailed(f"no first step in {checkout}: {output.decode(errors='replace')[-2000:]}")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _start_on_terminal(
    command: List[str], environment: Mapping[str, str], folder: Path
) -> Tuple[subprocess.Popen, int]:  # fmt: skip
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    return process, ours


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the process is gone
        return b""
