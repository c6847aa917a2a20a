"""bfloat16 against float32: samples/s in turn, and accuracy on the default data."""

from __future__ import annotations

import json
from statistics import mean, stdev
from typing import Dict, List

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import train
from bench_parts.runner import CASES, QUICK_CASES, runner, samples_per_s

WAYS = ("off", "bfloat16")
MODELS = ("lenet", "resnet")
SAMPLE = 1 / 270
"""Of the validation split: what one sample is worth."""


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Speed: `python -m mxtrain amp=...` on `dataset=synthetic`, both precisions in turn, a block of steps each.",
        "Accuracy: `python -m mxtrain model=... amp=... trainer.seed=S` on the default data. One validation sample is "
        "0.0037.",
    ])  # fmt: skip
    for case in QUICK_CASES if options.quick else CASES:
        rates = samples_per_s(case, {way: runner(case, f"amp={way}") for way in WAYS}, options.work)
        found.series += [Series(f"{case.name}: amp={way}", "samples/s", values) for way, values in rates.items()]
        found.compare(f"{case.name}: bfloat16 / off", rates["bfloat16"], rates["off"], 1.0)
    for model in MODELS:
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
    noise = max(stdev(values["off"]) if len(seeds) > 1 else 0.0, SAMPLE)
    name = f"{model}: mean validation accuracy lost, over a sample or the standard deviation of float32's seeds"
    found.targets.append(Target(name, (mean(values["off"]) - mean(values["bfloat16"])) / noise, 1.0, at_least=False))
    found.details[model] = {
        way: {"mean": mean(v), "stdev": stdev(v) if len(v) > 1 else 0.0} for way, v in values.items()
    }
