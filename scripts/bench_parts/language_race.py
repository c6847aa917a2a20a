"""Training of language networks against PyTorch and GluonNLP: GPT-2, a Transformer that translates, and an LSTM."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Dict, Iterator, List

from bench_parts import race as races
from bench_parts.language_sizes import (
    BETA2,
    CLIP_NORM,
    EPSILON,
    GPTS,
    LABEL_SMOOTHING,
    LR,
    LSTMS,
    SGD_LR,
    TRANSFORMERS,
    WD,
)
from bench_parts.measured import Measured, Options, Series, ratios, say
from bench_parts.processes import default_environment, mxtrain_arguments, tuned_environment, untouched_environment
from bench_parts.race import GLUONNLP, HAS_GLUONNLP, Race
from bench_parts.turns import Side, TurnsCallback
from mxtrain.dataset.language.tokenizing.base import OWN_SPECIAL

SHIPPED = "GluonNLP as installed, float32"
OURS = "mxtrain, float32"
AHEAD = 6
"""Blocks' worth of steps that no side reaches: the epoch must not end, since what follows it is not compared."""


@dataclass(frozen=True)
class LanguageRace(Race):
    """A network of language; `size` is tokens of a text, of a translation those of its source, and as many of its
    target, which are counted."""

    @property
    def unit(self) -> str:
        return "tokens/s"

    @property
    def per_block(self) -> int:
        return self.block_steps * self.batch_size * self.size


RACES = (
    LanguageRace("GPT-2 small, 4 x 256 tokens", "gpt2", 256, 4, 1, 4, 1.1, 1.1),
    LanguageRace("Transformer-base, 64 x 32 tokens", "transformer_base", 32, 64, 1, 4, 1.1, 1.1, gluonnlp=1.3),
    LanguageRace("LSTM of 2 x 650, 20 x 35 tokens", "lstm_650", 35, 20, 3, 6, None, None, gluonnlp=1.2),
)
QUICK_RACES = (
    LanguageRace("GPT of 2 layers, 2 x 8 tokens", "gpt_tiny", 8, 2, 2, 2, 1.1, 1.1),
    LanguageRace("Transformer of 2 + 2 layers, 2 x 8 tokens", "transformer_tiny", 8, 2, 2, 2, 1.1, 1.1, gluonnlp=1.3),
    LanguageRace("LSTM of 2 x 32, 2 x 8 tokens", "lstm_tiny", 8, 2, 2, 2, None, None, gluonnlp=1.2),
)
NOTES = (
    "Ours: `python -m mxtrain` with every default callback and logger, its data through the loader. Other sides: "
    "batches on hand. They train in turns, a block of steps each; start, compilation and the first two blocks are left "
    "out, and no epoch ends within a measurement. Tokens are random words; all texts have full length, though the "
    "Transformer masks padding. Tokens of a translation are those of its target; its source has as many.",
    "GPT-2 small: 12 layers, 768 units, 12 heads, a vocabulary of 50257, tied, dropout 0.1 (of attention, too), AdamW. "
    "Transformer-base: 6 + 6 layers, 512 units, 2048 hidden, 8 heads, a joint vocabulary of 8000, one table, dropout "
    "0.1, label smoothing 0.1, Adam. LSTM: GluonNLP's standard_lstm_lm_650 (2 layers, dropout 0.5, tied) with the size "
    "of WikiText-2's vocabulary, 33278, windows of 35 tokens, SGD, gradients clipped together to 0.25.",
    "PyTorch's: scripts/bench_parts/torch_language.py: scaled_dot_product_attention, fused optimizers, autocast; of "
    "eager and torch.compile (network and loss), the one that was faster in a short trial. As many threads as there "
    "are cores.",
    "GluonNLP's: scripts/bench_parts/gluonnlp_language.py: the networks, losses and optimizers of its scripts "
    "train_transformer.py and word_language_model.py, hybridized with static_alloc, in the environment that mxtrain "
    "sets for itself; a further side has MXNet's defaults. Its Transformer drops attention weights, too, ours "
    "and PyTorch's do not. Between its LSTM layers MXNet's operator drops nothing on a CPU, ours drops half.",
)  # fmt: skip


def missing(torch_python: str) -> str:
    """Why there is no race, or an empty string."""
    return races.missing(torch_python) if torch_python or not HAS_GLUONNLP else ""


def measure(options: Options) -> Measured:
    found = Measured(notes=list(NOTES))
    if not HAS_GLUONNLP:
        found.notes.append("GluonNLP is not installed here (pip install gluonnlp==0.10.0): it was not measured.")
    if not options.torch_python:
        found.notes.append("No --torch-python was given: PyTorch was not measured.")
    for race in QUICK_RACES if options.quick else RACES:
        if options.only.lower() in race.name.lower():
            blocks, steps = options.turns or race.blocks, options.steps or race.block_steps
            _run(replace(race, blocks=blocks, block_steps=steps), options, found)
    return found


