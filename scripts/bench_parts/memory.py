"""Peak memory of `eval`, `predict` and training beside a plain Gluon loop and PyTorch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from bench_parts import files
from bench_parts.harness import (
    ENDS_WELL,
    Measured,
    Options,
    call_of,
    callback,
    mxtrain_arguments,
    run,
    same_threads_environment,
    say,
    tuned_environment,
    untouched_environment,
)
from bench_parts.parts import (
    DTYPES,
    LANGUAGE_RACES,
    QUICK_LANGUAGE_RACES,
    QUICK_RACES,
    RACES,
    Detector,
    Race,
    language_overrides,
    race_overrides,
)
from bench_parts.records import Records

BATCHES = 3
"""Batches that are evaluated or predicted, and steps of training."""
GROSS, NET = "peak", "peak less imports"
SSD = Race("SSD-512, MobileNet, batch 8", "ssd", 512, 8, 1, 1, None, None)
QUICK = ("resnet20", "gpt_tiny")
EVALUATED = ("resnet50", "bert_base", "gpt2", "ssd", *QUICK)
TRAINED = ("resnet50", "densenet121", "bert_base", "gpt2", "transformer_base", *QUICK)


@dataclass(frozen=True)
class Process:
    """A process whose memory is measured.

    Attributes:
        arguments: a module and its arguments.
        environment: its environment.
        python: its interpreter; "": this one.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    python: str = ""

    def measure(self, folder: Path) -> Dict[str, float]:
        """Returns MiB at most, and the same less the memory that its imports took."""
        given: Dict[str, Any] = {"python": self.python} if self.python else {}
        noted = folder / "noted"
        noted.unlink(missing_ok=True)
        call = ["-m", "bench_parts.memory_side", str(noted), *self.arguments]
        run(call, self.environment, folder, ENDS_WELL, **given)
        found = json.loads(noted.read_text())
        return {GROSS: found["peak_MiB"], NET: found["peak_MiB"] - found["imports_MiB"]}


def _cases(options: Options) -> List[Race]:
    known = (*QUICK_RACES, *QUICK_LANGUAGE_RACES) if options.quick else (*RACES, *LANGUAGE_RACES, SSD)
    chosen = [
        one for one in known if one.network in EVALUATED + TRAINED and (options.quick or one.network not in QUICK)
    ]
    return [replace(one, steps=1, blocks=1) for one in chosen if options.only.lower() in one.name.lower()]


def measure(options: Options) -> Measured:
    """Measures all sides of a network one after the other; processes in `options.records` are not measured again."""
    found = Measured()
    records = Records(options)
    for one in _cases(options):
        for amp, dtype in DTYPES.items():
            folder = options.work / f"{one.network}-{amp}"
            folder.mkdir()
            title, sides = f"{one.name}, {dtype}", dict(_sides(one, amp, dtype, options, folder))
            missing = [name for name in sides if f"{title}: {name}" not in records]
            if {OURS_EVAL, OURS_PREDICT, GLUON} & {*missing}:
                missing = [OURS_TRAIN, *(name for name in missing if name != OURS_TRAIN)]  # they read its run
            for name in missing:
                records.add(f"{title}: {name}", sides[name].measure(folder))
            figures = {name: records.get(f"{title}: {name}") for name in sides}
            for name, one_side in figures.items():
                say(f"  {title}: {name}: " + ", ".join(f"{kind} {value:.0f} MiB" for kind, value in one_side.items()))
                for kind, value in one_side.items():
                    found.add(f"{title}: {name}, {kind}", "MiB", [value])
            if dtype == "float32":
                gluon = figures.get(GLUON)
            _compare(found, title, figures, gluon)
    return found


OURS_TRAIN, OURS_EVAL, OURS_PREDICT = "mxtrain, training", "mxtrain eval", "mxtrain predict"
GLUON, TORCH_TRAIN, TORCH_EVAL = "Gluon loop, evaluation", "PyTorch, training", "PyTorch, evaluation"


def _compare(
    found: Measured, title: str, sides: Mapping[str, Mapping[str, float]], gluon: Optional[Mapping[str, float]]
) -> None:
    def limit(ours: str, theirs: Optional[Mapping[str, float]], kind: str, most: float, name: str) -> None:
        if ours in sides and theirs is not None:
            found.at_most(f"{title}: {kind}, {ours} / {name}", sides[ours][kind] / theirs[kind], most)

    for ours in (OURS_EVAL, OURS_PREDICT):
        limit(ours, gluon, GROSS, 1.1, f"{GLUON}, float32")
        limit(ours, sides.get(TORCH_EVAL), NET, 1.0, TORCH_EVAL)
    limit(OURS_TRAIN, sides.get(TORCH_TRAIN), GROSS, 1.0, TORCH_TRAIN)


def _sides(one: Race, amp: str, dtype: str, options: Options, folder: Path) -> Iterator[Tuple[str, Process]]:
    """Yields the sides in the order in which they run: ours evaluates the network that it trained."""
    given = [*_overrides(one, amp, folder), f"dataset.eval_batch_size={one.batch_size}"]
    noted, run_dir = folder / "noted", folder / "run"
    ours = untouched_environment()
    # Rows are read three steps after they were queued.
    few = [f"trainer.max_steps={BATCHES + 2}", "trainer.limit_val_batches=1", "trainer.test=false"]
    training = [*given, *few, *callback("StepsNoted", path=noted)]
    yield OURS_TRAIN, Process(mxtrain_arguments(training, run_dir)[1:], ours)
    if one.network in EVALUATED:
        words = [str(run_dir), "which=last", "split=train"]
        samples = BATCHES * one.batch_size
        yield OURS_EVAL, Process(["mxtrain", "eval", *words, f"limit_batches={BATCHES}"], ours)
        words = ["mxtrain", "predict", *words, f"sample={samples}", f"output={folder / 'predicted.jsonl'}"]
        yield OURS_PREDICT, Process(words, ours)
        if dtype == "float32":
            loop: Sequence[Any] = (one.network, one.size, one.batch_size, BATCHES, run_dir)
            yield GLUON, Process(call_of("own_side:evaluate_with_gluon", 0, loop)[1:], tuned_environment())
    if options.torch_python:
        for work, name, networks in (("train", TORCH_TRAIN, TRAINED), ("eval", TORCH_EVAL, EVALUATED)):
            if one.network in networks:
                steps: Sequence[Any] = (one.network, one.size, one.batch_size, dtype, work, BATCHES)
                call = call_of("torch_side:make_steps", 0, steps)[1:]
                yield name, Process(call, same_threads_environment(), options.torch_python)


def _overrides(one: Race, amp: str, folder: Path) -> List[str]:
    if one.network == "ssd":
        files.write_detection(folder / "VOCdevkit", one.batch_size * (BATCHES + 4))
        detector = Detector("ssd", "ssd_512_mobilenet1.0", one.size, one.batch_size, 1)
        return [*detector.given(folder / "VOCdevkit"), f"amp={amp}"]
    if one.is_language:
        return language_overrides(one, amp, folder)
    # Images in memory count as the process's own, so there are no more than are needed.
    few = [] if one.network.startswith("bert") else [f"dataset.num_samples={one.batch_size * (BATCHES + 4) * 2}"]
    return [*race_overrides(one, amp, folder), *few]
