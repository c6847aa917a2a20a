"""Training against PyTorch: the same networks, batches and optimizers, in turns, in float32 and bfloat16."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Callable, Dict, List, Optional, Sequence

from bench_parts.bert_sizes import BERT_SIZES, NUM_CLASSES, VOCAB_SIZE
from bench_parts.measured import Measured, Options, Series, say
from bench_parts.processes import (
    ROOT,
    ProcessFailed,
    default_environment,
    mxtrain_arguments,
    same_threads_environment,
    untouched_environment,
)
from bench_parts.runner import MODELS, Case, hand_loop
from bench_parts.turns import Side, TurnsCallback, in_turns

DTYPES = {"off": "float32", "bfloat16": "bfloat16"}
TRIAL_BLOCKS = 4
GLUONNLP = "GluonNLP, float32"
HAS_GLUONNLP = find_spec("gluonnlp") is not None


@dataclass(frozen=True)
class Race:
    """A network at one size.

    Attributes:
        network: what `torch_loop` calls it.
        size: pixels, or tokens.
        fp32, bf16: how many times as fast as PyTorch it should be, or None where it is not compared.
        defaults: how many times as fast as MXNet with its defaults, in each precision, or None.
        gluonnlp: how many times as fast as GluonNLP in float32, or None.
        starts: how often all sides are started anew, for `blocks` each: a process is fast or slow as a whole.
    """

    name: str
    network: str
    size: int
    batch_size: int
    block_steps: int
    blocks: int
    fp32: Optional[float]
    bf16: Optional[float]
    defaults: Optional[Sequence[float]] = None
    gluonnlp: Optional[float] = None
    starts: int = 1

    @property
    def unit(self) -> str:
        """Of what is counted."""
        return "samples/s"

    @property
    def per_block(self) -> int:
        """So many of them are in a block."""
        return self.block_steps * self.batch_size


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
SGD = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.wd=0.0001")
ZOO = {**MODELS, "mobilenet": ["model=gluoncv", "model.name=mobilenet1.0"],
       "densenet121": ["model=gluoncv", "model.name=densenet121"]}  # fmt: skip


def missing(torch_python: str) -> str:
    """Why there is no race, or an empty string."""
    if not torch_python:
        return "it needs --torch-python: a Python in whose environment PyTorch is installed"
    return "" if Path(torch_python).exists() else f"{torch_python} is not there"


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Ours: `python -m mxtrain` with every default callback and logger, its data through the loader. PyTorch's: "
        "scripts/bench_parts/torch_loop.py, channels last, autocast, fused optimizers, batches on hand; of eager and "
        "torch.compile, the one that was faster in a short trial. All with as many threads as there are cores; what "
        "else mxtrain sets is mxtrain's alone. They train in turns. A process is fast or slow as a whole (BERT of 4 "
        "layers in bfloat16: 365 to 490 ms a step), so all but ResNet-50's are started anew, two to four times.",
        "Images: SGD with momentum and weight decay, 10 classes. Texts: AdamW, 10 classes, a vocabulary of 30522, all "
        "texts of full length, though the networks mask padding; dropout 0.1. GluonNLP: its BERT and optimizer "
        "(scripts/bench_parts/gluonnlp_loop.py), hybridized with static_alloc.",
    ])  # fmt: skip
    if not HAS_GLUONNLP:
        found.notes.append("GluonNLP is not installed here (pip install gluonnlp==0.10.0): it was not measured.")
    for race in QUICK_RACES if options.quick else RACES:
        _run(race, options, found)
    return found


def _run(race: Race, options: Options, found: Measured) -> None:
    folder = folder_of(race, options)
    sides = both_sides(race, _ours, folder, options.torch_python, "train")
    if race.defaults is not None:
        case = Case(race.name, race.network, race.size, race.batch_size, race.block_steps, race.blocks)
        sides["MXNet's defaults, float32"] = hand_loop(case, default_environment())
    if race.gluonnlp is not None and HAS_GLUONNLP:
        sides[GLUONNLP] = gluonnlp_side(race, same_threads_environment())
    rates = rates_of(race, sides, folder, found)
    compare_with_libraries(race, rates, found)
    for dtype, target in zip(DTYPES.values(), race.defaults or ()):
        plain = rates["MXNet's defaults, float32"]
        found.compare(f"{race.name}: {dtype} / MXNet's defaults", rates[f"mxtrain, {dtype}"], plain, target)
    ours = [rates[f"mxtrain, {dtype}"] for dtype in ("bfloat16", "float32")]
    found.compare(f"{race.name}: mxtrain, bfloat16 / float32", *ours, 1.0)


def compare_with_libraries(race: Race, rates: Dict[str, List[float]], found: Measured) -> None:
    """Notes how our sides stand to PyTorch's and GluonNLP's, where these were measured."""
    rivals = [(f"PyTorch, {dtype}", dtype, target) for dtype, target in zip(DTYPES.values(), (race.fp32, race.bf16))]
    for name, dtype, target in [*rivals, (GLUONNLP, "float32", race.gluonnlp)]:
        if name in rates and target is not None:
            found.compare(f"{race.name}: mxtrain / {name}", rates[f"mxtrain, {dtype}"], rates[name], target)


def gluonnlp_side(race: Race, environment: Dict[str, str]) -> Side:
    """GluonNLP's own network."""
    arguments = [race.network, race.size, race.batch_size, race.block_steps]
    return Side(["-m", "bench_parts.gluonnlp_loop", *map(str, arguments)], environment)


