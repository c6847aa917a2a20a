"""Whole runs of mxtrain and of another framework with the same seeds, samples, batches, learning rate and epochs, in
turn: speed of training, and quality on the same test samples."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from bench_parts.harness import (
    ONE_THREAD,
    Measured,
    Options,
    ask,
    callback,
    in_turn,
    same_threads_environment,
    train,
)

OURS = "mxtrain"
SEEDS = 3
SPEEDS = {"work_per_s": "second", "work_per_cpu_s": "second of the processor"}
"""Figure of a run -> what its work is divided by. The second is also right on a machine that others use."""


class Score(NamedTuple):
    """A figure of the test samples.

    Attributes:
        key: its name in what a run returns.
        text: for readers.
        unit: of the figure.
        direction: 1 if higher is better, -1 if lower.
    """

    key: str
    text: str
    unit: str
    direction: int


def compare_runs(
    options: Options,
    sides: Mapping[str, Callable[[int], Dict[str, float]]],
    scores: Sequence[Score],
    unit: str,
    speed: float,
    seeds: int = SEEDS,
) -> Measured:
    """Runs all sides with each seed, in turn.

    Args:
        options: options of the command line.
        sides: name -> function of the seed, that returns figures of `SPEEDS` and `scores`; the first one is mxtrain's,
            the second one its opponent's. Further ones are not compared, and may have no speed.
        scores: what has to be as good as the opponent's, less one deviation of the seeds.
        unit: of the work.
        speed: how many times as fast as the opponent mxtrain should be.
        seeds: number of seeds.
    """
    found, (ours, theirs) = Measured(), list(sides)[:2]
    measured = in_turn(sides, 1 if options.quick else options.turns or seeds)

    def figures(name: str, key: str) -> List[float]:
        return [run[key] for run in measured[name]]

    for key, text in SPEEDS.items():
        for name in (one for one in sides if key in measured[one][0]):
            found.add(f"{name}: {unit} of training in a {text}", f"{unit}/s", figures(name, key))
        found.compare(f"{ours} / {theirs}, training, by the {text}", figures(ours, key), figures(theirs, key), speed)
    for score in scores:
        for name in sides:
            found.add(f"{name}: {score.text}", score.unit, figures(name, score.key))
        values = [figures(name, score.key) for name in (ours, theirs)]
        deviation = max(stdev(one) if len(one) > 1 else 0.0 for one in values)
        name, difference = f"{score.text}: mean of {ours} minus that of {theirs}", mean(values[0]) - mean(values[1])
        if score.direction > 0:
            found.at_least(f"{name}, plus one deviation of the seeds", difference + deviation, 0.0)
        else:
            found.at_most(f"{name}, less one deviation of the seeds", difference - deviation, 0.0)
    return found


def train_ours(
    options: Options,
    overrides: Sequence[str],
    seed: int,
    work_of_epoch: float,
    environment: Optional[Mapping[str, str]] = None,
) -> Tuple[Path, Dict[str, float]]:
    """Trains as a user would, with one thread unless `environment` says otherwise.

    Returns:
        The run directory, and the figures of `SPEEDS`, without start-up and validations.
    """
    folder = Path(tempfile.mkdtemp(dir=options.work))
    clock, often = folder / "clock.json", ["trainer.log_interval=1"] if options.quick else []
    given = [*overrides, *often, f"trainer.seed={seed}", *callback("TrainingClock", path=clock)]
    run_dir = train(given, folder, environment=ONE_THREAD if environment is None else environment)
    ((steps, wall_s, cpu_s),) = json.loads(clock.read_text())
    work = work_of_epoch * steps / steps_per_epoch(run_dir)
    return run_dir, {"work_per_s": work / wall_s, "work_per_cpu_s": work / cpu_s}


def steps_per_epoch(run_dir: Path) -> int:
    """The number of steps of an epoch of a run."""
    return int(json.loads((run_dir / "meta.json").read_text())["steps_per_epoch"])


def ask_theirs(options: Options, function: str, *arguments: Any) -> Any:
    """Returns the result of a function of bench_parts in the environment of PyTorch, with one thread."""
    folder = Path(tempfile.mkdtemp(dir=options.work))
    environment = {**same_threads_environment(), **ONE_THREAD}
    return ask(function, *arguments, environment=environment, folder=folder, python=options.torch_python)
