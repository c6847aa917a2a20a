"""bfloat16 against float32: what is measured on the default data, of images, text and boxes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Dict, List

from bench_parts.measured import Measured, Options, Series, Target, ratios, say
from bench_parts.processes import train

WAYS = ("off", "bfloat16")


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        name: for readers.
        override: that makes it of the default run.
        metric: what is monitored, in words.
        val_samples: of the validation split.
    """

    name: str
    override: str
    metric: str
    val_samples: int


CASES = tuple(
    Case(model, f"model={model}", "validation accuracy", samples)
    for model, samples in (("lenet", 270), ("resnet", 270), ("bert", 217))  # of Python 3.11's text
)
DETECTION = Case("detection", "task=detection", "validation VOC AP", 300)


def measure(options: Options) -> Measured:
    """Accuracy of networks that classify. Their speed is race's to measure."""
    found = Measured(notes=[
        "`python -m mxtrain model=... amp=... trainer.seed=S` on the default data: handwritten digits, or passages of "
        "Python's reference by chapter. "
        + ", ".join(f"A validation sample of {case.name}'s is {1 / case.val_samples:.4f}." for case in CASES),
    ])  # fmt: skip
    for case in CASES:
        _compare(case, options, found)
    return found


def measure_detection(options: Options) -> Measured:
    """VOC AP and time of the default of task=detection."""
    found = Measured(notes=[
        "`python -m mxtrain task=detection amp=... trainer.seed=S`, in turns; 300 validation scenes. The speed is "
        "that of training alone, the wall time from the command to its exit.",
    ])  # fmt: skip
    values = _compare(DETECTION, options, found)
    for title, name, unit in (("speed", "samples_per_s", "samples/s"), ("wall time", "wall_s", "s")):
        given = {way: [status[name] for status in values[way]] for way in WAYS}
        found.series += [Series(f"detection: {title}, amp={way}", unit, given[way]) for way in WAYS]
    rates = [[status["samples_per_s"] for status in values[way]] for way in reversed(WAYS)]
    found.series.append(Series("detection: speed, bfloat16 / float32, pair by pair", "ratio", ratios(*rates)))
    figures = ("VOC AP", "samples/s", "wall time, s")
    found.table = [["seed", *(f"{figure}, amp={way}" for figure in figures for way in WAYS)]]
    for seed, pair in enumerate(zip(*(values[way] for way in WAYS))):
        cells = [f"{status['best']['value']:.4f}" for status in pair]
        cells += [f"{status[name]:.1f}" for name in ("samples_per_s", "wall_s") for status in pair]
        found.table.append([str(seed), *cells])
    return found


def _compare(case: Case, options: Options, found: Measured) -> Dict[str, List[Dict[str, Any]]]:
    """Trains with both, one seed after the other; returns each run's status.json and its wall time."""
    seeds, overrides = (range(1), ["trainer.max_epochs=1"]) if options.quick else (range(5), [])
    statuses: Dict[str, List[Dict[str, Any]]] = {way: [] for way in WAYS}
    for seed in seeds:
        for way in WAYS:
            given = [case.override, f"amp={way}", f"trainer.seed={seed}", *overrides]
            started = time.perf_counter()
            run_dir = train(given, options.work / f"{case.name}-{way}-{seed}")
            status = json.loads((run_dir / "status.json").read_text())
            statuses[way].append({**status, "wall_s": time.perf_counter() - started})
            say(f"  seed {seed}, {case.name}, amp={way}: {case.metric} {status['best']['value']:.4f}")
    values = {way: [status["best"]["value"] for status in statuses[way]] for way in WAYS}
    found.series += [Series(f"{case.name}: best {case.metric}, amp={w}", "fraction", v) for w, v in values.items()]
    noise = max(stdev(values["off"]) if len(seeds) > 1 else 0.0, 1 / case.val_samples)
    name = f"{case.name}: mean {case.metric} lost, over a sample or the standard deviation of float32's seeds"
    found.targets.append(Target(name, (mean(values["off"]) - mean(values["bfloat16"])) / noise, 1.0, at_least=False))
    found.details[case.name] = {
        way: {"mean": mean(v), "stdev": stdev(v) if len(v) > 1 else 0.0} for way, v in values.items()
    }
    return statuses
