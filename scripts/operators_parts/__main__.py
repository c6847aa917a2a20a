"""Runs the sweep in separate processes, because operators may crash or hang, and writes docs/internals/operators.md."""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from operators_parts.cells import POLLUTED
from operators_parts.page import page

TIMEOUT_S = 120.0
"""Seconds after which a cell counts as hanging."""
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "operators.md"

Row = Dict[str, str]


def sweep(arguments: Sequence[str], threads: int) -> List[Row]:
    """Returns the cells, in the order of the table. A cell that ends or hangs its process has the result "ended"."""
    rows: Dict[int, Row] = {}
    skip = 0
    while True:
        command = [sys.executable, "-W", "ignore", "-m", "operators_parts.cells", "--skip", str(skip), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0"}
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        hung = _read(child, rows)
        number = max(rows, default=-1)
        code = child.wait()
        if code == 0 and not hung:
            return [rows[number] for number in sorted(rows)]
        if code == POLLUTED:
            skip = number + 1
            continue
        if number < skip:
            raise SystemExit(f"{' '.join(command)} ended before its first cell")
        rows[number]["text"] = "does not return" if hung else f"ends the process ({_signal(child.returncode)})"
        print(rows[number], file=sys.stderr, flush=True)
        skip = number + 1


def _signal(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _read(child: subprocess.Popen[str], rows: Dict[int, Row]) -> bool:
    """Adds the lines of a process to `rows`; returns True if it hung and was killed."""
    lines: queue.Queue[str] = queue.Queue()
    assert child.stdout is not None
    stream = child.stdout

    def forward() -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    threading.Thread(target=forward, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TIMEOUT_S)
        except queue.Empty:
            os.killpg(child.pid, signal.SIGKILL)
            return True
        if not line:
            return False
        row = json.loads(line)
        rows[row["number"]] = row


def main() -> None:
    """Sweeps with one and two threads, repeats wrong operators with mxtrain, and writes the page."""
    parser = argparse.ArgumentParser(prog="scripts/operators", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of operators; the page is printed, not written")
    options = parser.parse_args()
    plain: List[Tuple[int, List[Row]]] = []
    mended: List[Row] = []
    for threads in (2, 1):
        plain.append((threads, sweep(["--only", *options.only], threads)))
        found = {row["operator"] for row in mended}
        bad = dict.fromkeys(row["operator"] for row in plain[-1][1] if row["result"] in ("wrong", "ended"))
        new = [name for name in bad if name not in found]
        mended += sweep(["--mxtrain", "--only", *new], 2) if new else []
        if not options.only:
            PAGE.write_text(page(plain, mended), encoding="utf-8")
    if options.only:
        print(page(plain, mended))


if __name__ == "__main__":
    main()
