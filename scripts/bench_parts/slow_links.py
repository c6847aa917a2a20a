"""Local SGD on slow links: samples/s of four workers against a sum in every step, and accuracy of five seeds."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import mean, stdev
from typing import Dict, List, Sequence, Tuple

from bench_parts import network
from bench_parts.distributed import needs_hosts as needs_hosts
from bench_parts.distributed import timed
from bench_parts.harness import ONE_THREAD, Measured, Options, say
from bench_parts.parts import STEADY, ZOO, Race, each, race_overrides, seeds
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
RESNET = "ResNet-50 (24 M parameters), 32 px, batch 64"
BERT = "BERT-base (110 M parameters), 32 tokens, batch 16"
NESTEROV = ("kvstore.outer_optimizer=nesterov",)


def measure(options: Options) -> Measured:
    found = Measured()
    if options.only.lower() in f"speed {RESNET} {BERT}".lower():
        _speed(options, found)
    if options.only.lower() in "hierarchy" and has_horovod():
        _hierarchy(options, found)
    if options.only.lower() in "accuracy":
        _accuracy(options, found)
    return found


def _networks(options: Options) -> Dict[str, Tuple[List[str], int]]:
    """Name -> overrides, and steps between two synchronisations."""
    images = ["dataset=synthetic", "dataset.num_samples=16384", *STEADY, "optimizer=sgd", "optimizer.lr=0.01"]
    small = ["model=mlp", "dataset.shape=[1,8,8]", "dataset.batch_size=64", "model.hidden=[256,256]"]
    if options.quick:
        return {"MLP": ([*images, *small], 4)}
    texts = options.work / "texts"
    texts.mkdir(exist_ok=True)
    bert = Race("BERT-base", "bert_base", 32, 16, 200, 1, 1, 1)
    resnet = [*ZOO["resnet50"], "dataset.shape=[3,32,32]", "dataset.image_size=[32,32]", "dataset.batch_size=64"]
    return {
        RESNET: ([*images, *resnet], 20),
        BERT: (race_overrides(bert, "off", texts), 20),
    }


def _speed(options: Options, found: Measured) -> None:
    from mxtrain.training.recorder import STEPS_AHEAD

    stores = ["dist_sync", *(["horovod"] if has_horovod() else [])]
    times = options.turns or 1
    titles = ["sum in every step", "local SGD", "ratio", "computation alone", "share of the link"]
    found.table = [["network", "store", *titles]]
    with ExitStack() as stack:
        folder = options.work / "network"
        folder.mkdir()
        hosts = network.Network(folder, stack, count=WORKERS)
        hosts.delay(DELAY_MS, MBIT_PER_S)
        only = options.only.lower()
        networks = {name: one for name, one in _networks(options).items() if only in f"speed {name.lower()}"}
        for name, (overrides, every) in networks.items():
            for store in stores:
                given = [*COMMON, *overrides, f"kvstore={store}", *hosts.over_ssh(options.work)]

                def rate(steps: int, warm_up: int, *ways: str, given: Sequence[str] = given) -> float:
                    # Rows of the last steps come all together, at the end.
                    own = [*given, f"trainer.max_steps={warm_up + steps + STEPS_AHEAD}", *ways]
                    speed = timed(own, options, warm_up, hosts.on(1)).samples_per_s
                    say(f"  {speed:.2f} samples/s: {' '.join(own)}")
                    return speed

                summed, local, alone = [], [], []
                for _ in range(times):
                    summed.append(rate(max(every // 4, 4), 2))
                    # From one synchronisation to another: whole intervals.
                    local.append(rate(2 * every, every, f"kvstore.sync_every={every}"))
                    alone.append(rate(every, 2, f"kvstore.sync_every={NEVER}"))
                ratio, limit = (mean(speeds) / mean(summed) for speeds in (local, alone))
                about = f"{name}: {store}"
                found.add(f"{about}, sum in every step", "samples/s", summed)
                found.add(f"{about}, sync_every={every}", "samples/s", local)
                found.add(f"{about}, computation alone", "samples/s", alone)
                found.table.append(
                    [name, store, *(f"{mean(speeds):.1f}" for speeds in (summed, local))]
                    + [f"{ratio:.2f}", f"{mean(alone):.1f}", f"{1 - 1 / limit:.0%}"]
                )
                if not options.quick and limit >= BOUND_BY_LINK:
                    found.at_least(f"{about}: sync_every={every} / sum in every step", ratio, TARGET)


def _hierarchy(options: Options, found: Measured) -> None:
    """Two workers on each of two hosts: a ring of all against one within and one between hosts."""
    from mxtrain.training.recorder import STEPS_AHEAD

    steps, warm_up = (6, 2) if options.quick else (16, 4)
    with ExitStack() as stack:
        folder = options.work / "two_hosts"
        folder.mkdir()
        hosts = network.Network(folder, stack, count=2)
        hosts.delay(DELAY_MS, MBIT_PER_S)
        name, (overrides, _) = next(iter(_networks(options).items()))
        given = [*COMMON, *overrides, "kvstore=horovod", f"trainer.max_steps={warm_up + steps + STEPS_AHEAD}"]
        speeds: Dict[str, List[float]] = {"one ring": [], "hierarchical": []}
        for _ in range(options.turns or 3):
            for way, values in speeds.items():
                own = [*given, f"kvstore.hierarchical={way == 'hierarchical'}", *hosts.over_ssh(options.work)]
                values.append(timed(own, options, warm_up, hosts.on(1)).samples_per_s)
                say(f"  two hosts, {name}, {way}: {values[-1]:.2f} samples/s")
        for way, values in speeds.items():
            found.add(f"two workers on each of two hosts, {name}: {way}", "samples/s", values)
        about = "two workers on each of two hosts: hierarchical / one ring"
        found.compare(about, speeds["hierarchical"], speeds["one ring"], None)


def _accuracy(options: Options, found: Measured) -> None:
    group = ["kvstore=dist_sync", f"cluster.workers={WORKERS}", "early_stopping=off", "trainer.max_epochs=30"]
    ways: Dict[str, List[str]] = {
        "sum in every step": group,
        "sync_every=8, average": [*group, "kvstore.sync_every=8"],
        "sync_every=20, nesterov": [*group, "kvstore.sync_every=20", *NESTEROV],
    }
    statuses = seeds(options, ways, 5, ONE_THREAD)
    first = next(iter(ways))
    for key, title in {"best_value": "best validation accuracy", "test/accuracy": "test accuracy"}.items():
        values = {way: each(statuses[way], key) for way in ways}
        for way in ways:
            found.add(f"digits, {way}: {title}", "fraction", values[way])
            if way != first and len(values[way]) > 1 and key == "best_value":
                lost = mean(values[first]) - mean(values[way])
                found.at_most(f"digits, {way}: {title} lost", lost, max(stdev(values[first]), stdev(values[way])))
