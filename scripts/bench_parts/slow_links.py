"""Local SGD and sums of gradients on slow links: samples/s and accuracy of four workers.

A measurement that `--records FILE` holds already is not repeated, so the part can be taken in pieces with `--only`.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from statistics import mean, stdev
from typing import Dict, List, NamedTuple, Sequence

from bench_parts import network, rings
from bench_parts.distributed import needs_hosts as needs_hosts
from bench_parts.distributed import timed
from bench_parts.harness import ONE_THREAD, Measured, Options, status_of, train
from bench_parts.parts import STEADY, ZOO, Race, race_overrides
from bench_parts.records import Records, noting_gaps
from mxtrain.kvstore.spec import has_horovod

MBIT_PER_S, DELAY_MS, WORKERS = 1000, 10, 4
NEVER = 1_000_000
"""An interval that no run reaches: what remains is the computation."""
TARGET = 3.0
BOUND_BY_LINK = 4.0
"""The target holds for stores whose computation alone is so many times as fast as a step with a sum."""
COMMON = (
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "checkpoint=off",
    "logger=[jsonl]",
    "trainer.max_epochs=1000",
    f"cluster.workers={WORKERS}",
    "cluster.start_timeout=600",
    "cluster.step_timeout=600",
)
STORES = ("dist_sync", *(("horovod",) if has_horovod() else ()))


class Case(NamedTuple):
    """A network and the number of steps between two synchronisations."""

    name: str
    overrides: Sequence[str]
    every: int


def measure(options: Options) -> Measured:
    found, records = Measured(), Records(options)
    _speed(options, records, found)
    for name, part in {"hierarchy": _hierarchy, "rings": _rings}.items():
        if has_horovod() and options.only in name:
            with noting_gaps(found):
                part(options, records, found)
    _accuracy(options, records, found)
    return found


def _cases(options: Options) -> List[Case]:
    images = ["dataset=synthetic", "dataset.num_samples=16384", *STEADY, "optimizer=sgd", "optimizer.lr=0.01"]
    small = ["model=mlp", "dataset.shape=[1,8,8]", "dataset.batch_size=64", "model.hidden=[256,256]"]
    if options.quick:
        return [Case("MLP", [*images, *small], 4)]
    texts = options.work / "texts"
    texts.mkdir(exist_ok=True)
    bert = Race("BERT-base", "bert_base", 32, 4, 100, 1, 1, 1)
    resnet = [*images, *ZOO["resnet50"], "dataset.shape=[3,32,32]", "dataset.image_size=[32,32]"]
    return [
        *(Case(f"ResNet-50, 32 px, batch {size}", [*resnet, f"dataset.batch_size={size}"], 20) for size in (64, 16)),
        Case("BERT-base, SGD, 32 tokens, batch 4", [*race_overrides(bert, "off", texts), "optimizer=sgd"], 20),
    ]


def _rate(overrides: Sequence[str], options: Options, steps: int, warm_up: int, before: Sequence[str]) -> float:
    from mxtrain.training.recorder import STEPS_AHEAD

    # Rows of the last steps come all together, at the end.
    own = [*overrides, f"trainer.max_steps={warm_up + steps + STEPS_AHEAD}"]
    return timed(own, options, warm_up, before).samples_per_s


def _speed(options: Options, records: Records, found: Measured) -> None:
    titles = ["sum in every step", "local SGD", "ratio", "computation alone", "its ratio: the limit"]
    found.table = [["network", "store", *titles]]
    chosen = [
        (case, store)
        for case in _cases(options)
        for store in STORES
        if options.only.lower() in f"speed, {case.name}, {store}".lower()
    ]
    if not chosen:
        return
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="network-", dir=options.work))
        hosts = network.Network(folder, stack, count=WORKERS)
        hosts.delay(DELAY_MS, MBIT_PER_S)
        for case, store in chosen:
            given = [*COMMON, *case.overrides, f"kvstore={store}", *hosts.over_ssh(options.work)]
            with noting_gaps(found):
                _speed_of(case, store, given, hosts.on(1), options, records, found)


def _speed_of(
    case: Case,
    store: str,
    given: Sequence[str],
    before: Sequence[str],
    options: Options,
    records: Records,
    found: Measured,
) -> None:
    # Steps that are timed, steps before them, and overrides. Local SGD is timed over a whole interval, with one
    # synchronisation; the first steps have more votes.
    ways = {
        "sum in every step": (3, 1, "kvstore.sync_every=null"),
        f"sync_every={case.every}": (case.every, min(case.every, 8), f"kvstore.sync_every={case.every}"),
        "computation alone": (10, 8, f"kvstore.sync_every={NEVER}"),
    }
    large = "sum in every step, bucket_mib=16"
    if store == "horovod":
        ways[large] = (3, 1, "kvstore.bucket_mib=16")
    speeds: Dict[str, List[float]] = {way: [] for way in ways}
    for turn in range(options.turns or (1 if options.quick else 2)):
        for way, (steps, warm_up, override) in ways.items():
            key = ["speed", case.name, store, way, turn]
            own = [*given, override]
            # The row of the table does not need large messages.
            with noting_gaps(found) if way == large else nullcontext():
                speeds[way].append(records.require(key, _rate, own, options, steps, warm_up, before))
    for way, values in speeds.items():
        if values:
            found.add(f"{case.name}: {store}, {way}", "samples/s", values)
    summed, local, alone = map(mean, list(speeds.values())[:3])
    cells = [f"{summed:.1f}", f"{local:.1f}", f"{local / summed:.2f}", f"{alone:.1f}", f"{alone / summed:.2f}"]
    found.table.append([case.name, store, *cells])
    if not options.quick and alone / summed >= BOUND_BY_LINK:
        found.at_least(f"{case.name}, {store}: local SGD / sum in every step", local / summed, TARGET)


def _hierarchy(options: Options, records: Records, found: Measured) -> None:
    """Two workers on each of two hosts: a ring of all against one within and one between hosts."""
    steps, warm_up = (6, 2) if options.quick else (8, 2)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="two_hosts-", dir=options.work))
        hosts = network.Network(folder, stack, count=2)
        hosts.delay(DELAY_MS, MBIT_PER_S)
        case = _cases(options)[0]
        given = [*COMMON, *case.overrides, "kvstore=horovod", *hosts.over_ssh(options.work)]
        speeds: Dict[str, List[float]] = {"one ring": [], "hierarchical": []}
        for turn in range(options.turns or 3):
            for way, values in speeds.items():
                own = [*given, f"kvstore.hierarchical={way == 'hierarchical'}"]
                key = ["hierarchy", case.name, way, turn]
                values.append(records.require(key, _rate, own, options, steps, warm_up, hosts.on(1)))
        for way, values in speeds.items():
            found.add(f"two workers on each of two hosts, {case.name}: {way}", "samples/s", values)
        about = "two workers on each of two hosts: hierarchical / one ring"
        found.compare(about, speeds["hierarchical"], speeds["one ring"], None)


def _rings(options: Options, records: Records, found: Measured) -> None:
    """Sums of as many numbers as ResNet-50 has: in one ring, in two at the same time, and in one with larger arrays.

    A second ring needs a process of its own on each host, because Horovod sums one array after the other, those of
    other process sets, too.
    """
    numbers, times = (24 << 10, 2) if options.quick else (24 << 20, 3)
    ways = {
        "one ring, 24 arrays": (1, 24),
        "two rings at the same time, 12 arrays each": (2, 24),
        "one ring, 6 arrays": (1, 6),
        "two rings at the same time, 3 arrays each": (2, 6),
        "one ring, 2 arrays": (1, 2),
    }
    seconds: Dict[str, List[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rings-", dir=options.work))
        hosts = network.Network(folder, stack, count=WORKERS)
        hosts.delay(DELAY_MS, MBIT_PER_S)
        for turn in range(options.turns or (1 if options.quick else 3)):
            for way, (count, arrays) in ways.items():
                given = (hosts, count, arrays, numbers // arrays, times)
                seconds[way].append(records.require(["rings", way, turn], rings.seconds_of_a_sum, *given))
    first, *others = ways
    for way, values in seconds.items():
        found.add(f"sum of {numbers / 2**20:g} M numbers over four hosts, {way}", "s", values)
    for way in others:
        found.compare(f"seconds of a sum, {way} / {first}", seconds[way], seconds[first], None)


def _accuracy(options: Options, records: Records, found: Measured) -> None:
    """The target is a loss of at most one deviation of the seeds."""
    epochs = 1 if options.quick else 30
    group = [f"cluster.workers={WORKERS}", "early_stopping=off", f"trainer.max_epochs={epochs}"]
    network_ = ["model=mlp", "model.hidden=[128,128]"]
    sgd = ["optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9"]
    nesterov = ["kvstore.sync_every=20", "kvstore.outer_optimizer=nesterov"]
    # Both stores compute the same sums up to rounding, so one of them is enough for SGD.
    pairs = {
        **{f"{store}, Adam": ([f"kvstore={store}"], "sync_every=20, nesterov", nesterov) for store in STORES},
        "dist_sync, SGD": (["kvstore=dist_sync", *sgd], "sync_every=8, average", ["kvstore.sync_every=8"]),
    }
    for title, (given, way, local) in pairs.items():
        if options.only.lower() not in f"accuracy, {title}".lower():
            continue
        with noting_gaps(found):
            scores: Dict[str, List[float]] = {"sum in every step": [], way: []}
            for seed in range(1 if options.quick else 5):
                for (name, values), more in zip(scores.items(), ([], local)):
                    own = [*group, *network_, *given, *more, f"trainer.seed={seed}"]
                    values.append(records.require(["accuracy", title, name, seed], _best_accuracy, own, options))
            for name, values in scores.items():
                found.add(f"digits, {title}, {name}: best validation accuracy", "fraction", values)
            if not options.quick:
                summed, averaged = scores.values()
                lost, deviation = mean(summed) - mean(averaged), max(stdev(summed), stdev(averaged))
                found.at_most(f"digits, {title}, {way}: validation accuracy lost", lost, deviation)


def _best_accuracy(overrides: Sequence[str], options: Options) -> float:
    folder = Path(tempfile.mkdtemp(prefix="accuracy-", dir=options.work))
    return float(status_of(train(overrides, folder, environment=ONE_THREAD))["best"]["value"])
