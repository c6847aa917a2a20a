"""scripts/bench: runs parts of the benchmark and writes what they found."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from bench_parts import (
    beam_search,
    bits,
    checkpoint_cost,
    command_line,
    compression,
    corpora,
    default_run,
    detection_race,
    faults,
    gluoncv_cifar,
    gluoncv_workers,
    inference,
    killing,
    language_race,
    links,
    loading,
    network,
    placement_accuracy,
    placements,
    precision,
    publish,
    race,
    reinforcement,
    runner,
    same_numbers,
    segmentation,
    soak,
    sparse,
    start,
    strangers,
    tables,
    wire,
    workers,
)
from bench_parts.machine import describe_machine
from bench_parts.measured import Measured, Options, say
from bench_parts.processes import ROOT, ProcessFailed

PARTS: Dict[str, Tuple[Callable[[Options], Measured], str]] = {
    "default": (default_run.measure, "the default run: wall time and accuracy of five seeds (3 minutes)"),
    "segmentation_default": (
        default_run.measure_segmentation,
        "the default of task=segmentation: wall time and mean IoU (13 minutes)",
    ),
    "runner": (runner.measure, "the runner against a hand-written Gluon loop (7 minutes)"),
    "gluoncv": (gluoncv_cifar.measure, "GluonCV's train_cifar10.py against us (15 minutes; needs --gluoncv-script)"),
    "gluoncv_workers": (
        gluoncv_workers.measure,
        "GluonCV's scripts as two workers against us (20 minutes; needs --gluoncv-script)",
    ),
    "detection_default": (
        default_run.measure_detection,
        "the default of task=detection: wall time and VOC AP (13 minutes)",
    ),
    "detection_race": (
        detection_race.measure,
        "detectors against what GluonCV's scripts for them do (12 minutes; needs GluonCV)",
    ),
    "segmentation": (
        segmentation.measure,
        "segmentation against GluonCV's scripts/segmentation/train.py (6 minutes; needs --gluoncv-script)",
    ),
    "loader": (loading.measure, "samples/s of the loaders (5 minutes)"),
    "beam_search": (
        beam_search.measure,
        "beam search against GluonNLP's sampler and one sentence at a time (5 minutes; needs GluonNLP)",
    ),
    "cli": (command_line.measure, "wall time of --help, --cfg job and a mistake (1 minute)"),
    "start": (start.measure, "first visible line and first step after Enter (2 minutes; --before FOLDER compares)"),
    "bits": (bits.measure, "weights of ten runs, to the bit (3 minutes; --before FOLDER compares)"),
    "checkpoint": (checkpoint_cost.measure, "what checkpoints cost (6 minutes)"),
    "placements": (placements.measure, "replicas and stages against one device, and their memory (8 minutes)"),
    "verify": (same_numbers.measure, "verify over placements and networks (25 minutes)"),
    "placement_accuracy": (placement_accuracy.measure, "accuracy of placements, five seeds (15 minutes)"),
    "precision": (precision.measure, "bfloat16 against float32: accuracy of five seeds (20 minutes)"),
    "detection_precision": (
        precision.measure_detection,
        "bfloat16 against float32: VOC AP and time of five seeds of task=detection (25 minutes)",
    ),
    "race": (race.measure, "training against PyTorch, float32 and bfloat16 (40 minutes; needs --torch-python)"),
    "language_race": (
        language_race.measure,
        "GPT-2, Transformer and LSTM against PyTorch and GluonNLP (12 minutes; needs --torch-python or GluonNLP)",
    ),
    "sparse": (
        sparse.measure,
        "tables of embeddings against PyTorch's sparse ones and Gluon's dense (10 minutes; needs --torch-python)",
    ),
    "reinforcement": (
        reinforcement.measure,
        "reinforcement learning against PyTorch, and CartPole solved from five seeds (8 minutes; needs --torch-python)",
    ),
    "inference": (
        inference.measure,
        "evaluation against PyTorch, float32 and bfloat16 (15 minutes; needs --torch-python)",
    ),
    "soak": (soak.measure, "200 starts of two workers and two servers, whose weights must be right (20 minutes)"),
    "workers": (workers.measure, "several processes: starts and throughput (12 minutes)"),
    "faults": (
        faults.measure,
        "35 faults at random moments, of processes, network, disk and data: 700 runs (3 hours; root)",
    ),
    "tables": (
        tables.measure,
        "tables on parameter servers: memory of a worker, links with a delay (15 minutes; the latter as root)",
    ),
    "strangers": (
        strangers.measure,
        "20 runs of two workers, of each store, that another user attacks (15 minutes; root)",
    ),
    "compression": (compression.measure, "bytes on the wire by compressor, and accuracy of three seeds (15 minutes)"),
    "corpora": (
        corpora.measure,
        "1 GB of text to tokens: speed, memory, second start (12 minutes; --before FOLDER compares tables)",
    ),
    "links": (links.measure, "two workers over throttled links, each store and compressor (35 minutes; root)"),
    "kill_sweep": (
        killing.measure,
        "100 kills, one at each call of a save, and what becomes of the runs (minutes, also with --quick)",
    ),
}


def main(arguments: List[str]) -> int:
    """Measure the parts that were named, or all."""
    options = _parse(arguments)
    # Ends like ctrl-c, so that measured processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = Path(options.out) if options.out else Path(tempfile.mkdtemp(prefix="mxtrain-bench-")) if options.quick \
        else ROOT / "docs"  # fmt: skip
    failed = []
    for part in options.parts or list(PARTS):
        reason = _why_not(part, options)
        if reason:
            say(f"{part}: left out, {reason}")
            failed += [part] if part in options.parts else []
            continue
        say(f"{part}: {PARTS[part][1]}")
        try:
            publish.write_result(part, _measure(part, options), out)
        except (ProcessFailed, ValueError, subprocess.TimeoutExpired) as error:
            say(f"{part}: {error}")
            failed.append(part)
        publish.write_page(out, list(PARTS))
    print(out / "benchmarks.md")
    return 1 if failed else 0


def _measure(part: str, options: argparse.Namespace) -> Dict[str, Any]:
    machine, started = describe_machine(), time.monotonic()
    if machine["load_1min"] > 0.5 and not options.quick:
        say(f"{part}: the load is {machine['load_1min']}: something else is running, the figures will be worth less")
    with tempfile.TemporaryDirectory(prefix="mxtrain-bench-", dir=options.work) as work:
        found = PARTS[part][0](
            Options(
                options.quick,
                Path(work),
                options.gluoncv_script,
                options.torch_python,
                options.records,
                options.minutes,
                options.before,
                options.turns,
                options.steps,
                options.only,
            )
        )
    return {
        "part": part, "taken": time.strftime("%Y-%m-%d"), "quick": options.quick,
        "minutes": round((time.monotonic() - started) / 60, 1), "machine": machine, **found.to_json(),
    }  # fmt: skip


def _why_not(part: str, options: argparse.Namespace) -> str:
    if part == "gluoncv":
        return gluoncv_cifar.missing(options.gluoncv_script)
    if part == "gluoncv_workers":
        return gluoncv_workers.missing(options.gluoncv_script)
    if part == "segmentation":
        return segmentation.missing(options.gluoncv_script)
    if part in ("race", "inference"):
        return race.missing(options.torch_python)
    if part == "language_race":
        return language_race.missing(options.torch_python)
    if part == "compression":
        return wire.available()
    if part == "links":
        return network.reason_against()
    if part == "kill_sweep" and not killing.available():
        return "scripts/bench_parts/kill_sweep.py is not there"
    return ""


def _parse(arguments: List[str]) -> argparse.Namespace:
    width = max(map(len, PARTS))
    parts = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in PARTS.items())
    parser = argparse.ArgumentParser(
        "scripts/bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure mxtrain on this machine, with nothing else running.", epilog=f"parts:\n{parts}",
    )  # fmt: skip
    parser.add_argument("parts", nargs="*", metavar="PART", help="all when none is named")
    parser.add_argument(
        "--quick", action="store_true", help="tiny versions, written to a new folder unless --out is given"
    )
    parser.add_argument(
        "--out",
        default="",
        help="folder of benchmarks.md and benchmarks/, in which what is not measured stays as it is (docs)",
    )
    parser.add_argument("--work", default=None, help="folder for what the runs write (the system's temporary one)")
    parser.add_argument("--gluoncv-script", default=os.environ.get(gluoncv_cifar.SCRIPT_VARIABLE, ""),
                        help="GluonCV's scripts/classification/cifar/train_cifar10.py")  # fmt: skip
    parser.add_argument("--torch-python", default="", help="a Python in whose environment PyTorch is installed")
    parser.add_argument("--records", type=Path, default=None,
                        help="faults: a file for each run as it ends; runs that it already holds count")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=math.inf,
                        help="faults: begin no further run after that")  # fmt: skip
    parser.add_argument(
        "--before", default="", help="start: another checkout, which is measured in turns with this one"
    )
    parser.add_argument(
        "--turns", type=int, default=0,
        help="blocks of each side of segmentation, detection_race, language_race, sparse and reinforcement "
        "(8, 5, 4 to 8, 5)",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=0, help="the same: steps of a block (1 to 10, by network)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="language_race, sparse, tables: what has this in its name, e.g. GPT"
    )
    options = parser.parse_args(arguments)
    if min(options.turns, options.steps) < 0:
        parser.error("--turns and --steps: type 1 or more, or leave them out")
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
