"""Runs a module as `python -m` does, and notes the peak memory of the process and the memory that its imports took.

    python -m bench_parts.memory_side OUT MODULE ARGUMENTS...

writes {"peak_MiB": VmHWM, "imports_MiB": growth of the resident memory during imports} to OUT.

Needs nothing of mxtrain: PyTorch's side has an environment of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import runpy
import sys
import threading
from pathlib import Path
from typing import Any, Callable, List


class ImportMemory:
    """Sums up the growth of the resident memory during the imports of the main thread.

    Modules are imported when they are needed, some of them after the network was built, so that no moment separates
    imports from work.
    """

    def __init__(self) -> None:
        self.MiB = 0.0
        self._depth = 0

    def watch(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the function of importlib that loads a module, with its outermost calls measured."""

        def watched(spec: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() or self._depth:
                return load(spec)
            self._depth, before = 1, resident_MiB()
            try:
                return load(spec)
            finally:
                self._depth = 0
                self.MiB += resident_MiB() - before

        return watched


IMPORTS = ImportMemory()


def resident_MiB() -> float:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak_MiB() -> float:
    """Returns the peak resident memory of this process."""
    # Not ru_maxrss, which begins with that of the process that started this one.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def note(path: str) -> None:
    """Writes the peak memory of this process so far, and what imports took of it."""
    Path(path).write_text(json.dumps({"peak_MiB": peak_MiB(), "imports_MiB": IMPORTS.MiB}))


def run(path: str, module: str, arguments: List[str]) -> int:
    """Runs the module to its end; returns the exit code."""
    bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]
    bootstrap._load_unlocked = IMPORTS.watch(bootstrap._load_unlocked)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        # Training noted its steps before it validated and saved, which the other sides do not do.
        if not os.path.exists(path):
            note(path)
    return 0


if __name__ == "__main__":
    # The callback of a run imports this module by its name, and reads the sum of that copy.
    from bench_parts import memory_side

    sys.exit(memory_side.run(sys.argv[1], sys.argv[2], sys.argv[3:]))
