"""How soon the commands answer that need no MXNet, and that they do without it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import run, tuned_environment

MAX_SECONDS = 1.0
REPETITIONS = 10
# Name -> arguments and the exit code that is right.
COMMANDS = {
    "--help": (["--help"], 0),
    "--cfg job": (["--cfg", "job"], 0),
    "bad override": (["optimizer.lrr=0.1"], 2),
}


def measure(options: Options) -> Measured:
    """Wall time of each command, in turn; a first call of each warms the caches."""
    environment, found = tuned_environment(), Measured()
    imported = {name: _imports_mxnet(*command, environment, options.work) for name, command in COMMANDS.items()}
    sides = {
        name: lambda number, command=command: _seconds(*command, environment, options.work)
        for name, command in COMMANDS.items()
    }
    times = in_turn(sides, 1 if options.quick else REPETITIONS)
    for name, values in times.items():
        found.series.append(Series(f"python -m mxtrain {name}", "s", values))
        found.targets.append(
            Target(f"{name}: median wall time, s", found.series[-1].median, MAX_SECONDS, at_least=False)
        )
    found.targets.append(Target("commands of these that import MXNet", sum(imported.values()), 0, at_least=False))
    found.notes.append("Wall time of the process, command to exit; `python -X importtime` says what was imported.")
    found.details["imports_mxnet"] = imported
    return found


def _seconds(arguments: Sequence[str], exit_code: int, environment: Mapping[str, str], folder: Path) -> float:
    started = time.perf_counter()
    run(["-m", "mxtrain", *arguments], environment, folder, (exit_code,))
    return time.perf_counter() - started


def _imports_mxnet(arguments: List[str], exit_code: int, environment: Dict[str, str], folder: Path) -> bool:
    done = run(["-X", "importtime", "-m", "mxtrain", *arguments], environment, folder, (exit_code,))
    modules = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "mxtrain.cli" in modules, "importtime said nothing of mxtrain" + os.linesep + done.stderr[-500:]
    return any(module.partition(".")[0] == "mxnet" for module in modules)
