"""GluonCV's own train_cifar10.py against us: whole epochs with validation, on the same files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Dict, List, Mapping, Tuple

from bench_parts import clock
from bench_parts.measured import Measured, Options, Series, in_turn, say
from bench_parts.processes import default_environment, run, train, tuned_environment

SCRIPT_VARIABLE = "MXTRAIN_GLUONCV_SCRIPT"
MODEL = "cifar_resnet20_v1"
EPOCH_LINE = re.compile(r"\[Epoch \d+\] train=\S+ val=(\S+) loss=\S+ time: (\S+)")
# As the script normalises.
MEAN, STD = "[0.4914,0.4822,0.4465]", "[0.2023,0.1994,0.2010]"


def measure(options: Options) -> Measured:
    """Seconds of an epoch, the first of each run left out."""
    # Whole batches: the script drops a partial one, and we don't.
    samples_per_file, batch_size, epochs, repetitions = (64, 32, 2, 1) if options.quick else (2048, 128, 3, 3)
    from bench_parts.cifar_files import write_files

    files = options.work / "home" / "datasets" / "cifar10"
    write_files(files, samples_per_file)
    script, tuned, default = options.gluoncv_script, tuned_environment(), default_environment()
    common = ["--batch-size", str(batch_size), "--num-epochs", str(epochs)]
    sides = {
        "mxtrain": lambda number: _ours(files, batch_size, epochs, options.work / f"ours{number}"),
        "train_cifar10.py, our environment, 2 workers": lambda number: _theirs(
            script, [*common, "-j", "2"], tuned, options.work
        ),
        "train_cifar10.py, its defaults": lambda number: _theirs(script, common, default, options.work),
    }
    found = in_turn(sides, repetitions)
    seconds: Dict[str, List[float]] = {name: [median(values) for values, _ in runs] for name, runs in found.items()}
    measured = Measured(
        series=[Series(f"an epoch of {MODEL}: {name}", "s", values) for name, values in seconds.items()],
        notes=[
            f"{5 * samples_per_file} training and {samples_per_file} validation images, made up, in CIFAR-10's files; "
            f"batch {batch_size}, crop and flip, NAG. The script runs as it is shipped, in its hybrid mode; only the "
            "check that the files are official is replaced (scripts/bench_parts/gluoncv_run.py). Its time is what it "
            "logs; ours is from the end of a validation to the end of the next, saving and logging included. A value "
            f"is the median of a run's epochs but the first, {epochs - 1}.",
        ],
        details={"last validation accuracy": {name: runs[-1][1] for name, runs in found.items()}},
    )
    ours, same_environment, defaults = seconds.values()
    measured.compare("GluonCV's epoch in our environment / ours", same_environment, ours, 1.0)
    measured.compare("GluonCV's epoch with its defaults / ours", defaults, ours, 1.0)
    return measured


def missing(script: str) -> str:
    """Why this part can't be measured, or nothing."""
    if script and Path(script).is_file():
        return ""
    given = f"'{script}' is no file" if script else "no script was given"
    return (
        f"{given}: check out github.com/dmlc/gluon-cv and name its scripts/classification/cifar/train_cifar10.py with "
        f"--gluoncv-script or {SCRIPT_VARIABLE}"
    )


def _ours(files: Path, batch_size: int, epochs: int, folder: Path) -> Tuple[List[float], float]:
    times = folder / "clock.json"
    overrides = [
        f"model.name={MODEL}", "dataset=cifar10", "dataset._target_=bench_parts.cifar_files.SameWork",
        f"dataset.root={files}", "dataset.verify_checksum=false", f"dataset.batch_size={batch_size}",
        f"dataset.eval_batch_size={batch_size}", f"dataset.mean={MEAN}", f"dataset.std={STD}", "optimizer=nag",
        "optimizer.lr=0.1", "optimizer.wd=0.0001", "lr_scheduler=constant", f"trainer.max_epochs={epochs}",
        "early_stopping=off", *clock.overrides(times),
    ]  # fmt: skip
    run_dir = train(overrides, folder)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    accuracy = [row["accuracy"] for row in rows if row["split"] == "val"][-1]
    return clock.epoch_seconds(times), accuracy


def _theirs(
    script: str, arguments: List[str], environment: Mapping[str, str], folder: Path
) -> Tuple[List[float], float]:
    environment = {**environment, "MXNET_HOME": str(folder / "home")}
    fixed = ["--model", MODEL, "--mode", "hybrid", "--save-dir", str(folder / "params")]
    done = run(["-m", "bench_parts.gluoncv_run", str(Path(script).resolve()), *fixed, *arguments], environment, folder)
    epochs = EPOCH_LINE.findall(done.stderr + done.stdout)
    if len(epochs) < 2:
        say(done.stderr[-2000:])
        raise ValueError(f"{script} logged {len(epochs)} epochs; two are needed")
    return [float(seconds) for _, seconds in epochs[1:]], float(epochs[-1][0])
