"""Run `mxtrain.runtime.probe` in a process of its own, and make sense of however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Sequence

from mxtrain.config.search_path import module_command
from mxtrain.files.temporary import temporary_root

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
    """Runs a command that writes one JSON object per line into a file, whose path is its last argument.

    Args:
        timeout_s: seconds after which the process is killed.
        command: command to run, without the file.

    Returns:
        All values that were reported, and the reason if the command did not complete.
    """
    with tempfile.TemporaryDirectory(prefix="mxtrain-probe-", dir=temporary_root()) as folder:
        file = Path(folder, "found.jsonl")
        file.touch()
        try:
            # Libraries print what they like: their output is not read, but for the last line of a crash.
            finished = subprocess.run(
                [*command, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return _read(file.read_text("utf-8"), f"did not answer within {timeout_s:g} s")
        except OSError as error:
            return ProbeResult(cause=str(error))
        cause = "" if finished.returncode == 0 else _describe(finished.returncode, finished.stderr)
        return _read(file.read_text("utf-8"), cause)


def _describe(code: int, stderr: str) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    last = [line for line in stderr.splitlines() if line.strip()]
    return last[-1].strip() if last else f"exit code {code}"


def _read(output: str, cause: str) -> ProbeResult:
    values: Dict[str, Any] = {}
    # A process that crashes may leave half a line at the end.
    for line in output.split("\n")[:-1]:  # complete ones
        values.update(json.loads(line))
    stage = str(values.pop("trying", ""))
    failed = values.pop("failed", None)
    error = str(values.pop("error", ""))
    if failed is not None:
        cause = error
    elif cause and stage:
        cause = f"{cause} while trying: {stage}"
    return ProbeResult(values, stage, cause)
