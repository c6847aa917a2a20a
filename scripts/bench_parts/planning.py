"""Predictions of `mxtrain plan` beside measured runs: time of a step and peak memory."""

from __future__ import annotations

import json
import math
import tempfile
from contextlib import ExitStack
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import mxtrain
from bench_parts import network
from bench_parts.distributed import timed
from bench_parts.harness import Measured, Options, callback, say
from bench_parts.parts import ZOO
from bench_parts.records import Records
from mxtrain.kvstore.spec import has_horovod
from mxtrain.parallel.exchange import Link
from mxtrain.parallel.forecast import Forecaster
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import parse_profile

LIMIT = 0.1
MIB = 2**20
WARM_UP, STEPS = 10, 24
RUN_S = 1.5
"""Shortest time in which steps are measured."""
LOG_INTERVAL = 5
SECONDS = 0.7
"""`plan seconds`."""
COMMON = (
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "checkpoint=off",
    "early_stopping=off",
    "logger=[jsonl]",
    "trainer.max_epochs=100",
)
NETWORKS: Mapping[str, Sequence[str]] = {
    "MLP of 4 x 1024 units, batch 256": [
        "model=mlp",
        "model.hidden=[1024,1024,1024,1024]",
        "dataset=synthetic",
        "dataset.num_samples=8192",
        "dataset.shape=[1,28,28]",
        "dataset.batch_size=256",
    ],
    "LeNet, 28 px, batch 256": [
        "model=lenet",
        "dataset=synthetic",
        "dataset.num_samples=8192",
        "dataset.shape=[1,28,28]",
        "dataset.batch_size=256",
    ],
    "ResNet-20, 32 px, batch 64": [
        *ZOO["resnet20"],
        "dataset=synthetic",
        "dataset.num_samples=4096",
        "dataset.shape=[3,32,32]",
        "dataset.batch_size=64",
    ],
    "MobileNet 0.25, 64 px, batch 64": [
        "model=gluoncv",
        "model.name=mobilenet0.25",
        "dataset=synthetic",
        "dataset.num_samples=4096",
        "dataset.shape=[3,64,64]",
        "dataset.batch_size=64",
    ],
    "BiLSTM on text, batch 64": ["model=bilstm", "task=classification", "dataset=text", "dataset.batch_size=64"],
    "BERT of 2 layers, batch 32": [
        "model=bert",
        "model.num_layers=2",
        "model.units=128",
        "model.num_heads=4",
        "model.hidden_size=512",
        "dataset.batch_size=32",
    ],
}
QUICK = ["model=mlp", "model.hidden=[64]", "dataset=synthetic", "dataset.num_samples=2048", "dataset.batch_size=64"]
STEPS_AHEAD = 3
"""Equals `mxtrain.training.recorder.STEPS_AHEAD`, whose import would import MXNet."""
PLACEMENTS = (
    Placement(accumulation=4),
    Placement(replicas=2, accumulation=2),
    Placement(replicas=2, accumulation=4),
    Placement(replicas=4, accumulation=2),
    Placement(stages=2, microbatches=8),
    Placement(stages=2, microbatches=8, accumulation=2),
    Placement(stages=2, microbatches=2, accumulation=2),
    Placement(stages=2, microbatches=4, accumulation=2),
    Placement(replicas=2, stages=2, microbatches=2),
    Placement(replicas=2, stages=2, microbatches=4),
)
"""None of these is measured by `plan` itself. A network is trained with every second one."""


def planned(options: Options) -> Measured:
    """Compares predictions with runs: in each turn a plan is made anew, and each placement trained once."""
    found = Measured(table=[["network", "placement", "step, ms", "predicted", "memory, MiB", "predicted"]])
    errors: Dict[str, List[float]] = {"time of a step": [], "peak memory": []}
    repeated: Dict[str, List[float]] = {unit: [] for unit in errors}
    for name, place, turns in measured_placements(options, {"MLP": QUICK} if options.quick else NETWORKS):
        columns = list(zip(*turns))
        for unit, (measured, predicted) in zip(errors, (columns[:2], columns[2:])):
            errors[unit].append(abs(median(p / m for m, p in zip(measured, predicted)) - 1))
            if len(measured) > 1:
                repeated[unit].append(max(measured) / min(measured) - 1)
        numbers = [f"{median(column):.1f}" for column in columns]
        found.table.append([name, " ".join(place.overrides()[:-1]), *numbers])
    for unit, values in errors.items():
        found.add(f"{unit}: predicted / measured - 1, absolute", "fraction", values)
        found.at_most(f"{unit}: median error", median(values), LIMIT)
        found.notes.append(f"{unit}: worst error of {len(values)} placements: {max(values):.1%}.")
        if repeated[unit]:
            # A prediction can be no better than a run predicts the same run some minutes later.
            found.add(f"{unit}: largest / smallest of the turns of a placement - 1", "fraction", repeated[unit])
    return found


