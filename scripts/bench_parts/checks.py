"""Checks of correctness and response times that need no other program to compare with: bits, numbers, the first
line."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    ROOT,
    Measured,
    Options,
    ProcessFailed,
    in_turn,
    installed_environment,
    rows_of,
    run,
    say,
    status_of,
    train,
    tuned_environment,
    untouched_environment,
)
from bench_parts.parts import TINY, group

# Ten runs whose weights must be the same to the bit before and after a change that is meant to change no number.

SMALL_RESNET = ["model=resnet", "model.depth=8", "model.width=4", "trainer.max_steps=12"]
WORKERS = ["cluster.workers=2", "model=mlp", "trainer.max_steps=30"]
RUNS: Dict[str, List[str]] = {
    "default": ["trainer.max_epochs=2", "trainer.max_steps=null"],
    "resnet hybrid": [*SMALL_RESNET, "parallel=hybrid", "parallel.devices=cpu:4"],
    "pipeline, accumulation, clipping, average": [
        *SMALL_RESNET,
        "parallel=pipeline",
        "parallel.devices=cpu:2",
        "parallel.microbatches=4",
        "trainer.grad_accumulation=2",
        "trainer.clip_global_norm=1.0",
        "trainer.ema_decay=0.9",
    ],
    "two workers, dist_sync": [*WORKERS, "kvstore=dist_sync"],
    "two workers, p3": [*WORKERS, "kvstore=p3"],
    "two workers, horovod": [*WORKERS, "kvstore=horovod"],
    "one worker, dist_async": ["kvstore=dist_async", "cluster.workers=1", "model=mlp", "trainer.max_steps=30"],
    "bfloat16": [*SMALL_RESNET, "amp=bfloat16"],
    "mixup and cutout": [*SMALL_RESNET, "dataset.augment.mixup=0.2", "dataset.augment.cutout=2"],
    "text": ["model=bert", "model.num_layers=2", "model.units=32", "model.hidden_size=64", "trainer.max_steps=12"],
    "masked_text": [
        "model=bert",
        "dataset=masked_text",
        "model.num_layers=2",
        "model.units=32",
        "model.hidden_size=64",
        "trainer.max_steps=12",
    ],
}
"""`masked_text` is the eleventh: the mean over hidden tokens may be defined anew."""


def bits(options: Options) -> Measured:
    """The runs on this checkout and on that of `--before`; without one they are only recorded."""
    checkouts, measured = options.checkouts(), Measured()
    found: Dict[str, Dict[str, Tuple[str, float]]] = {}
    for number, title in enumerate(["default"] if options.quick else RUNS):
        found[title] = {
            name: _outcome(options.work / f"{name}{number}", title, path) for name, path in checkouts.items()
        }
        say(f"  {title}: " + ", ".join(f"{name} {sha[:12]} {loss:.6g}" for name, (sha, loss) in found[title].items()))
    measured.table = [["run", *(f"{name}: weights, last loss" for name in checkouts)]]
    for title, values in found.items():
        measured.table.append([title, *(f"`{sha[:16]}`, {loss!r}" for sha, loss in values.values())])
    measured.details = {"commands": {title: RUNS[title] for title in found}, "found": found}
    if options.before:
        measured.notes.append(f"Before: commit {commit_of(checkouts['before'])}.")
        others = [title for title, values in found.items() if len(set(values.values())) > 1]
        measured.details["differ"] = others
        measured.at_most("runs whose weights or losses differ", len(others), 0)
    return measured


def _outcome(folder: Path, title: str, checkout: Path) -> Tuple[str, float]:
    """SHA-256 of the weights, and the last loss."""
    run_dir = train(RUNS[title], folder, (*ENDS_WELL, 2), {"PYTHONPATH": str(checkout)})
    if not (run_dir / "status.json").exists():
        return "refused on this machine", 0.0  # a processor without bfloat16
    return status_of(run_dir)["weights_sha256"], [r["loss"] for r in rows_of(run_dir) if r["split"] == "train"][-1]


def commit_of(checkout: Path) -> str:
    """The short name of a checkout's commit."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


# `verify` over placements and networks.