def _run(race: Race, options: Options, found: Measured) -> None:
    """Measures one precision after the other: all sides of both would need 20 GiB for GPT-2."""
    folder = races.folder_of(race, options)
    for amp, dtype in races.DTYPES.items():
        own = folder / dtype
        own.mkdir()
        rivals: Dict[str, Side] = {}
        if options.torch_python and race.fp32 is not None:
            rivals[f"PyTorch, {dtype}"] = races.faster_torch(race, dtype, options.torch_python, own, "train")
        if HAS_GLUONNLP and race.gluonnlp is not None and dtype == "float32":
            rivals[GLUONNLP] = races.gluonnlp_side(race, tuned_environment())
            rivals[SHIPPED] = races.gluonnlp_side(race, default_environment())
        if not rivals:
            say(f"  {race.name}, {dtype}: left out, there is nothing to compare with")
            continue
        rates = races.rates_of(race, {f"mxtrain, {dtype}": _ours(race, amp, own), **rivals}, own, found)
        races.compare_with_libraries(race, rates, found)
        if SHIPPED in rates:
            shares = ratios(rates[OURS], rates[SHIPPED])
            found.series.append(Series(f"{race.name}: mxtrain / {SHIPPED}, pair by pair", "ratio", shares))


def _ours(race: Race, amp: str, folder: Path) -> Side:
    given = [f"amp={amp}", "lr_scheduler=constant", "early_stopping=off", "dataset.tokenizer=words",
             f"dataset.batch_size={race.batch_size}", f"dataset.max_length={race.size}"]  # fmt: skip
    build = _translation if race.network in TRANSFORMERS else _modeling
    given = [*build(race, folder), *given, *TurnsCallback.overrides(race.block_steps)]
    return Side(mxtrain_arguments(given), untouched_environment())


def _modeling(race: Race, folder: Path) -> List[str]:
    """What trains a model of running text, which is written to `folder`."""
    network: List[str] = ["model=gpt", "optimizer=adamw", f"optimizer.lr={LR}", f"optimizer.wd={WD}"]
    if race.network in LSTMS:
        sizes = LSTMS[race.network]
        network = ["model=lstm", f"model.hidden_size={sizes.hidden_size}", "optimizer=sgd", "optimizer.momentum=0",
                   f"optimizer.lr={SGD_LR}", f"trainer.clip_global_norm={CLIP_NORM}"]  # fmt: skip
        network += [f"model.{place}_dropout={sizes.dropout}" for place in ("input", "hidden", "output")]
    else:
        sizes = GPTS[race.network]
        network += [f"model.num_heads={sizes.num_heads}", f"model.dropout={sizes.dropout}",
                    f"model.max_length={race.size}", "task.new_tokens=1"]  # fmt: skip
    for split, lines in _splits(race, sizes.vocab_size).items():
        _write_lines(folder / f"{split}.txt", sizes.vocab_size, race.size - 1, lines)  # a token is behind each line
    return ["task=language_modeling", *network, f"model.num_layers={sizes.num_layers}", f"model.units={sizes.units}",
            f"dataset.train={folder / 'train.txt'}", f"dataset.val={folder / 'val.txt'}",
            f"dataset.vocab_size={sizes.vocab_size}", f"dataset.eval_batch_size={race.batch_size}"]  # fmt: skip


def _translation(race: Race, folder: Path) -> List[str]:
    """What trains a translator; pairs of texts of one length are written to `folder`."""
    sizes = TRANSFORMERS[race.network]
    for split, lines in _splits(race, sizes.vocab_size).items():
        for language in ("en", "de"):
            _write_lines(folder / f"{split}.{language}", sizes.vocab_size, race.size - 1, lines)  # one is special
    return ["task=translation", "dataset=parallel_text", "model=transformer", f"model.num_layers={sizes.num_layers}",
            "model.size=base", f"model.units={sizes.units}", f"model.hidden_size={sizes.hidden_size}",
            f"model.num_heads={sizes.num_heads}", f"model.dropout={sizes.dropout}", "model.tied=all",
            f"loss.label_smoothing={LABEL_SMOOTHING}", "optimizer=adam", f"optimizer.lr={LR}",
            f"optimizer.beta2={BETA2}", f"optimizer.epsilon={EPSILON}", f"dataset.train={folder / 'train'}",
            f"dataset.val={folder / 'val'}", f"dataset.vocab_size={sizes.vocab_size}",
            "dataset.batch_tokens=null"]  # fmt: skip


def _splits(race: Race, vocab_size: int) -> Dict[str, int]:
    """Lines of each split: what has all words and is enough for a run; and some batches."""
    some = 2 * race.batch_size
    return {"train": 2 * vocab_size // race.size + race.block_steps * (race.blocks + AHEAD) * race.batch_size + some,
            "val": some}  # fmt: skip


def _write_lines(path: Path, vocab_size: int, length: int, count: int) -> None:
    """So many lines of so many words: every word of the vocabulary, then random ones."""
    words = _words(vocab_size)
    path.write_text("".join(f"{' '.join(islice(words, length))}\n" for _ in range(count)))


def _words(vocab_size: int) -> Iterator[str]:
    names, random_ = [f"w{number}" for number in range(vocab_size - len(OWN_SPECIAL))], random.Random(0)
    yield from names
    while True:
        yield random_.choice(names)
