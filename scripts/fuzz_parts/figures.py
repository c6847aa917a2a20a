"""Writes what a fuzz found into docs/benchmarks/README.md, beside what scripts/bench measured."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Sequence

from bench_parts.harness import Measured, Series, Target
from bench_parts.publish import describe_machine, write_page, write_result

from fuzz_parts.child import ROOT
from fuzz_parts.judge import TIMEOUT_S, Finding


def write(findings: Sequence[Finding], summary: Mapping[str, Any]) -> None:
    """Replaces docs/benchmarks/fuzz.json and writes the page anew."""
    rows = [(finding.case.kind, finding.exit_code, bool(finding.wrong), finding.seconds) for finding in findings]
    result = describe(rows, summary["seed"], summary["seconds"])
    write_result("fuzz", result, ROOT / "docs")
    from bench_parts.__main__ import PARTS

    write_page(ROOT / "docs", list(PARTS))


def describe(rows: Sequence[Any], seed: int, seconds: float, notes: Sequence[str] = ()) -> Dict[str, Any]:
    """The part's result, as scripts/bench keeps those of its own.

    Args:
        rows: (kind, exit code, whether it was answered badly, seconds) of each command line.
    """
    codes = sorted({code for _, code, _, _ in rows})
    table: List[List[str]] = [["kind", "lines", *(f"exit {code}" for code in codes), "answered badly"]]
    for kind in [*sorted({kind for kind, _, _, _ in rows}), "all"]:
        mine = [row for row in rows if kind in (row[0], "all")]
        counts = [str(sum(code == row[1] for row in mine)) for code in codes]
        table.append([kind, str(len(mine)), *counts, str(sum(row[2] for row in mine))])
    bad = sum(row[2] for row in rows)
    measured = Measured(
        series=[Series("a command line", "s", [round(row[3], 2) for row in rows])],
        targets=[
            Target(f"command lines of {len(rows)} that are answered badly", bad, 0, at_least=False),
            Target("slowest command line, seconds", max(row[3] for row in rows), TIMEOUT_S, at_least=False),
        ],
        notes=[
            f"`scripts/fuzz --seed {seed} --count {len(rows)} --write`: a command line is answered badly where its "
            "exit code is none of 0, 2, 3 and 75, where it prints a traceback, takes more than 60 s, leaves a process "
            "behind, or leaves or changes a file after a 2.",
            *notes,
        ],
        table=table,
    )
    return {
        "part": "fuzz",
        "taken": time.strftime("%Y-%m-%d"),
        "quick": False,
        "minutes": round(seconds / 60, 1),
        "machine": describe_machine(),
        **measured.to_json(),
    }
