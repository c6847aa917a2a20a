"""Small run directories, and how a resumed run, `eval` and `predict` read their files."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Dict

import numpy as np

from fuzz_parts.file_formats import Read, agree, fmt

STEP = "checkpoints/step-00000006"
SMALL = ("model=mlp", "model.hidden=[8]", "trainer.max_epochs=2", "logger=[default,csv]")


@functools.lru_cache(maxsize=1)
def _composed() -> str:
    from mxtrain.composing.composer import Composer

    with Composer() as composer:
        return json.dumps(composer.compose(list(SMALL)).config)


def description() -> Dict[str, Any]:
    """The description of a small run, as plain nested dicts."""
    return dict(json.loads(_composed()))


def write_run(folder: Path) -> Path:
    """A finished run in `folder/run`; its only checkpoint is of step 6."""
    from mxtrain.checkpoint import Snapshot
    from mxtrain.checkpoint.contents import write_contents

    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    given = {
        "shape": [1, 8, 8],
        "mean": [0.0],
        "std": [1.0],
        "class_names": ["a", "b"],
        "decoding": {"shape": [1, 8, 8], "central_crop": 1.0},
    }
    state = {
        "run": {
            "description": description(),
            "input": given,
            "workers": 1,
            "batch_size": 4,
            "cut_before": [],
            "threads": "1",
            "own_operators": "none",
            "updates": False,
        },
        "train": {
            "step": 6,
            "epoch": 2,
            "epoch_step": 0,
            "epoch_sums": [],
            "window_sums": [],
            "validated_step": 6,
            "values": {},
            "unmoved": {},
            "validation_due": False,
            "best": None,
            "early_stopping": {},
        },
        "optimizer": {"update_counts": {}, "attributes": {}, "cum_counts": {}},
    }
    write_contents(Snapshot(6, 2, {"model": {"w": np.ones((3, 4), "float32")}}, state, 0.5), run / STEP)
    best = {"metric": "val/accuracy", "value": 0.5, "step": 6}
    status = {
        "state": "finished",
        "exit_code": 0,
        "cause": "",
        "epoch": 2,
        "step": 6,
        "best": best,
        "metrics": {},
        "checkpoint": STEP,
        "weights_sha256": "0" * 64,
        "samples_per_s": 5.5,
    }
    (run / "status.json").write_text(json.dumps(status))
    (run / "meta.json").write_text(json.dumps({"argv": ["mxtrain"], "working_folder": "/nowhere", "host": "x"}))
    return run


def _read_as_eval(run: Path) -> None:
    from mxtrain.composing.restored import restore

    restore(run)


def _read_as_resumed(run: Path) -> None:
    from mxtrain.checkpoint import CheckpointStore
    from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
    from mxtrain.training.resume import find_checkpoint, find_end, find_finished, read_end

    RunDirRollback(run)
    config = description()
    read_end(run, "finished", 6, "0" * 64)
    find_finished(run, config)
    store = CheckpointStore(run / "checkpoints", keep_last=1, keep_top=0, report=lambda text: None)
    try:
        find_end(run, config, find_checkpoint("auto", store, config))
    finally:
        store.close()


@fmt("checkpoint description")
def _description(folder: Path) -> Read:
    run = write_run(folder)
    for name in ("status.json", "meta.json"):
        (run / name).unlink()

    def read() -> None:
        agree(run / STEP)
        _read_as_eval(run)
        _read_as_resumed(run)

    return read


@fmt("run directory")
def _run_directory(folder: Path) -> Read:
    run = write_run(folder)
    before = {path: path.read_bytes() for path in (run / STEP).iterdir()}
    (run / ".hydra").mkdir()
    (run / ".hydra/overrides.yaml").write_text("".join(f"- {word}\n" for word in SMALL))
    for name in ("config.yaml", "hydra.yaml"):
        (run / ".hydra" / name).write_text(json.dumps(description(), indent=1))

    def read() -> None:
        (run / STEP).mkdir(exist_ok=True)
        for path, content in before.items():  # the format above damages these
            if path.is_file() and not path.is_symlink():
                path.write_bytes(content)
        _read_as_resumed(run)
        _read_as_eval(run)

    return read


@fmt("rows of metrics")
def _rows(folder: Path) -> Read:
    rows = [
        {
            "step": n,
            "epoch": n // 3,
            "split": "train",
            "loss": 1.5 / n,
            "accuracy": 0.5,
            "lr": 0.1,
            "samples_per_s": 100.0,
        }
        for n in range(1, 9)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "metrics.csv").write_text("".join(f"{line}\n" for line in lines))

    def read() -> None:
        from mxtrain.callback.protocol import Result, RunInfo
        from mxtrain.errors import MxtrainError
        from mxtrain.logger.csv import CsvLogger
        from mxtrain.logger.jsonl import JsonlLogger

        refused = []
        for logger in (JsonlLogger("metrics.jsonl"), CsvLogger("metrics.csv")):
            try:
                logger.on_start(RunInfo(folder, {}, 4, None, 3, (1, 8, 8), None, ["accuracy"]))
                logger.on_end(Result("finished", 0, "", step=6, epoch=2))
            except MxtrainError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    return read
