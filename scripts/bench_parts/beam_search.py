"""Beam search: sentences per second against GluonNLP's network and sampler, and the same tokens in every batch."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict

from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import run, same_threads_environment

BATCH_SIZE, SENTENCES, REPETITIONS = 64, 500, 3
BATCH_SIZES = (1, 8, 64)
QUICK = ["trainer.max_epochs=1", "trainer.limit_train_batches=4", "model.num_layers=1", "model.units=32",
         "model.hidden_size=64", "model.num_heads=2", "task.max_length_offset=10"]  # fmt: skip
MIN_OF_SINGLE, MIN_OF_SAMPLER, MIN_OF_NETWORK = 2.0, 2.0, 3.0
"""Of one sentence at a time, of GluonNLP's sampler with our network, and of GluonNLP's own network."""
MIN_SAME = 0.99
"""Share of the sentences for which GluonNLP's own network finds the same tokens: else it is another network."""


def measure(options: Options) -> Measured:
    """Trains task=translation once, with norms where GluonNLP has them, then translates its test split in turns."""
    train = QUICK if options.quick else []
    run_dir, count = options.work / "run", 12 if options.quick else SENTENCES
    train = [*train, "task=translation", "model.norm_first=false", "trainer.test=false", f"hydra.run.dir={run_dir}"]
    run(["-m", "mxtrain", *train], same_threads_environment(), options.work)

    details: Dict[str, Dict[str, Any]] = {}

    def speed(name: str, batch_size: int) -> float:
        found = _side(options.work, run_dir, name, batch_size, count)
        details.setdefault(str(batch_size) if name == "ours" else name, found)
        return float(found["sentences_per_s"])

    speed("ours", BATCH_SIZES[1])
    sides = {"ours": lambda _: speed("ours", BATCH_SIZE), "single": lambda _: speed("ours", 1)}
    if find_spec("gluonnlp") is not None:
        for name in ("gluonnlp", "gluonnlp_network"):
            sides[name] = lambda _, name=name: speed(name, BATCH_SIZE)
    found = in_turn(sides, 1 if options.quick else REPETITIONS)
    measured = Measured(details=details)
    titles = {"ours": f"mxtrain, {BATCH_SIZE} sentences at a time", "single": "mxtrain, one sentence at a time",
              "gluonnlp": f"GluonNLP's BeamSearchSampler with mxtrain's network, {BATCH_SIZE} at a time",
              "gluonnlp_network": f"GluonNLP's network and BeamSearchSampler, {BATCH_SIZE} at a time"}  # fmt: skip
    for name, values in found.items():
        measured.series.append(Series(titles[name], "sentences/s", values))
    measured.compare(f"{BATCH_SIZE} sentences at a time / one", found["ours"], found["single"], MIN_OF_SINGLE)
    largest = details[str(BATCH_SIZE)]["found"]
    for size in BATCH_SIZES[:-1]:
        same = sum(a == b for a, b in zip(details[str(size)]["found"], largest)) / len(largest)
        title = f"share of sentences with the same tokens, {size} at a time and {BATCH_SIZE}"
        measured.targets.append(Target(title, same, 1.0, at_least=True))
    if "gluonnlp" in found:
        measured.compare("mxtrain / GluonNLP's network", found["ours"], found["gluonnlp_network"], MIN_OF_NETWORK)
        measured.compare("mxtrain / GluonNLP's sampler", found["ours"], found["gluonnlp"], MIN_OF_SAMPLER)
        same = {
            name: sum(a == b for a, b in zip(details[name]["found"], largest)) / len(largest)
            for name in ("gluonnlp", "gluonnlp_network")
        }
        title = "share of sentences with the same tokens, GluonNLP's network and mxtrain"
        measured.targets.append(Target(title, same["gluonnlp_network"], MIN_SAME, at_least=True))
        measured.notes.append(f"GluonNLP's sampler with mxtrain's network: the same tokens for {same['gluonnlp']:.1%}.")
    else:
        measured.notes.append("GluonNLP is not installed here (pip install gluonnlp==0.10.0): it was not measured.")
    measured.notes.append(
        f"{count} sentences of the test split of task=translation with model.norm_first=false, short ones first, beams "
        "of 4, alpha 0.6. GluonNLP's network has the trained weights and is used as its translation script does: its "
        "decoder reads the whole prefix again at each step. GluonNLP's sampler is also measured with the step of "
        "mxtrain's network, which remembers keys and values, so that only the searches differ (target 2)."
    )
    return measured


def _side(work: Path, run_dir: Path, side: str, batch_size: int, count: int) -> Dict[str, Any]:
    arguments = [str(run_dir), side, str(batch_size), str(count)]
    done = run(["-m", "bench_parts.beam_search_side", *arguments], same_threads_environment(), work)
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
