"""Channel pruning against the small network trained from scratch, on three seeds."""

from __future__ import annotations

import contextlib
import io
import shlex
import statistics
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from bench_parts.harness import Measured, Options, say

SEEDS = 3
NETWORKS: Dict[str, Tuple[int, List[str]]] = {
    "LeNet": (12, ["model=lenet"]),
    "ResNet-14, half width": (40, ["model=resnet", "model.depth=14", "model.width=0.5"]),
}
"""Name -> epochs and overrides."""
PRUNING = ("callback=prune_channels", "callback.prune_channels.share=0.5", "callback.prune_channels.multiple_of=8")
WAYS = ("large network", "pruned", "widths of the pruned one, from scratch")
SPLITS = ("val", "test")


def measure(options: Options) -> Measured:
    """Accuracy of the last weights on the samples that no run trains with, parameters and FLOPs."""
    found = Measured()
    for name, (epochs, words) in NETWORKS.items():
        rows: Dict[str, List[float]] = {}
        for seed in range(1 if options.quick else SEEDS):
            folder = Path(tempfile.mkdtemp(dir=options.work))
            for quantity, value in measure_seed(folder, words, seed, 2 if options.quick else epochs).items():
                rows.setdefault(quantity, []).append(value)
                say(f"  {name}, seed {seed}, {quantity}: {value:.4f}")
        for quantity, values in rows.items():
            found.add(f"{name}: {quantity}", "fraction" if "accuracy" in quantity else "", values)
    return found


def measure_seed(folder: Path, words: Sequence[str], seed: int, epochs: int) -> Mapping[str, float]:
    """Trains a network in all ways. Returns quantity -> value."""
    import mxtrain
    from mxtrain.cli import main
    from mxtrain.model.graph.summary import summarize

    common = [*words, f"trainer.seed={seed}", f"trainer.max_epochs={epochs}", "early_stopping=off", "logger=jsonl"]
    large, pruned, slim, small = (folder / name for name in ("large", "pruned", "slim", "small"))
    mxtrain.train(*common, dir=large)
    mxtrain.train(*common, *PRUNING, dir=pruned)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if main(["slim", str(pruned), "which=last", f"out={slim}"]) != 0:
            raise RuntimeError(f"slim failed: {said.getvalue()}")
    (widths,) = (word for word in shlex.split(said.getvalue()) if word.startswith("model.widths="))
    mxtrain.train(*common, widths, dir=small)
    found: Dict[str, float] = {}
    for way, run_dir in zip(WAYS, (large, slim, small)):
        run = mxtrain.load(run_dir, which="last")
        # Both splits have 270 samples.
        found[f"accuracy, {way}"] = statistics.mean(run.evaluate(split=split)["accuracy"] for split in SPLITS)
        summary = summarize(run.network, run.signature.shape)
        found[f"parameters, {way}"], found[f"FLOPs, {way}"] = summary.parameters, summary.flops or 0
    return found
