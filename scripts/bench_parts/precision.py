"""bfloat16 against float32: accuracy on the default data, of images and of text. Its speed is race's to measure."""

from __future__ import annotations

import json
from statistics import mean, stdev
from typing import Dict, List

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import train

WAYS = ("off", "bfloat16")
VAL_SAMPLES = {"lenet": 270, "resnet": 270, "bert": 217}
"""Model -> samples of its default dataset's validation split (of Python 3.11's text)."""


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "`python -m mxtrain model=... amp=... trainer.seed=S` on the default data: handwritten digits, or passages of "
        "Python's reference by chapter. "
        + ", ".join(f"A validation sample of {model}'s is {1 / number:.4f}." for model, number in VAL_SAMPLES.items()),
    ])  # fmt: skip
    for model in VAL_SAMPLES:
        _measure_accuracy(model, options, found)
    return found


def _measure_accuracy(model: str, options: Options, found: Measured) -> None:
    seeds, overrides = (range(1), ["trainer.max_epochs=1"]) if options.quick else (range(5), [])
    values: Dict[str, List[float]] = {way: [] for way in WAYS}
    for seed in seeds:
        for way in WAYS:
            given = [f"model={model}", f"amp={way}", f"trainer.seed={seed}", *overrides]
            run_dir = train(given, options.work / f"{model}-{way}-{seed}")
            values[way].append(json.loads((run_dir / "status.json").read_text())["best"]["value"])
            say(f"  seed {seed}, {model}, amp={way}: val {values[way][-1]:.4f}")
    found.series += [Series(f"{model}: best validation accuracy, amp={w}", "fraction", v) for w, v in values.items()]
    noise = max(stdev(values["off"]) if len(seeds) > 1 else 0.0, 1 / VAL_SAMPLES[model])
    name = f"{model}: mean validation accuracy lost, over a sample or the standard deviation of float32's seeds"
    found.targets.append(Target(name, (mean(values["off"]) - mean(values["bfloat16"])) / noise, 1.0, at_least=False))
    found.details[model] = {
        way: {"mean": mean(v), "stdev": stdev(v) if len(v) > 1 else 0.0} for way, v in values.items()
    }
