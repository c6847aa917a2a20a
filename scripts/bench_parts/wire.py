"""How many bytes a training step sends, as the kernel counts them: in a network of its own, where nothing else talks.

    python -m bench_parts.wire STEPS OVERRIDES...

starts a scheduler, a server and two workers over TCP on the loopback interface of a new network namespace, for STEPS
steps and for twice as many, and prints the difference per step.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import List, Sequence

from bench_parts.processes import TIMEOUT_S, ProcessFailed, mxtrain_arguments, run, untouched_environment
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED

WORKERS = 2
PORT = 9100  # nobody else is in this network


def available() -> str:
    """Why there can be no network namespace here, or ""."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "unshare (util-linux) and ip (iproute2) are needed for a network of its own"
    done = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def bytes_per_step(overrides: Sequence[str], steps: int, folder: Path) -> float:
    """Of all processes together, with the headers of TCP and IP, on the way to the server and back.

    Args:
        overrides: what is trained; at least 2 `steps` in an epoch.
        steps: between the two measurements.
        folder: for what the runs write.

    Raises:
        ProcessFailed: a run did.
    """
    folder.mkdir(parents=True)
    become = ["-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"]
    command = [*become, *_NAMESPACE, sys.executable, "-m", "bench_parts.wire", str(steps), *overrides]
    return float(run(command, untouched_environment(), folder).stdout.split()[-1])


_NAMESPACE = ("unshare", "--map-root-user", "--net")


def main(arguments: List[str]) -> None:
    steps, overrides = int(arguments[0]), arguments[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    once, twice = (_sent(overrides, count) for count in (steps, 2 * steps))
    print((twice - once) / steps)


def _sent(overrides: Sequence[str], steps: int) -> int:
    """Bytes that a run of so many steps sends."""
    before = _lo_tx_bytes()
    tracker = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "PS_"))},
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(PORT), "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(WORKERS), "DMLC_NUM_SERVER": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    roles = [{"DMLC_ROLE": "scheduler"}, {"DMLC_ROLE": "server"}]
    roles += [{"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)} for rank in range(WORKERS)]
    with tempfile.TemporaryDirectory(dir=".") as work:
        given = mxtrain_arguments([*overrides, f"cluster.workers={WORKERS}", f"trainer.max_steps={steps}"], work)
        logs = [open(Path(work) / f"log-{number}", "w+") for number in range(len(roles))]
        processes = [
            subprocess.Popen([sys.executable, *given], env={**tracker, **role}, stdin=subprocess.DEVNULL, stdout=log,
                             stderr=subprocess.STDOUT)
            for role, log in zip(roles, logs)
        ]  # fmt: skip
        try:
            for process, log in zip(processes, logs):
                if process.wait(TIMEOUT_S) not in (EXIT_FINISHED, EXIT_BUDGET):
                    log.seek(0)
                    raise ProcessFailed("\n".join(log.read().splitlines()[-15:]))
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                process.wait()
            for log in logs:
                log.close()
    return _lo_tx_bytes() - before


def _lo_tx_bytes() -> int:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise ProcessFailed("there is no loopback interface")


if __name__ == "__main__":
    main(sys.argv[1:])
