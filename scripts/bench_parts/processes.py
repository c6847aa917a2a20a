"""Starts the processes that are measured, each side in the environment that it is meant to have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
# Whatever tunes MXNet, oneDNN, OpenMP or BLAS.
TUNING = ("OMP_", "KMP_", "GOMP_", "MXNET_", "DNNL_", "MKL_", "OPENBLAS_", "MXTRAIN_RUNTIME")
TIMEOUT_S = 1800


class ProcessFailed(Exception):
    """A measured process ended in a way that it should not have."""


def untouched_environment() -> Dict[str, str]:
    """The caller's own: mxtrain has to tune the process itself."""
    return _with_path(os.environ)


def tuned_environment(num_devices: int = 1) -> Dict[str, str]:
    """What `runtime=auto` computes in: the caller's own settings are kept and the rest is chosen, as mxtrain does."""
    from mxtrain.runtime import Runtime
    from mxtrain.runtime.apply import apply

    environment = untouched_environment()
    apply(Runtime(), num_devices=num_devices, environ=environment)
    return environment


def default_environment() -> Dict[str, str]:
    """What MXNet finds where nobody sets anything."""
    return {name: value for name, value in _with_path(os.environ).items() if not name.startswith(TUNING)}


def same_threads_environment() -> Dict[str, str]:
    """As many threads as mxtrain takes, and nothing else that it chooses: for what is not MXNet, or not ours."""
    return {**default_environment(), "OMP_NUM_THREADS": tuned_environment()["OMP_NUM_THREADS"]}


def tuning_of(environment: Mapping[str, str]) -> Dict[str, str]:
    """The variables of an environment that tune something."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(TUNING)}


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    exit_codes: Optional[Sequence[int]] = (0,),
    python: str = sys.executable,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS` in `folder` to its end; `exit_codes=None` takes any.

    Raises:
        ProcessFailed: it ended with another exit code; the message holds the end of what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [python, *arguments], env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException:
        # Its own children, too: a DataLoader's workers, the runs of a kill sweep.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if exit_codes is not None and done.returncode not in exit_codes:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ProcessFailed(f"python {' '.join(arguments)}: exit code {done.returncode}\n{tail}")
    return done


def mxtrain_arguments(overrides: Sequence[str], run_dir: str = "run") -> List[str]:
    """What `python` is given to train as a user would."""
    return ["-m", "mxtrain", f"hydra.run.dir={run_dir}", *overrides]


def train(
    overrides: Sequence[str],
    folder: Path,
    exit_codes: Sequence[int] = (0,),
    environment: Optional[Mapping[str, str]] = None,
) -> Path:
    """Runs `python -m mxtrain OVERRIDES` as a user would, with more variables; returns the run directory."""
    run_dir = folder / "run"
    run(
        mxtrain_arguments(overrides, str(run_dir)),
        {**untouched_environment(), **(environment or {})},
        folder,
        exit_codes,
    )
    return run_dir


def _with_path(environment: Mapping[str, str]) -> Dict[str, str]:
    path = [str(ROOT / "scripts"), str(ROOT), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(part for part in path if part))}
