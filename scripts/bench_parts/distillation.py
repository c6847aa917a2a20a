"""Distillation where it helps: few labels and many samples without, against the same network on the labels alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import numpy as np

from bench_parts.harness import Measured, Options, say

LABELLED, TESTED, SEEDS, STEPS = 100, 450, 5, 800
TEACHER, STUDENT = (256, 256), (16,)
WAYS = (
    "teacher, labelled samples",
    "student, labelled samples",
    "student, teacher's outputs for labelled samples",
    "student, teacher's outputs for all samples, no labels",
)
MIN_GAIN = 0.01
Samples = Tuple[np.ndarray, np.ndarray]


def measure(options: Options) -> Measured:
    """Test accuracies of five seeds; each seed draws the test, labelled and unlabelled digits anew."""
    from mxtrain.data.digits import read_digits

    image_N1HW, label_N = read_digits()
    input_NP = image_N1HW.reshape(len(image_N1HW), -1).astype(np.float32) / 255
    accuracies: Dict[str, List[float]] = {way: [] for way in WAYS}
    for seed in range(1 if options.quick else SEEDS):
        order = np.random.default_rng(seed).permutation(len(input_NP))
        tested, trained = order[:TESTED], order[TESTED:]
        few, every = trained[:LABELLED], trained
        folder = Path(tempfile.mkdtemp(dir=options.work))
        test = (input_NP[tested], label_N[tested])
        labelled = (input_NP[few], label_N[few])
        # Labels are not looked at: each is the wrong one.
        unlabelled = (input_NP[every], (label_N[every] + 1) % 10)
        taught = (
            f"distillation.teacher={folder / '0'}",
            "distillation.which=last",
            "distillation.temperature=2",
            "distillation.trust_code=true",
        )
        steps = 30 if options.quick else STEPS
        runs: Dict[str, Tuple[Samples, Sequence[int], Sequence[str]]] = {
            WAYS[0]: (labelled, TEACHER, ["model.dropout=0.3"]),
            WAYS[1]: (labelled, STUDENT, []),
            WAYS[2]: (labelled, STUDENT, taught),
            WAYS[3]: (unlabelled, STUDENT, [*taught, "distillation.labels=false"]),
        }
        for number, (way, (data, hidden, overrides)) in enumerate(runs.items()):
            accuracy = train(folder / str(number), data, test, hidden, steps, [*overrides, f"trainer.seed={seed}"])
            accuracies[way].append(accuracy)
            say(f"  seed {seed} {way}: {accuracy:.4f}")
    found = Measured()
    for way, values in accuracies.items():
        found.add(f"test accuracy: {way}", "fraction", values)
    alone, all_samples = accuracies[WAYS[1]], accuracies[WAYS[3]]
    gains = [one - other for one, other in zip(all_samples, alone)]
    found.add("gain by the unlabelled samples, seed by seed", "fraction", gains)
    found.at_least("distillation: median gain of a student with 100 labels", float(np.median(gains)), MIN_GAIN)
    return found


def train(
    run_dir: Path, data: Samples, test: Samples, hidden: Sequence[int], steps: int, overrides: Sequence[str]
) -> float:
    """The accuracy of the last weights on the test samples."""
    import mxtrain

    batch_size = 50
    epochs = max(1, round(steps / -(-len(data[0]) // batch_size)))
    run = mxtrain.train(
        f"trainer.max_epochs={epochs}",
        f"trainer.val_interval={epochs}",
        f"dataset.batch_size={batch_size}",
        f"model.hidden=[{','.join(map(str, hidden))}]",
        "optimizer.lr=0.01",
        "early_stopping=off",
        "logger=jsonl",
        *overrides,
        dir=run_dir,
        model="mlp",
        dataset=(data, test),
    )
    return float(run.metrics["val/accuracy"])
