"""DeepAR of mxtrain and of GluonTS on the same series: speed of training, and quality of the forecasts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Dict, List

from bench_parts.harness import ENDS_WELL, Measured, Options, status_of, train
from bench_parts.seeded_runs import OURS, Score, ask_theirs, compare_runs, steps_per_epoch, train_ours

EPOCHS = 4
HORIZON, CONTEXT, BATCH_SIZE, LR = 24, 168, 64, 0.003
THEIRS = "GluonTS"


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

    def ours(seed: int) -> Dict[str, float]:
        given = [*_overrides(path), f"trainer.max_epochs={epochs}"]
        run_dir, speeds = train_ours(options, given, seed, batches * BATCH_SIZE)
        return {**speeds, "crps": status_of(run_dir)["metrics"]["test/crps"]}

    def theirs(seed: int) -> Dict[str, float]:
        told: Dict[str, float] = ask_theirs(
            options, "gluonts_side:train", path, seed, epochs, batches, BATCH_SIZE, HORIZON, CONTEXT, LR
        )
        return told

    score = Score("crps", "CRPS of the test windows", "relative", -1)
    found = compare_runs(options, {OURS: ours, THEIRS: theirs}, [score], "samples", 1.2)
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
    return steps_per_epoch(train([*_overrides(path), "trainer.max_steps=1"], folder, exit_codes=ENDS_WELL))