PLACEMENTS: Dict[str, List[str]] = {
    "data 2": ["parallel=data", "parallel.devices=cpu:2"],
    "data 3": ["parallel=data", "parallel.devices=cpu:3"],
    "model 2": ["parallel=model", "parallel.devices=cpu:2"],
    "pipeline 2": ["parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=4"],
    "pipeline 4": ["parallel=pipeline", "parallel.devices=cpu:4", "parallel.microbatches=4"],
    "hybrid 2 x 2": ["parallel=hybrid", "parallel.devices=cpu:4", "parallel.stages=2", "parallel.microbatches=2"],
}
UNORDERED = "data 3"
"""Placements whose sums have another order than one device; all others must be equal bit for bit."""
LARGE = ["dataset=synthetic", "dataset.num_samples=80", "dataset.batch_size=8"]
NETWORKS: Dict[str, List[str]] = {
    "mlp": ["model=mlp"],
    "lenet": ["model=lenet"],
    "resnet": ["model=resnet"],
    "mobilenet": ["model.name=mobilenet0.5", *LARGE, "dataset.shape=[3,64,64]"],
    "densenet": ["model.name=densenet121", *LARGE, "dataset.shape=[3,224,224]"],
    "the user's": ["--config-dir", str(ROOT / "examples" / "own_code" / "conf"), "model=small"],
}


def verify(options: Options) -> Measured:
    found = Measured(table=[["network", *PLACEMENTS]])
    environment = untouched_environment()
    environment["PYTHONPATH"] += f":{ROOT / 'examples' / 'own_code'}"
    worst: Dict[str, Dict[str, float]] = {}
    unequal: List[str] = []
    output = options.work / "verify.json"
    for network in ["mlp"] if options.quick else NETWORKS:
        worst[network] = {}
        for placement, given in PLACEMENTS.items():
            arguments = ["-m", "mxtrain", "verify", *NETWORKS[network], *given, f"output={output}"]
            run(arguments, environment, options.work, exit_codes=(0, 1))
            result = json.loads(output.read_text())
            output.unlink()
            largest = max(max(layer["gradient_rel"], layer["parameter_rel"]) for layer in result["layers"])
            worst[network][placement] = largest
            differ = any(layer["gradient_rel"] or layer["parameter_rel"] for layer in result["bits"])
            say(f"  {network}, {placement}: {largest:.1e}{', bits differ' if differ else ''}")
            if differ or bool(result["bits"]) == (placement == UNORDERED):
                unequal.append(f"{network}, {placement}")
        found.table.append([network, *(f"{value:.1e}" if value else "0" for value in worst[network].values())])
    largest = max(value for values in worst.values() for value in values.values())
    found.at_most("largest relative difference in float64", largest, 1e-6)
    found.at_most("comparisons in float32 that are not equal to the bit", len(unequal), 0)
    found.details = {"largest relative difference": worst, "bits differ": unequal}
    return found


def soak(options: Options) -> Measured:
    """Checks that two hundred starts of several workers compute the same."""
    starts = 2 if options.quick else 200

    def weights(name: str, *overrides: str) -> str:
        given = [*TINY, "trainer.max_steps=3", *overrides]
        found: str = status_of(train(given, options.work / name, ENDS_WELL, ONE_THREAD))["weights_sha256"]
        return found

    expected = weights("replicas", "parallel=data", "parallel.devices=cpu:2")
    wrong = failed = 0
    for number in range(starts):
        try:
            wrong += weights(f"soak-{number}", *group(2, servers=2)) != expected
        except ProcessFailed as error:
            failed += 1
            say(f"  start {number}: {error}")
    measured = Measured()
    measured.at_most(f"{starts} starts of two workers: other weights", wrong, 0)
    measured.at_most(f"{starts} starts of two workers: failed", failed, 0)
    return measured


# What a person waits for.

COMMANDS: Dict[str, Tuple[List[str], int]] = {
    "--help": (["--help"], 0),
    "--cfg job": (["--cfg", "job"], 0),
    "bad override": (["optimizer.lrr=0.1"], 2),
}
"""Name -> arguments, and the exit code that is right."""
START = ("trainer.log_interval=1", "hydra.run.dir=run")


def cli(options: Options) -> Measured:
    """Wall time of each command, in turn; a first call of each warms the caches, and says what it imports."""
    environment, found = tuned_environment(), Measured()
    imported: Dict[str, bool] = {}
    for name, (given, code) in COMMANDS.items():
        done = run(["-X", "importtime", "-m", "mxtrain", *given], environment, options.work, (code,))
        told = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
        assert "mxtrain.cli" in told, "importtime said nothing of mxtrain" + os.linesep + done.stderr[-500:]
        imported[name] = any(module.partition(".")[0] == "mxnet" for module in told)

    def seconds(given: Sequence[str], code: int, number: int) -> float:
        began = time.perf_counter()
        run(["-m", "mxtrain", *given], environment, options.work, (code,))
        return time.perf_counter() - began

    sides = {name: partial(seconds, *command) for name, command in COMMANDS.items()}
    for name, values in in_turn(sides, 1 if options.quick else 10).items():
        found.add(f"python -m mxtrain {name}", "s", values)
        found.at_most(f"{name}: median wall time, s", found.series[-1].median, 1.0)
    found.at_most("commands of these that import MXNet", sum(imported.values()), 0)
    found.details["imports_mxnet"] = imported
    return found


