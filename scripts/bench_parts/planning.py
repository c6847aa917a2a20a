"""Predictions of `mxtrain plan` beside measured runs: time of a step and peak memory."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Dict, List, Mapping, Sequence, Tuple

import mxtrain
from bench_parts import network
from bench_parts.distributed import timed
from bench_parts.harness import ENDS_WELL, Measured, Options, callback, say, train
from bench_parts.parts import ZOO
from mxtrain.kvstore.spec import has_horovod
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
QUICK = ["model=mlp", "model.hidden=[64]", "dataset=synthetic", "dataset.num_samples=2048", "dataset.batch_size=64"]
STEPS_AHEAD = 3
"""Equals `mxtrain.training.recorder.STEPS_AHEAD`, whose import would import MXNet."""
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
        networks = {"MLP": QUICK}
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


RATES = {"1 Gbit/s": (1.0, "1gbit"), "100 Mbit/s": (0.1, "100mbit")}
"""Link -> Gbit/s for `plan`, and the same in the words of tc(8)."""


def planned_workers(options: Options) -> Measured:
    """Compares predictions with runs of 2, 4 and 8 workers, each in a network namespace with a limited link, all on the
    cores of this machine."""
    found = Measured(table=[["network", "link", "store", "workers", "step, ms", "predicted"]])
    networks = {name: words for name, words in NETWORKS.items() if not name.startswith("BERT")}
    numbers, rates = [2, 4, 8], dict(RATES)
    if options.quick:
        networks, numbers, rates = {"MLP": QUICK}, [2], {"1 Gbit/s": RATES["1 Gbit/s"]}
    stores = ["dist_sync", *(["horovod"] if has_horovod() else [])]
    errors: List[float] = []
    with ExitStack() as stack:
        for name, words in networks.items():
            if options.only not in name:
                continue
            for link, (gigabits, rate) in rates.items():
                hosts = {number: _hosts(options, stack, number, rate) for number in numbers}
                values: Dict[Tuple[str, int], List[Tuple[float, float]]] = {}
                for turn in range(1 if options.quick else options.turns or 3):
                    plan = mxtrain.plan(
                        *words,
                        workers=max(numbers),
                        bandwidth=gigabits,
                        shared=True,
                        devices=1,
                        seconds=0.1 if options.quick else 1.0,
                        fresh=link == next(iter(rates)) or turn > 0,
                    )
                    forecasts = {one.placement: one for one in plan.forecasts}
                    for store, number in product(stores, numbers):
                        place = Placement(workers=number, store=store)
                        step_s = _train_on(options, words, place, hosts[number])
                        values.setdefault((store, number), []).append((step_s, forecasts[place].step_s))
                        say(f"  {name}, {link}, {store}, {number} workers: {values[store, number][-1]}")
                for (store, number), pairs in values.items():
                    errors.append(abs(median(predicted / measured for measured, predicted in pairs) - 1))
                    numbers_ms = [f"{1000 * median(column):.1f}" for column in zip(*pairs)]
                    found.table.append([name, link, store, str(number), *numbers_ms])
    found.add("time of a step: predicted / measured - 1, absolute", "fraction", errors)
    found.at_most("time of a step of several workers: median error", median(errors), LIMIT)
    found.notes.append(f"worst error of {len(errors)} runs: {max(errors):.1%}.")
    return found


def _hosts(options: Options, stack: ExitStack, number: int, rate: str) -> network.Network:
    hosts = network.Network(Path(tempfile.mkdtemp(prefix="hosts-", dir=options.work)), stack, count=number)
    for host in range(1, number + 1):
        hosts.throttle(host, rate)
    return hosts


def _train_on(options: Options, words: Sequence[str], place: Placement, hosts: network.Network) -> float:
    """Returns the seconds of a step of workers on these hosts."""
    folder = Path(tempfile.mkdtemp(dir=options.work))
    steps = 8 if options.quick else options.steps or STEPS
    given = [
        *COMMON,
        *words,
        *place.overrides(),
        *hosts.over_ssh(folder),
        f"trainer.max_steps={WARM_UP + steps + 2 * STEPS_AHEAD}",
    ]
    size = next(int(word.partition("=")[2]) for word in words if word.startswith("dataset.batch_size="))
    return size / timed(given, options, WARM_UP, hosts.on(1)).samples_per_s


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
