"""Beam search: sentences per second against GluonNLP's sampler, and the same tokens whoever shares a batch."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict

from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import run, same_threads_environment

BATCH_SIZE, SENTENCES, REPETITIONS = 64, 500, 3
BATCH_SIZES = (1, 8, 64)
MIN_RATIO, MIN_OF_SINGLE = 3.0, 2.0
"""Of GluonNLP's sampler, and of one sentence at a time."""


def measure(options: Options) -> Measured:
    """Trains the default of task=translation once, then translates its test split in turns."""
    train = ["trainer.max_epochs=1", "trainer.limit_train_batches=4"] if options.quick else []
    run_dir, count = options.work / "run", 12 if options.quick else SENTENCES
    where = [f"hydra.run.dir={run_dir}", "trainer.test=false"]
    run(["-m", "mxtrain", "task=translation", *train, *where], same_threads_environment(), options.work)

    def side(name: str, batch_size: int) -> Dict[str, Any]:
        return _side(options.work, run_dir, name, batch_size, count)

    details = {str(size): side("ours", size) for size in BATCH_SIZES}
    sides = {"ours": lambda _: side("ours", BATCH_SIZE)["sentences_per_s"],
             "single": lambda _: side("ours", 1)["sentences_per_s"]}  # fmt: skip
    if find_spec("gluonnlp") is not None:
        details["gluonnlp"] = side("gluonnlp", BATCH_SIZE)
        sides["gluonnlp"] = lambda _: side("gluonnlp", BATCH_SIZE)["sentences_per_s"]
    found = in_turn(sides, 1 if options.quick else REPETITIONS)
    measured = Measured(details=details)
    titles = {"ours": f"mxtrain, {BATCH_SIZE} sentences at a time", "single": "mxtrain, one sentence at a time",
              "gluonnlp": f"GluonNLP's BeamSearchSampler, {BATCH_SIZE} at a time"}  # fmt: skip
    for name, values in found.items():
        measured.series.append(Series(titles[name], "sentences/s", values))
    measured.compare(f"{BATCH_SIZE} sentences at a time / one", found["ours"], found["single"], MIN_OF_SINGLE)
    largest = details[str(BATCH_SIZE)]["found"]
    for size in BATCH_SIZES[:-1]:
        same = sum(a == b for a, b in zip(details[str(size)]["found"], largest)) / len(largest)
        title = f"share of sentences with the same tokens, {size} at a time and {BATCH_SIZE}"
        measured.targets.append(Target(title, same, 1.0, at_least=True))
    if "gluonnlp" in found:
        measured.compare("mxtrain / GluonNLP's sampler", found["ours"], found["gluonnlp"], MIN_RATIO)
        same = sum(a == b for a, b in zip(details["gluonnlp"]["found"], largest)) / len(largest)
        measured.notes.append(f"GluonNLP's sampler finds the same tokens for {same:.1%} of the sentences.")
    else:
        measured.notes.append("GluonNLP is not installed here (pip install gluonnlp==0.10.0): it was not measured.")
    measured.notes.append(
        f"{count} sentences of the test split of task=translation, short ones first, beams of 4, alpha 0.6. Both sides "
        "ask the same network, which remembers keys and values; GluonNLP's own decoder, which reads the whole prefix "
        "again at each step, would be slower."
    )
    return measured


def _side(work: Path, run_dir: Path, side: str, batch_size: int, count: int) -> Dict[str, Any]:
    arguments = [str(run_dir), side, str(batch_size), str(count)]
    done = run(["-m", "bench_parts.beam_search_side", *arguments], same_threads_environment(), work)
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
