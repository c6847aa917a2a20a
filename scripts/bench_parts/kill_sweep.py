"""Kills small runs with everything on, at random moments and at each system call of a save, and resumes them.

Every run must end with the weights of the run that was never killed, to the bit, and with the same rows in
metrics.jsonl. Kills during start-up hit whole processes of the command line. The others are forked, each to run the
same command, by a process that has MXNet imported, which is quicker than starting each anew.

    python -m bench_parts.kill_sweep nursery        forks what its standard input asks for
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from bench_parts.fault_run import Outcome, differences, outcome_of
from bench_parts.harness import Measured, Options, ask, say, tuned_environment, untouched_environment

CORES = len(os.sched_getaffinity(0))
KILLS_PER_RUN = 5
START_UP_SHARE = 0.2
"""Share of random kills before the first step, where a process spends most of its life but has least to lose."""
START_UP_S = 4.0
TIMEOUT_S = 120
CALLS = (
    "open",
    "write",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "listdir",
    "scandir",
    "stat",
    "lstat",
    "fstat",
    "readv",
    "truncate",
    "ftruncate",
)

FULL = (
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=32",
    "model.dropout=0.3",
    "optimizer=adam",
    "dataset.batch_size=100",
    "dataset.augment.crop_padding=1",
    "dataset.augment.flip=true",
    "dataset.augment.cutout=2",
    "dataset.augment.mixup=0.2",
    "dataset.augment.cutmix=1.0",
    "lr_scheduler=cosine",
    "lr_scheduler.warmup=1",
    "trainer.ema_decay=0.9",
    "trainer.grad_accumulation=3",
    "trainer.clip_global_norm=1",
    "trainer.log_interval=5",
    "checkpoint.every_steps=7",
    "early_stopping.patience=6",
)
"""Shuffling, augmentation, mixing, dropout, Adam, warm-up, moving average, a partial last batch in three parts,
clipping and early stopping. 13 steps an epoch."""
LONG = (*FULL, "trainer.max_epochs=10")
# With few arrays: each of them is written by calls of its own, and all of those are alike.
SHORT = (*FULL[3:], "model=mlp", "model.hidden=[16]", "trainer.max_epochs=2")
BEFORE_THE_SAVE = 14
"""The step from which a short run goes on to the save of step 21 that is killed."""


PLACEMENTS: Dict[str, List[str]] = {
    # 3 parts x 2 replicas x 2 microbatches must divide the batch.
    "single": [],
    "data": ["parallel=data", "dataset.batch_size=96"],
    "model": ["parallel=model", "dataset.batch_size=96"],
    "pipeline": ["parallel=pipeline", "parallel.microbatches=2", "dataset.batch_size=96"],
    "hybrid": ["parallel=hybrid", "parallel.microbatches=2", "dataset.batch_size=96"],
}


def measure(options: Options) -> Measured:
    """Every kill must be followed by a run that ends with the same weights and rows, to the bit."""
    found, failures = Measured(), list[str]()
    for name, overrides in PLACEMENTS.items():
        if options.quick and overrides:
            continue
        kills = 2 if options.quick else 20 if overrides else 100
        told = ask("kill_sweep:sweep", kills, overrides, environment=tuned_environment(), folder=options.work)
        say(f"  {name}: {told}")
        failures += [f"{name}: {failure.replace(str(options.work), 'WORK')}" for failure in told["failures"]]
        found.add(f"{name}: kills at random moments", "kills", [float(told["random_kills"])])
        found.add(f"{name}: kills at a call of a save", "kills", [float(told["save_kills"])])
        found.at_least(f"{name}: kills at random moments", told["random_kills"], kills)
        found.details[name] = {key: told[key] for key in ("moments", "runs", "random_kills_s", "save_kills_s")}
    found.details["failures"] = failures
    found.at_most("runs that did not end with the same weights and rows", len(failures), 0)
    return found


def sweep(kills: int, placement: Sequence[str] = (), seed: int = 0) -> Dict[str, Any]:
    """Kills `kills` times at random, and once at each call of a save (for fewer than 20 kills, and where a placement is
    given, at each twentieth).

    Returns:
        Counts: random_kills by what was under way, save_kills, resumed runs, failures (a sentence each), seconds.
    """
    began = time.monotonic()
    nurseries = [Nursery() for _ in range(CORES)]
    with tempfile.TemporaryDirectory(prefix="kill-sweep-") as name, ThreadPoolExecutor(CORES) as pool:
        folder = Path(name)
        parts = zip(nurseries, ("long", "short"), ((*LONG, *placement), (*SHORT, *placement)))
        long, short = [nursery.complete(folder / name, overrides) for nursery, name, overrides in parts]
        train_s = json.loads((folder / "long" / "status.json").read_text())["wall_s"]
        runs = queue.SimpleQueue()
        for start in range(0, kills, KILLS_PER_RUN):
            runs.put((start // KILLS_PER_RUN, min(KILLS_PER_RUN, kills - start)))
        num_runs = runs.qsize()

        def kill_runs(nursery: Nursery) -> List[Tuple[Counter, List[str]]]:
            found = []
            while not runs.empty():
                number, count = runs.get()
                target = Target(nursery, folder / f"run-{number}", placement, train_s, seed * 1000 + number)
                found.append(target.kill(count, long))
            return found

        found = [one for part in pool.map(kill_runs, nurseries) for one in part]
        moments: Counter = sum((moment for moment, _ in found), Counter())
        failures = [problem for _, problems in found for problem in problems]
        random_s = time.monotonic() - began
        save_kills, problems = _kill_saves(
            folder, nurseries, (*SHORT, *placement), short, pool, 20 if kills < 20 or placement else 1
        )
    for nursery in nurseries:
        nursery.close()
    return {
        "random_kills": sum(moments.values()),
        "moments": dict(sorted(moments.items())),
        "runs": num_runs,
        "save_kills": save_kills,
        "failures": failures + problems,
        "weights_sha256": long[0],
        "random_kills_s": round(random_s, 1),
        "save_kills_s": round(time.monotonic() - began - random_s, 1),
    }


def _command(run_dir: Path, overrides: Sequence[str]) -> List[str]:
    quiet = ("logger.console.show_config=false", "logger.console.show_model=false")
    return [sys.executable, "-m", "mxtrain", f"hydra.run.dir={run_dir}", *overrides, *quiet]


def _environment() -> Dict[str, str]:
    return {**untouched_environment(), "OMP_NUM_THREADS": "1", "MXNET_CPU_TEMP_COPY": "64"}


def _start(run_dir: Path, overrides: Sequence[str]) -> subprocess.Popen:
    with open(f"{run_dir}.log", "ab") as log:
        return subprocess.Popen(_command(run_dir, overrides), env=_environment(), stdout=log, stderr=log)


class Nursery:
    """A process that has MXNet imported and forks runs, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench_parts.kill_sweep", "nursery"],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid: Optional[int] = None
        self._returncode: Optional[int] = None

    def start(self, run_dir: Path, overrides: Sequence[str], die_at: int = 0) -> None:
        """Forks a run; with `die_at` it kills itself at that call of a save."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"run_dir": str(run_dir), "arguments": _command(run_dir, overrides)[3:], "die_at": die_at}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self.pid, self._returncode = int(self._process.stdout.readline()), None

    def poll(self) -> Optional[int]:
        """Like Popen.poll."""
        assert self._process.stdout is not None
        if self._returncode is None and select.select([self._process.stdout], [], [], 0)[0]:
            self._returncode = int(self._process.stdout.readline())
        return self._returncode

    def kill(self) -> None:
        """Like Popen.kill."""
        if self.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Like Popen.wait."""
        _wait(self, TIMEOUT_S, lambda: False)
        if self.poll() is None:
            self.kill()
            raise AssertionError(f"a run did not end in {TIMEOUT_S} s")
        assert self._returncode is not None
        return self._returncode

    def complete(self, run_dir: Path, overrides: Sequence[str], exit_code: int = 0) -> Outcome:
        """Runs to the end, from wherever the run stands."""
        self.start(run_dir, overrides)
        code = self.wait()
        assert code == exit_code, f"{run_dir.name}: exit code {code}\n{_tail(run_dir)}"
        return outcome_of(run_dir)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve_nursery() -> None:
    """Forks what stdin asks for in a line of JSON; answers with the process id, and at the end with the exit code."""
    from mxtrain.training import runner  # noqa: F401 - imports MXNet, once for all

    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_forked(**order)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run_forked(run_dir: str, arguments: List[str], die_at: int) -> None:
    code = 1
    try:
        log = os.open(f"{run_dir}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        if die_at:
            _die_at(die_at)
        from mxtrain.cli import main

        code = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _tail(run_dir: Path) -> str:
    return "\n".join(Path(f"{run_dir}.log").read_text(errors="replace").splitlines()[-15:])


# Random moments.


class Target:
    """One run that is killed again and again, and then has to end as if nothing had happened."""

    def __init__(self, nursery: Nursery, run_dir: Path, placement: Sequence[str], train_s: float, seed: int):
        self._overrides = (*LONG, *placement)
        self._nursery, self._run_dir, self._train_s = nursery, run_dir, train_s
        self._random = random.Random(seed)

    def kill(self, times: int, expected: Outcome) -> Tuple[Counter, List[str]]:
        """The moments of the kills, and what went wrong."""
        moments: Counter = Counter()
        try:
            while sum(moments.values()) < times:
                moment = self._kill_once()
                if moment is not None:
                    moments[moment] += 1
                    continue
                # It was over before the signal came.
                problem = differences(outcome_of(self._run_dir), expected, exact=True)
                assert not problem, problem
                shutil.rmtree(self._run_dir)
            outcome = self._nursery.complete(self._run_dir, self._overrides)
            problem = differences(outcome, expected, exact=True) or _leftovers(self._run_dir)
        except (AssertionError, OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        shutil.rmtree(self._run_dir, ignore_errors=True)
        return moments, [f"{self._run_dir.name} after {dict(moments)}: {problem}"] if problem else []

    def _kill_once(self) -> Optional[str]:
        """Starts the run, kills it, and says what was under way; None where it ended first."""
        status = self._run_dir / "status.json"
        before = _inode(status)
        process: Any = self._nursery
        if self._random.random() < START_UP_SHARE:
            process = _start(self._run_dir, self._overrides)
            _wait(process, self._random.uniform(0.0, START_UP_S), lambda: _inode(status) != before)
        else:
            process.start(self._run_dir, self._overrides)
            _wait(process, TIMEOUT_S, lambda: _inode(status) != before)
            _wait(process, self._random.uniform(0.0, 0.6 * self._train_s), lambda: False)
        process.kill()
        code = process.wait()
        assert code in (0, -signal.SIGKILL), f"exit code {code}\n{_tail(self._run_dir)}"
        return None if code == 0 else self._moment(started=_inode(status) != before)

    def _moment(self, started: bool) -> str:
        checkpoints = self._run_dir / "checkpoints"
        names = os.listdir(checkpoints) if checkpoints.is_dir() else []
        if not started:
            return "start-up"
        return "saving" if any(name.startswith(".tmp-") for name in names) else "training or validation"


def _leftovers(run_dir: Path) -> str:
    left = [path.name for path in (run_dir / "checkpoints").glob(".tmp-*")]
    return f"left {', '.join(left)}" if left else ""


def _inode(path: Path) -> Optional[Tuple[int, int]]:
    """Changes when a file is replaced."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _wait(process: Any, seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None and not done():
        time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))


# Each call of a save.


def _kill_saves(
    folder: Path,
    nurseries: Sequence[Nursery],
    overrides: Sequence[str],
    expected: Outcome,
    pool: ThreadPoolExecutor,
    stride: int,
) -> Tuple[int, List[str]]:
    """Kills the save of step 21 before every `stride`-th of its calls: the number of kills, and what went wrong."""
    template = folder / "template"
    nurseries[0].complete(template, (*overrides, f"trainer.max_steps={BEFORE_THE_SAVE}"), exit_code=75)
    numbers = itertools.count(1, stride)
    over = threading.Event()
    kills: List[int] = []
    problems: List[str] = []

    def try_calls(nursery: Nursery) -> None:
        while not over.is_set():
            number = next(numbers)
            killed, problem = _kill_one_save(nursery, template, number, overrides, expected)
            if problem:
                problems.append(f"killed at call {number} of a save: {problem}")
            if killed:
                kills.append(number)
            else:  # the save has fewer calls
                over.set()

    list(pool.map(try_calls, nurseries))
    return len(kills), problems


def _kill_one_save(
    nursery: Nursery, template: Path, number: int, overrides: Sequence[str], expected: Outcome
) -> Tuple[bool, str]:
    """Returns True if the save made that many calls, and a description of the problem, if any."""
    run_dir = template.with_name(f"call-{number}")
    shutil.copytree(template, run_dir)
    try:
        nursery.start(run_dir, overrides, die_at=number)
        code = nursery.wait()
        assert code in (0, -signal.SIGKILL), f"exit code {code}\n{_tail(run_dir)}"
        return code != 0, differences(nursery.complete(run_dir, overrides), expected, exact=True) or _leftovers(run_dir)
    except (AssertionError, OSError, ValueError) as error:
        return True, f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(run_dir)


def _die_at(number: int) -> None:
    """The call `number` of those that the first save makes is not made any more; a write is half made."""
    count = [0]
    writers: Dict[int, threading.Thread] = {}

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            thread = threading.current_thread()
            if thread.name == "mxtrain-checkpoint" and writers.setdefault(0, thread) is thread:
                count[0] += 1
                if count[0] == number:
                    if name == "write":
                        real(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)


if __name__ == "__main__":
    _serve_nursery()
