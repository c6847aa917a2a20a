"""What placements and gradient compression do to accuracy, on the default data."""

from __future__ import annotations

import json
from statistics import mean, stdev
from typing import Dict, List

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import train

WAYS: Dict[str, List[str]] = {
    "parallel=single": ["parallel=single"],
    "parallel=hybrid": ["parallel=hybrid"],
    "parallel=data kvstore=device": ["parallel=data", "kvstore=device"],
    "parallel=data kvstore=device kvstore.compression=2bit": [
        "parallel=data", "kvstore=device", "kvstore.compression=2bit", "kvstore.threshold=0.01",
    ],
}  # fmt: skip


def measure(options: Options) -> Measured:
    seeds, overrides = (range(1), ["trainer.max_epochs=1"]) if options.quick else (range(5), [])
    found: Dict[str, Dict[str, List[float]]] = {way: {"val": [], "test": []} for way in WAYS}
    for seed in seeds:
        for number, (way, given) in enumerate(WAYS.items()):
            run_dir = train(
                ["model=resnet", *given, f"trainer.seed={seed}", *overrides], options.work / f"{number}-{seed}"
            )
            values = found[way]
            status = json.loads((run_dir / "status.json").read_text())
            values["val"].append(status["best"]["value"])
            values["test"].append(status["metrics"]["test/accuracy"])
            say(f"  seed {seed}, {way}: val {values['val'][-1]:.4f}")
    single, hybrid = found["parallel=single"], found["parallel=hybrid"]
    noise = stdev(single["val"]) if len(single["val"]) > 1 else 0.0
    away = abs(mean(hybrid["val"]) - mean(single["val"]))
    titles = {"val": "best validation accuracy", "test": "test accuracy"}
    return Measured(
        series=[
            Series(f"{titles[what]}, {way}", "fraction", values[what]) for what in titles
            for way, values in found.items()
        ],
        targets=[
            Target("mean validation accuracy, hybrid from single, over a sample or the standard deviation of single's "
                   "seeds", away / max(noise, 1 / 270), 1.0, at_least=False),
        ],
        notes=[
            "`python -m mxtrain model=resnet ... trainer.seed=S` on the default data for S = "
            + ", ".join(map(str, seeds)) + ". One validation or test sample is 0.0037.",
        ],
        details={"means": {way: {what: mean(v) for what, v in values.items()} for way, values in found.items()}},
    )  # fmt: skip
