"""scripts/fuzz: draws command lines, runs them, and says which were answered badly."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Sequence

from fuzz_parts import child
from fuzz_parts.judge import Finding
from fuzz_parts.lines import draw
from fuzz_parts.loop import run_cases
from fuzz_parts.sandbox import make_template
from fuzz_parts.surface import read_surface


def main(arguments: Sequence[str]) -> int:
    """Runs the cases; returns 1 where any of them was answered badly."""
    options = _parse(arguments)
    numbers = [int(word) for word in options.only.split(",")] if options.only else range(options.count)
    surface = read_surface()
    cases = [draw(options.seed, number, surface) for number in numbers]
    if options.list:
        print("\n".join(f"#{case.number} [{case.kind}] {case.shown()}" for case in cases))
        return 0
    child.preload()
    # Not a context manager: a case's process leaves through this function, too.
    work = Path(tempfile.mkdtemp(prefix="mxtrain-fuzz-", dir=options.work))
    make_template(work / "template", _train)
    started = time.monotonic()
    findings = []
    for finding in run_cases(cases, work / "template", work, _cache(), options.jobs):
        findings.append(finding)
        _record(finding, options)
    shutil.rmtree(work)
    result = summarize(findings, options.seed, time.monotonic() - started)
    print("\n" + "\n".join(f"{name}: {value}" for name, value in result.items()))
    if options.write:
        from fuzz_parts.figures import write

        write(findings, result)
    return 1 if result["wrong"] else 0


def summarize(findings: Sequence[Finding], seed: int, seconds: float) -> Dict[str, Any]:
    """The figures of all cases together."""
    codes = Counter(finding.exit_code for finding in findings)
    wrong = [finding for finding in findings if finding.wrong]
    return {
        "seed": seed,
        "cases": len(findings),
        "seconds": round(seconds),
        "exit codes": dict(sorted(codes.items())),
        "slowest": round(max((finding.seconds for finding in findings), default=0.0), 1),
        "wrong": len(wrong),
        "numbers": ",".join(str(finding.case.number) for finding in wrong),
    }


def _record(finding: Finding, options: argparse.Namespace) -> None:
    if finding.wrong or options.only:
        print(finding.shown() if not options.only else f"{finding.shown()}\n{finding.output}", flush=True)
    if options.log:
        row = {
            "number": finding.case.number,
            "kind": finding.case.kind,
            "line": finding.case.shown(),
            "exit_code": finding.exit_code,
            "seconds": round(finding.seconds, 2),
            "wrong": list(finding.wrong),
            "output": finding.output[-2000:],
        }
        with open(options.log, "a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(json.dumps(row) + "\n")


def _train(folder: Path, arguments: Sequence[str]) -> None:
    """The run that `eval` and `predict` are given."""
    environment = {**os.environ, "PYTHONPATH": str(child.ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "mxtrain", *arguments],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _cache() -> Path:
    """mxtrain's own, which all cases share: what is compiled and measured there takes minutes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/fuzz", description="Give mxtrain unlikely command lines.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="command lines (1000)")
    parser.add_argument(
        "--only", default="", metavar="NUMBER,...", help="these command lines, with all that they print"
    )
    parser.add_argument("--jobs", type=int, default=2, help="command lines at once (2)")
    parser.add_argument("--list", action="store_true", help="only show the command lines")
    parser.add_argument("--log", default="", help="a file to which every case is added as a line of JSON")
    parser.add_argument("--work", default=None, help="folder for what the cases write (the system's temporary one)")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/benchmarks/README.md")
    return parser.parse_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
