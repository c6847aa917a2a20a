"""Runs a command line in a fork of this process, which has imported Hydra once for all of them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import List, NoReturn

from fuzz_parts.case import Case
from fuzz_parts.sandbox import HERE

MARK = "MXTRAIN_FUZZ_CASE"
"""Environment variable by which a case's processes are found again, whoever started them."""
MEMORY = 6 << 30
"""Bytes of address space of each process: what asks for more must not take them from the rest of the machine."""
ROOT = Path(__file__).resolve().parents[2]


def preload() -> None:
    """Imports what every command line needs; never MXNet, which must not be forked."""

    assert "mxnet" not in sys.modules


def start(case: Case, folder: Path, cache: Path, mark: str) -> int:
    """Forks; returns the process id. In the fork it ends as `python -m mxtrain` does, by SystemExit: no caller may
    catch that, or have anything to clean up."""
    process = os.fork()
    if process == 0:
        _become(case, folder, cache, mark)
    return process


def _become(case: Case, folder: Path, cache: Path, mark: str) -> NoReturn:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder / HERE)
    environment = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(cache),
        MARK: mark,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **case.environment,
    }
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    _open_streams(case, folder)
    sys.argv = [str(ROOT / "mxtrain/__main__.py"), *case.arguments]
    sys.path[:] = [str(folder / HERE), *(path for path in sys.path if path and not path.endswith("scripts"))]
    from mxtrain.cli import main

    sys.exit(main())


def _open_streams(case: Case, folder: Path) -> None:
    """Standard streams as the shell gives them: the fork's own Python objects are made anew."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 2)
    if case.stdout == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif case.stdout == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    else:
        os.dup2(output, 1)
    os.close(output)
    sys.stdin, sys.stderr = open(0, closefd=False), open(2, "w", errors="backslashreplace", buffering=1, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    if case.stdout == "closed":  # what Python itself makes of `>&-`
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]


def processes_of(process: int, mark: str) -> List[int]:
    """Every process of the case's session, and every one that carries its mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as stream:
                    carries = wanted in stream.read().split(b"\0")
                if carries or os.getsid(int(entry)) == process:
                    found.append(int(entry))
            except OSError:
                continue  # it has just ended
    return found


def end(process: int, mark: str) -> None:
    """Kills a case that takes too long, and all that it has started."""
    for one in {process, *processes_of(process, mark)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def left_behind(process: int, mark: str, patience_s: float = 3.0) -> List[int]:
    """Processes that outlive the one that was waited for by some seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        found = processes_of(process, mark)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
