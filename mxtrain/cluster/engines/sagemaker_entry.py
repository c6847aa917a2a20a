"""Entry point of a training image for SageMaker: trains with mxtrain by the contract of /opt/ml.

    input/config/hyperparameters.json    overrides of mxtrain: {"model": "resnet", "optimizer.lr": "0.1"}
    input/config/resourceconfig.json     current_host, hosts and network_interface_name
    input/data/CHANNEL                   data, as in dataset.root=/opt/ml/input/data/training
    checkpoints/run                      the run directory, which SageMaker keeps in S3
    model                                a copy of it, which SageMaker packs into model.tar.gz
    output/failure                       why the run failed

SIGTERM saves: SageMaker sends it 120 seconds before it stops a job.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PORT = 9091
STOPPED = (75, 143)
"""Exit codes of a run that has saved: at the end of a budget, and after SIGTERM."""
FAILURE_BYTES = 1024
"""Length of the text that SageMaker shows."""


def read(path: Path) -> dict:
    """Returns the content of a JSON file; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def overrides_of(parameters: dict) -> list:
    """Returns hyperparameters as overrides; `~name` without a value removes a setting."""
    return [f"{key}={value}" if value != "" or key[:1] != "~" else key for key, value in parameters.items()]


def main() -> int:
    """Trains, and returns the exit code."""
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    words = overrides_of(read(base / "input/config/hyperparameters.json"))
    resources = read(base / "input/config/resourceconfig.json")
    hosts = resources.get("hosts") or ["localhost"]
    rank = hosts.index(resources.get("current_host", hosts[0]))
    run_dir = base / "checkpoints" / "run"
    environment = dict(os.environ)
    if len(hosts) > 1:
        environment.update(MXTRAIN_NODE_RANK=str(rank), MXTRAIN_NUM_NODES=str(len(hosts)))
        environment["MXTRAIN_ROOT"] = f"{hosts[0]}:{PORT}"
        words += ["cluster.launcher=nodes", f"cluster.interface={resources['network_interface_name']}"]
    command = ["mxtrain", "train", *words, f"hydra.run.dir={run_dir}"]
    # A group of its own: the signal of a terminal would reach it twice.
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    last_lines: collections.deque = collections.deque(maxlen=10)
    for line in process.stderr or ():
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        last_lines.append(line.decode(errors="replace"))
    code = process.wait()
    if rank == 0 and run_dir.is_dir():
        shutil.copytree(run_dir, base / "model", dirs_exist_ok=True)
    if code not in (0, *STOPPED):
        cause = read(run_dir / "status.json").get("cause") or "".join(last_lines)
        (base / "output").mkdir(parents=True, exist_ok=True)
        (base / "output" / "failure").write_bytes(f"exit code {code}: {cause}".encode()[:FAILURE_BYTES])
    return 0 if code == 75 else code


if __name__ == "__main__":
    sys.exit(main())
