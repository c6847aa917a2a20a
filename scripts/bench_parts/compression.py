"""What gradient compression saves on the wire, measured, and what it does to accuracy."""

from __future__ import annotations

import json
from statistics import mean
from typing import Dict, List

from bench_parts import wire
from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.placements import ONE_THREAD
from bench_parts.processes import train
from bench_parts.publish import number
from bench_parts.runner import MODELS

WAYS: Dict[str, List[str]] = {
    "none": [],
    "fp16": ["kvstore.compression=fp16"],
    "bf16": ["kvstore.compression=bf16"],
    "2bit, threshold 0.01": ["kvstore.compression=2bit", "kvstore.threshold=0.01"],
    "topk, ratio 0.01": ["kvstore.compression=topk", "kvstore.ratio=0.01"],
}
NETWORKS = {
    "MLP, 4.7 M parameters": ["kvstore=dist_sync", "model=mlp", "model.hidden=[1024,1024,512]"],
    "ResNet-20": ["kvstore=dist_sync", *MODELS["resnet20"]],
    "ResNet-20, dist_async": ["kvstore=dist_async", *MODELS["resnet20"]],
}
QUICK_NETWORKS = {"MLP": ["kvstore=dist_sync", "model=mlp", "model.hidden=[64]"]}
MAX_SHARES = {"fp16": 0.52, "bf16": 0.52, "2bit, threshold 0.01": 0.12, "topk, ratio 0.01": 0.06}
STORE = ["kvstore=dist_sync", "cluster.workers=2"]
LIMITS = ["dataset=synthetic", "dataset.shape=[3,32,32]", "dataset.num_samples=1000", "dataset.batch_size=8",
          "checkpoint=off", "trainer.test=false", "trainer.limit_val_batches=1", "trainer.log_interval=1000",
          "early_stopping=off"]  # fmt: skip
MAX_LOSS = 0.01


def measure(options: Options) -> Measured:
    steps, seeds, networks = (4, range(1), QUICK_NETWORKS) if options.quick else (20, range(3), NETWORKS)
    ways = {way: WAYS[way] for way in ("none", "2bit, threshold 0.01")} if options.quick else WAYS
    found = Measured(notes=[
        "Two workers and one server, with kvstore=dist_sync where nothing else is said. Bytes: scheduler, server and "
        "workers talk over TCP in a network namespace of their own; a step's bytes are those that the kernel counted "
        f"on its loopback interface in a run of {2 * steps} steps less those in one of {steps}, per step "
        "(scripts/bench_parts/wire.py): all gradients, counts, acknowledgements and headers, of all processes, in "
        "both directions.",
        f"Accuracy: the default network and data, seeds {', '.join(map(str, seeds))}; one sample is 0.0037.",
    ])  # fmt: skip
    shares = _bytes(networks, ways, steps, options, found)
    accuracies = _accuracy(seeds, ways, options, found)
    found.table = [["kvstore.compression", *(f"{network}, bytes a step" for network in networks),
                    "best validation accuracy", "test accuracy"]]  # fmt: skip
    for way in ways:
        sizes = [f"{number(counted[way])} ({counted[way] / counted['none']:.1%})" for counted in shares.values()]
        means = [f"{mean(accuracies[way][what]):.4f}" for what in ("val", "test")]
        found.table.append([way, *sizes, *means])
    return found


def _bytes(
    networks: Dict[str, List[str]], ways: Dict[str, List[str]], steps: int, options: Options, found: Measured
) -> Dict[str, Dict[str, float]]:
    counted: Dict[str, Dict[str, float]] = {}
    for place, (network, given) in enumerate(networks.items()):
        counted[network] = {}
        for index, (way, compression) in enumerate(ways.items()):
            folder = options.work / f"bytes-{place}-{index}"
            sent = wire.bytes_per_step([*given, *LIMITS, *compression], steps, folder)
            counted[network][way] = sent
            found.series.append(Series(f"{network}: {way}", "bytes a step", [sent]))
            say(f"  {network}, {way}: {sent:.0f} bytes a step")
    for network, values in list(counted.items())[0 if options.quick else 1 :]:  # whose rest is small
        for way in list(ways)[1:]:
            share = values[way] / values["none"]
            name = f"{network}: bytes a step, {way} / none"
            found.targets.append(Target(name, share, MAX_SHARES[way], at_least=False))
    return counted


def _accuracy(
    seeds: range, ways: Dict[str, List[str]], options: Options, found: Measured
) -> Dict[str, Dict[str, List[float]]]:
    accuracies: Dict[str, Dict[str, List[float]]] = {way: {"val": [], "test": []} for way in ways}
    short = ["trainer.max_epochs=1"] if options.quick else []
    for seed in seeds:
        for index, (way, compression) in enumerate(ways.items()):
            # Without compression two workers compute what one process does.
            store = [] if options.quick and way == "none" else STORE
            given = [*store, *compression, f"trainer.seed={seed}", *short]
            run_dir = train(given, options.work / f"run-{index}-{seed}", environment=ONE_THREAD)
            status = json.loads((run_dir / "status.json").read_text())
            accuracies[way]["val"].append(status["best"]["value"])
            accuracies[way]["test"].append(status["metrics"]["test/accuracy"])
            say(f"  seed {seed}, {way}: val {accuracies[way]['val'][-1]:.4f}")
    titles = {"val": "best validation accuracy", "test": "test accuracy"}
    found.series += [
        Series(f"{titles[what]}, {way}", "fraction", values[what]) for what in titles
        for way, values in accuracies.items()
    ]  # fmt: skip
    exact = mean(accuracies["none"]["val"])
    for way in list(ways)[1:]:
        lost = exact - mean(accuracies[way]["val"])
        found.targets.append(Target(f"mean validation accuracy lost, {way}", lost, MAX_LOSS, at_least=False))
    return accuracies
