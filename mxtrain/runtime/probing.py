"""Run `mxtrain.runtime.probe` in a process of its own, and make sense of however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Sequence

from mxtrain.config.search_path import module_command

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

PROBE = (sys.executable, "-W", "ignore", *module_command("mxtrain.runtime.probe")[1:])


@dataclass(frozen=True)
class ProbeResult:
    """The findings of the probe, as far as it came."""

    found: JsonObject = field(default_factory=dict)
    """All values that it reported."""
    stage: str = ""
    """The last attempt."""
    cause: str = ""
    """Why it ended early; empty if it came to its end."""


def run_probe(timeout_s: float, command: Sequence[str] = PROBE) -> ProbeResult:
    """Runs a command that prints one JSON object per line.

    Args:
        timeout_s: seconds after which the process is killed.
        command: command to run.

    Returns:
        All values that were reported, and the reason if the command did not complete.
    """
    try:
        finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        return _read(output.decode() if isinstance(output, bytes) else output, f"did not answer within {timeout_s:g} s")
    except OSError as error:
        return ProbeResult(cause=str(error))
    cause = "" if finished.returncode == 0 else _describe(finished.returncode, finished.stderr)
    return _read(finished.stdout, cause)


def _describe(code: int, stderr: str) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    last = [line for line in stderr.splitlines() if line.strip()]
    return last[-1].strip() if last else f"exit code {code}"


def _read(output: str, cause: str) -> ProbeResult:
    values: Dict[str, Any] = {}
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library that prints to standard output
        if isinstance(value, dict):
            values.update(value)
    stage = str(values.pop("trying", ""))
    failed = values.pop("failed", None)
    error = str(values.pop("error", ""))
    if failed is not None:
        cause = error
    elif cause and stage:
        cause = f"{cause} while trying: {stage}"
    return ProbeResult(values, stage, cause)
