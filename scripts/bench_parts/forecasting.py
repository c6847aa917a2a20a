"""DeepAR of mxtrain and of GluonTS on the same series: speed of training, and quality of the forecasts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Callable, Dict, List

from bench_parts.harness import ENDS_WELL, Measured, Options, ask, in_turn, same_threads_environment, status_of, train

SEEDS, EPOCHS = 5, 5
HORIZON, CONTEXT, BATCH_SIZE, LR = 24, 168, 64, 0.003
OURS, THEIRS = "mxtrain", "GluonTS"


def write_series(path: Path) -> int:
    """Writes the generated hourly demand of dataset=time_series as lines of JSON; returns the number of series."""
    from mxtrain.forecasting.series_table import generate_demand

    lines = [
        {
            "item_id": one.name,
            "start": "2024-01-01 00:00:00",
            "target": [round(float(value), 4) for value in one.target_T],
            "cat": [number],
        }
        for number, one in enumerate(generate_demand(0).series)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return len(lines)


def measure(options: Options) -> Measured:
    """Trains both with the same seeds, batches and learning rate, in turn."""
    path = options.work / "demand.jsonl"
    write_series(path)
    epochs = 1 if options.quick else EPOCHS
    batches = _batches_per_epoch(options, path)

    def ours(seed: int) -> Any:
        folder = Path(tempfile.mkdtemp(dir=options.work))
        status = status_of(train([*_overrides(path), f"trainer.max_epochs={epochs}", f"trainer.seed={seed}"], folder))
        return {"samples_per_s": status["samples_per_s"], "crps": status["metrics"]["test/crps"]}

    def theirs(seed: int) -> Any:
        folder = Path(tempfile.mkdtemp(dir=options.work))
        arguments = (str(path), seed, epochs, batches, BATCH_SIZE, HORIZON, CONTEXT, LR)
        environment = same_threads_environment()
        return ask(
            "gluonts_side:train", *arguments, environment=environment, folder=folder, python=options.torch_python
        )

    sides: Dict[str, Callable[[int], Any]] = {OURS: ours, THEIRS: theirs}
    found, measured = Measured(), in_turn(sides, 1 if options.quick else options.turns or SEEDS)
    speeds: Dict[str, List[float]] = {name: [run["samples_per_s"] for run in runs] for name, runs in measured.items()}
    scores: Dict[str, List[float]] = {name: [run["crps"] for run in runs] for name, runs in measured.items()}
    for name in sides:
        found.add(f"{name}: training", "samples/s", speeds[name])
        found.add(f"{name}: CRPS of the test windows", "relative", scores[name])
    found.compare("training: mxtrain / GluonTS", speeds[OURS], speeds[THEIRS], 1.2)
    deviation = stdev(scores[THEIRS]) if len(scores[THEIRS]) > 1 else 0.0
    excess = mean(scores[OURS]) - mean(scores[THEIRS])
    found.at_most("mean CRPS, mxtrain minus GluonTS, less one deviation of GluonTS's seeds", excess - deviation, 0.0)
    found.details = {"batches of an epoch": batches, "epochs": epochs}
    return found


def _overrides(path: Path) -> List[str]:
    return [
        "task=forecasting",
        "model=deepar",
        "dataset=deepar_lines",
        f"dataset.path={path}",
        "dataset.frequency=h",
        f"dataset.horizon={HORIZON}",
        f"dataset.context={CONTEXT}",
        f"dataset.batch_size={BATCH_SIZE}",
        f"optimizer.lr={LR}",
    ]


def _batches_per_epoch(options: Options, path: Path) -> int:
    folder = Path(tempfile.mkdtemp(dir=options.work))
    run_dir = train([*_overrides(path), "trainer.max_steps=1"], folder, exit_codes=ENDS_WELL)
    return int(json.loads((run_dir / "meta.json").read_text())["steps_per_epoch"])
