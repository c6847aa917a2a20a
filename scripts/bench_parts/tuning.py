"""mxtrain tune: the steps that ASHA takes in place of a grid's, and two workers beside one."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from bench_parts.checks import commit_of
from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    Measured,
    Options,
    in_turn,
    installed_environment,
    run,
    say,
    status_of,
    untouched_environment,
)

TASKS = {
    "classification": ["model=mlp"],
    "tabular": ["task=tabular", "trainer.monitor=val/roc_auc"],
    "tabular, log loss": ["task=tabular"],
}
SPACE = {
    "optimizer": ["sgd", "adam", "rmsprop"],
    "optimizer.lr": ["0.00001", "0.00003", "0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1"],
}
MAX_EPOCHS = 27
ASHA = {"pruner": "asha", "reduction": 2, "min_epochs": 3}
"""Half of the trials go on at each rung: a third loses the best one more often, for hardly fewer steps."""
SEEDS = 5
NEAR = 0.005
"""The part of the grid's best value by which ASHA's may be worse."""


class Curve(NamedTuple):
    """A trial of the grid: its value by epoch, steps of an epoch, and the value that counts at its end."""

    values: Sequence[float]
    steps_per_epoch: int
    best: float


def tune(options: Options) -> Measured:
    """The curves of all trials come from a grid sweep; a trial that a rung promotes has the same bits as an unbroken
    one (tests/cli/test_tune.py), so what the pruner sees is read from there."""
    found = Measured()
    seeds = 1 if options.quick else SEEDS
    for task, overrides in TASKS.items():
        if options.only and options.only not in task:
            continue
        parts, losses = [], []
        for seed in range(seeds):
            curves, is_max = grid_curves(options, task, [*overrides, f"trainer.seed={seed}"])
            steps, best = asha(curves, is_max, seed)
            grid_steps = sum(curve.steps_per_epoch * len(curve.values) for curve in curves)
            top = (max if is_max else min)(curve.best for curve in curves)
            parts.append(steps / grid_steps)
            losses.append(abs(top - best) / abs(top))
            say(f"  {task}, seed {seed}: {parts[-1]:.3f} of the grid's steps, best {best:.4f} of {top:.4f}")
        found.add(f"{task}: steps of ASHA / steps of the grid", "ratio", parts)
        found.add(f"{task}: distance from the grid's best", "ratio", losses)
        found.at_most(f"{task}: steps of ASHA / steps of the grid, median", found.series[-2].median, 1 / 3)
        found.at_most(f"{task}: distance from the grid's best, largest", max(losses), NEAR)
    return found


def grid_curves(options: Options, task: str, overrides: Sequence[str]) -> tuple:
    """Trains the whole grid in one process; returns its curves and whether larger values are better."""
    folder = options.work / f"{task}-{overrides[-1].rpartition('=')[2]}"
    space = {key: values[::4] if options.quick else values for key, values in SPACE.items()}
    epochs = 3 if options.quick else MAX_EPOCHS
    run(
        [
            "-m",
            "mxtrain",
            "-m",
            *overrides,
            *(f"{key}={','.join(values)}" for key, values in space.items()),
            f"trainer.max_epochs={epochs}",
            "early_stopping=off",
            "checkpoint=end_only",
            "logger=jsonl",
            "trainer.test=false",
            f"hydra.sweep.dir={folder}",
        ],
        {**untouched_environment(), **ONE_THREAD},
        options.work,
        (*ENDS_WELL, 3),
    )
    curves = []
    monitor = ""
    for path in sorted(folder.glob("*/status.json")):
        status = json.loads(path.read_text())
        rows = map(json.loads, (path.parent / "metrics.jsonl").read_text().splitlines())
        if status["exit_code"] != 0:
            continue
        monitor = status["best"]["metric"]
        values = [row[monitor.split("/")[1]] for row in rows if row["split"] == "val"]
        curves.append(Curve(values, status["step"] // len(values), status["best"]["value"]))
    shutil.rmtree(folder)
    return curves, not monitor.endswith("loss")


def asha(curves: List[Curve], is_max: bool, seed: int) -> tuple:
    """The steps that ASHA takes over the trials in a random order, and the best value that it ends with."""
    import optuna

    from mxtrain.tuning.spec import TuneSettings, rung_budget
    from mxtrain.tuning.trials import build_pruner

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings = TuneSettings.model_validate(ASHA)
    max_epochs = len(curves[0].values)
    study = optuna.create_study(
        direction="maximize" if is_max else "minimize", pruner=build_pruner(settings, max_epochs)
    )
    order = random.Random(seed).sample(curves, len(curves))
    steps, ends = 0, []
    for curve in order:
        trial, rung = study.ask(), 0
        while (budget := rung_budget(settings, max_epochs, rung)) is not None:
            trial.report((max if is_max else min)(curve.values[:budget]), budget)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                steps += budget * curve.steps_per_epoch
                break
            rung += 1
        else:
            study.tell(trial, curve.best)
            steps += max_epochs * curve.steps_per_epoch
            ends.append(curve.best)
    return steps, (max if is_max else min)(ends)


def two_workers(options: Options, found: Measured) -> None:
    """The time for the same trials with one worker, and with two that are started at once."""
    environment = {**untouched_environment(), **ONE_THREAD}
    rates: Dict[int, List[float]] = {1: [], 2: []}
    trials, repeats = (2, 1) if options.quick else (8, 3)
    for number in range(repeats):
        for workers in (1, 2):
            folder = options.work / f"workers-{workers}-{number}"
            command = [sys.executable, "-m", "mxtrain", "tune", str(folder)]
            given = [
                "model=mlp",
                "trainer.max_epochs=30",
                "early_stopping=off",
                "logger=jsonl",
                "trainer.test=false",
                "optimizer.lr=log(1e-3,1e-1)",
                f"n_trials={trials}",
                "sampler=random",
            ]
            began = time.monotonic()
            first = start([*command, *given], environment)
            while workers == 2 and not (folder / "study.json").exists() and first.poll() is None:
                time.sleep(0.05)
            others = [start([*command[:4], "worker", str(folder)], environment)] if workers == 2 else []
            codes = [process.wait() for process in (first, *others)]
            if any(codes):
                raise ValueError(f"a worker ended with {codes}")
            rates[workers].append(60 * trials / (time.monotonic() - began))
    limit = 1.8 if (os.cpu_count() or 1) > 1 else None
    found.compare("trials a minute of two workers / of one", rates[2], rates[1], limit)


class ShortStudy(NamedTuple):
    """A study of short trials: how fast they were, and the hashes of their weights."""

    per_minute: float
    later_per_minute: float
    """Without the start of the study and the first trial."""
    starts_s: Sequence[float]
    """Seconds from the line of each later trial until its training begins."""
    weights: Sequence[str]
    cpu_s: float
    """Processor time of the study and all of its processes."""


def short_runs(options: Options) -> Measured:
    """Trials of three epochs, in turns with those of another checkout (`--before`); two workers beside one."""
    found, checkouts, trials = Measured(), options.checkouts(), 3 if options.quick else 12
    for name, checkout in checkouts.items():  # compiles the bytecode
        short_study(checkout, options.work / f"first-{name}", options.work / f"bytecode-{name}", 2)

    def one(name: str, number: int) -> ShortStudy:
        few, many = (
            short_study(
                checkouts[name], options.work / f"{count}-{name}-{number}", options.work / f"bytecode-{name}", count
            )
            for count in (2, trials)
        )
        return many._replace(cpu_s=(many.cpu_s - few.cpu_s) / (trials - 2))

    studies = in_turn({name: partial(one, name) for name in checkouts}, options.turns or (1 if options.quick else 3))
    for name, each in studies.items():
        found.add(f"processor time of a further trial, {name}", "s", [one.cpu_s for one in each])
        found.add(f"short trials a minute, {name}", "1/min", [one.per_minute for one in each])
        found.add(f"short trials a minute after the first, {name}", "1/min", [one.later_per_minute for one in each])
        found.add(f"start of a trial, {name}", "s", [value for one in each for value in one.starts_s])
    found.at_most("start of a trial: median, s", statistics.median(studies["now"][0].starts_s), 0.3)
    if options.before:
        rates = {name: [one.later_per_minute for one in each] for name, each in studies.items()}
        found.compare("short trials a minute after the first, now / before", rates["now"], rates["before"], 4.0)
        used = {name: [one.cpu_s for one in each] for name, each in studies.items()}
        found.compare("processor time of a further trial, before / now", used["before"], used["now"], None)
        differ = {one.weights for each in studies.values() for one in each}
        found.at_most("short trials: sets of weights beside the first", len(differ) - 1, 0)
        found.notes.append(f"Before: commit {commit_of(checkouts['before'])}, in turns with now.")
    if not options.only or options.only in "workers":
        two_workers(options, found)
    return found


def short_study(checkout: Path, folder: Path, bytecode: Path, trials: int) -> ShortStudy:
    """Trains a study of LeNet with three epochs for each trial."""
    given = ["trainer.max_epochs=3", "logger=jsonl", "trainer.test=false", "optimizer.lr=log(1e-3,1e-1)"]
    command = [sys.executable, "-m", "mxtrain", "tune", str(folder), *given, f"n_trials={trials}", "sampler=random"]
    begun_at: List[float] = []
    began = ended = time.time()
    environment = installed_environment(checkout, bytecode)
    with subprocess.Popen(command, cwd=folder.parent, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            begun_at += [time.time()] if "optimizer.lr=" in line and line.startswith("trial ") else []
            ended = time.time() if "finished after" in line else ended
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    if process.returncode:
        raise ValueError(f"the study ended with {process.returncode}")
    starts = [training_began(folder / str(number)) - begun_at[number] for number in range(1, trials)]
    weights = [str(status_of(folder / str(number))["weights_sha256"]) for number in range(trials)]
    later = 60 * (trials - 1) / (ended - begun_at[1])
    rate = 60 * trials / (ended - began)
    return ShortStudy(rate, later, starts, tuple(weights), used.ru_utime + used.ru_stime)


def training_began(run_dir: Path) -> float:
    """The time at which a run began its first step, by its log."""
    line = next(line for line in (run_dir / "train.log").read_text().splitlines() if "run begins" in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def start(command: Sequence[str], environment: Dict[str, str]) -> subprocess.Popen:
    """A worker whose output nobody reads."""
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
