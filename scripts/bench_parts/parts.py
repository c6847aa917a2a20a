"""Comparisons: what mxtrain does beside what others do, or beside itself with other options, side by side.

A part is a function that yields `Comparison`s. What trains on the other sides is in torch_side.py, gluonnlp_side.py,
gluoncv_side.py and own_side.py (Gluon's own loops).
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from bench_parts import files
from bench_parts.callbacks import epoch_seconds
from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    ROOT,
    TIMEOUT_S,
    Comparison,
    Measured,
    Options,
    ProcessFailed,
    Ratio,
    Side,
    ask,
    callback,
    default_environment,
    in_turn,
    in_turns,
    mxtrain_side,
    rows_of,
    run,
    same_threads_environment,
    say,
    side_of,
    status_of,
    train,
    tuned_environment,
    untouched_environment,
)
from bench_parts.sizes import (
    BERT_SIZES,
    BERT_VOCAB_SIZE,
    BETA2,
    CLIP_NORM,
    EPSILON,
    GPTS,
    LABEL_SMOOTHING,
    LR,
    LSTMS,
    NUM_CLASSES,
    SGD_LR,
    TRANSFORMERS,
    WD,
)
from mxtrain.kvstore.spec import has_horovod

AHEAD = 12
"""Blocks' worth of steps that no side reaches: the epoch must not end, since what follows it is not compared."""
DTYPES = {"off": "float32", "bfloat16": "bfloat16"}
HAS_GLUONNLP = find_spec("gluonnlp") is not None
NO_GLUONNLP = "GluonNLP is not installed here (pip install gluonnlp==0.10.0): it was not measured."
NO_TORCH = "No --torch-python was given: PyTorch was not measured."
NO_HOROVOD = "Horovod is not built here (scripts/horovod): it was not measured."
SGD = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.wd=0.0001")
STEADY = ("lr_scheduler=constant", "early_stopping=off")
ZOO = {
    "resnet20": ["model=resnet", "model.depth=20"],
    "resnet50": ["model=gluoncv", "model.name=resnet50_v1b"],
    "mobilenet": ["model=gluoncv", "model.name=mobilenet1.0"],
    "densenet121": ["model=gluoncv", "model.name=densenet121"],
}
"""Own overrides of networks of images; the first two are built by the same code in own_side.py."""


# The runner, placements and workers, on made-up images.


class Images(NamedTuple):
    """A network, and blocks of its steps."""

    name: str
    network: str
    pixels: int
    batch_size: int
    steps: int
    blocks: int

    def overrides(self) -> List[str]:
        """Everything default but what is trained; one epoch that does not end."""
        samples = int(self.steps * (self.blocks + AHEAD) * self.batch_size / 0.8) + 10
        return [
            *ZOO[self.network],
            "dataset=synthetic",
            f"dataset.shape=[3,{self.pixels},{self.pixels}]",
            f"dataset.num_samples={samples}",
            f"dataset.batch_size={self.batch_size}",
            *SGD,
            *STEADY,
        ]

    def runner(self, *overrides: str, copies: int = 1, **environment: str) -> Side:
        given = [*self.overrides(), *overrides]
        return mxtrain_side(given, self.steps, self.steps * self.batch_size, environment, copies=copies)

    def gluon(self, environment: Mapping[str, str], num_devices: int = 1) -> Side:
        """The hand-written loop."""
        given = (self.network, self.pixels, self.batch_size, self.steps, num_devices)
        work = self.steps * self.batch_size
        return side_of("own_side:train_with_gluon", self.steps, *given, environment=environment, work=work)


