"""Predictions of `mxtrain plan` beside measured runs: time of a step and peak memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Dict, List, Mapping, Sequence, Tuple

import mxtrain
from bench_parts.harness import ENDS_WELL, Measured, Options, callback, say, train
from bench_parts.parts import ZOO
from mxtrain.parallel.forecast import Forecaster
from mxtrain.parallel.placement import Placement

LIMIT = 0.1
MIB = 2**20
WARM_UP, STEPS = 6, 24
COMMON = (
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "checkpoint=off",
    "early_stopping=off",
    "logger=[jsonl]",
    "trainer.max_epochs=100",
)
NETWORKS: Mapping[str, Sequence[str]] = {
    "ResNet-20, 32 px, batch 128": [
        *ZOO["resnet20"],
        "dataset=synthetic",
        "dataset.num_samples=4096",
        "dataset.shape=[3,32,32]",
        "dataset.batch_size=128",
    ],
    "MLP of 4 x 1024 units, batch 256": [
        "model=mlp",
        "model.hidden=[1024,1024,1024,1024]",
        "dataset=synthetic",
        "dataset.num_samples=8192",
        "dataset.shape=[1,28,28]",
        "dataset.batch_size=256",
    ],
    "BERT of 4 layers, batch 32": [
        "model=bert",
        "model.num_layers=4",
        "model.units=256",
        "model.num_heads=4",
        "model.hidden_size=1024",
        "dataset.batch_size=32",
    ],
}
PLACEMENTS = (
    Placement(accumulation=2),
    Placement(accumulation=4),
    Placement(replicas=2, accumulation=2),
    Placement(replicas=2, accumulation=4),
    Placement(replicas=4, accumulation=2),
    Placement(stages=2, microbatches=2, accumulation=2),
    Placement(stages=2, microbatches=2),
    Placement(stages=2, microbatches=8),
    Placement(stages=2, microbatches=4, accumulation=2),
    Placement(replicas=2, stages=2, microbatches=4),
)
"""None of these is measured by `plan` itself."""


def planned(options: Options) -> Measured:
    """Compares predictions with runs: in each turn a plan is made anew, and each placement trained once."""
    found = Measured(table=[["network", "placement", "step, ms", "predicted", "memory, MiB", "predicted"]])
    networks = dict(NETWORKS)
    placements: Sequence[Placement] = PLACEMENTS
    if options.quick:
        networks = {"MLP": ["model=mlp", "model.hidden=[64]", "dataset.batch_size=64"]}
        placements = PLACEMENTS[:3:2]
    if options.only:
        networks = {name: words for name, words in networks.items() if options.only in name}
    time_errors: List[float] = []
    memory_errors: List[float] = []
    for name, words in networks.items():
        pairs = _measure(options, name, words, placements)
        for place, values in pairs.items():
            step_s, predicted_s, peak, predicted_peak = (median(column) for column in zip(*values))
            time_errors.append(abs(median(p / m for m, p, *_ in values) - 1))
            memory_errors.append(abs(median(p / m for *_, m, p in values) - 1))
            numbers = [f"{value:.1f}" for value in (1000 * step_s, 1000 * predicted_s, peak, predicted_peak)]
            found.table.append([name, " ".join(place.overrides()[:-1]), *numbers])
    for unit, errors in (("time of a step", time_errors), ("peak memory", memory_errors)):
        found.add(f"{unit}: predicted / measured - 1, absolute", "fraction", errors)
        found.at_most(f"{unit}: median error", median(errors), LIMIT)
        found.notes.append(f"{unit}: worst error of {len(errors)} placements: {max(errors):.1%}.")
    return found


def _measure(
    options: Options, name: str, words: Sequence[str], placements: Sequence[Placement]
) -> Dict[Placement, List[Tuple[float, float, float, float]]]:
    """Returns for each placement the turns: seconds of a step and predicted ones, peak in MiB and predicted one."""
    pairs: Dict[Placement, List[Tuple[float, float, float, float]]] = {place: [] for place in placements}
    for _ in range(1 if options.quick else options.turns or 3):
        seconds = 0.1 if options.quick else 1.0
        plan = mxtrain.plan(*words, devices=4, seconds=seconds, fresh=True)
        forecaster = Forecaster(plan.profile)
        for place in placements:
            forecast = forecaster.predict(place)
            step_s, peak = _train(options, words, place)
            pairs[place].append((step_s, forecast.step_s, peak, forecast.process_bytes / MIB))
            numbers = [round(value, 4) for value in pairs[place][-1]]
            say(f"  {name}: {' '.join(place.overrides())}: {numbers}")
    return pairs


def _train(options: Options, words: Sequence[str], place: Placement) -> Tuple[float, float]:
    """Returns the seconds of a step after the first ones, and the peak memory in MiB."""
    folder = Path(tempfile.mkdtemp(dir=options.work))
    steps = 8 if options.quick else options.steps or STEPS
    given = [
        *COMMON,
        *words,
        *place.overrides(),
        f"trainer.max_steps={WARM_UP + steps}",
        "trainer.log_interval=1",
        *callback("StepClock", path=folder / "steps"),
        *callback("PeakMemory", path=folder / "peak"),
    ]
    train(given, folder, ENDS_WELL)
    # Rows of several steps may be read at once, so only the whole time is divided by the number of steps.
    told = [entry[:2] for entry in json.loads((folder / "steps").read_text()) if entry[0] >= WARM_UP]
    (first, begin_s), (last, end_s) = told[0], told[-1]
    return (end_s - begin_s) / (last - first), float(json.loads((folder / "peak").read_text())[0][0])
