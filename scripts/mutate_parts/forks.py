"""Runs tests in a copy of the checkout, in processes forked from one that has imported MXNet: a second instead of five.

The copy is what is changed, so that processes that a test starts see the change, too.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

COPIED = ("mxtrain", "conf", "tests", "scripts", "examples", "requirements", "pyproject.toml", "README.md", "docs")
PRELOADED = (
    "numpy",
    "scipy.sparse",
    "mxnet",
    "pytest",
    "_pytest.python",
    "_pytest.junitxml",
    "hydra",
    "hydra.compose",
    "omegaconf",
    "pydantic",
    "rich.console",
    "rich.table",
    "tensorboardX",
    "json",
    "logging",
    "concurrent.futures",
)
NO_SUCH_TEST = 4
NO_ANSWER = (NO_SUCH_TEST, 5, 99)
"""Exit codes that say nothing of the tests: a usage error, no tests, and none of pytest's."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of some tests: pytest's exit code, or None if they took too long."""

    code: Optional[int]
    seconds: float
    output: str

    @property
    def died(self) -> bool:
        """True if a test noticed the change, also by a crash or by never ending."""
        return self.code != 0

    @property
    def last_line(self) -> str:
        """Returns pytest's last line on it."""
        failed = [line for line in self.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0] if failed else "timeout" if self.code is None else f"exit code {self.code}"


class Copy:
    """A copy of the checkout that can be changed.

    Args:
        root: of the checkout.
        folder: where the copy goes.
    """

    def __init__(self, root: Path, folder: Path):
        self.folder = folder
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        compileall.compile_dir(str(folder / "mxtrain"), quiet=2)
        # A changed file may have the size and the second of the one before: nobody may trust what was compiled.
        sys.dont_write_bytecode = True
        os.environ.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", MPLBACKEND="Agg", PYTHONPATH=str(folder))

    @contextlib.contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        """The copy with another content of one file."""
        path = self.folder / file
        before = path.read_text()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(source)
        try:
            yield
        finally:
            path.write_text(before)

    def preload(self) -> None:
        """Imports what is slow and is not changed."""
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def run(self, tests: Sequence[str], timeout_s: float, plugins: Sequence[object] = ()) -> Outcome:
        """The outcome of these tests, which stop at the first that fails."""
        output = self.folder / "output.txt"
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            self._become_pytest(tests, output, plugins)
        code = wait(child, started + timeout_s)
        self._end_all()
        said = output.read_text(errors="replace")
        if code == NO_SUCH_TEST and any("::" in test for test in tests):  # a change may rename what is collected
            return self.run(list(dict.fromkeys(test.partition("::")[0] for test in tests)), timeout_s, plugins)
        if code in NO_ANSWER:
            raise RuntimeError(f"pytest could not run {' '.join(tests)}:\n{said[-2000:]}")
        return Outcome(code, time.monotonic() - started, said)

    def _become_pytest(self, tests: Sequence[str], output: Path, plugins: Sequence[object]) -> None:
        code = 99
        try:
            os.setsid()
            os.chdir(self.folder)
            for number in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.path.insert(0, str(self.folder))
            import pytest

            arguments = [
                "-q",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                "-p",
                "no:cacheprovider",
                "--tb=line",
                f"--basetemp={self.folder / 'tmp'}",
                *tests,
            ]
            code = int(pytest.main([*arguments, *([] if plugins else ["-x"])], plugins=list(plugins)))
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _end_all(self) -> None:
        """Ends what the tests left running: all processes with this folder in their environment, but this one."""
        mark = f"PYTHONPATH={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(path.name) != os.getpid() and mark in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)


def wait(child: int, deadline: float) -> Optional[int]:
    """The exit code of a process, or None where it had to be ended."""
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