def folder_of(race: Race, options: Options) -> Path:
    """A new folder for what its sides write."""
    folder = options.work / race.name.replace(" ", "_").replace(",", "")
    folder.mkdir()
    return folder


def both_sides(
    race: Race, ours: Callable[[Race, str, Path], Side], folder: Path, torch_python: str, work: str
) -> Dict[str, Side]:
    """Ours and PyTorch's in each precision; `work` is train or eval."""
    sides: Dict[str, Side] = {}
    for amp, dtype in DTYPES.items():
        sides[f"mxtrain, {dtype}"] = ours(race, amp, folder)
        sides[f"PyTorch, {dtype}"] = faster_torch(race, dtype, torch_python, folder, work)
    return sides


def rates_of(race: Race, sides: Dict[str, Side], folder: Path, found: Measured) -> Dict[str, List[float]]:
    """What each side computes in a second, in each of its blocks, in turns; notes them, and the most memory of each."""
    peaks: Dict[str, List[float]] = {name: [] for name in sides}
    seconds: Dict[str, List[float]] = {name: [] for name in sides}
    for start in range(race.starts):
        own = folder / f"start{start}"
        own.mkdir()
        memory: Dict[str, float] = {}
        for name, values in in_turns(sides, race.blocks, own, memory).items():
            seconds[name] += values
            peaks[name].append(memory[name])
    rates = {name: [race.per_block / value for value in values] for name, values in seconds.items()}
    found.series += [Series(f"{race.name}: {name}", race.unit, values) for name, values in rates.items()]
    found.series += [Series(f"{race.name}: {name}, most memory", "MiB", values) for name, values in peaks.items()]
    return rates


def _ours(race: Race, amp: str, folder: Path) -> Side:
    given = [*overrides_of(race, amp, folder), *TurnsCallback.overrides(race.block_steps)]
    return Side(mxtrain_arguments(given), untouched_environment())


def overrides_of(race: Race, amp: str, folder: Path) -> List[str]:
    """What trains its network for one start; texts are written to `folder`."""
    given = [f"amp={amp}", "lr_scheduler=constant", "early_stopping=off", f"dataset.batch_size={race.batch_size}"]
    samples = race.block_steps * (race.blocks + 5) * race.batch_size
    if race.network in BERT_SIZES:
        given = ["model=bert", *_text(race, samples, folder), *given, "optimizer.lr=2e-5", "optimizer.wd=0.01"]
        names = ("num_layers", "units", "hidden_size", "num_heads")
        given += [f"model.{name}={number}" for name, number in zip(names, BERT_SIZES[race.network])]
        given.append(f"model.max_length={race.size}")
    else:
        shape = f"dataset.shape=[3,{race.size},{race.size}]"
        given = [*ZOO[race.network], "dataset=synthetic", shape, f"dataset.num_samples={int(samples / 0.8) + 10}",
                 *given, *SGD]  # fmt: skip
    return given


def _text(race: Race, samples: int, folder: Path) -> List[str]:
    """Texts of exactly so many tokens."""
    vocab, texts, random_ = folder / "vocab.txt", folder / "texts.tsv", random.Random(0)
    if not vocab.exists():
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = [f"w{number}" for number in range(VOCAB_SIZE - len(special))]
        vocab.write_text("\n".join([*special, *words]) + "\n")
        lines = [f"{' '.join(random_.choices(words, k=race.size - 2))}\t{number % NUM_CLASSES}"
                 for number in range(int(samples / 0.8) + 10 * NUM_CLASSES)]  # fmt: skip
        texts.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return [f"dataset.train={texts}", f"dataset.vocab={vocab}", f"dataset.max_length={race.size}",
            "dataset.val_fraction=0.1", "dataset.test_fraction=0"]  # fmt: skip


def faster_torch(race: Race, dtype: str, python: str, folder: Path, work: str) -> Side:
    """PyTorch, eager or compiled; `work` is train or eval."""
    environment = {**same_threads_environment(), "PYTHONPATH": str(ROOT / "scripts")}
    arguments = [race.network, race.size, race.batch_size, race.block_steps, dtype]
    ways = {
        way: Side(["-m", "bench_parts.torch_loop", *map(str, arguments), way, work], environment, python=python)
        for way in ("eager", "compile")
    }
    took: Dict[str, float] = {}
    # In turns, as in the race; one after the other only where one of them does not run at all.
    for trial in (ways, *({way: side} for way, side in ways.items())):
        if took.keys() >= ways.keys():
            break
        try:
            took.update({way: median(s) for way, s in in_turns(trial, TRIAL_BLOCKS, folder).items()})
        except (ProcessFailed, OSError) as error:
            say(f"  {race.name}, {dtype}, {' and '.join(trial)}: left out: {str(error).splitlines()[-1]}")
    if not took:
        raise ProcessFailed(f"{race.name}: PyTorch runs neither way")
    say(
        f"  {race.name}, {dtype}: PyTorch's "
        + ", ".join(f"{way} {s / race.block_steps:.3f} s a step" for way, s in took.items())
    )
    return ways[min(took, key=lambda way: took[way])]