def measured_placements(
    options: Options, networks: Mapping[str, Sequence[str]]
) -> Iterator[Tuple[str, Placement, List[Tuple[float, float, float, float]]]]:
    """Yields each network and placement with its turns: milliseconds of a step, measured and predicted, and the peak of
    memory in MiB, measured and predicted. Measures networks that have `options.only` in their names."""
    records = Records(options)
    for number, (name, words) in enumerate(networks.items()):
        found: Dict[Placement, List[Tuple[float, float, float, float]]] = {}
        for turn in range(1 if options.quick else options.turns or 2):
            plan = partial(_plan, words, devices=4, seconds=0.1 if options.quick else SECONDS)
            profile = records.get(f"{name} {turn}", plan if options.only in name else None)
            for place in PLACEMENTS[:2] if options.quick else PLACEMENTS[number % 2 :: 2]:
                if profile is None:
                    break
                forecast = Forecaster(parse_profile(profile)).predict(place)
                steps = 8 if options.quick else options.steps or max(STEPS, math.ceil(RUN_S / forecast.step_s))
                run = partial(_train, options, words, place, steps)
                measured = records.get(f"{name} {turn} {place.overrides()}", run if options.only in name else None)
                if measured is not None:
                    step_s, peak = measured
                    values = (1000 * step_s, 1000 * forecast.step_s, peak, forecast.process_bytes / MIB)
                    found.setdefault(place, []).append(values)
                    say(f"  {name}: {' '.join(place.overrides())}: {[round(value, 1) for value in values]}")
        for place, values_of_turns in found.items():
            yield name, place, values_of_turns


def _plan(words: Sequence[str], **settings: Any) -> Any:
    """Returns the JSON values of the profile of a new plan."""
    return mxtrain.plan(*words, **settings, fresh=True).profile.to_json()


RATES = {"1 Gbit/s": (1.0, "1gbit"), "100 Mbit/s": (0.1, "100mbit")}
"""Link -> Gbit/s for `plan`, and the same in the words of tc(8)."""
LATENCY_S = 1e-4
"""Default of `plan latency`."""


def planned_workers(options: Options) -> Measured:
    """Compares predictions with runs of 2, 4 and 8 workers, each in a network namespace with a limited link, all on the
    cores of this machine."""
    found = Measured(table=[["network", "link", "store", "workers", "step, ms", "predicted"]])
    networks = {name: words for name, words in NETWORKS.items() if name.startswith(("MLP", "ResNet"))}
    numbers, rates = [2, 4, 8], dict(RATES)
    if options.quick:
        networks, numbers, rates = {"MLP": QUICK}, [2], {"1 Gbit/s": RATES["1 Gbit/s"]}
    stores = ["dist_sync", *(["horovod"] if has_horovod() else [])]
    records, errors = Records(options), []
    with ExitStack() as stack:
        hosts = cache(partial(_hosts, options, stack))
        for (name, words), (link, (gigabits, rate)), store, number in product(
            networks.items(), rates.items(), stores, numbers
        ):
            pairs = []
            for turn in range(1 if options.quick else options.turns or 2):
                measures, place = options.only in f"{name}, {link}", Placement(workers=number, store=store)
                plan = partial(_plan, words, workers=2, devices=1, seconds=0.1 if options.quick else SECONDS)
                run = partial(_train_on, options, words, place, partial(hosts, number, rate))
                profile = records.get(f"{name} workers {turn}", plan if measures else None)
                step_s = records.get(f"{name} {link} {store} {number} {turn}", run if measures and profile else None)
                if step_s is not None:
                    forecaster = Forecaster(parse_profile(profile), link=Link(gigabits * 1e9 / 8, LATENCY_S))
                    pairs.append((1000 * step_s, 1000 * forecaster.predict(place).step_s))
                    say(f"  {name}, {link}, {store}, {number} workers: {pairs[-1]}")
            if pairs:
                errors.append(abs(median(predicted / measured for measured, predicted in pairs) - 1))
                numbers_ms = [f"{median(column):.1f}" for column in zip(*pairs)]
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


def _train_on(
    options: Options, words: Sequence[str], place: Placement, build_hosts: Callable[[], network.Network]
) -> float:
    """Returns the seconds of a step of workers on hosts."""
    hosts = build_hosts()
    folder = Path(tempfile.mkdtemp(dir=options.work))
    steps = 8 if options.quick else options.steps or STEPS
    given = [
        *COMMON,
        *words,
        *place.overrides(),
        *hosts.over_ssh(folder),
        f"trainer.max_steps={WARM_UP + steps + 2 * STEPS_AHEAD}",
    ]
    return _batch_size(words) / timed(given, options, WARM_UP, hosts.on(1)).samples_per_s


def _train(options: Options, words: Sequence[str], place: Placement, steps: int) -> Tuple[float, float]:
    """Returns the seconds of a step after the first ones, and the peak memory in MiB."""
    folder = Path(tempfile.mkdtemp(dir=options.work))
    given = [
        *COMMON,
        *words,
        *place.overrides(),
        f"trainer.max_steps={WARM_UP + steps + 2 * STEPS_AHEAD}",
        *callback("PeakMemory", path=folder / "peak"),
    ]
    speed = timed(given, options, WARM_UP, environment={}, log_interval=LOG_INTERVAL).samples_per_s
    return _batch_size(words) / speed, float(json.loads((folder / "peak").read_text())[0][0])


def _batch_size(words: Sequence[str]) -> int:
    return next(int(word.partition("=")[2]) for word in words if word.startswith("dataset.batch_size="))
