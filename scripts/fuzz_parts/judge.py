"""Judges the behaviour of a command line."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import List, Mapping, Sequence

from fuzz_parts.case import Case

ALLOWED = (0, 2, 3, 75)
"""Finished, bad input, non-finite, budget used up: what a command line can lead to where nothing is broken."""
TIMEOUT_S = 60.0
RAW = (
    "Traceback (most recent call last)",
    "mxnet.base.MXNetError",
    "Stack trace:",
    "Fatal Python error",
    "Exception ignored in",
)
"""Texts that only an unexpected error prints."""


@dataclass(frozen=True)
class Finding:
    """A case, how it ended and everything that is wrong with it; a negative exit code is a signal's number."""

    case: Case
    exit_code: int
    seconds: float
    wrong: Sequence[str]
    output: str

    def shown(self) -> str:
        head = f"#{self.case.number} [{self.case.kind}] exit {self.exit_code}, {self.seconds:.1f} s"
        tail = "\n".join("    " + line for line in self.output.splitlines()[-12:])
        return "\n".join([head, f"  {self.case.shown()}", *(f"  WRONG: {text}" for text in self.wrong), tail])


def judge(
    case: Case,
    exit_code: int,
    timed_out: bool,
    output: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    processes: Sequence[int],
) -> List[str]:
    """Everything that is wrong with how a case ended.

    Args:
        before, after: the files of its folder.
        processes: those that were still there seconds after it.
    """
    wrong = []
    if timed_out:
        wrong.append(f"still running after {TIMEOUT_S:.0f} s")
    elif exit_code < 0:
        wrong.append(f"ended by {signal.Signals(-exit_code).name}")
    elif exit_code not in ALLOWED:
        wrong.append(f"exit code {exit_code}")
    wrong += [f"prints '{text}'" for text in RAW if text in output][:1]
    if exit_code == 2:
        wrong += _left(before, after)
        if case.stdout == "file" and "error: " not in output:
            wrong.append("exit code 2 without a sentence")
    if processes:
        wrong.append(f"{len(processes)} processes left running")
    return wrong


def _left(before: Mapping[str, str], after: Mapping[str, str]) -> List[str]:
    new = [path for path in after if path not in before]
    gone = [path for path in before if path not in after]
    changed = [path for path in before if path in after and before[path] != after[path]]
    return [
        f"{what} after exit code 2: {', '.join(sorted(paths)[:4])}{', ...' * (len(paths) > 4)}"
        for what, paths in (("left", new), ("removed", gone), ("changed", changed))
        if paths
    ]


def exit_code_of(status: int) -> int:
    """From what `waitpid` says."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
