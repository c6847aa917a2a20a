"""Notes which tests run which line of the program, also in processes that a test starts."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

IN_CHILDREN = """
import os, sys, threading
log, mark, test = (os.environ.get(name, "") for name in ("MUTATE_LOG", "MUTATE_ROOT", "PYTEST_CURRENT_TEST"))
if log and test and "MUTATE_PARENT" in os.environ and os.environ["MUTATE_PARENT"] != str(os.getpid()):
    file, seen = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), set()
    def local(frame, event, argument):
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in seen:
            seen.add(place)
            os.write(file, f"{test.rpartition(' ')[0]}\\t{place[0][len(mark) + 1:]}\\t{place[1]}\\n".encode())
        return local
    def trace(frame, event, argument):
        return local if frame.f_code.co_filename.startswith(mark + "/mxtrain/") else None
    sys.settrace(trace)
    threading.settrace(trace)
"""
"""A `sitecustomize` for the copy."""


class Tracer:
    """A plugin of pytest's.

    Args:
        folder: of the copy.
        files: those whose lines count.
        result: the JSON file that is written: {"lines": {file: {line: [test]}}, "seconds": {test: s}}.
    """

    def __init__(self, folder: Path, files: Set[str], result: Path):
        self._paths = {str(folder / file): file for file in files}
        self._folder, self._result = folder, result
        self._test = ""
        self._seen: Dict[Tuple[str, int], Set[str]] = {}
        self._seconds: Dict[str, float] = {}
        self._failed: Set[str] = set()
        self._tests: List[str] = []
        os.environ.update(MUTATE_LOG=f"{result}.children", MUTATE_ROOT=str(folder), MUTATE_PARENT=str(os.getpid()))
        (folder / "sitecustomize.py").write_text(IN_CHILDREN)

    def pytest_collection_finish(self, session: Any) -> None:
        """Collecting imports the program: that is no test's doing."""
        self._tests = [item.nodeid for item in session.items]
        os.environ["MUTATE_PARENT"] = str(os.getpid())
        sys.settrace(self._trace)
        threading.settrace(self._trace)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Assigns lines that a fixture runs to all tests of the file with the same parameter."""
        self._test = f"{item.nodeid} setup"
        sys.settrace(self._trace)

    def pytest_runtest_call(self, item: Any) -> None:
        """A test's own."""
        self._test = item.nodeid
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Records the seconds of a test and whether it can be used."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Writes what was seen."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self._read_children()
        lines: Dict[str, Dict[str, List[str]]] = {}
        for (file, line), tests in self._seen.items():
            running = {one for test in tests for one in self._meant(test)} - self._failed
            if running:
                lines.setdefault(file, {})[str(line)] = sorted(running)
        self._result.write_text(json.dumps({"lines": lines, "seconds": self._seconds, "failed": sorted(self._failed)}))

    def _meant(self, test: str) -> List[str]:
        if not test.endswith(" setup"):
            return [test]
        test = test[: -len(" setup")]
        file, parameter = test.partition("::")[0], re.search(r"\[.*\]$", test)
        ends = parameter.group() if parameter else ""
        return [one for one in self._tests if one.startswith(f"{file}::") and one.endswith(ends)]

    def _read_children(self) -> None:
        log = Path(f"{self._result}.children")
        files = set(self._paths.values())
        for entry in log.read_text().splitlines() if log.exists() else ():
            test, file, line = entry.split("\t")
            if file in files:
                self._seen.setdefault((file, int(line)), set()).add(f"{test} setup" if "reference" in test else test)

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self._local if frame.f_code.co_filename in self._paths else None

    def _local(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            place = (self._paths[frame.f_code.co_filename], frame.f_lineno)
            self._seen.setdefault(place, set()).add(self._test)
        return self._local
