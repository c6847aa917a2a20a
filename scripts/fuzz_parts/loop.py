"""Keeps a few cases running at a time, and judges each when it ends."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence

from fuzz_parts import child
from fuzz_parts.case import Case
from fuzz_parts.judge import TIMEOUT_S, Finding, exit_code_of, judge
from fuzz_parts.sandbox import copy_template, snapshot


@dataclass(frozen=True)
class _Running:
    case: Case
    folder: Path
    mark: str
    before: Mapping[str, str]
    started: float


def run_cases(cases: Sequence[Case], template: Path, work: Path, cache: Path, at_once: int) -> Iterator[Finding]:
    """Runs all cases, each in a copy of `template`, and yields what became of them as they end."""
    waiting = list(reversed(cases))
    running: Dict[int, _Running] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            case = waiting.pop()
            folder, mark = work / f"case-{case.number}", uuid.uuid4().hex
            before = copy_template(template, folder)
            running[child.start(case, folder, cache, mark)] = _Running(case, folder, mark, before, time.monotonic())
        for process, one in list(running.items()):
            timed_out = time.monotonic() - one.started > TIMEOUT_S
            if timed_out:
                child.end(process, one.mark)
            ended, status = os.waitpid(process, 0 if timed_out else os.WNOHANG)
            if ended:
                del running[process]
                yield _finding(process, one, exit_code_of(status), timed_out)
        time.sleep(0.01)


def _finding(process: int, one: _Running, exit_code: int, timed_out: bool) -> Finding:
    seconds = time.monotonic() - one.started
    left: List[int] = child.left_behind(process, one.mark)
    if left:
        child.end(process, one.mark)
    output = (one.folder / "output").read_bytes().decode(errors="replace")
    (one.folder / "output").unlink()
    wrong = judge(one.case, exit_code, timed_out, output, one.before, snapshot(one.folder), left)
    shutil.rmtree(one.folder)
    return Finding(one.case, exit_code, seconds, wrong, output)