def runner(options: Options) -> Iterator[Comparison]:
    cases = [
        Images("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, 10, 40),
        Images("ResNet-50, 224 px, batch 16", "resnet50", 224, 16, 4, 12),
    ]
    for case in [Images("ResNet-20, 16 px, batch 8", "resnet20", 16, 8, 1, 1)] if options.quick else cases:
        sides = {"runner": case.runner(), "hand-written loop": case.gluon(tuned_environment())}
        ratios = [Ratio("runner", "hand-written loop", 0.98)]
        if options.quick or case.network == "resnet50":
            sides["hand-written loop, MXNet's defaults"] = case.gluon(default_environment())
            name = "what runtime=auto is worth"
            ratios.append(Ratio("hand-written loop", "hand-written loop, MXNet's defaults", 1.7, name))
        yield Comparison(case.name, "samples/s", sides, case.blocks, ratios)


def checkpoint(options: Options) -> Measured:
    resnet = ("model=resnet", "model.depth=20", "optimizer=sgd", "dataset.shape=[3,32,32]")
    lenet = ("model=lenet", "optimizer=adam", "dataset.shape=[1,8,8]")
    cases: List[Tuple[str, Sequence[str], int, int, int, int]] = [
        ("ResNet-20, 32 px, batch 128", resnet, 128, 50, 50, 11),
        ("LeNet, 8 px, batch 64", lenet, 64, 50, 250, 15),
    ]
    found = Measured()
    for name, network, batch_size, every, steps, blocks in (
        [("LeNet, 8 px, batch 8", lenet, 8, 10, 20, 2)] if options.quick else cases
    ):
        samples = int(steps * (blocks + AHEAD) * batch_size / 0.8) + 10
        given = [
            "dataset=synthetic",
            *network,
            f"dataset.batch_size={batch_size}",
            f"dataset.num_samples={samples}",
            *STEADY,
            "checkpoint.every_epochs=null",
            "checkpoint.every_minutes=null",
        ]
        sides = {
            f"a step {what} checkpoints": mxtrain_side([*given, f"checkpoint.every_steps={often}"], steps, steps)
            for what, often in (("with", every), ("without", "null"))
        }
        figures = Comparison(name, "ms", sides, blocks).measure(options.work, found)
        costs = [a / b - 1 for a, b in zip(*figures.values())]
        found.add(f"{name}: cost, pair by pair", "share", costs)
        found.at_most(f"{name}: cost of a checkpoint every {every} steps, median of pairs", median(costs), 0.035)
    return found


DATA = ("parallel=data", "parallel.devices=cpu:2")
HYBRID = ("parallel=hybrid", "parallel.devices=cpu:4", "parallel.stages=2", "parallel.microbatches=4")
PIPELINE_2 = ("parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=8")
PIPELINE_4 = ("parallel=pipeline", "parallel.devices=cpu:4", "parallel.microbatches=16")
CORES = 2
SPLIT = Images("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, 8, 21)
PIPELINED = Images("ResNet-20, 32 px, batch 256", "resnet20", 32, 256, 4, 21)
QUICK_SPLIT = Images("ResNet-20, 16 px, batch 32", "resnet20", 16, 32, 2, 2)


def placements(options: Options) -> Measured:
    split, pipelined = (QUICK_SPLIT, QUICK_SPLIT) if options.quick else (SPLIT, PIPELINED)
    found = Measured()
    loop = split.gluon({**tuned_environment(CORES), **ONE_THREAD}, num_devices=2)
    Comparison(
        split.name,
        "samples/s",
        {
            "1 device": split.runner(**ONE_THREAD),
            "data, 2 devices": split.runner(*DATA, **ONE_THREAD),
            "hybrid, 2 x 2 devices": split.runner(*HYBRID, **ONE_THREAD),
            "hand-written loop, 2 devices": loop,
            "2 processes at once, 1 device each": split.runner(copies=2, **ONE_THREAD),
        },
        split.blocks,
        [
            Ratio("2 processes at once, 1 device each", "1 device", None, "2 processes at once / 1 alone", 0.5),
            Ratio("data, 2 devices", "1 device", 1.9, "data on 2 devices / 1 device"),
            Ratio("hybrid, 2 x 2 devices", "data, 2 devices", 0.9, "hybrid 2 x 2 / data on 2"),
            Ratio("data, 2 devices", "hand-written loop, 2 devices", 0.98, "data on 2 / hand-written loop on 2"),
        ],
    ).measure(options.work, found)
    two, four = "pipeline, 2 stages, 8 microbatches", "pipeline, 4 stages, 16 microbatches"
    Comparison(
        pipelined.name,
        "samples/s",
        {
            "1 device": pipelined.runner(**ONE_THREAD),
            two: pipelined.runner(*PIPELINE_2, **ONE_THREAD),
            four: pipelined.runner(*PIPELINE_4, **ONE_THREAD),
        },
        pipelined.blocks,
        [
            Ratio(two, "1 device", 0.9, f"2 stages x 8 microbatches / ideal {16 / 9:.2f} times 1 device", 16 / 9),
            Ratio(four, "1 device", 0.85, f"4 stages x 16 microbatches / {CORES} cores", min(CORES, 64 / 19)),
        ],
    ).measure(options.work, found)
    batch_size, peaks = 2 * pipelined.batch_size, []
    for name, overrides in {
        "1 device": (),
        "4 stages x 16 microbatches, gpipe": ("gpipe",),
        "4 stages x 16 microbatches, 1f1b": ("1f1b",),
    }.items():
        placed = [*PIPELINE_4, f"parallel.schedule={overrides[0]}"] if overrides else []
        noted = options.work / f"peak{len(peaks)}"
        given = [
            *pipelined._replace(batch_size=batch_size, blocks=1).overrides(),
            *placed,
            "trainer.max_steps=4",
            "trainer.test=false",
            "trainer.limit_val_batches=1",
            f"trainer.log_interval={pipelined.steps}",
            *callback("PeakMemory", path=noted),
        ]
        train(given, options.work / f"memory{len(peaks)}", ENDS_WELL)
        peaks.append(json.loads(noted.read_text())[0][0])
        found.add(f"batch {batch_size}: peak memory, {name}", "MiB", peaks[-1:])
    found.at_most(f"batch {batch_size}: peak memory 1f1b / gpipe", peaks[2] / peaks[1], 1.0)
    return found


def group(workers: int, servers: int = 1, store: str = "dist_sync") -> List[str]:
    """Overrides of a run of several workers."""
    own = [] if store == "horovod" else [f"cluster.servers={servers}"]
    return [f"kvstore={store}", f"cluster.workers={workers}", *own]


TINY = ["model=mlp", "model.hidden=[8]", "trainer.test=false", "trainer.limit_val_batches=1", "early_stopping=off"]


def workers(options: Options) -> Measured:
    found = Measured(notes=[] if has_horovod() else [NO_HOROVOD])
    numbers, each = ((2,), 1) if options.quick else ((1, 2, 4, 8), 5)
    for number in numbers:
        found.add(
            f"start-up, {number} workers",
            "s",
            [_first_step_s(number, options.work / f"start-{number}-{repetition}") for repetition in range(each)],
        )
    case = QUICK_SPLIT if options.quick else SPLIT
    stores = ["dist_sync", "p3", *(["horovod"] if has_horovod() else [])]
    sides = {"1 process": case.runner(**ONE_THREAD), "2 processes at once": case.runner(copies=2, **ONE_THREAD)}
    sides.update({f"2 workers, {store}": case.runner(*group(2, store=store), **ONE_THREAD) for store in stores})
    ratios = [Ratio(f"2 workers, {store}", "1 process", 1.5, f"2 workers with {store} / 1 process") for store in stores]
    Comparison(case.name, "samples/s", sides, case.blocks, ratios).measure(options.work, found)
    return found


def _first_step_s(number: int, folder: Path) -> float:
    """Seconds from the command to the end of the first step."""
    folder.mkdir()
    began = time.time()
    train(
        [
            *TINY,
            *group(number),
            "trainer.max_steps=1",
            "checkpoint=off",
            "trainer.log_interval=1",
            *callback("StepClock", path=folder / "steps"),
        ],
        folder,
        ENDS_WELL,
    )
    return float(json.loads((folder / "steps").read_text())[0][3]) - began


# Runs of several seeds.


def seeds(
    options: Options, ways: Mapping[str, Sequence[str]], count: int = 5, environment: Mapping[str, str] = {}
) -> Dict[str, List[Dict[str, Any]]]:
    """The status.json of each seed's run of each way, in turn, with `wall_s` and `cpu_s` from the command to its exit.
    The first run warms the disk cache, and is not counted."""
    more, work = ["trainer.max_epochs=1"] if options.quick else [], Path(tempfile.mkdtemp(dir=options.work))
    if not options.quick:
        train(["debug=fast", *next(iter(ways.values()))], work / "warm_up", environment=environment)
    found: Dict[str, List[Dict[str, Any]]] = {way: [] for way in ways}
    for seed in range(1 if options.quick else count):
        for number, (way, given) in enumerate(ways.items()):
            began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            given = [*given, f"trainer.seed={seed}", *more]
            status = status_of(train(given, work / f"{number}-{seed}", environment=environment))
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            status.update(wall_s=time.perf_counter() - began, cpu_s=cpu_s, best_value=status["best"]["value"])
            found[way].append(status)
            say(f"  seed {seed} {way}: {status['wall_s']:.1f} s, best {status['best_value']:.4f}")
    return found


def each(statuses: Sequence[Mapping[str, Any]], name: str) -> List[float]:
    """A figure of all runs."""
    return [status[name] if name in status else status["metrics"][name] for status in statuses]


def default(options: Options, overrides: Sequence[str], metric: str, least: float, most_s: float) -> Measured:
    """A default run: from the command to its exit, for five seeds."""
    statuses, found = seeds(options, {"": overrides})[""], Measured()
    found.add("wall time, command to exit", "s", each(statuses, "wall_s"))
    found.add("processor time, all threads", "s", each(statuses, "cpu_s"))
    found.add(f"best validation {metric}", "fraction", each(statuses, "best_value"))
    if not overrides:
        found.add("test accuracy of the best weights", "fraction", each(statuses, "test/accuracy"))
    name = " ".join(["default run", *overrides])
    found.at_most(f"{name}: longest wall time, s", max(each(statuses, "wall_s")), most_s)
    found.at_least(f"{name}: lowest best validation {metric}", min(each(statuses, "best_value")), least)
    found.details["steps"] = each(statuses, "step")
    return found


def _noise(values: Sequence[float], samples: int) -> float:
    """The standard deviation of seeds, or what one validation sample is, where that is more."""
    return max(stdev(values) if len(values) > 1 else 0.0, 1 / samples)


def precision(options: Options, cases: Mapping[str, Tuple[str, int]], metric: str) -> Measured:
    """bfloat16 against float32. `cases`: name -> (override, validation samples)."""
    found = Measured()
    for name, (override, samples) in cases.items():
        both = seeds(options, {f"amp={amp}": [override, f"amp={amp}"] for amp in DTYPES})
        values = {way: each(statuses, "best_value") for way, statuses in both.items()}
        for figure, key, unit in (
            (f"best {metric}", "best_value", "fraction"),
            ("speed", "samples_per_s", "samples/s"),
            ("wall time", "wall_s", "s"),
            ("processor time", "cpu_s", "s"),
        ):
            for way, statuses in both.items():
                found.add(f"{name}: {figure}, {way}", unit, each(statuses, key))
        plain, low = values.values()
        title = f"{name}: mean {metric} lost, over a sample or the standard deviation of float32's seeds"
        found.at_most(title, (mean(plain) - mean(low)) / _noise(plain, samples), 1.0)
        rates = [each(statuses, "samples_per_s") for statuses in both.values()]
        found.compare(f"{name}: speed, bfloat16 / float32", rates[1], rates[0], None)
    return found


def placement_accuracy(options: Options) -> Measured:
    device = ["parallel=data", "kvstore=device"]
    ways = {
        " ".join(given[:3]): ["model=resnet", *given]
        for given in (
            ["parallel=single"],
            ["parallel=hybrid"],
            device,
            [*device, "kvstore.compression=2bit", "kvstore.threshold=0.01"],
        )
    }
    statuses, found = seeds(options, ways), Measured()
    for title, key in (("best validation accuracy", "best_value"), ("test accuracy", "test/accuracy")):
        for way in ways:
            found.add(f"{title}, {way}", "fraction", each(statuses[way], key))
    single, hybrid = (each(statuses[f"parallel={way}"], "best_value") for way in ("single", "hybrid"))
    away = abs(mean(hybrid) - mean(single)) / _noise(single, 270)
    found.at_most(
        "mean validation accuracy, hybrid from single, over a sample or the standard deviation of single's seeds",
        away,
        1.0,
    )
    return found


# Races against PyTorch and GluonNLP.


@dataclass(frozen=True)
class Race:
    """A network at one size.

    Attributes:
        network: what the sides call it.
        size: pixels, or tokens; of a translation those of its source, and as many of its target, which are counted.
        steps, blocks: of a block, and how many.
        fp32, bf16: how many times as fast as PyTorch it should be, or None where it is not compared.
        defaults: how many times as fast as MXNet with its defaults, in each precision, or nothing.
        gluonnlp: how many times as fast as GluonNLP in float32, or None.
        starts: how often all sides are started anew: a process is fast or slow as a whole.
    """

    name: str
    network: str
    size: int
    batch_size: int
    steps: int
    blocks: int
    fp32: Optional[float]
    bf16: Optional[float]
    defaults: Sequence[float] = ()
    gluonnlp: Optional[float] = None
    starts: int = 1

    @property
    def is_language(self) -> bool:
        return self.network in {**GPTS, **TRANSFORMERS, **LSTMS}

    @property
    def unit(self) -> str:
        return "tokens/s" if self.is_language else "samples/s"

    @property
    def work(self) -> int:
        """Number of units that a block processes."""
        return self.steps * self.batch_size * (self.size if self.is_language else 1)

    def torch(self, dtype: str, way: str, work: str, python: str) -> Side:
        return side_of(
            "torch_side:train",
            self.steps,
            self.network,
            self.size,
            self.batch_size,
            dtype,
            way,
            work,
            environment=same_threads_environment(),
            work=self.work,
            python=python,
        )

    def gluonnlp_side(self, environment: Mapping[str, str]) -> Side:
        return side_of(
            "gluonnlp_side:train",
            self.steps,
            self.network,
            self.size,
            self.batch_size,
            environment=environment,
            work=self.work,
        )


RACES = (
    Race("ResNet-50, 224 px, batch 16", "resnet50", 224, 16, 3, 6, 1.25, 1.25, (1.9, 3.0)),
    Race("ResNet-20, 32 px, batch 64", "resnet20", 32, 64, 10, 6, 1.2, 1.1, starts=3),
    Race("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, 6, 5, 1.2, 1.1, starts=3),
    Race("MobileNet, 96 px, batch 32", "mobilenet", 96, 32, 4, 5, 1.0, 1.0, starts=2),
    Race("DenseNet-121, 224 px, batch 8", "densenet121", 224, 8, 3, 3, 1.0, 1.0, starts=2),
    Race("BERT-base, 8 x 128 tokens", "bert_base", 128, 8, 2, 2, 1.25, 1.25, gluonnlp=1.5, starts=3),
    Race("BERT with 4 layers of 512 units, 8 x 128 tokens", "bert_4", 128, 8, 6, 3, 1.25, 1.25, gluonnlp=1.5, starts=4),
)
QUICK_RACES = (
    Race("ResNet-20, 16 px, batch 8", "resnet20", 16, 8, 2, 2, 1.2, 1.1),
    Race("BERT with 4 layers of 512 units, 2 x 16 tokens", "bert_4", 16, 2, 2, 2, 1.25, 1.25, gluonnlp=1.5, starts=2),
)
LANGUAGE_RACES = (
    Race("GPT-2 small, 4 x 256 tokens", "gpt2", 256, 4, 1, 4, 1.1, 1.1),
    Race("Transformer-base, 64 x 32 tokens", "transformer_base", 32, 64, 1, 4, 1.1, 1.1, gluonnlp=1.3),
    Race("LSTM of 2 x 650, 20 x 35 tokens", "lstm_650", 35, 20, 3, 6, None, None, gluonnlp=1.2),
)
QUICK_LANGUAGE_RACES = (
    Race("GPT of 2 layers, 2 x 8 tokens", "gpt_tiny", 8, 2, 2, 2, 1.1, 1.1),
    Race("Transformer of 2 + 2 layers, 2 x 8 tokens", "transformer_tiny", 8, 2, 2, 2, 1.1, 1.1, gluonnlp=1.3),
    Race("LSTM of 2 x 32, 2 x 8 tokens", "lstm_tiny", 8, 2, 2, 2, None, None, gluonnlp=1.2),
)
INFERENCE = ("ResNet-50", "ResNet-20, 32 px, batch 128", "BERT-base", "BERT with")
"""Beginnings of the names of the races in which evaluation is compared, in blocks of three times as many steps."""
GLUONNLP, SHIPPED = "GluonNLP, float32", "GluonNLP as installed, float32"


def needs_torch(options: Options) -> str:
    """Why there is no race, or an empty string."""
    if not options.torch_python:
        return "it needs --torch-python: a Python in whose environment PyTorch is installed"
    return "" if Path(options.torch_python).exists() else f"{options.torch_python} is not there"


def needs_torch_or_gluonnlp(options: Options) -> str:
    return needs_torch(options) if options.torch_python or not HAS_GLUONNLP else ""


def race(options: Options) -> Iterator[Comparison]:
    for one in QUICK_RACES if options.quick else RACES:
        folder = _folder(options, one.name)
        sides: Dict[str, Side] = {}
        for amp, dtype in DTYPES.items():
            sides[f"mxtrain, {dtype}"] = mxtrain_side(race_overrides(one, amp, folder), one.steps, one.work)
            sides[f"PyTorch, {dtype}"] = _faster_torch(one, dtype, options.torch_python, folder, "train")
        if one.defaults:
            images = Images(one.name, one.network, one.size, one.batch_size, one.steps, one.blocks)
            sides["MXNet's defaults, float32"] = images.gluon(default_environment())
        if one.gluonnlp is not None and HAS_GLUONNLP:
            sides[GLUONNLP] = one.gluonnlp_side(same_threads_environment())
        ratios = _ratios(one)
        for dtype, target in zip(DTYPES.values(), one.defaults):
            plain = "MXNet's defaults, float32"
            ratios.append(Ratio(f"mxtrain, {dtype}", plain, target, f"{dtype} / MXNet's defaults"))
        ratios.append(Ratio("mxtrain, bfloat16", "mxtrain, float32", 1.0, "mxtrain, bfloat16 / float32"))
        yield Comparison(one.name, one.unit, sides, one.blocks, ratios, one.starts, memory=True)


def _ratios(one: Race) -> List[Ratio]:
    given = [(f"PyTorch, {dtype}", dtype, target) for dtype, target in zip(DTYPES.values(), (one.fp32, one.bf16))]
    given.append((GLUONNLP, "float32", one.gluonnlp))
    return [Ratio(f"mxtrain, {dtype}", name, target, f"mxtrain / {name}") for name, dtype, target in given if target]


def inference(options: Options) -> Iterator[Comparison]:
    for one in QUICK_RACES if options.quick else RACES:
        if not options.quick and not one.name.startswith(INFERENCE):
            continue
        one, folder = replace(one, steps=3 * one.steps), _folder(options, one.name)
        sides: Dict[str, Side] = {}
        for amp, dtype in DTYPES.items():
            given = [
                *race_overrides(one, amp, folder),
                f"dataset.eval_batch_size={one.batch_size}",
                "trainer.max_steps=1",
                "trainer.limit_val_batches=1",
                "trainer.test=false",
            ]
            trained = train(given, folder / f"trained-{amp}", ENDS_WELL)
            # It evaluates a network that was trained for a step.
            sides[f"mxtrain, {dtype}"] = side_of(
                "own_side:evaluate", 1, trained, one.steps, environment=untouched_environment(), work=one.work
            )
            sides[f"PyTorch, {dtype}"] = _faster_torch(one, dtype, options.torch_python, folder, "eval")
        ratios = [
            Ratio(f"mxtrain, {d}", f"PyTorch, {d}", 1.0, f"mxtrain / PyTorch, evaluation, {d}") for d in DTYPES.values()
        ]
        yield Comparison(one.name, one.unit, sides, one.blocks, ratios, one.starts, memory=True)


def language_race(options: Options) -> Iterator[Comparison]:
    """One precision after the other: all sides of both would need 20 GiB for GPT-2."""
    for one in QUICK_LANGUAGE_RACES if options.quick else LANGUAGE_RACES:
        if options.only.lower() not in one.name.lower():
            continue
        one = replace(one, blocks=options.turns or one.blocks, steps=options.steps or one.steps)
        for amp, dtype in DTYPES.items():
            folder = _folder(options, f"{one.name} {dtype}")
            sides: Dict[str, Side] = {}
            if options.torch_python and one.fp32 is not None:
                sides[f"PyTorch, {dtype}"] = _faster_torch(one, dtype, options.torch_python, folder, "train")
            if HAS_GLUONNLP and one.gluonnlp is not None and dtype == "float32":
                sides[GLUONNLP] = one.gluonnlp_side(tuned_environment())
                sides[SHIPPED] = one.gluonnlp_side(default_environment())
            if sides:
                ours = {f"mxtrain, {dtype}": mxtrain_side(language_overrides(one, amp, folder), one.steps, one.work)}
                ratios = [*_ratios(one), Ratio("mxtrain, float32", SHIPPED, None, f"mxtrain / {SHIPPED}")]
                yield Comparison(one.name, one.unit, {**ours, **sides}, one.blocks, ratios, memory=True)
            else:
                say(f"  {one.name}, {dtype}: left out, there is nothing to compare with")


def _folder(options: Options, name: str) -> Path:
    folder = options.work / re.sub(r"[^\w-]+", "_", name)
    folder.mkdir()
    return folder


def _faster_torch(one: Race, dtype: str, python: str, folder: Path, work: str) -> Side:
    """PyTorch, eager or compiled: what was faster in a short trial."""
    ways = {way: one.torch(dtype, way, work, python) for way in ("eager", "compile")}
    took: Dict[str, float] = {}
    # In turns, as in the race; one after the other only where one of them does not run at all.
    for trial in (ways, *({way: side} for way, side in ways.items())):
        if took.keys() >= ways.keys():
            break
        try:
            took.update({way: median(blocks.seconds) for way, blocks in in_turns(trial, 4, folder).items()})
        except (ProcessFailed, OSError) as error:
            say(f"  {one.name}, {dtype}, {' and '.join(trial)}: left out: {str(error).splitlines()[-1]}")
    if not took:
        raise ProcessFailed(f"{one.name}: PyTorch runs neither way")
    return ways[min(took, key=lambda way: took[way])]


def race_overrides(one: Race, amp: str, folder: Path) -> List[str]:
    """Returns overrides that train its network for one start; writes texts of exactly so many tokens to `folder`."""
    if one.network not in BERT_SIZES:
        images = Images(one.name, one.network, one.size, one.batch_size, one.steps, one.blocks)
        return [*images.overrides(), f"amp={amp}"]
    vocab, texts, random_ = folder / "vocab.txt", folder / "texts.tsv", random.Random(0)
    if not vocab.exists():
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = [f"w{number}" for number in range(BERT_VOCAB_SIZE - len(special))]
        vocab.write_text("\n".join([*special, *words]) + "\n")
        count = int(one.steps * (one.blocks + AHEAD) * one.batch_size / 0.8) + 10 * NUM_CLASSES
        lines = [
            f"{' '.join(random_.choices(words, k=one.size - 2))}\t{number % NUM_CLASSES}" for number in range(count)
        ]
        texts.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    names = ("num_layers", "units", "hidden_size", "num_heads")
    sizes = [f"model.{name}={number}" for name, number in zip(names, BERT_SIZES[one.network])]
    return [
        "model=bert",
        *sizes,
        f"model.max_length={one.size}",
        f"dataset.train={texts}",
        f"dataset.vocab={vocab}",
        f"dataset.max_length={one.size}",
        "dataset.val_fraction=0.1",
        "dataset.test_fraction=0",
        f"dataset.batch_size={one.batch_size}",
        f"amp={amp}",
        *STEADY,
        "optimizer.lr=2e-5",
        "optimizer.wd=0.01",
    ]


def language_overrides(one: Race, amp: str, folder: Path) -> List[str]:
    """Returns overrides that train a language model; writes texts with all words, enough for a run, to `folder`."""
    sizes = {**GPTS, **TRANSFORMERS, **LSTMS}[one.network]
    some = 2 * one.batch_size
    lines = {
        "train": 2 * sizes.vocab_size // one.size + one.steps * (one.blocks + AHEAD) * one.batch_size + some,
        "val": some,
    }
    is_translation = one.network in TRANSFORMERS
    for split, count in lines.items():
        for ending in ("en", "de") if is_translation else ("txt",):
            # One token of each is special.
            files.write_lines(folder / f"{split}.{ending}", sizes.vocab_size, one.size - 1, count)
    ending = "" if is_translation else ".txt"
    given = [
        f"amp={amp}",
        *STEADY,
        "dataset.tokenizer=words",
        f"dataset.batch_size={one.batch_size}",
        f"dataset.max_length={one.size}",
        f"dataset.vocab_size={sizes.vocab_size}",
        *(f"dataset.{split}={folder / split}{ending}" for split in lines),
    ]
    model = {"num_layers": sizes.num_layers, "units": sizes.units}
    if is_translation:
        given = [
            "task=translation",
            "dataset=parallel_text",
            "dataset.batch_tokens=null",
            "model=transformer",
            "model.size=base",
            "model.tied=all",
            f"loss.label_smoothing={LABEL_SMOOTHING}",
            "optimizer=adam",
            f"optimizer.lr={LR}",
            f"optimizer.beta2={BETA2}",
            f"optimizer.epsilon={EPSILON}",
            *given,
        ]
        model.update(hidden_size=sizes.hidden_size, num_heads=sizes.num_heads, dropout=sizes.dropout)
    else:
        given = ["task=language_modeling", f"dataset.eval_batch_size={one.batch_size}", *given]
        if one.network in LSTMS:
            given = [
                *given,
                "model=lstm",
                "optimizer=sgd",
                "optimizer.momentum=0",
                f"optimizer.lr={SGD_LR}",
                f"trainer.clip_global_norm={CLIP_NORM}",
            ]
            model.update(hidden_size=sizes.hidden_size)
            model.update({f"{place}_dropout": sizes.dropout for place in ("input", "hidden", "output")})
        else:
            given = [
                *given,
                "model=gpt",
                "optimizer=adamw",
                f"optimizer.lr={LR}",
                f"optimizer.wd={WD}",
                "task.new_tokens=1",
            ]
            model.update(num_heads=sizes.num_heads, dropout=sizes.dropout, max_length=one.size)
    return [*given, *(f"model.{name}={value}" for name, value in model.items())]


def sparse(options: Options) -> Iterator[Comparison]:
    lazy, exact = "mxtrain, lazy updates, a step", "mxtrain, exact updates, a step"
    gluon, gluon_sparse = "Gluon, dense, a step", "Gluon, sparse_grad=True, a step"
    torch = "PyTorch, sparse=True and SparseAdam, a step"
    sizes = {"1 M rows": (1_000_000, 40, 8), "10 M rows": (10_000_000, 40, 6)}
    for name, (rows, steps, blocks) in ({"1000 rows": (1000, 2, 2)} if options.quick else sizes).items():
        if options.only.lower() not in name.lower():
            continue
        steps, blocks = options.steps or steps, options.turns or blocks
        few = max(1, steps // 20)  # of what passes over all rows

        def table(kind: str, count: int, environment: Mapping[str, str], rows: int = rows) -> Side:
            return side_of("own_side:train_table", count, kind, rows, environment=environment, work=count)

        sides = {
            lazy: table("lazy", steps, tuned_environment()),
            exact: table("exact", few, tuned_environment()),
            gluon: table("gluon", few, default_environment()),
            gluon_sparse: table("gluon_sparse", steps, default_environment()),
        }
        if options.torch_python:
            sides[torch] = side_of(
                "torch_side:train_table",
                steps,
                rows,
                environment=same_threads_environment(),
                work=steps,
                python=options.torch_python,
            )
        yield Comparison(
            name,
            "ms",
            sides,
            blocks,
            [
                Ratio(torch, lazy, 1.2, "PyTorch's time / ours, lazy"),
                Ratio(gluon, lazy),
                Ratio(gluon, exact),
                Ratio(gluon_sparse, lazy),
            ],
        )


def reinforcement(options: Options) -> Measured:
    """The two sides in turn with one thread and with all cores, and the default's five seeds."""
    found = Measured(notes=[] if options.torch_python else [NO_TORCH])
    envs, steps, passes = 8, 32, 10  # those of the default, and of torch_side.py
    counted, before = (5, 4) if options.quick else (120, 20)
    for threads, chosen in (("1 thread", ONE_THREAD), ("all cores", {})):

        def ours(number: int, threads: str = threads, chosen: Mapping[str, str] = chosen) -> Dict[str, float]:
            folder = options.work / f"{threads[0]}{number}"
            clock = folder / "clock.json"
            train(
                [
                    "task=reinforcement_learning",
                    "trainer.max_epochs=1",
                    "trainer.test=false",
                    f"dataset.rollouts_per_epoch={before + counted}",
                    "dataset.val_episodes=1",
                    *callback("StepClock", path=clock),
                ],
                folder,
                environment=chosen,
            )
            told = json.loads(clock.read_text())
            begin = next(one for one in told if one[0] >= before * passes)
            made = (told[-1][0] - begin[0]) * envs * steps / passes  # of optimizer steps, steps in environments
            return {"steps": made, "wall_s": told[-1][1] - begin[1], "processor_s": told[-1][2] - begin[2]}

        def torch(number: int, chosen: Mapping[str, str] = chosen) -> Any:
            return ask(
                "torch_side:act",
                counted,
                before,
                environment={**same_threads_environment(), **chosen},
                folder=options.work,
                python=options.torch_python,
            )

        sides: Dict[str, Callable[[int], Any]] = {"mxtrain": ours}
        if options.torch_python:
            sides["PyTorch"] = torch
        measured = in_turn(sides, options.turns or (1 if options.quick else 5))
        for unit, name in (("processor_s", "second of the processor"), ("wall_s", "second")):
            rates = {side: [one["steps"] / one[unit] for one in values] for side, values in measured.items()}
            for side, values in rates.items():
                found.add(f"{side}, {threads}, environment steps in a {name}", "steps/s", values)
            if "PyTorch" in rates:
                found.compare(f"mxtrain / PyTorch, {threads}, by the {name}", rates["mxtrain"], rates["PyTorch"], 1.2)
    statuses = seeds(options, {"": ["task=reinforcement_learning"]})[""]
    returns, wall_s = each(statuses, "test/return"), each(statuses, "wall_s")
    found.add("default run, command to exit", "s", wall_s)
    found.add("default run, processor time of all threads", "s", each(statuses, "cpu_s"))
    found.add("default run, mean return of 100 test episodes", "return", returns)
    found.at_most("default run: longest wall time, s", max(wall_s), 60.0)
    found.at_least("default run: lowest mean return of 100 test episodes", min(returns), 475.0)
    return found


# GluonCV's scripts.

CIFAR_MODEL, RECORD_MODEL = "cifar_resnet20_v1", "resnest14"
CIFAR_NORM = ("dataset.mean=[0.4914,0.4822,0.4465]", "dataset.std=[0.2023,0.1994,0.2010]")
"""Normalization of the script."""
EPOCH_LINE = re.compile(r"\[Epoch \d+\] train=\S+ val=(\S+) loss=\S+ time: (\S+)")
RECORD_LINE = re.compile(r"Epoch\[\d+\]\tSpeed: (\S+) samples/sec")
SCRIPT_VARIABLE = "MXTRAIN_GLUONCV_SCRIPT"
NAG = ("optimizer=nag", "optimizer.wd=0.0001", *STEADY)


def needs_script(options: Options, *others: str) -> str:
    """Why a part can't be measured, or nothing. `others`: a further script in the same checkout."""
    script = options.gluoncv_script
    if not (script and Path(script).is_file()):
        given = f"'{script}' is no file" if script else "no script was given"
        return (
            f"{given}: check out github.com/dmlc/gluon-cv and name its "
            "scripts/classification/cifar/train_cifar10.py with --gluoncv-script or "
            f"{SCRIPT_VARIABLE}"
        )
    missing = [name for name in others if not other_script(script, name).is_file()]
    return f"{other_script(script, missing[0])} is not there, in the same checkout" if missing else ""


def other_script(cifar_script: str, name: str) -> Path:
    """A script in the same checkout's scripts/."""
    return Path(cifar_script).resolve().parents[2] / name


def _cifar_overrides(root: Path, batch_size: int) -> List[str]:
    return [
        f"model.name={CIFAR_MODEL}",
        "dataset=cifar10",
        "dataset._target_=bench_parts.files.SameWork",
        f"dataset.root={root}",
        "dataset.verify_checksum=false",
        f"dataset.eval_batch_size={batch_size}",
        *CIFAR_NORM,
        *NAG,
        "optimizer.lr=0.1",
    ]


def _script_arguments(batch_size: int, epochs: int) -> List[str]:
    return [
        "--model",
        CIFAR_MODEL,
        "--mode",
        "hybrid",
        "--save-dir",
        "params",
        "--batch-size",
        str(batch_size),
        "--num-epochs",
        str(epochs),
    ]


def gluoncv(options: Options) -> Iterator[Comparison]:
    """Seconds of an epoch, the first of each run left out."""
    # Whole batches: the script drops a partial one, and we don't.
    samples, batch_size, epochs, times = (64, 32, 2, 1) if options.quick else (2048, 128, 3, 3)
    root = options.work / "home" / "datasets" / "cifar10"
    files.write_cifar(root, samples)

    def ours(number: int) -> float:
        clock = options.work / f"ours{number}" / "clock.json"
        train(
            [
                *_cifar_overrides(root, batch_size),
                f"dataset.batch_size={batch_size}",
                f"trainer.max_epochs={epochs}",
                *callback("ValidationClock", path=clock),
            ],
            clock.parent,
        )
        return median(epoch_seconds(clock))

    def theirs(environment: Mapping[str, str], more: Sequence[str], number: int) -> float:
        arguments = [str(Path(options.gluoncv_script).resolve()), *_script_arguments(batch_size, epochs), *more]
        told = {**environment, "MXNET_HOME": str(options.work / "home")}
        done = run(["-m", "bench_parts.gluoncv_side", *arguments], told, options.work)
        seconds = [float(took) for _, took in EPOCH_LINE.findall(done.stderr + done.stdout)]
        if len(seconds) < 2:
            raise ValueError(f"the script logged {len(seconds)} epochs; two are needed: {done.stderr[-2000:]}")
        return median(seconds[1:])

    as_ours, defaults = "train_cifar10.py, our environment, 2 workers", "train_cifar10.py, its defaults"
    yield Comparison(
        f"an epoch of {CIFAR_MODEL}",
        "s",
        {
            "mxtrain": ours,
            as_ours: partial(theirs, tuned_environment(), ["-j", "2"]),
            defaults: partial(theirs, default_environment(), []),
        },
        times,
        [
            Ratio(as_ours, "mxtrain", 1.0, "GluonCV's in our environment / ours"),
            Ratio(defaults, "mxtrain", 1.0, "GluonCV's with its defaults / ours"),
        ],
    )


def gluoncv_workers(options: Options) -> Iterator[Comparison]:
    """samples/s of two workers together, one thread each."""
    environment = {**tuned_environment(), **ONE_THREAD}
    times, home = 1 if options.quick else 5, options.work / "home"
    samples, batch_size, epochs = (16, 8, 2) if options.quick else (512, 64, 4)
    files.write_cifar(home / "datasets" / "cifar10", samples)

    def ours(store: str, given: Sequence[str], size: int, folder: Path) -> Path:
        common = [
            f"kvstore={store}",
            "cluster.workers=2",
            f"dataset.batch_size={2 * size}",
            f"trainer.max_epochs={epochs}",
            "optimizer.momentum=0.9",
            "trainer.test=false",
        ]
        return train([*given, *common], folder, environment=ONE_THREAD)

    def cifar_ours(number: int) -> float:
        folder = options.work / f"ours-cifar-{number}"
        given = _cifar_overrides(home / "datasets" / "cifar10", batch_size)
        ours("dist_sync", [*given, *callback("ValidationClock", path=folder / "clock")], batch_size, folder)
        return 5 * samples / median(epoch_seconds(folder / "clock"))

    def cifar_theirs(number: int) -> float:
        script = str(Path(options.gluoncv_script).resolve())
        worker = ["-m", "bench_parts.gluoncv_side", script, *_script_arguments(batch_size, epochs), "-j", "1"]
        said = _group_of_mxnet(worker, {**environment, "MXNET_HOME": str(home)}, options.work / f"theirs-{number}")
        return 2 * 5 * samples / median([float(took) for _, took in EPOCH_LINE.findall(said)][1:])

    name = "our samples/s / GluonCV's"
    yield Comparison(
        f"{CIFAR_MODEL}, dist_sync",
        "samples/s",
        {
            "mxtrain": cifar_ours,
            "train_cifar10.py": cifar_theirs,
        },
        times,
        [Ratio("mxtrain", "train_cifar10.py", 1.0, name)],
    )
    if not has_horovod():
        return
    images, size, root = 32 if options.quick else 512, 8 if options.quick else 32, options.work / "records"
    ask("files:write_records", root, images, 2 * size, environment=environment, folder=options.work)

    def records_ours(number: int) -> float:
        given = [
            f"model.name={RECORD_MODEL}",
            "dataset=image_record",
            f"dataset.root={root}",
            f"dataset.image_size=[{files.RECORD_SIDE},{files.RECORD_SIDE}]",
            "dataset.augment.crop_scale=[0.08,1.0]",
            *NAG,
            "optimizer.lr=0.01",
            "trainer.limit_val_batches=1",
        ]
        rows = rows_of(ours("horovod", given, size, options.work / f"ours-records-{number}"))
        return median([row["samples_per_s"] for row in rows if row["split"] == "train" and row["epoch"] > 1])

    def records_theirs(number: int) -> float:
        script = str(other_script(options.gluoncv_script, HOROVOD_SCRIPT))
        arguments = [
            "--rec-train",
            f"{root}/images_train.rec",
            "--rec-val",
            f"{root}/images_val.rec",
            "--model",
            RECORD_MODEL,
            "--batch-size",
            str(size),
            "--num-epochs",
            str(epochs),
            "--no-cuda",
            "--input-size",
            str(files.RECORD_SIDE),
            "--data-nthreads",
            "1",
            "--log-interval",
            "0",
            "--save-frequency",
            "0",
            "--lr",
            "0.005",
            "--warmup-epochs",
            "0",
        ]
        launcher = ["-m", "horovod.runner.launch", "-np", "2", "--gloo", sys.executable, "-m"]
        done = run(
            [*launcher, "bench_parts.gluoncv_side", script, *arguments],
            environment,
            options.work / f"theirs-records-{number}",
        )
        return median([float(speed) for speed in RECORD_LINE.findall(done.stdout + done.stderr)][1:])

    yield Comparison(
        f"{RECORD_MODEL}, horovod",
        "samples/s",
        {
            "mxtrain": records_ours,
            "train_horovod.py": records_theirs,
        },
        times,
        [Ratio("mxtrain", "train_horovod.py", 1.0, name)],
    )


HOROVOD_SCRIPT, SEGMENTATION_SCRIPT = "classification/imagenet/train_horovod.py", "segmentation/train.py"


def _group_of_mxnet(worker: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """Runs a scheduler, a server and two workers by dmlc's variables; what the first worker printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tracker = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    importing = ["-c", "import mxtrain.engine.backend"]  # MXNet serves while it is imported
    orders = [("scheduler", importing), ("server", importing), ("worker", worker), ("worker", worker)]
    with ExitStack() as stack:
        processes, logs = [], []
        for number, (role, arguments) in enumerate(orders):
            own = folder / f"{role}-{number}"
            own.mkdir(parents=True)
            logs.append(own / "log")
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**environment, **tracker, "DMLC_ROLE": role},
                cwd=own,
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(open(logs[-1], "w")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(partial(_end, process))
            processes.append(process)
        for process, log in zip(processes[2:], logs[2:]):
            if process.wait(TIMEOUT_S) != 0:
                raise ProcessFailed(f"exit code {process.returncode}\n{log.read_text()[-2000:]}")
    return logs[2].read_text()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its loaders' processes."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()


AS_SHIPPED, AS_OURS = "train.py, MXNet's defaults", "train.py, our environment, hybridized"


def segmentation(options: Options) -> Iterator[Comparison]:
    cases = [("fcn", "fcn_resnet50", 128, 4, 3), ("fastscnn", "fastscnn", 128, 8, 10)]
    blocks = options.turns or (2 if options.quick else 8)
    script = str(other_script(options.gluoncv_script, SEGMENTATION_SCRIPT))
    for architecture, name, crop, batch_size, steps in [("fastscnn", "fastscnn", 64, 2, 2)] if options.quick else cases:
        steps = options.steps or steps
        home, work = options.work / name / "home", steps * batch_size
        devkit = home / ".mxnet" / "datasets" / "voc"
        files.write_segmentation(devkit, work * (blocks + AHEAD))
        overrides = [
            "task=segmentation",
            "dataset=voc_segmentation",
            f"dataset.root={devkit}",
            f"dataset.image_size=[{crop},{crop}]",
            f"dataset.batch_size={batch_size}",
            "model=gluoncv_segmentation",
            f"model.name={name}",
            "optimizer=sgd",
            "optimizer.lr=0.001",
            "optimizer.momentum=0.9",
            "optimizer.wd=0.0001",
            "lr_scheduler=poly",
            "lr_scheduler.power=0.9",
            "early_stopping=off",
        ]
        arguments = [
            "--no-cuda",
            "--dataset",
            "pascal_voc",
            "--model",
            architecture,
            "--aux",
            "--aux-weight",
            "0.5",
            "--base-size",
            str(max(files.SEGMENTATION_SIZE)),
            "--crop-size",
            str(crop),
            "--batch-size",
            str(batch_size),
            "--workers",
            "2",
            "--lr",
            "0.001",
            "--momentum",
            "0.9",
            "--weight-decay",
            "0.0001",
            "--no-val",
            "--save-dir",
            "params",
        ]
        sides = {"mxtrain": mxtrain_side(overrides, steps, work, stopped_between=True)}
        for side, hybridized, environment in (
            (AS_SHIPPED, False, default_environment()),
            (AS_OURS, True, tuned_environment()),
        ):
            # It takes turns by itself: the script has the loop.
            sides[side] = replace(
                side_of(
                    "gluoncv_side:segment",
                    0,
                    steps,
                    hybridized,
                    script,
                    arguments,
                    work=work,
                    environment={**environment, "HOME": str(home)},
                    stopped_between=True,
                ),
                steps=steps,
            )
        yield Comparison(
            f"{name}, {crop} px, batch {batch_size}",
            "samples/s",
            sides,
            blocks,
            [
                Ratio("mxtrain", AS_SHIPPED, 1.2),
                Ratio("mxtrain", AS_OURS),
            ],
        )


DETECTION_SGD = (
    "optimizer=sgd",
    "optimizer.lr=0.001",
    "optimizer.momentum=0.9",
    "optimizer.wd=0.0005",
    "model.no_decay_norm_and_bias=false",
)
DETECTION_ADAM = ("optimizer=adam", "optimizer.lr=0.000125", "optimizer.wd=0.0001")
FROZEN = ("features.*batchnorm*", "features.resnetv1b_conv0_*", "features.resnetv1b_layers1_*")
"""Parameters that GluonCV does not train in its Faster R-CNN around a ResNet (`train_patterns`)."""


class Detector(NamedTuple):
    """A network, and what is trained.

    Attributes:
        model: an option of conf/model/.
        name: GluonCV's name of the network.
        size: of the square that enters it, in pixels; of Faster R-CNN the shorter side.
        overrides: of our side: the script's optimizer, and what else the network needs.
        width: of what enters it where that is no square.
        ours: its name here, where that is another.
    """

    model: str
    name: str
    size: int
    batch_size: int
    steps: int
    overrides: Sequence[str] = DETECTION_SGD
    width: int = 0
    ours: str = ""

    def side(self, steps: int, devkit: Path, *further: str) -> Side:
        return mxtrain_side([*self.given(devkit), *further], steps, steps * self.batch_size, stopped_between=True)

    def given(self, devkit: Path) -> List[str]:
        return [
            "task=detection",
            "dataset=voc",
            f"dataset.root={devkit}",
            f"dataset.train_split={files.DETECTION_SPLIT}",
            f"dataset.val_split={files.DETECTION_VAL_SPLIT}",
            f"dataset.image_size=[{self.size},{self.width or self.size}]",
            f"dataset.batch_size={self.batch_size}",
            f"model={self.model}",
            f"model.name={self.ours or self.name}",
            *self.overrides,
            *STEADY,
        ]


DETECTORS = (
    Detector("ssd", "ssd_512_mobilenet1.0", 512, 8, 3),
    Detector("ssd", "ssd_300_vgg16_atrous", 300, 4, 1),
    Detector("yolo3", "yolo3_mobilenet1.0", 320, 8, 2),
    Detector("center_net", "center_net_resnet18_v1b", 256, 8, 3, DETECTION_ADAM),
    Detector(
        "faster_rcnn",
        "faster_rcnn_fpn_resnet18_v1b",
        320,
        2,
        1,
        (*DETECTION_SGD, "model.backbone=resnet18_v1b", f"model.freeze={json.dumps(FROZEN)}"),
        427,
        "faster_rcnn_fpn_custom",
    ),
)
QUICK_DETECTORS = (Detector("yolo3", "yolo3_mobilenet0.25", 96, 2, 2),)
OURS, BFLOAT16 = "mxtrain", "mxtrain, bfloat16"
SAME, INSTALLED = "GluonCV, our environment", "GluonCV, as installed"


def detection_race(options: Options) -> Measured:
    found, detectors = Measured(), QUICK_DETECTORS if options.quick else DETECTORS
    blocks = options.turns or (2 if options.quick else 5)
    for one in detectors:
        steps, folder = options.steps or one.steps, options.work / one.name
        devkit, work = folder / "VOCdevkit", steps * one.batch_size
        files.write_detection(devkit, work * (blocks + AHEAD))
        sides = {OURS: one.side(steps, devkit), BFLOAT16: one.side(steps, devkit, "amp=bfloat16")}
        # Processes that load images: as many as cores, and what its scripts take where nothing is said.
        for name, loading, environment in ((SAME, 2, tuned_environment()), (INSTALLED, 4, default_environment())):
            sides[name] = side_of(
                "gluoncv_side:detect",
                steps,
                one.name,
                one.size,
                one.batch_size,
                loading,
                devkit,
                environment=environment,
                work=work,
                stopped_between=True,
            )
        Comparison(
            f"{one.name}, {one.size} px, batch {one.batch_size}",
            "samples/s",
            sides,
            blocks,
            [
                Ratio(OURS, SAME, 1.3),
                Ratio(OURS, INSTALLED),
                Ratio(BFLOAT16, OURS),
            ],
            memory=True,
        ).measure(folder, found)
    one, folder = detectors[0], options.work / "looked_at"
    files.write_detection(folder / "VOCdevkit", one.batch_size * 15)  # three steps are looked at after the first ten
    train(
        [
            *one.given(folder / "VOCdevkit"),
            *callback("Waiting", path=folder / "waiting"),
            "trainer.profile=true",
            "trainer.max_steps=15",
            "trainer.max_epochs=1",
            "checkpoint=off",
        ],
        folder,
        ENDS_WELL,
    )
    name = f"{one.name}: share of a step in which the device waits, by trainer.profile"
    found.at_most(name, json.loads((folder / "waiting").read_text()), 0.05)
    return found


# Reading, searching, starting.

LOADERS = {
    "loader": "CIFAR-format samples, crop, flip, normalise: our loader",
    "gluon_dataloader_0": "the same: gluon.data.DataLoader, no workers",
    "gluon_dataloader_1": "the same: gluon.data.DataLoader, 1 worker",
    "gluon_dataloader_2": "the same: gluon.data.DataLoader, 2 workers",
    "image_folder_224": "JPEG 500 x 375 to 224 x 224: image_folder",
    "image_record_224": "JPEG 500 x 375 to 224 x 224: image_record",
    "mxnet_iterator_224": "JPEG 500 x 375 to 224 x 224: MXNet's ImageRecordUInt8Iter",
}


def loader(options: Options) -> Measured:
    """Three rounds over all of them."""
    rounds = [
        ask("own_side:read_samples", options.quick, environment=tuned_environment(), folder=options.work)
        for _ in range(1 if options.quick else 3)
    ]
    found = Measured()
    for name, text in LOADERS.items():
        found.add(text, "samples/s", [one[name] for one in rounds])
    best = max(series.median for series in found.series[1:4])
    found.at_least("loader / best DataLoader", found.series[0].median / best, 1.0)
    return found


def beam_search(options: Options) -> Measured:
    """Trains task=translation once, with norms where GluonNLP has them, then translates its test split in turns."""
    tiny = [
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=4",
        "model.num_layers=1",
        "model.units=32",
        "model.hidden_size=64",
        "model.num_heads=2",
        "task.max_length_offset=10",
    ]
    environment, largest = same_threads_environment(), 64
    given = ["task=translation", "model.norm_first=false", "trainer.test=false", *(tiny if options.quick else [])]
    run_dir = train(given, options.work, environment=environment)
    found, count = Measured(), 12 if options.quick else 500

    def speed(side: str, size: int, number: int = 0) -> float:
        told = ask("own_side:translate", run_dir, side, size, count, environment=environment, folder=options.work)
        found.details.setdefault(str(size) if side == "ours" else side, told)
        return float(told["sentences_per_s"])

    ours, single = f"mxtrain, {largest} sentences at a time", "mxtrain, one sentence at a time"
    sampler = f"GluonNLP's BeamSearchSampler with mxtrain's network, {largest} at a time"
    network = f"GluonNLP's network and BeamSearchSampler, {largest} at a time"
    speed("ours", 8)
    sides = {ours: partial(speed, "ours", largest), single: partial(speed, "ours", 1)}
    if HAS_GLUONNLP:
        sides.update(
            {sampler: partial(speed, "gluonnlp", largest), network: partial(speed, "gluonnlp_network", largest)}
        )
    Comparison(
        "",
        "sentences/s",
        sides,
        1 if options.quick else 3,
        [
            Ratio(ours, single, 2.0, f"{largest} sentences at a time / one"),
            Ratio(ours, network, 3.0, "mxtrain / GluonNLP's network"),
            Ratio(ours, sampler, 2.0, "mxtrain / GluonNLP's sampler"),
        ],
    ).measure(options.work, found)

    def same(name: str) -> float:
        pairs = list(zip(found.details[name]["found"], found.details[str(largest)]["found"]))
        return sum(a == b for a, b in pairs) / len(pairs)

    share = "share of sentences with the same tokens"
    for size in ("1", "8"):
        found.at_least(f"{share}, {size} at a time and {largest}", same(size), 1.0)
    if HAS_GLUONNLP:
        # Else it would be another network.
        found.at_least(f"{share}, GluonNLP's network and mxtrain", same("gluonnlp_network"), 0.99)
        found.notes.append(f"GluonNLP's sampler with mxtrain's network: the same tokens for {same('gluonnlp'):.1%}.")
    else:
        found.notes.append(NO_GLUONNLP)
    return found


def corpora(options: Options) -> Measured:
    """Encodes in turns with `tokenizers`; then prepares a large text once, starts again, and reads a table."""
    times, rows = (1, 1000) if options.quick else (3, 400_000)
    sizes = {
        "large.txt": 2.0 if options.quick else 1000.0,
        "small.txt": 1.0 if options.quick else 200.0,
        "table.csv": 1.0 if options.quick else 85.0,
    }

    def side(function: str, cache: str, *arguments: Any, checkout: Path = ROOT) -> Any:
        environment = {**untouched_environment(), "XDG_CACHE_HOME": str(options.work / f"cache_{cache}")}
        if checkout != ROOT:
            environment["PYTHONPATH"] = f"{ROOT / 'scripts'}:{checkout}"
        return ask(f"own_side:{function}", *arguments, environment=environment, folder=options.work)

    large, small, table = (options.work / name for name in sizes)
    for name, size in sizes.items():
        side("write_corpus", "", options.work / name, size, rows if name.endswith("csv") else 0)
    vocab = options.work / "vocabulary.json"
    side("make_vocabulary", "", vocab)
    found, small_MB, large_MB = Measured(), sizes["small.txt"], sizes["large.txt"]
    ours, library = "text to tokens in shards on the disk", "tokenizers' encode_batch, nothing else"
    sides = {
        ours: lambda number: small_MB / side("prepare", f"turn{number}", small, vocab)["tokens_s"],
        library: lambda number: small_MB / side("encode_with_library", "library", small, vocab)["tokens_s"],
    }
    ratios = [Ratio(ours, library, 0.8, "ours / encode_batch, as many threads")]
    Comparison("", "MB/s", sides, times, ratios).measure(options.work, found)
    first = side("prepare", "large", large, vocab)
    again = [side("train_one_step", "large", large, vocab) for _ in range(times)]
    took_s = first["texts_s"] + first["tokens_s"]
    found.add(f"{large_MB:g} MB, text file to first batch", "MB/s", [large_MB / took_s])
    found.add("second start: imports done to the end of a run of one step", "s", [one["step_s"] for one in again])
    found.at_most(f"peak memory of preparing {large_MB:g} MB, MB", first["peak_mb"], 500)
    found.at_most("second start, s", found.series[-1].median, 3.0)
    found.table = [["table of texts", "first batch, s", "again, s", "peak memory, MB"]]
    for name, checkout in options.checkouts().items():
        one, two = (side("read_table", f"table_{name}", table, checkout=checkout) for _ in range(2))
        figures = [f"{one['first_batch_s']:.1f}", f"{two['first_batch_s']:.1f}", f"{one['peak_mb']:.0f}"]
        found.table.append([f"{rows:,} rows, {name}", *figures])
    found.details.update(first=first, again=again)
    return found