def start(options: Options) -> Measured:
    """Starts the default run on a terminal, in turns with that of another checkout (`--before`) where one is given;
    ends each after its first step."""
    checkouts, measured = options.checkouts(), Measured()

    def one(name: str, number: int) -> Tuple[float, float]:
        folder = options.work / f"{name}{number}"
        folder.mkdir()
        return seconds_after_enter(checkouts[name], folder)

    if not options.quick:
        for name in checkouts:
            one(name, -1)  # warms the disk's cache
    found = in_turn({name: partial(one, name) for name in checkouts}, 1 if options.quick else 5)
    for position, title in enumerate(("first visible line", "first step")):
        for name in reversed(checkouts):
            measured.add(f"{title}, {name}", "s", [seconds[position] for seconds in found[name]])
    middle = measured.series[len(checkouts) - 1].median
    measured.at_most("first visible line: median, s after Enter", middle, 1.0)
    measured.at_most("first step: median, s after Enter", measured.series[-1].median, 2.0)
    short_commands(options, checkouts, measured)
    if options.before:
        measured.notes.append(f"Before: commit {commit_of(checkouts['before'])}, in turns with now.")
    return measured


SHORT: Dict[str, Tuple[List[str], int, float]] = {
    "eval": (["eval", "run"], 0, 1.5),
    "predict": (["predict", "run", "sample=5"], 0, 1.5),
    "--help": (["--help"], 0, 0.35),
    "--version": (["--version"], 0, 0.35),
    "a wrong override": (["optimizer.lrr=0.1"], 2, 0.35),
}
"""Name -> arguments, exit code, and the seconds that it may take."""


def short_commands(options: Options, checkouts: Mapping[str, Path], measured: Measured) -> None:
    """Wall time of commands on a small run, beside a Python that does nothing."""
    environments = {
        name: installed_environment(path, bytecode_of(path, options.work)) for name, path in checkouts.items()
    }
    run(["-m", "mxtrain", "trainer.max_epochs=1", "hydra.run.dir=run"], environments["now"], options.work)

    def seconds(arguments: Sequence[str], code: int, side: str, number: int) -> float:
        began = time.perf_counter()
        run(arguments, environments[side], options.work, (code,))
        return time.perf_counter() - began

    sides = {"python -c pass": partial(seconds, ["-c", "pass"], 0, "now")}
    for name, (given, code, _) in SHORT.items():
        for side in reversed(checkouts):
            sides[f"{name}, {side}"] = partial(seconds, ["-m", "mxtrain", *given], code, side)
    for title, values in in_turn(sides, 1 if options.quick else 6).items():
        measured.add(title, "s", values[1:] or values)  # the first compiles the bytecode
        name, _, side = title.rpartition(", ")
        if side == "now":
            measured.at_most(f"{name}: median, s", measured.series[-1].median, SHORT[name][2])


def bytecode_of(checkout: Path, work: Path) -> Path:
    """The folder of the compiled bytecode of a checkout."""
    return work / f"bytecode-{checkout.name}"


def seconds_after_enter(checkout: Path, folder: Path) -> Tuple[float, float]:
    """(first visible character, first step), in seconds.

    Raises:
        ProcessFailed: the run ended before its first step.
    """
    environment = {
        **installed_environment(checkout, bytecode_of(checkout, folder.parent)),
        "TERM": "xterm",
        "COLUMNS": "120",
    }
    began = time.perf_counter()
    process, terminal = _start_on_terminal([sys.executable, "-m", "mxtrain", *START], environment, folder)
    shown_s: Optional[float] = None
    rows, output = folder / "run" / "metrics.jsonl", b""
    try:
        while time.perf_counter() - began < 300:
            if select.select([terminal], [], [], 0.005)[0]:
                with suppress(OSError):  # the process is gone
                    output += os.read(terminal, 65536)
                if shown_s is None and output.strip():
                    shown_s = time.perf_counter() - began
            if rows.exists() and rows.stat().st_size:
                return shown_s or 0.0, time.perf_counter() - began
            if process.poll() is not None:
                break
        raise ProcessFailed(f"no first step in {checkout}: {output.decode(errors='replace')[-2000:]}")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _start_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Tuple[subprocess.Popen, int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    return process, ours
