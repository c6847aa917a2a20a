"""Ten runs whose weights must be the same to the bit before and after a change that is meant to change no number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Tuple

from bench_parts.measured import Measured, Options, Target, say
from bench_parts.processes import ROOT, train
from bench_parts.start import commit_of

SMALL_RESNET = ["model=resnet", "model.depth=8", "model.width=4", "trainer.max_steps=12"]
WORKERS = ["cluster.workers=2", "model=mlp", "trainer.max_steps=30"]
RUNS: Dict[str, List[str]] = {
    "default": ["trainer.max_epochs=2", "trainer.max_steps=null"],
    "resnet hybrid": [*SMALL_RESNET, "parallel=hybrid", "parallel.devices=cpu:4"],
    "pipeline, accumulation, clipping, average": [
        *SMALL_RESNET, "parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=4",
        "trainer.grad_accumulation=2", "trainer.clip_global_norm=1.0", "trainer.ema_decay=0.9",
    ],
    "two workers, dist_sync": [*WORKERS, "kvstore=dist_sync"],
    "two workers, p3": [*WORKERS, "kvstore=p3"],
    "two workers, horovod": [*WORKERS, "kvstore=horovod"],
    "one worker, dist_async": ["kvstore=dist_async", "cluster.workers=1", "model=mlp", "trainer.max_steps=30"],
    "bfloat16": [*SMALL_RESNET, "amp=bfloat16"],
    "mixup and cutout": [*SMALL_RESNET, "dataset.augment.mixup=0.2", "dataset.augment.cutout=2"],
    "text": ["model=bert", "model.num_layers=2", "model.units=32", "model.hidden_size=64", "trainer.max_steps=12"],
    "masked_text": ["model=bert", "dataset=masked_text", "model.num_layers=2", "model.units=32",
                    "model.hidden_size=64", "trainer.max_steps=12"],
}  # fmt: skip
"""`masked_text` is the eleventh: the mean over hidden tokens may be defined anew."""
ENDS_WELL = (0, 75, 2)
"""2: a processor without bfloat16."""


def measure(options: Options) -> Measured:
    """The runs on this checkout and on that of `--before`; without one they are only recorded."""
    checkouts = {"now": ROOT, **({"before": Path(options.before).resolve()} if options.before else {})}
    found: Dict[str, Dict[str, Tuple[str, float]]] = {}
    for number, title in enumerate(["default"] if options.quick else RUNS):
        found[title] = {name: _run(options.work / f"{name}{number}", title, path) for name, path in checkouts.items()}
        say(f"  {title}: " + ", ".join(f"{name} {sha[:12]} {loss:.6g}" for name, (sha, loss) in found[title].items()))
    measured = Measured(notes=[
        "Each run once, with seed 0, in each checkout: SHA-256 of the weights in canonical form, and the loss of the "
        "last training step. The bits depend on the processor, so both are taken on the same machine.",
    ])  # fmt: skip
    measured.table = [["run", *(f"{name}: weights, last loss" for name in checkouts)]]
    for title, values in found.items():
        measured.table.append([title, *(f"`{sha[:16]}`, {loss!r}" for sha, loss in values.values())])
    measured.details = {"commands": {title: RUNS[title] for title in found}, "found": found}
    if options.before:
        measured.notes.append(f"Before: commit {commit_of(checkouts['before'])}.")
        others = [title for title, values in found.items() if len(set(values.values())) > 1]
        measured.details["differ"] = others
        measured.targets.append(Target("runs whose weights or losses differ", float(len(others)), 0, at_least=False))
    return measured


def _run(folder: Path, title: str, checkout: Path) -> Tuple[str, float]:
    run_dir = train(RUNS[title], folder, ENDS_WELL, {"PYTHONPATH": str(checkout)})
    if not (run_dir / "status.json").exists():
        return "refused on this machine", 0.0
    status = json.loads((run_dir / "status.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return status["weights_sha256"], [row["loss"] for row in rows if row["split"] == "train"][-1]
